//! Carrying sessions on: continuations, attachments, operations and their effects.
use crate::capture::{messages, session};
use crate::team::{Got, Publisher, Team};
use serde_json::{Value as Json, json};
use teamplane::auth::Role;
use teamplane::limits::DAY_MS;

struct World {
    team: Team,
    /// Published the session; restricted.
    home: Publisher,
    /// Another member's machine.
    away: Publisher,
    owner_of_home: String,
    session: String,
}

fn world() -> World {
    let team = Team::new();
    let ada = team.person("ada", Role::Member);
    let home = team.publisher_of(&ada.id, "home");
    let away = team.publisher("away");
    let session = session(&team.publish(&home.token, "n1", &messages(0, 2, "hello")));
    World { team, home, away, owner_of_home: ada.token, session }
}

impl World {
    fn ask(&self, body: Json) -> Got {
        let path = format!("/sessions/{}/continuations", self.session);
        self.team.post(&self.owner_of_home, &path, body)
    }
    fn id(&self, body: Json) -> String {
        self.ask(body).data(201)["id"].as_str().unwrap().to_owned()
    }
    fn step(&self, token: &str, id: &str, step: &str, body: Json) -> Got {
        self.team.post(token, &format!("/continuations/{id}{step}"), body)
    }
    fn beat(&self, machine: &Publisher, sequence: i64, bindings: Json) -> Got {
        let body = json!({ "incarnation_id": "i1", "sequence": sequence, "bindings": bindings,
                           "roots": [] });
        self.team.post(&machine.token, &format!("/machines/{}/heartbeat", machine.machine_id), body)
    }
}

#[test]
fn a_continuation_goes_from_pending_over_accepted_to_completed() {
    let w = world();
    let id =
        w.id(json!({ "machine_id": w.away.machine_id, "prompt": "go on", "harness": "codex" }));
    let got = w.team.get(&w.away.token, &format!("/continuations/{id}"));
    let made = got.data(200);
    assert_eq!(made["state"], "pending");
    assert_eq!(made["value"]["prompt"], "go on");
    assert_eq!(w.team.last_event().2["state"], "pending");
    // Not before it is accepted.
    let early = w.step(&w.away.token, &id, "/complete", json!({ "state": "completed" }));
    assert_eq!(early.refusal(), (409, "conflict", ""));
    assert_eq!(w.step(&w.away.token, &id, "/accept", json!({})).data(200)["state"], "accepted");
    let marks = w.team.marks();
    assert_eq!(w.step(&w.away.token, &id, "/accept", json!({})).data(200)["revision"], 2);
    assert_eq!(w.team.marks(), marks);

    // The machine carries the session on, though its custodian sees nothing of it.
    let begin = json!({ "harness": "codex", "native_id": "n2", "continuation_id": id });
    let carried = w.team.publish_with(&w.away.token, begin, &messages(0, 3, "hello"));
    assert_eq!(session(&carried), w.session);

    let done = json!({ "state": "completed", "session_id": w.session, "receipt": { "n": 1.10 } });
    let got = w.step(&w.away.token, &id, "/complete", done.clone());
    assert_eq!(got.data(200)["value"]["session_id"], json!(w.session));
    assert!(got.data(200)["settled_at"].is_i64());
    let marks = w.team.marks();
    assert_eq!(w.step(&w.away.token, &id, "/complete", done).status, 200);
    let other = w.step(&w.away.token, &id, "/complete", json!({ "state": "failed" }));
    assert_eq!(other.refusal(), (409, "conflict", ""));
    assert_eq!(w.step(&w.away.token, &id, "/accept", json!({})).refusal().0, 409);
    assert_eq!(w.team.marks(), marks);
    let current = "SELECT count(*) FROM event_resources WHERE resource_kind = 'continuation'";
    assert_eq!(w.team.count(current), 0);
}

#[test]
fn only_its_machine_takes_a_continuation_and_any_takes_one_of_nobody() {
    let w = world();
    let given = w.id(json!({ "machine_id": w.away.machine_id }));
    let open = w.id(json!({}));
    let got = w.step(&w.home.token, &given, "/accept", json!({}));
    assert_eq!(got.refusal(), (403, "forbidden", ""));
    // A machine whose custodian does not see the session does not know of it.
    assert_eq!(w.step(&w.away.token, &open, "/accept", json!({})).refusal().0, 404);
    assert_eq!(w.step(&w.owner_of_home, &open, "/accept", json!({})).refusal().0, 403);
    let got = w.step(&w.home.token, &open, "/accept", json!({}));
    assert_eq!(got.data(200)["machine_id"], json!(w.home.machine_id));
    // Of an open one, the session is bound only by who may carry it on.
    let other = w.id(json!({}));
    let begin = json!({ "harness": "codex", "native_id": "n2", "continuation_id": other });
    assert_eq!(w.team.post(&w.away.token, "/captures", begin).refusal().0, 404);
}

#[test]
fn of_two_machines_that_accept_at_once_one_wins() {
    let w = world();
    let second = w.team.publisher_of(&w.home.custodian_id, "second");
    let id = w.id(json!({}));
    assert_eq!(w.step(&second.token, &id, "/accept", json!({})).status, 200);
    let marks = w.team.marks();
    assert_eq!(w.step(&w.home.token, &id, "/accept", json!({})).refusal(), (409, "conflict", ""));
    let got = w.step(&w.home.token, &id, "/complete", json!({ "state": "failed" }));
    assert_eq!(got.refusal(), (403, "forbidden", ""));
    assert_eq!(w.team.marks(), marks);
}

#[test]
fn a_continuation_runs_out_after_a_day() {
    let w = world();
    let id = w.id(json!({ "machine_id": w.away.machine_id }));
    w.team.advance(DAY_MS - 1);
    assert_eq!(w.step(&w.away.token, &id, "/accept", json!({})).status, 200);
    w.team.advance(DAY_MS);
    let got = w.step(&w.away.token, &id, "/complete", json!({ "state": "completed" }));
    assert_eq!(got.refusal(), (409, "conflict", ""));
    w.team.post(&w.team.owner, "/maintain", json!({}));
    let got = w.team.get(&w.away.token, &format!("/continuations/{id}"));
    assert_eq!(got.data(200)["state"], "expired");
}

#[test]
fn an_expired_continuation_has_no_current_event_under_any_source_of_its_session() {
    let w = world();
    w.id(json!({}));
    let begin = json!({ "harness": "codex", "native_id": "n2", "session_id": w.session });
    let second = w.team.publisher_of(&w.home.custodian_id, "second");
    w.team.publish_with(&second.token, begin, &messages(0, 3, "carried on"));
    w.team.advance(DAY_MS);
    w.team.settle();
    assert_eq!(w.team.last_event().2["state"], "expired");
    let current = "SELECT count(*) FROM event_resources WHERE resource_kind = 'continuation'";
    assert_eq!(w.team.count(current), 0);
}

#[test]
fn a_bad_continuation_is_refused_and_writes_nothing() {
    let w = world();
    let unknown = format!("upload_{}", "0".repeat(32));
    let marks = w.team.marks();
    for (body, refusal) in [
        (json!({ "x": 1 }), (400, "invalid_request", "x")),
        (json!({ "harness": "" }), (400, "invalid_request", "harness")),
        (json!({ "uploads": ["x"] }), (400, "invalid_request", "uploads[0]")),
        (json!({ "uploads": [unknown] }), (404, "not_found", "uploads")),
        (
            json!({ "machine_id": format!("machine_{}", "0".repeat(32)) }),
            (404, "not_found", "machine_id"),
        ),
    ] {
        assert_eq!(w.ask(body.clone()).refusal(), refusal, "{body}");
    }
    let path = format!("/sessions/{}/continuations", w.session);
    let viewer = w.team.person("viewer", Role::Viewer).token;
    assert_eq!(w.team.post(&viewer, &path, json!({})).refusal().0, 403);
    let stranger = w.team.person("stranger", Role::Admin).token;
    assert_eq!(w.team.post(&stranger, &path, json!({})).refusal().0, 404);
    assert_eq!(w.team.marks(), marks);
}

#[test]
fn lists_show_a_caller_its_own_its_machines_and_its_sessions_continuations() {
    let w = world();
    let (a, b) = (w.id(json!({})), w.id(json!({ "machine_id": w.away.machine_id })));
    let ids = |token: &str, query: &str| {
        let got = w.team.get(token, &format!("/continuations?{query}"));
        let mut ids: Vec<_> =
            got.items().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect();
        ids.sort();
        ids
    };
    let mut both = vec![a.clone(), b.clone()];
    both.sort();
    assert_eq!(ids(&w.owner_of_home, ""), both);
    assert_eq!(ids(&w.away.token, ""), std::slice::from_ref(&b));
    assert_eq!(ids(&w.team.owner, ""), Vec::<String>::new());
    assert_eq!(
        ids(&w.owner_of_home, &format!("machine_id={}", w.away.machine_id)),
        std::slice::from_ref(&b)
    );
    w.step(&w.away.token, &b, "/accept", json!({}));
    assert_eq!(ids(&w.owner_of_home, "state=pending"), [a]);
    assert_eq!(ids(&w.owner_of_home, "state=accepted"), [b]);
    let got = w.team.get(&w.owner_of_home, "/continuations?limit=1");
    let next = got.json["next_cursor"].as_str().unwrap().to_owned();
    let got = w.team.get(&w.owner_of_home, &format!("/continuations?limit=1&cursor={next}"));
    assert_eq!((got.items().len(), &got.json["next_cursor"]), (1, &Json::Null));
    let got = w.team.get(&w.owner_of_home, "/continuations?state=done");
    assert_eq!(got.refusal(), (400, "invalid_request", "state"));
}

#[test]
fn an_attachment_holds_a_binding_until_it_is_closed() {
    let w = world();
    let bound = json!([{ "id": "b1", "harness": "claude-code", "native_id": "n1" }]);
    assert_eq!(w.beat(&w.home, 1, bound).status, 200);
    let attach = |token: &str, binding: &str| {
        let body = json!({ "machine_id": w.home.machine_id, "binding_id": binding });
        w.team.post(token, &format!("/sessions/{}/attachments", w.session), body)
    };
    assert_eq!(attach(&w.owner_of_home, "b2").refusal(), (404, "not_found", "binding_id"));
    let got = attach(&w.owner_of_home, "b1");
    let id = got.data(201)["id"].as_str().unwrap().to_owned();
    assert_eq!(got.data(201)["state"], "active");
    assert_eq!(attach(&w.owner_of_home, "b1").data(200)["id"], json!(id));
    assert_eq!(attach(&w.team.owner, "b1").refusal().0, 404);
    w.beat(&w.home, 2, json!([]));
    assert_eq!(w.team.count("SELECT count(*) FROM bindings"), 1);

    let path = format!("/attachments/{id}");
    let stranger = w.team.person("stranger", Role::Member).token;
    assert_eq!(w.team.delete(&stranger, &path).refusal().0, 404);
    assert_eq!(w.team.delete(&w.owner_of_home, &path).status, 204);
    assert_eq!(w.team.delete(&w.owner_of_home, &path).status, 204);
    w.beat(&w.home, 3, json!([]));
    assert_eq!(w.team.count("SELECT count(*) FROM bindings"), 0);
}

#[test]
fn an_attachment_to_a_machine_that_is_offline_waits_for_its_heartbeat() {
    let w = world();
    let bound = json!([{ "id": "b1", "harness": "claude-code", "native_id": "n1" }]);
    w.beat(&w.home, 1, bound.clone());
    w.team.advance(DAY_MS);
    let body = json!({ "machine_id": w.home.machine_id, "binding_id": "b1" });
    let path = format!("/sessions/{}/attachments", w.session);
    assert_eq!(w.team.post(&w.owner_of_home, &path, body).data(201)["state"], "pending");
    w.beat(&w.home, 2, bound);
    assert_eq!(w.team.count("SELECT count(*) FROM attachments WHERE state = 'active'"), 1);
}

#[test]
fn an_operation_is_answered_once_by_its_machine() {
    let w = world();
    let anyone = w.team.person("anyone", Role::Member).token;
    let path = format!("/machines/{}/operations", w.home.machine_id);
    let body = br#"{"kind":"message","input":{"text":"a\ud800b","n":1.10}}"#;
    let got = w.team.send(&anyone, "POST", &path, &[("idempotency-key", "k")], Some(body));
    assert_eq!(got.status, 202, "{}", got.json);
    let text = String::from_utf8(got.bytes.clone()).unwrap();
    assert!(text.contains(r#"{"text":"a\ud800b","n":1.10}"#), "kept as sent: {text}");
    let again = w.team.send(&anyone, "POST", &path, &[("idempotency-key", "k")], Some(body));
    assert_eq!((again.status, &again.bytes), (202, &got.bytes));

    let made: Json = w.team.get(&anyone, "/operations").items()[0].clone();
    let id = made["id"].as_str().unwrap().to_owned();
    let read = |token: &str| w.team.get(token, &format!("/operations/{id}"));
    assert_eq!(read(&w.home.token).status, 200);
    assert_eq!(read(&w.away.token).refusal().0, 404);
    let effects = w.team.count("SELECT count(*) FROM native_effects WHERE state = 'pending'");
    assert_eq!(effects, 1);
    let effect = format!(
        "/machines/{}/effects/{}",
        w.home.machine_id,
        w.team
            .driver
            .connection()
            .query_row("SELECT id FROM native_effects", [], |row| row.get::<_, String>(0))
            .unwrap()
    );
    let result = json!({ "state": "succeeded", "result": { "ok": true } });
    assert_eq!(w.team.post(&w.away.token, &effect, result.clone()).refusal().0, 403);
    let got = w.team.post(&w.home.token, &effect, result.clone());
    assert_eq!(got.data(200)["result"], json!({ "ok": true }));
    assert_eq!(w.team.last_event().2["state"], "succeeded");
    let marks = w.team.marks();
    assert_eq!(w.team.post(&w.home.token, &effect, result).data(200), got.data(200));
    for other in [json!({ "state": "failed" }), json!({ "state": "succeeded", "result": 1 })] {
        let got = w.team.post(&w.home.token, &effect, other);
        assert_eq!(got.refusal(), (409, "conflict", ""));
    }
    assert_eq!(w.team.marks(), marks);
    let settled = "SELECT count(*) FROM operations WHERE state = 'succeeded' AND settled_at > 0";
    assert_eq!(w.team.count(settled), 1);
    // Who asked hears of it.
    let heard = w.team.get(&anyone, "/events");
    let last = heard.items().last().unwrap();
    assert_eq!(
        (&last["type"], &last["data"]["state"]),
        (&json!("operation.changed"), &json!("succeeded"))
    );
    assert_eq!(heard.items().iter().filter(|e| e["resource_kind"] == "session").count(), 0);
}

#[test]
fn a_sessions_operation_goes_where_the_session_is_open() {
    let w = world();
    let ask = |body: Json| {
        let path = format!("/sessions/{}/operations", w.session);
        w.team.post(&w.owner_of_home, &path, body)
    };
    let body = json!({ "kind": "interrupt", "input": {} });
    let got = ask(body.clone());
    let target = |got: &Got| got.json["data"]["effects"][0].clone();
    assert_eq!(target(&got)["machine_id"], json!(w.home.machine_id));
    assert_eq!(target(&got)["binding_id"], Json::Null);
    w.beat(&w.home, 1, json!([{ "id": "b1", "harness": "claude-code", "native_id": "n1" }]));
    assert_eq!(target(&ask(body))["binding_id"], "b1");
    for (body, refusal) in [
        (json!({ "kind": "", "input": {} }), (400, "invalid_request", "kind")),
        (json!({ "kind": "k", "input": [] }), (400, "invalid_request", "input")),
        (json!({ "kind": "k" }), (400, "invalid_request", "input")),
        (json!({ "kind": "k", "input": {}, "binding_id": "b9" }), (404, "not_found", "binding_id")),
        (
            json!({ "kind": "k", "input": { "t": "x".repeat(256 << 10) } }),
            (413, "too_large", "input"),
        ),
    ] {
        assert_eq!(ask(body).refusal(), refusal);
    }
}

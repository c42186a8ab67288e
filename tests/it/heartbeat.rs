use crate::team::{Got, Publisher, Team};
use serde_json::{Value as Json, json};
use teamplane::ids::{Id, MachineId};
use teamplane::limits::{
    ACTIVITIES_MAX, BINDINGS_MAX, DAY_MS, LINK_GRACE_MS, MACHINE_TOKEN_OVERLAP_MS, SAFE_INTEGER_MAX,
};

fn address(machine: &Publisher) -> String {
    format!("/machines/{}", machine.machine_id)
}

fn body(sequence: i64) -> Json {
    json!({ "incarnation_id": "i1", "sequence": sequence, "bindings": [], "roots": [] })
}

fn with(field: &str, value: Json) -> Json {
    let mut body = body(1);
    body[field] = value;
    body
}

fn beat(team: &Team, machine: &Publisher, body: Json) -> Got {
    team.post(&machine.token, &format!("{}/heartbeat", address(machine)), body)
}

fn binding(id: &str) -> Json {
    json!({ "id": id, "harness": "codex", "native_id": format!("n-{id}") })
}

fn sql(team: &Team, text: &str) {
    team.driver.connection().execute_batch(text).expect("the statements run");
}

/// An open attachment and an effect that waits, both of this machine and binding.
fn ask(team: &Team, machine: &Publisher, name: &str, binding_id: &str) {
    sql(
        team,
        &format!(
            "INSERT INTO attachments
                 (team_id, id, session_id, machine_id, binding_id, principal_id, state, created_at)
             VALUES ('{t}', 'attachment_{name}', 's', '{m}', '{binding_id}', 'p', 'active', 0);
             INSERT INTO operations
                 (team_id, id, principal_id, kind, state, input_json, created_at, updated_at)
             VALUES ('{t}', 'operation_{name}', 'p', 'message', 'pending', '{{}}', {now}, {now});
             INSERT INTO native_effects
                 (team_id, id, operation_id, machine_id, binding_id, state, request_json,
                  created_at)
             VALUES ('{t}', 'effect_{name}', 'operation_{name}', '{m}', '{binding_id}', 'pending',
                     '{{}}', {now})",
            t = team.id,
            m = machine.machine_id,
            now = team.now_ms.get(),
        ),
    );
}

#[test]
fn a_heartbeat_says_that_the_machine_is_there_by_the_servers_time() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    team.advance(5);
    let sequence = team.marks().0;
    let got = beat(&team, &machine, with("host_key_id", "a".repeat(16).into()));
    let seen = &got.data(200)["machine"];
    assert_eq!(seen["last_seen_at"], team.now_ms.get());
    assert_eq!((&seen["connection"], &seen["incarnation_id"]), (&json!("unlinked"), &json!("i1")));
    assert_eq!(seen["host_key_id"], "a".repeat(16));
    assert_eq!(seen["revision"], 1, "a heartbeat raises no revision");
    assert_eq!(got.data(200)["watched"], json!([]));
    assert_eq!(got.data(200)["unbound_bindings"], json!([]));
    assert_eq!(team.get(&team.owner, &address(&machine)).data(200), seen);
    assert_eq!(team.marks().0, sequence);
    // What is absent stays.
    assert_eq!(beat(&team, &machine, body(2)).data(200)["machine"]["host_key_id"], "a".repeat(16));
}

#[test]
fn a_machines_own_clock_says_nothing_of_its_presence() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let now = team.now_ms.get();
    let times = [Some(now - 3 * 3_600_000), Some(now + 3 * 3_600_000), Some(0), None];
    for (sequence, since) in (1..).zip(times) {
        let mut body = body(sequence);
        let one = json!({ "harness": "codex", "native_id": "n", "turn": "agent", "since": since });
        body["activity"] = json!([one]);
        let got = beat(&team, &machine, body);
        assert_eq!(got.data(200)["machine"]["last_seen_at"], now);
    }
    let connection = || team.get(&team.owner, &address(&machine)).data(200)["connection"].clone();
    team.advance(LINK_GRACE_MS);
    assert_eq!(connection(), "unlinked");
    team.advance(1);
    assert_eq!(connection(), "offline");
}

#[test]
fn a_bad_heartbeat_is_refused_by_its_field_and_writes_nothing() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    team.get(&machine.token, "/me");
    let missing = |field: &str| {
        let mut body = body(1);
        body.as_object_mut().unwrap().remove(field);
        body
    };
    let activity = |field: &str, value: Json| {
        let mut one = json!({ "harness": "codex", "native_id": "n", "turn": "agent" });
        one[field] = value;
        with("activity", json!([one]))
    };
    let bindings: Vec<Json> = (0..=BINDINGS_MAX).map(|n| binding(&n.to_string())).collect();
    for (body, field) in [
        (missing("incarnation_id"), "incarnation_id"),
        (missing("sequence"), "sequence"),
        (missing("bindings"), "bindings"),
        (missing("roots"), "roots"),
        (with("now", 1.into()), "now"),
        (with("incarnation_id", "".into()), "incarnation_id"),
        (with("incarnation_id", "x".repeat(129).into()), "incarnation_id"),
        (with("sequence", 0.into()), "sequence"),
        (with("sequence", (SAFE_INTEGER_MAX + 1).into()), "sequence"),
        (with("sequence", 1.5.into()), "sequence"),
        (with("host_key_id", "a".repeat(15).into()), "host_key_id"),
        (with("host_key_id", "a".repeat(129).into()), "host_key_id"),
        (with("host_key_id", format!("{}!", "a".repeat(20)).into()), "host_key_id"),
        (with("bindings", bindings.into()), "bindings"),
        (with("bindings", json!([binding("a"), binding("")])), "bindings[1].id"),
        (with("bindings", json!([{ "id": "a", "harness": "h" }])), "bindings[0].native_id"),
        (
            with("bindings", json!([{ "id": "a", "harness": "h", "native_id": "n", "x": 1 }])),
            "bindings[0].x",
        ),
        (
            with(
                "bindings",
                json!([{ "id": "a", "harness": "h", "native_id": "n", "value": "x".repeat(65_535) }]),
            ),
            "bindings[0].value",
        ),
        (with("roots", json!([{ "id": "r", "name": "", "harnesses": [] }])), "roots[0].name"),
        (
            with("roots", json!([{ "id": "r", "name": "n", "harnesses": [""] }])),
            "roots[0].harnesses[0]",
        ),
        (
            with("roots", vec![json!({ "id": "r", "name": "n", "harnesses": [] }); 257].into()),
            "roots",
        ),
        (activity("harness", "x".repeat(65).into()), "activity[0].harness"),
        (activity("native_id", "x".repeat(257).into()), "activity[0].native_id"),
        (activity("turn", "x".repeat(33).into()), "activity[0].turn"),
        (activity("turn", "a\u{0}b".into()), "activity[0].turn"),
        (activity("since", (-1).into()), "activity[0].since"),
        (activity("since", "1".into()), "activity[0].since"),
    ] {
        let got = beat(&team, &machine, body);
        assert_eq!(got.refusal(), (400, "invalid_request", field));
    }
    let one = json!({ "harness": "codex", "native_id": "n", "turn": "agent" });
    let got = beat(&team, &machine, with("activity", vec![one; ACTIVITIES_MAX + 1].into()));
    assert_eq!(got.refusal(), (400, "invalid_request", "activity"));
    let got = beat(&team, &machine, with("incarnation_id", "x".repeat(2 << 20).into()));
    assert_eq!(got.refusal().0, 413);
    assert_eq!(team.count("SELECT count(*) FROM machines WHERE last_seen_at IS NOT NULL"), 0);
}

#[test]
fn lists_that_would_not_fit_one_statement_are_refused() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let quotes = "\"".repeat(16_000);
    let many: Vec<Json> = (0..40)
        .map(|n| json!({ "id": n.to_string(), "harness": "h", "native_id": "n", "value": quotes }))
        .collect();
    let got = beat(&team, &machine, with("bindings", many.into()));
    assert_eq!(got.refusal(), (413, "too_large", ""));
    assert_eq!(team.count("SELECT count(*) FROM bindings"), 0);
}

#[test]
fn only_that_machine_beats() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let other = team.publisher("other");
    let at = |machine: &str| format!("/machines/{machine}/heartbeat");
    let own = at(machine.machine_id.as_str());
    for token in [&team.owner, &other.token, &team.app("bot", &["sessions:read"]).token] {
        assert_eq!(team.post(token, &own, body(1)).refusal(), (403, "forbidden", ""));
    }
    assert_eq!(team.post(&machine.token, &at("x"), body(1)).refusal().0, 404);
    assert_eq!(team.count("SELECT count(*) FROM machines WHERE last_seen_at IS NOT NULL"), 0);
}

#[test]
fn a_late_sequence_changes_nothing_and_is_answered_as_usual() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let full = |sequence: i64, id: &str| {
        let mut body = body(sequence);
        body["bindings"] = json!([binding(id)]);
        body
    };
    assert_eq!(beat(&team, &machine, full(5, "a")).data(200)["unbound_bindings"], json!(["a"]));
    let seen = team.now_ms.get();
    for sequence in [5, 4, 1] {
        team.advance(10);
        let got = beat(&team, &machine, full(sequence, "b"));
        assert_eq!(got.data(200)["machine"]["last_seen_at"], seen);
        assert_eq!(got.data(200)["unbound_bindings"], json!(["a"]));
    }
    assert_eq!(team.count("SELECT count(*) FROM bindings WHERE id = 'a'"), 1);
    assert_eq!(team.count("SELECT count(*) FROM bindings"), 1);
    assert_eq!(beat(&team, &machine, full(6, "b")).data(200)["unbound_bindings"], json!(["b"]));
    assert_eq!(team.count("SELECT count(*) FROM bindings WHERE id = 'b'"), 1);
}

#[test]
fn a_new_incarnation_closes_what_the_old_one_had_open() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let other = team.publisher("other");
    beat(&team, &machine, with("bindings", json!([binding("a")])));
    ask(&team, &machine, "own", "a");
    ask(&team, &other, "other", "a");
    let sequence = team.marks().0;
    // The same incarnation keeps what it has.
    beat(&team, &machine, body(2));
    assert_eq!(team.count("SELECT count(*) FROM attachments WHERE state = 'active'"), 2);
    assert_eq!(team.count("SELECT count(*) FROM bindings"), 1, "a binding in use stays");

    let mut anew = body(1);
    anew["incarnation_id"] = "i2".into();
    let got = beat(&team, &machine, anew);
    assert_eq!(got.data(200)["machine"]["incarnation_id"], "i2");
    let closed = "SELECT count(*) FROM attachments
                   WHERE id = 'attachment_own' AND state = 'closed' AND settled_at IS NOT NULL";
    assert_eq!(team.count(closed), 1);
    let lost = "SELECT count(*) FROM native_effects e JOIN operations o ON o.id = e.operation_id
                 WHERE e.id = 'effect_own' AND e.state = 'unknown' AND o.state = 'unknown'";
    assert_eq!(team.count(lost), 1);
    assert_eq!(team.count("SELECT count(*) FROM native_effects WHERE state = 'pending'"), 1);
    assert_eq!(team.count("SELECT count(*) FROM attachments WHERE state = 'active'"), 1);
    assert_eq!(team.count("SELECT count(*) FROM bindings"), 0, "nothing names it any more");
    assert_eq!(team.events_since(sequence), ["operation.changed"]);
}

#[test]
fn what_was_asked_of_an_offline_machine_waits_for_its_next_run() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    beat(&team, &machine, body(1));
    team.advance(LINK_GRACE_MS);
    ask(&team, &machine, "before", "a");
    team.advance(1);
    ask(&team, &machine, "after", "a");
    let mut anew = body(1);
    anew["incarnation_id"] = "i2".into();
    beat(&team, &machine, anew);
    let waits =
        "SELECT count(*) FROM native_effects WHERE id = 'effect_after' AND state = 'pending'";
    assert_eq!(team.count(waits), 1);
    assert_eq!(team.count("SELECT count(*) FROM native_effects WHERE state = 'unknown'"), 1);
}

#[test]
fn a_late_heartbeat_of_a_replaced_incarnation_does_not_bring_it_back() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let of = |incarnation: &str, sequence: i64| {
        let mut body = body(sequence);
        body["incarnation_id"] = incarnation.into();
        let got = beat(&team, &machine, body);
        got.data(200)["machine"]["incarnation_id"].as_str().unwrap().to_owned()
    };
    assert_eq!(of("i1", 7), "i1");
    assert_eq!(of("i2", 1), "i2");
    assert_eq!(of("i1", 8), "i2");
    assert_eq!(of("i2", 2), "i2");
    assert_eq!(of("i3", 1), "i3");
    assert_eq!(of("i1", 9), "i3");
    assert_eq!(of("i2", 9), "i3");
}

#[test]
fn roots_become_those_of_the_heartbeat_and_only_what_differs_is_written() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let root = |id: &str, name: &str| json!({ "id": id, "name": name, "harnesses": ["codex"] });
    let say = |sequence: i64, roots: Json| {
        let mut body = body(sequence);
        body["roots"] = roots;
        let before = team.db().cost();
        assert_eq!(beat(&team, &machine, body).status, 200);
        (team.db().cost() - before).rows_written
    };
    say(1, json!([root("a", "A"), root("b", "B"), root("c", "C"), root("c", "last")]));
    let address = format!("{}/roots", address(&machine));
    let got = team.get(&team.owner, &address);
    assert_eq!(got.items(), &[root("a", "A"), root("b", "B"), root("c", "last")]);
    assert_eq!(say(2, json!([root("c", "last"), root("b", "B"), root("a", "A")])), 1, "any order");
    // One changed, one gone, one new, and the machine's own row.
    assert_eq!(say(3, json!([root("a", "A2"), root("b", "B"), root("d", "D")])), 4);
    let got = team.get(&team.owner, &format!("{address}?limit=2"));
    assert_eq!(got.items(), &[root("a", "A2"), root("b", "B")]);
    let next = got.json["next_cursor"].as_str().unwrap();
    let rest = team.get(&team.owner, &format!("{address}?limit=2&cursor={next}"));
    assert_eq!(rest.items(), &[root("d", "D")]);
}

#[test]
fn activity_is_kept_when_absent_and_replaced_when_sent() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let one = |native_id: &str, turn: &str, since: Json| json!({ "harness": "codex", "native_id": native_id, "turn": turn, "since": since });
    let say = |sequence: i64, activity: Option<Json>| {
        let mut body = body(sequence);
        if let Some(activity) = activity {
            body["activity"] = activity;
        }
        assert_eq!(beat(&team, &machine, body).status, 200);
    };
    let rows = || {
        let all = "SELECT group_concat(native_id || ' ' || turn || ' ' || coalesce(since, '-')
                                       || ' ' || (observed_at - 1700000000000), '|')
                     FROM (SELECT * FROM session_activity ORDER BY native_id)";
        let row = |row: &rusqlite::Row| row.get::<_, Option<String>>(0);
        team.driver.connection().query_row(all, [], row).unwrap().unwrap_or_default()
    };
    let odd = "现\"'\\😀";
    say(
        1,
        Some(json!([
            one("a", "user", 5.into()),
            one("b", "agent", Json::Null),
            one(odd, "x", 1.into())
        ])),
    );
    assert_eq!(rows(), format!("a user 5 0|b agent - 0|{odd} x 1 0"));
    team.advance(10);
    say(2, None);
    say(
        3,
        Some(json!([
            one("b", "user", 1.into()),
            one("b", "agent", 2.into()),
            one(odd, "x", 1.into())
        ])),
    );
    assert_eq!(rows(), format!("b agent 2 10|{odd} x 1 0"), "repeated: the last wins");
    say(4, Some(json!([])));
    assert_eq!(rows(), "");
}

#[test]
fn bindings_know_the_sessions_of_their_origins() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let say = |sequence: i64| {
        let mut body = body(sequence);
        body["bindings"] = json!([binding("a"), binding("b"), binding("c")]);
        beat(&team, &machine, body).data(200)["unbound_bindings"].clone()
    };
    sql(
        &team,
        &format!(
            "INSERT INTO origins VALUES ('{t}', '{s}', 'codex', 'n-a', 'session_1'),
                                        ('{t}', '{s}', 'codex', 'n-c', NULL),
                                        ('{t}', 'source_x', 'codex', 'n-b', 'session_2')",
            t = team.id,
            s = machine.source_id
        ),
    );
    // A session that the team has deleted is none that the connector should publish.
    assert_eq!(say(1), json!(["b"]));
    assert_eq!(team.count("SELECT count(*) FROM bindings WHERE session_id = 'session_1'"), 1);
    assert_eq!(say(2), json!(["b"]));

    let begin = json!({ "harness": "codex", "native_id": "n-b" });
    let capture = team.post(&machine.token, "/captures", begin);
    let capture = format!("/captures/{}", capture.data(201)["id"].as_str().unwrap());
    let part = r#"{"messages":[{"ordinal":0,"role":"user","text":"hi"}]}"#;
    assert_eq!(team.put(&machine.token, &format!("{capture}/parts/0"), part).status, 204);
    let commit = team.post(&machine.token, &format!("{capture}/commit"), json!({ "parts": 1 }));
    let session = commit.data(200)["session_id"].as_str().unwrap().to_owned();
    assert_eq!(say(3), json!([]));
    let bound = format!("SELECT count(*) FROM bindings WHERE session_id = '{session}'");
    assert_eq!(team.count(&bound), 1);
}

#[test]
fn a_bindings_value_is_kept_as_sent() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let value = r#"{"n":9007199254740993,"t":"a\u0000b\"","d":1.10}"#;
    let text = format!(
        r#"{{"incarnation_id":"i","sequence":1,"roots":[],
            "bindings":[{{"id":"a","harness":"h","native_id":"n","value":{value}}}]}}"#
    );
    let at = format!("{}/heartbeat", address(&machine));
    let got = team.send(&machine.token, "POST", &at, &[], Some(text.as_bytes()));
    assert_eq!(got.status, 200);
    let kept = "SELECT value_json FROM bindings";
    let kept: String = team.driver.connection().query_row(kept, [], |row| row.get(0)).unwrap();
    assert!(kept.contains(value), "{kept}");
}

#[test]
fn a_heartbeat_that_changes_nothing_costs_next_to_nothing() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let activity: Vec<Json> = (0..ACTIVITIES_MAX)
        .map(|n| json!({ "harness": "codex", "native_id": format!("n{n}"), "turn": "agent" }))
        .collect();
    let bindings: Vec<Json> = (0..BINDINGS_MAX).map(|n| binding(&n.to_string())).collect();
    let roots: Vec<Json> = (0..256)
        .map(|n| json!({ "id": n.to_string(), "name": "root", "harnesses": ["codex"] }))
        .collect();
    let say = |sequence: i64, changed: usize| {
        let mut activity = activity.clone();
        for one in &mut activity[..changed] {
            one["turn"] = "user".into();
        }
        let body = json!({
            "incarnation_id": "i1", "sequence": sequence, "bindings": bindings, "roots": roots,
            "activity": activity
        });
        let before = team.db().cost();
        let got = beat(&team, &machine, body);
        assert_eq!(got.data(200)["unbound_bindings"].as_array().map(Vec::len), Some(BINDINGS_MAX));
        team.db().cost() - before
    };
    say(1, 0);
    let idle = say(2, 0);
    assert!(idle.statements <= 12, "{idle:?}");
    assert!(idle.rows_read + idle.rows_written <= 30, "{idle:?}");
    assert_eq!(idle.rows_written, 1);
    let few = say(3, 3);
    assert_eq!(few.rows_written, 4, "three turns and the machine's row");
    assert!(few.statements <= 12, "{few:?}");
}

#[test]
fn a_deactivated_members_machine_goes_on_beating() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let custodian = format!("/members/{}", machine.custodian_id);
    team.patch(&team.owner, &custodian, json!({ "active": false }));
    assert_eq!(beat(&team, &machine, body(1)).status, 200);
}

#[test]
fn a_machine_renews_its_token_and_the_old_one_lives_ten_minutes_more() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let at = format!("{}/token", address(&machine));
    let other = team.publisher("other");
    for token in [&team.owner, &other.token] {
        assert_eq!(team.post(token, &at, json!({})).refusal(), (403, "forbidden", ""));
    }
    assert_eq!(team.post(&machine.token, &at, json!({ "x": 1 })).refusal().2, "x");
    let got = team.send(&machine.token, "POST", &at, &[], None);
    let credential = &got.data(201)["credential"];
    assert_eq!(credential["machine_id"], machine.machine_id.to_string());
    assert_eq!(credential["expires_at"], team.now_ms.get() + 30 * DAY_MS);
    let fresh = credential["token"].as_str().unwrap();
    assert_eq!(beat(&team, &machine, body(1)).status, 200);
    assert_eq!(team.get(&team.owner, "/journal").items()[0]["action"], "credential.renewed");

    // Renewed again by the old token, its end does not move.
    team.advance(MACHINE_TOKEN_OVERLAP_MS - 1);
    assert_eq!(team.post(&machine.token, &at, json!({})).status, 201);
    team.advance(1);
    assert_eq!(team.get(&machine.token, "/me").refusal(), (401, "unauthenticated", ""));
    assert!(team.is_accepted(fresh));
}

#[test]
fn a_deleted_machine_is_revoked_with_all_that_it_could_do() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    beat(&team, &machine, with("bindings", json!([binding("a")])));
    ask(&team, &machine, "own", "a");
    let rules = format!("{}/rules", address(&machine));
    team.post(&team.owner, &rules, json!({ "root_id": "r" })).data(201);
    let at = address(&machine);
    let delete =
        |token: &str, tag: &str| team.send(token, "DELETE", &at, &[("if-match", tag)], None);
    let stranger = team.person("M", teamplane::auth::Role::Member);
    let marks = team.marks();
    assert_eq!(team.delete(&team.owner, &at).refusal(), (428, "precondition_required", ""));
    assert_eq!(delete(&team.owner, "\"9\"").refusal(), (409, "revision_mismatch", ""));
    assert_eq!(delete(&stranger.token, "\"1\"").refusal(), (403, "forbidden", ""));
    assert_eq!(delete(&machine.token, "\"1\"").refusal(), (403, "forbidden", ""));
    assert_eq!(team.marks(), marks);

    assert_eq!(delete(&team.owner, "\"1\"").status, 204);
    assert_eq!(team.get(&machine.token, "/me").refusal().0, 401);
    let got = team.get(&team.owner, &at);
    assert_eq!(got.data(200)["enrollment"], "revoked");
    assert_eq!(got.data(200)["connection"], "offline");
    let expected =
        ["source.changed", "operation.changed", "machine.revoked", "authorization_changed"];
    assert_eq!(team.events_since(marks.0), expected);
    assert_eq!(team.count("SELECT count(*) FROM sync_rules"), 0);
    assert_eq!(team.count("SELECT count(*) FROM attachments WHERE state = 'revoked'"), 1);
    assert_eq!(team.count("SELECT count(*) FROM native_effects WHERE state = 'unknown'"), 1);
    let marks = team.marks();
    assert_eq!(delete(&team.owner, "\"2\"").status, 204);
    assert_eq!(team.marks(), marks);
    assert_eq!(delete(&stranger.token, "*").refusal(), (404, "not_found", ""));
}

#[test]
fn a_custodian_revokes_and_revives_their_machine() {
    let team = Team::new();
    let eve = team.person("Eve", teamplane::auth::Role::Member);
    let enroll = || {
        let body = json!({ "name": "laptop", "enrollment_key": "k1" });
        team.post(&eve.token, "/machines", body)
    };
    let first = enroll();
    let id = MachineId::parse(first.data(201)["machine"]["id"].as_str().unwrap()).unwrap();
    let at = format!("/machines/{id}");
    let got = team.send(&eve.token, "DELETE", &at, &[("if-match", "\"1\"")], None);
    assert_eq!(got.status, 204);
    assert_eq!(team.get(&eve.token, &at).data(200)["enrollment"], "revoked");
    let again = enroll();
    assert_eq!(again.data(200)["machine"]["id"], id.to_string());
    assert_eq!(again.data(200)["machine"]["enrollment"], "active");
    assert_eq!(again.data(200)["source"]["state"], "active");
    let token = again.data(200)["credential"]["token"].as_str().unwrap();
    assert!(team.is_accepted(token));
}

#[test]
fn all_150_sessions_that_somebody_follows_are_named() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    for n in 0..150 {
        let said = crate::capture::messages(0, 1, "a");
        let made = team.publish(&laptop.token, &format!("n{n}"), &said);
        let session_id = crate::capture::session(&made).parse().unwrap();
        team.live.borrow_mut().follow(&team.id, &session_id);
    }
    let body = json!({ "incarnation_id": "i", "sequence": 1, "bindings": [], "roots": [] });
    let got = beat(&team, &laptop, body);
    let watched = got.data(200)["watched"].as_array().unwrap();
    let names: std::collections::BTreeSet<_> =
        watched.iter().map(|one| one["native_id"].as_str().unwrap()).collect();
    assert_eq!(names.len(), 150);
    assert_eq!(watched[0]["harness"], "claude-code");
}

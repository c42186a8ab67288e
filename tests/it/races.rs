//! Two callers who have read the same and change it, one after the other: a transaction never lets
//! in another one, so every race comes down to this. One wins; the other is told, and writes nothing.
//! tests/workerd/races.test.mjs sends some of these at once.
use crate::capture::{messages, session};
use crate::team::{Got, Publisher, Team};
use serde_json::{Value as Json, json};
use teamplane::auth::Role;

struct World {
    team: Team,
    laptop: Publisher,
    desk: Publisher,
    /// Custodian of both machines.
    ada: String,
    session: String,
}

fn world() -> World {
    let team = Team::new();
    let ada = team.person("ada", Role::Member);
    let (laptop, desk) = (team.publisher_of(&ada.id, "laptop"), team.publisher_of(&ada.id, "desk"));
    let session = session(&team.publish(&laptop.token, "n1", &messages(0, 2, "hello")));
    let beat = json!({ "incarnation_id": "i", "sequence": 1, "roots": [],
        "bindings": [{ "id": "b", "harness": "codex", "native_id": "n1" }] });
    let path = format!("/machines/{}/heartbeat", laptop.machine_id);
    assert_eq!(team.post(&laptop.token, &path, beat).status, 200);
    World { team, laptop, desk, ada: ada.token, session }
}

/// What one of the two sends.
struct Sent<'a> {
    token: &'a str,
    method: &'a str,
    path: String,
    body: Json,
    tag: &'a str,
}

impl World {
    fn send(&self, sent: &Sent) -> Got {
        let headers = if sent.tag.is_empty() { vec![] } else { vec![("if-match", sent.tag)] };
        let body = sent.body.to_string();
        let body = (!sent.body.is_null()).then_some(body.as_bytes());
        self.team.send(sent.token, sent.method, &sent.path, &headers, body)
    }

    fn made(&self, token: &str, path: &str, body: Json) -> String {
        let got = self.team.post(token, path, body);
        assert!(got.status < 300, "{}", got.json);
        got.json["data"]["id"].as_str().unwrap().to_owned()
    }

    /// Everything that any request may change, but for when a token was used.
    fn everything(&self) -> Vec<String> {
        let tables = "SELECT name FROM sqlite_schema
                       WHERE type = 'table' AND name NOT LIKE '%search%' AND name <> 'credentials'
                         AND name NOT LIKE 'sqlite_%' ORDER BY name";
        let tables = self.team.lines(tables);
        let rows = tables.iter().flat_map(|table| {
            let rows = self.team.lines(&format!("SELECT * FROM {table}"));
            rows.into_iter().map(move |row| format!("{table} {row}"))
        });
        rows.collect()
    }
}

type Race = fn(&World) -> [(String, &'static str, String, Json, &'static str); 2];

/// A name, what the two send (token, method, path, body, `If-Match`), what they get.
#[rustfmt::skip] // A table reads best as one.
const RACES: &[(&str, Race, u16, (u16, &str))] = &[
    ("a source's name", |w| {
        let path = format!("/sources/{}", w.laptop.source_id);
        [(w.ada.clone(), "PATCH", path.clone(), json!({ "name": "a" }), "\"1\""),
         (w.team.owner.clone(), "PATCH", path, json!({ "name": "b" }), "\"1\"")]
    }, 200, (409, "revision_mismatch")),
    ("one name for two sources", |w| {
        let of = |source: &Publisher| format!("/sources/{}", source.source_id);
        [(w.ada.clone(), "PATCH", of(&w.laptop), json!({ "name": "a" }), ""),
         (w.ada.clone(), "PATCH", of(&w.desk), json!({ "name": "a" }), "")]
    }, 200, (409, "conflict")),
    ("a machine's end", |w| {
        let path = format!("/machines/{}", w.laptop.machine_id);
        [(w.ada.clone(), "DELETE", path.clone(), Json::Null, "\"1\""),
         (w.team.owner.clone(), "DELETE", path, Json::Null, "\"1\"")]
    }, 204, (409, "revision_mismatch")),
    ("a machine's name", |w| {
        let enroll = |key: &str| json!({ "name": "new", "enrollment_key": key });
        [(w.ada.clone(), "POST", "/machines".into(), enroll("k1"), ""),
         (w.team.owner.clone(), "POST", "/machines".into(), enroll("k2"), "")]
    }, 201, (409, "conflict")),
    ("a group's name", |w| {
        let id = w.made(&w.team.owner, "/groups", json!({ "name": "g" }));
        let change = |name: &str| (w.team.owner.clone(), "PATCH", format!("/groups/{id}"), json!({ "name": name }), "\"1\"");
        [change("a"), change("b")]
    }, 200, (409, "revision_mismatch")),
    ("a group's end and its new member", |w| {
        let id = w.made(&w.team.owner, "/groups", json!({ "name": "g" }));
        let path = format!("/groups/{id}/members/{}", w.laptop.custodian_id);
        [(w.team.owner.clone(), "PUT", path, Json::Null, "\"1\""),
         (w.team.owner.clone(), "DELETE", format!("/groups/{id}"), Json::Null, "\"1\"")]
    }, 200, (409, "revision_mismatch")),
    ("a group's end", |w| {
        let id = w.made(&w.team.owner, "/groups", json!({ "name": "g" }));
        let end = || (w.team.owner.clone(), "DELETE", format!("/groups/{id}"), Json::Null, "\"1\"");
        [end(), end()]
    }, 204, (404, "not_found")),
    ("a member's role", |w| {
        let path = format!("/members/{}", w.laptop.custodian_id);
        let change = |role: &str| (w.team.owner.clone(), "PATCH", path.clone(), json!({ "role": role }), "\"1\"");
        [change("admin"), change("viewer")]
    }, 200, (409, "revision_mismatch")),
    ("the last owner", |w| {
        let other = w.team.person("other", Role::Owner);
        let first = w.team.get(&w.team.owner, "/me").json["data"]["principal"]["id"].as_str().unwrap().to_owned();
        [(other.token.clone(), "DELETE", format!("/members/{first}"), Json::Null, ""),
         (other.token, "DELETE", format!("/members/{}", other.id), Json::Null, "")]
    }, 204, (409, "conflict")),
    ("the last owner's role", |w| {
        let other = w.team.person("other", Role::Owner);
        let down = |token: &str| {
            let me = w.team.get(token, "/me").json["data"]["principal"]["id"].as_str().unwrap().to_owned();
            (token.to_owned(), "PATCH", format!("/members/{me}"), json!({ "role": "member" }), "\"1\"")
        };
        [down(&other.token), down(&w.team.owner)]
    }, 200, (409, "conflict")),
    ("a session's title", |w| {
        let change = |title: &str| (w.ada.clone(), "PATCH", format!("/sessions/{}", w.session), json!({ "title": title }), "\"1-0\"");
        [change("a"), change("b")]
    }, 200, (409, "revision_mismatch")),
    ("a session's end", |w| {
        let end = || (w.ada.clone(), "DELETE", format!("/sessions/{}", w.session), Json::Null, "\"1-0\"");
        [end(), end()]
    }, 204, (404, "not_found")),
    ("a rule", |w| {
        let rules = format!("/machines/{}/rules", w.laptop.machine_id);
        let rule = json!({ "root_id": "r", "harnesses": [], "include": [], "exclude": [] });
        let path = format!("{rules}/{}", w.made(&w.ada, &rules, rule));
        [(w.ada.clone(), "PATCH", path.clone(), json!({ "state": "paused" }), "\"1\""),
         (w.team.owner.clone(), "DELETE", path, Json::Null, "\"1\"")]
    }, 200, (409, "revision_mismatch")),
    ("a continuation of nobody", |w| {
        let id = w.made(&w.ada, &format!("/sessions/{}/continuations", w.session), json!({}));
        let accept = |machine: &Publisher| (machine.token.clone(), "POST", format!("/continuations/{id}/accept"), Json::Null, "");
        [accept(&w.laptop), accept(&w.desk)]
    }, 200, (409, "conflict")),
    ("a continuation's outcome", |w| {
        let id = w.made(&w.ada, &format!("/sessions/{}/continuations", w.session), json!({}));
        assert_eq!(w.team.post(&w.laptop.token, &format!("/continuations/{id}/accept"), json!({})).status, 200);
        let end = |state: &str| (w.laptop.token.clone(), "POST", format!("/continuations/{id}/complete"), json!({ "state": state }), "");
        [end("completed"), end("failed")]
    }, 200, (409, "conflict")),
    ("an effect's result", |w| {
        let path = format!("/machines/{}/operations", w.laptop.machine_id);
        w.made(&w.ada, &path, json!({ "kind": "message", "input": {} }));
        let effect = w.team.lines("SELECT id FROM native_effects").remove(0);
        let path = format!("/machines/{}/effects/{effect}", w.laptop.machine_id);
        let end = |state: &str| (w.laptop.token.clone(), "POST", path.clone(), json!({ "state": state }), "");
        [end("succeeded"), end("failed")]
    }, 200, (409, "conflict")),
    ("two captures on one base", |w| {
        let begin = || {
            let body = json!({ "harness": "claude-code", "native_id": "n1", "base": { "revision": 1, "keep": 2 } });
            let capture = w.team.begin(&w.laptop.token, body);
            let part = json!({ "messages": messages(2, 3, &capture[40..]) }).to_string();
            assert_eq!(w.team.put(&w.laptop.token, &format!("/captures/{capture}/parts/0"), &part).status, 204);
            (w.laptop.token.clone(), "POST", format!("/captures/{capture}/commit"), json!({ "parts": 1 }), "")
        };
        [begin(), begin()]
    }, 200, (409, "revision_mismatch")),
    ("a capture's commit and its end", |w| {
        let capture = w.team.begin(&w.laptop.token, json!({ "harness": "h", "native_id": "n2" }));
        [(w.laptop.token.clone(), "POST", format!("/captures/{capture}/commit"), json!({ "parts": 0 }), ""),
         (w.laptop.token.clone(), "PUT", format!("/captures/{capture}/parts/0"), json!({ "messages": messages(0, 1, "late") }), "")]
    }, 200, (409, "conflict")),
    ("the team's name", |w| {
        let change = |name: &str| (w.team.owner.clone(), "PATCH", String::new(), json!({ "name": name }), "\"1\"");
        [change("a"), change("b")]
    }, 200, (409, "revision_mismatch")),
    ("two wipes", |w| {
        let wipe = || (w.team.owner.clone(), "POST", "/wipe".to_owned(), json!({ "confirm": "Acme" }), "");
        [wipe(), wipe()]
    }, 200, (409, "conflict")),
    ("the team's end", |w| {
        let end = || (w.team.owner.clone(), "DELETE", String::new(), json!({ "confirm": "Acme" }), "");
        [end(), end()]
    }, 202, (401, "unauthenticated")),
];

/// Both may say that it is so: the second finds it done and writes nothing.
#[rustfmt::skip]
const ALIKE: &[(&str, Race, u16)] = &[
    ("a credential's end", |w| {
        let id = w.made(&w.ada, "/credentials", json!({}));
        let end = || (w.ada.clone(), "DELETE", format!("/credentials/{id}"), Json::Null, "");
        [end(), end()]
    }, 204),
    ("an attachment's end", |w| {
        let body = json!({ "machine_id": w.laptop.machine_id, "binding_id": "b" });
        let id = w.made(&w.ada, &format!("/sessions/{}/attachments", w.session), body);
        let end = || (w.ada.clone(), "DELETE", format!("/attachments/{id}"), Json::Null, "");
        [end(), end()]
    }, 204),
    ("a capture's commit", |w| {
        let capture = w.team.begin(&w.laptop.token, json!({ "harness": "h", "native_id": "n2" }));
        let commit = || (w.laptop.token.clone(), "POST", format!("/captures/{capture}/commit"), json!({ "parts": 0 }), "");
        [commit(), commit()]
    }, 200),
    ("a grant", |w| {
        let path = format!("/sessions/{}/grants/principal/{}", w.session, w.team.person("x", Role::Viewer).id);
        let grant = || (w.ada.clone(), "PUT", path.clone(), json!({ "access": "read" }), "");
        [grant(), grant()]
    }, 200),
    ("an upload's commit", |w| {
        let body = json!({ "size": 0, "media_type": "a/b",
            "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" });
        let id = w.made(&w.laptop.token, "/uploads", body);
        let commit = || (w.laptop.token.clone(), "POST", format!("/uploads/{id}/commit"), Json::Null, "");
        [commit(), commit()]
    }, 200),
];

fn both(race: Race, w: &World) -> (Got, Vec<String>, Got, Vec<String>) {
    let [first, second] =
        race(w).map(|(token, method, path, body, tag)| (token, method, path, body, tag));
    // What a first use of a token writes is no part of the race.
    w.team.get(&second.0, "/me");
    let sent = |one: &(String, &'static str, String, Json, &'static str)| {
        w.send(&Sent {
            token: &one.0,
            method: one.1,
            path: one.2.clone(),
            body: one.3.clone(),
            tag: one.4,
        })
    };
    let first = sent(&first);
    let between = w.everything();
    let second = sent(&second);
    (first, between, second, w.everything())
}

#[test]
fn of_two_who_change_what_both_have_read_one_wins_and_the_other_writes_nothing() {
    let mut wrong = Vec::new();
    for (name, race, won, lost) in RACES {
        let w = world();
        let (first, between, second, after) = both(*race, &w);
        let (status, code, _) = second.refusal();
        if first.status != *won || (status, code) != *lost {
            wrong.push(format!("{name}: {} {} {}", first.status, first.json, second.json));
        }
        assert_eq!(between, after, "{name}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_two_do_alike_is_done_once() {
    for (name, race, status) in ALIKE {
        let w = world();
        let (first, between, second, after) = both(*race, &w);
        assert_eq!(
            (first.status, second.status),
            (*status, *status),
            "{name}: {} {}",
            first.json,
            second.json
        );
        assert_eq!(first.json["data"], second.json["data"], "{name}");
        assert_eq!(between, after, "{name}");
    }
}

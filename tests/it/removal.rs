//! Wiping and deleting a team.
use crate::capture::messages;
use crate::team::Team;
use serde_json::{Value as Json, json};
use teamplane::auth::Role;
use teamplane::domain::team_removal::{Confirmed, delete_for_operator};
use teamplane::ids::{Id, TeamId};

fn drain(team: &Team, token: &str, address: &str) {
    for _ in 0..200 {
        team.advance(5_000);
        let got = team.send_to(address, token, "POST", &[], Some(b"{}"));
        if got.json["data"]["backlog"] == json!(false) {
            return;
        }
    }
    panic!("the backlog never ends");
}

#[test]
fn a_wipe_leaves_the_team_and_its_people_and_begins_a_new_epoch() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    team.publish(&machine.token, "n1", &messages(0, 3, "hello"));
    let before = team.get(&team.owner, "/events").json["last"].as_str().unwrap().to_owned();
    let confirm = json!({ "confirm": "Acme" });
    assert_eq!(team.post(&team.owner, "/wipe", confirm.clone()).status, 200);
    let marks = team.marks();
    assert_eq!(team.post(&team.owner, "/wipe", confirm).refusal(), (409, "conflict", ""));
    let begin = json!({ "harness": "codex", "native_id": "n2" });
    let got = team.post(&machine.token, "/captures", begin.clone());
    assert_eq!((got.refusal().1, got.header("retry-after")), ("overloaded", Some("3")));
    assert_eq!(team.marks(), marks);
    let got = team.get(&team.owner, &format!("/events?after={before}"));
    assert_eq!(got.refusal().1, "events_pruned");
    let resume = got.json["error"]["details"]["resume_from"].as_str().unwrap().to_owned();

    drain(&team, &team.owner, &format!("/v1/teams/{}/maintain", team.id));

    for table in ["sessions", "messages", "origins", "captures", "session_versions"] {
        assert_eq!(team.count(&format!("SELECT count(*) FROM {table}")), 0, "{table}");
    }
    assert_eq!(team.get(&team.owner, &format!("/events?after={resume}")).refusal().0, 410);
    assert_eq!(team.get(&team.owner, "/events").status, 200);
    assert!(team.is_accepted(&machine.token));
    assert_eq!(team.post(&machine.token, "/captures", begin).status, 201);
    let journal = team.get(&team.owner, "/journal");
    assert_eq!(journal.items()[0]["action"], "team.wiped");
}

#[test]
fn a_deleted_team_refuses_every_token_at_once_and_leaves_nothing() {
    let team = Team::new();
    let (other_id, other) = team.another("Other");
    let machine = team.publisher("laptop");
    team.publish(&machine.token, "n1", &messages(0, 3, "hello"));
    let body = br#"{"confirm":"Acme"}"#;
    let got = team.send(&team.owner, "DELETE", "", &[], Some(body));
    assert_eq!(got.data(202)["state"], "deleting");
    for token in [&team.owner, &machine.token] {
        assert_eq!(team.get(token, "/me").refusal(), (401, "unauthenticated", ""));
    }
    drain(&team, &other, &format!("/v1/teams/{other_id}/maintain"));
    let tables = "SELECT name FROM sqlite_schema WHERE type = 'table' AND sql LIKE '%team_id%'";
    let mut statement = team.driver.connection().prepare(tables).unwrap();
    let tables: Vec<String> =
        statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    for table in tables {
        let rows = format!("SELECT count(*) FROM {table} WHERE team_id = '{}'", team.id);
        assert_eq!(team.count(&rows), 0, "{table}");
    }
    assert_eq!(team.count("SELECT count(*) FROM teams"), 1);
}

#[test]
fn only_an_owner_who_names_the_team_removes_it() {
    let team = Team::new();
    let admin = team.person("admin", Role::Admin).token;
    let marks = team.marks();
    let send = |token: &str, body: Json| {
        let text = body.to_string();
        let wiped = team.post(token, "/wipe", body);
        let deleted = team.send(token, "DELETE", "", &[], Some(text.as_bytes()));
        assert_eq!(wiped.refusal(), deleted.refusal());
        wiped.json["error"]["code"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(send(&admin, json!({ "confirm": "Acme" })), "forbidden");
    for body in [json!({ "confirm": "acme" }), json!({}), json!({ "confirm": "Acme", "x": 1 })] {
        assert_eq!(send(&team.owner, body), "invalid_request");
    }
    assert_eq!(team.marks(), marks);
    assert_eq!(team.count("SELECT count(*) FROM teams WHERE removing IS NOT NULL"), 0);
}

#[test]
fn after_a_wipe_the_next_heartbeat_writes_again_what_the_last_one_said() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let path = format!("/machines/{}/heartbeat", machine.machine_id);
    let beat = |sequence: i64| {
        let body = json!({ "incarnation_id": "i", "sequence": sequence,
            "bindings": [{ "id": "b", "harness": "codex", "native_id": "n" }],
            "roots": [{ "id": "r", "name": "root", "harnesses": [] }],
            "activity": [{ "harness": "codex", "native_id": "n", "turn": "busy" }] });
        team.post(&machine.token, &path, body).data(200)["unbound_bindings"].clone()
    };
    let count = || {
        ["bindings", "session_activity"]
            .map(|table| team.count(&format!("SELECT count(*) FROM {table}")))
    };
    assert_eq!((beat(1), count()), (json!(["b"]), [1, 1]));
    assert_eq!(team.post(&team.owner, "/wipe", json!({ "confirm": "Acme" })).status, 200);
    // Beside the wipe it would write what goes with the rest.
    beat(2);
    team.settle();
    assert_eq!(count(), [0, 0]);
    assert_eq!((beat(3), count()), (json!(["b"]), [1, 1]));
}

#[test]
fn the_operators_deletion_stands_in_the_journal() {
    let team = Team::new();
    let confirmed = Confirmed { confirm: "Acme".into() };
    let delete = |id: &TeamId| {
        team.db().transaction(|tx| delete_for_operator(tx, id, &confirmed, "request_1"))
    };
    assert_eq!(delete(&TeamId::from_hex(&"9".repeat(32))).unwrap_err().code.status(), 404);
    delete(&team.id).unwrap();
    let lines = team.lines("SELECT principal_id, action, request_id FROM journal");
    assert_eq!(lines, ["operator team.deleted request_1"]);
}

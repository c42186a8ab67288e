use crate::team::{Got, Team};
use serde_json::{Value as Json, json};
use teamplane::auth::Role;
use teamplane::ids::{Id, PrincipalId};
use teamplane::limits::{DAY_MS, LINK_GRACE_MS, MACHINES_MAX, MACHINES_PER_PRINCIPAL_MAX};

fn enroll(team: &Team, token: &str, name: &str, key: &str) -> Got {
    team.post(token, "/machines", json!({ "name": name, "enrollment_key": key }))
}

fn token_of(got: &Got) -> String {
    got.json["data"]["credential"]["token"].as_str().expect("a fresh token").to_owned()
}

fn machine_id(got: &Got) -> &str {
    got.json["data"]["machine"]["id"].as_str().expect("a machine")
}

fn remove(team: &Team, principal_id: &PrincipalId) {
    let got = team.delete(&team.owner, &format!("/members/{principal_id}"));
    assert_eq!(got.status, 204);
}

#[test]
fn an_enrolled_machine_has_a_restricted_source_and_a_token_of_its_own() {
    let team = Team::new();
    let eve = team.person("Eve", Role::Member);
    let sequence = team.marks().0;
    let got = enroll(&team, &eve.token, "laptop", "k1");
    let (machine, source) = (&got.data(201)["machine"], &got.data(201)["source"]);
    let expected = json!({
        "id": machine["id"], "name": "laptop", "custodian_id": eve.id.to_string(),
        "enrollment": "active", "connection": "offline", "last_seen_at": null,
        "incarnation_id": null, "host_key_id": null, "revision": 1,
        "created_at": team.now_ms.get()
    });
    assert_eq!(machine, &expected);
    let expected = json!({
        "id": source["id"], "name": "laptop connector", "kind": "connector",
        "machine_id": machine["id"], "custodian_id": eve.id.to_string(),
        "visibility": "restricted", "state": "active", "last_received_at": null, "revision": 1,
        "created_at": team.now_ms.get()
    });
    assert_eq!(source, &expected);
    let credential = &got.data(201)["credential"];
    assert_eq!(credential["kind"], "machine");
    assert_eq!(credential["machine_id"], machine["id"]);
    assert_eq!(credential["expires_at"], team.now_ms.get() + 30 * DAY_MS);
    assert_eq!(team.events_since(sequence), ["source.changed", "machine.enrolled"]);
    assert_eq!(team.get(&team.owner, "/journal").items()[0]["action"], "machine.enrolled");

    let me = team.get(&token_of(&got), "/me");
    assert_eq!(me.data(200)["principal"]["id"], eve.id.to_string());
    let read = team.get(&token_of(&got), &format!("/machines/{}", machine_id(&got)));
    assert_eq!(read.data(200), machine);
    assert_eq!(read.header("etag"), Some("\"1\""));
    assert_eq!(team.get(&team.owner, "/machines").items(), std::slice::from_ref(machine));
}

#[test]
fn the_same_custodian_gets_the_same_machine_by_key_or_by_name() {
    let team = Team::new();
    let eve = team.person("Eve", Role::Member);
    let first = enroll(&team, &eve.token, "laptop", "k1");
    let mut last = token_of(&first);
    for (n, (name, key)) in
        [("laptop", "k1"), ("laptop", "k2"), ("desk", "k2"), ("desk", "k2")].iter().enumerate()
    {
        let sequence = team.marks().0;
        let again = enroll(&team, &eve.token, name, key);
        assert_eq!(again.status, 200, "{name} {key}");
        assert_eq!(machine_id(&again), machine_id(&first));
        assert_eq!(again.data(200)["source"]["id"], first.data(201)["source"]["id"]);
        assert_eq!(again.data(200)["machine"]["name"], *name);
        assert_eq!(again.data(200)["machine"]["revision"], n + 2);
        // The old token ends at once.
        assert_eq!(team.get(&last, "/me").refusal(), (401, "unauthenticated", ""));
        last = token_of(&again);
        assert!(team.is_accepted(&last));
        assert_eq!(team.events_since(sequence), ["authorization_changed", "machine.enrolled"]);
    }
    assert_eq!(team.count("SELECT count(*) FROM machines"), 1);
    assert_eq!(team.count("SELECT count(*) FROM sources"), 1);
}

#[test]
fn names_of_others_and_of_another_machine_of_ones_own_are_refused() {
    let team = Team::new();
    let eve = team.person("Eve", Role::Member);
    let bob = team.person("Bob", Role::Member);
    let laptop = enroll(&team, &eve.token, "laptop", "k1");
    let desk = enroll(&team, &eve.token, "desk", "k2");
    let bobs = enroll(&team, &bob.token, "bobs", "k1");
    assert_ne!(machine_id(&bobs), machine_id(&laptop), "a key is its custodian's");
    let marks = team.marks();
    for (token, name, key) in [
        (&bob.token, "laptop", "new"),
        (&bob.token, "laptop", "k1"),
        (&eve.token, "desk", "k1"),
        (&eve.token, "laptop", "k2"),
        (&eve.token, "bobs", "k1"),
        (&team.owner, "laptop", "k1"),
    ] {
        let got = enroll(&team, token, name, key);
        assert_eq!(got.refusal(), (409, "conflict", "name"), "{name} {key}");
    }
    assert_eq!(team.marks(), marks);
    for got in [&laptop, &desk, &bobs] {
        assert!(team.is_accepted(&token_of(got)));
    }
}

#[test]
fn a_source_that_has_the_name_already_does_not_keep_a_machine_from_enrolling() {
    let team = Team::new();
    let eve = team.person("Eve", Role::Member);
    let body = json!({ "name": "laptop connector", "kind": "app", "visibility": "restricted" });
    team.post(&team.owner, "/sources", body).data(201);
    let got = enroll(&team, &eve.token, "laptop", "k1");
    let name = got.data(201)["source"]["name"].as_str().unwrap();
    assert!(name.starts_with("laptop connector ") && name.len() > 17, "{name}");

    let long = "é".repeat(128);
    for key in ["k2", "k3"] {
        let named = format!("{}{key}", "é".repeat(126));
        let name = if key == "k2" { &long } else { &named };
        let got = enroll(&team, &eve.token, name, key);
        let name = got.data(201)["source"]["name"].as_str().unwrap();
        assert!(name.contains(" connector") && name.chars().count() <= 128, "{name}");
    }
}

#[test]
fn a_machine_of_a_removed_member_is_revoked_and_hidden_from_others() {
    let team = Team::new();
    let admin = team.person("A", Role::Admin);
    let viewer = team.person("V", Role::Viewer);
    let eve = team.person("Eve", Role::Member);
    let got = enroll(&team, &eve.token, "laptop", "k1");
    let address = format!("/machines/{}", machine_id(&got));
    remove(&team, &eve.id);
    assert_eq!(team.get(&token_of(&got), "/me").refusal().0, 401);
    assert_eq!(team.get(&admin.token, &address).data(200)["enrollment"], "revoked");
    assert_eq!(team.get(&admin.token, "/machines").items().len(), 1);
    assert_eq!(team.get(&viewer.token, &address).refusal(), (404, "not_found", ""));
    assert_eq!(team.get(&viewer.token, "/machines").items().len(), 0);
}

#[test]
fn a_bad_enrolment_is_refused_by_its_field_and_writes_nothing() {
    let team = Team::new();
    let marks = team.marks();
    let with = |field: &str, value: Json| {
        let mut body = json!({ "name": "laptop", "enrollment_key": "k1" });
        body[field] = value;
        body
    };
    for (body, field) in [
        (json!({ "enrollment_key": "k1" }), "name"),
        (json!({ "name": "laptop" }), "enrollment_key"),
        (with("token", "x".into()), "token"),
        (with("name", "".into()), "name"),
        (with("name", "x".repeat(129).into()), "name"),
        (with("name", 1.into()), "name"),
        (with("enrollment_key", "".into()), "enrollment_key"),
        (with("enrollment_key", "x".repeat(129).into()), "enrollment_key"),
        (with("enrollment_key", "a\u{0}b".into()), "enrollment_key"),
        (with("visibility", "public".into()), "visibility"),
    ] {
        let got = team.post(&team.owner, "/machines", body.clone());
        assert_eq!(got.refusal(), (400, "invalid_request", field), "{body}");
    }
    assert_eq!(team.marks(), marks);
    assert_eq!(team.count("SELECT count(*) FROM machines"), 0);
}

#[test]
fn members_enrol_machines_and_nobody_less() {
    let team = Team::new();
    let machine = team.publisher("first");
    for (n, (token, status)) in [
        (&team.person("V", Role::Viewer).token, 403),
        (&team.person("M", Role::Member).token, 201),
        (&team.person("A", Role::Admin).token, 201),
        (&team.owner, 201),
        (&machine.token, 403),
        (&team.app("bot", &["captures:write"]).token, 403),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(enroll(&team, token, &format!("m{n}"), "k").status, status, "{n}");
    }
}

#[test]
fn enrolling_says_how_visible_the_source_is_and_again_changes_it_only_if_asked() {
    let team = Team::new();
    let ask = |visibility: Json| {
        let body = json!({ "name": "laptop", "enrollment_key": "k", "visibility": visibility });
        let got = team.post(&team.owner, "/machines", body);
        got.json["data"]["source"]["visibility"].as_str().unwrap().to_owned()
    };
    assert_eq!(ask("team".into()), "team");
    assert_eq!(ask(Json::Null), "team");
    assert_eq!(ask("restricted".into()), "restricted");
    assert_eq!(ask(Json::Null), "restricted");
}

#[test]
fn a_machine_is_online_only_while_it_is_seen_and_linked() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let address = format!("/machines/{}", machine.machine_id);
    let connection = || {
        let got = team.get(&team.owner, &address);
        got.data(200)["connection"].as_str().unwrap().to_owned()
    };
    let sql = |text: &str| team.driver.connection().execute_batch(text).unwrap();
    assert_eq!(connection(), "offline");
    sql(&format!("UPDATE machines SET last_seen_at = {}", team.now_ms.get()));
    assert_eq!(connection(), "unlinked");
    sql(&format!(
        "INSERT INTO machine_presence VALUES ('{}', '{}', 1, NULL, 0)",
        team.id, machine.machine_id
    ));
    assert_eq!(connection(), "online");
    team.advance(LINK_GRACE_MS);
    assert_eq!(connection(), "online");
    team.advance(1);
    assert_eq!(connection(), "offline");
}

#[test]
fn a_member_has_at_most_so_many_machines_and_the_team_as_well() {
    let team = Team::new();
    let eve = team.person("Eve", Role::Member);
    let fill = |custodian: &str, count: usize| {
        let fill = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?3)
                    INSERT INTO machines
                        (team_id, id, name, custodian_id, enrollment_key, created_at)
                    SELECT ?1, 'machine_' || ?2 || i, ?2 || i, ?2, 'key' || i, 0 FROM n";
        let count = i64::try_from(count).unwrap();
        team.driver.connection().execute(fill, (team.id.as_str(), custodian, count)).unwrap();
    };
    fill(eve.id.as_str(), MACHINES_PER_PRINCIPAL_MAX - 1);
    assert_eq!(enroll(&team, &eve.token, "last", "k1").status, 201);
    let marks = team.marks();
    let got = enroll(&team, &eve.token, "more", "k2");
    assert_eq!(got.refusal(), (409, "conflict", ""));
    assert_eq!(team.marks(), marks);
    // The machine that is there already is no further one.
    assert_eq!(enroll(&team, &eve.token, "last", "k1").status, 200);

    fill("others", MACHINES_MAX - MACHINES_PER_PRINCIPAL_MAX);
    assert_eq!(enroll(&team, &team.owner, "more", "k2").refusal(), (409, "conflict", ""));
}

#[test]
fn machines_are_read_by_all_but_apps_without_the_scope() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let address = format!("/machines/{}", machine.machine_id);
    for (token, status) in [
        (&team.person("V", Role::Viewer).token, 200),
        (&machine.token, 200),
        (&team.app("reader", &["sessions:read"]).token, 200),
        (&team.app("blind", &["runs:read"]).token, 403),
    ] {
        assert_eq!(team.get(token, "/machines").status, status);
        assert_eq!(team.get(token, &address).status, status);
    }
    let (_, stranger) = team.another("Other");
    assert_eq!(team.get(&stranger, &address).refusal().0, 404);
    assert_eq!(team.get(&team.owner, "/machines/x").refusal().0, 404);
}

#[test]
fn every_machine_is_listed_once_over_the_pages() {
    let team = Team::new();
    for n in 0..5 {
        enroll(&team, &team.owner, &format!("m{n}"), &format!("k{n}"));
    }
    for limit in [1, 2, 4, 5, 200] {
        let (mut seen, mut cursor) = (Vec::new(), String::new());
        loop {
            let got = team.get(&team.owner, &format!("/machines?limit={limit}{cursor}"));
            seen.extend(got.items().iter().map(|m| m["name"].as_str().unwrap().to_owned()));
            let Some(next) = got.json["next_cursor"].as_str() else { break };
            cursor = format!("&cursor={next}");
        }
        seen.sort();
        assert_eq!(seen, ["m0", "m1", "m2", "m3", "m4"]);
    }
}

#[test]
fn a_repeated_enrolment_with_its_key_leaves_the_token_alone() {
    let team = Team::new();
    let send = || {
        let body = br#"{"name":"laptop","enrollment_key":"k1"}"#;
        team.send(&team.owner, "POST", "/machines", &[("idempotency-key", "i1")], Some(body))
    };
    let (first, again) = (send(), send());
    assert_eq!(again.data(201)["credential"]["token"], Json::Null);
    assert_eq!(again.data(201)["credential"]["replayed"], true);
    assert!(team.is_accepted(&token_of(&first)));
}

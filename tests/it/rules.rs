use crate::team::{Got, Publisher, Team};
use serde_json::{Value as Json, json};
use teamplane::auth::Role;
use teamplane::limits::{RULE_ITEMS_MAX, RULES_MAX};

fn rules_of(machine: &Publisher) -> String {
    format!("/machines/{}/rules", machine.machine_id)
}

fn make(team: &Team, machine: &Publisher, root: &str) -> String {
    let got = team.post(&team.owner, &rules_of(machine), json!({ "root_id": root }));
    format!("{}/{}", rules_of(machine), got.data(201)["id"].as_str().unwrap())
}

fn configuration(team: &Team, machine: &Publisher, tag: &str) -> Got {
    let address = format!("/machines/{}/configuration", machine.machine_id);
    team.send(&machine.token, "GET", &address, &[("if-none-match", tag)], None)
}

#[test]
fn a_rule_is_made_changed_in_part_and_removed() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let marks = team.marks();
    let body = json!({ "root_id": "home", "harnesses": ["codex"], "include": ["src/**"] });
    let got = team.post(&team.owner, &rules_of(&machine), body);
    let expected = json!({
        "id": got.data(201)["id"], "machine_id": machine.machine_id.to_string(),
        "source_id": machine.source_id.to_string(), "root_id": "home", "harnesses": ["codex"],
        "include": ["src/**"], "exclude": [], "state": "active", "revision": 1,
        "created_at": team.now_ms.get()
    });
    assert_eq!(got.data(201), &expected);
    assert_eq!(got.header("etag"), Some("\"1\""));
    let address = format!("{}/{}", rules_of(&machine), expected["id"].as_str().unwrap());
    assert_eq!(team.get(&team.owner, &address).data(200), &expected);
    assert_eq!(team.get(&team.owner, &rules_of(&machine)).items(), &vec![expected]);

    let got = team.patch(&team.owner, &address, json!({ "exclude": ["t*"], "state": "paused" }));
    let changed = got.data(200);
    assert_eq!((&changed["include"], &changed["exclude"]), (&json!(["src/**"]), &json!(["t*"])));
    assert_eq!((&changed["state"], &changed["revision"]), (&json!("paused"), &json!(2)));
    let same = json!({ "state": "paused", "include": ["src/**"] });
    assert_eq!(team.patch(&team.owner, &address, same).data(200)["revision"], 2);
    let late = team.send(&team.owner, "DELETE", &address, &[("if-match", "\"1\"")], None);
    assert_eq!(late.refusal(), (409, "revision_mismatch", ""));
    assert_eq!(team.delete(&team.owner, &address).status, 204);
    assert_eq!(team.get(&team.owner, &address).refusal().0, 404);
    assert_eq!(team.marks().1, marks.1 + 3);
}

#[test]
fn a_bad_rule_is_refused_by_its_field_and_writes_nothing() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let rule = make(&team, &machine, "home");
    let marks = team.marks();
    let many = vec!["x"; RULE_ITEMS_MAX + 1];
    for (body, field) in [
        (json!({ "root_id": "" }), "root_id"),
        (json!({ "root_id": null }), "root_id"),
        (json!({ "root_id": "x".repeat(129) }), "root_id"),
        (json!({ "root_id": "r", "harnesses": "codex" }), "harnesses"),
        (json!({ "root_id": "r", "harnesses": ["a", ""] }), "harnesses[1]"),
        (json!({ "root_id": "r", "harnesses": ["x".repeat(65)] }), "harnesses[0]"),
        (json!({ "root_id": "r", "include": many }), "include"),
        (json!({ "root_id": "r", "exclude": ["x".repeat(513)] }), "exclude[0]"),
        (json!({ "root_id": "r", "exclude": null }), "exclude"),
        (json!({ "root_id": "r", "state": "removed" }), "state"),
        (json!({ "root_id": "r", "id": "x" }), "id"),
    ] {
        let got = team.post(&team.owner, &rules_of(&machine), body.clone());
        assert_eq!(got.refusal(), (400, "invalid_request", field), "{body}");
        let got = team.patch(&team.owner, &rule, body.clone());
        assert_eq!(got.refusal(), (400, "invalid_request", field), "{body}");
    }
    let got = team.post(&team.owner, &rules_of(&machine), json!({}));
    assert_eq!(got.refusal(), (400, "invalid_request", "root_id"));
    let large = json!({ "root_id": "r", "include": vec!["x".repeat(512); 17] });
    let got = team.post(&team.owner, &rules_of(&machine), large.clone());
    assert_eq!(got.refusal(), (413, "too_large", ""));
    assert_eq!(team.patch(&team.owner, &rule, large).refusal().0, 413);
    assert_eq!(team.marks(), marks);
}

#[test]
fn its_custodian_and_admins_keep_a_machines_rules() {
    let team = Team::new();
    let custodian = team.person("Eve", Role::Member);
    let machine = team.publisher_of(&custodian.id, "laptop");
    let other = team.publisher("other");
    let body = json!({ "root_id": "home" });
    for (token, reads, writes) in [
        (&custodian.token, true, true),
        (&team.person("A", Role::Admin).token, true, true),
        (&team.person("M", Role::Member).token, false, false),
        (&team.person("V", Role::Viewer).token, false, false),
        (&machine.token, true, false),
        (&other.token, false, false),
        (&team.app("bot", &["sessions:read"]).token, false, false),
    ] {
        let rule = make(&team, &machine, "x");
        let or = |allowed, status| if allowed { status } else { 403 };
        let address = rules_of(&machine);
        assert_eq!(team.get(token, &address).status, or(reads, 200));
        assert_eq!(team.get(token, &rule).status, or(reads, 200));
        let roots = format!("/machines/{}/roots", machine.machine_id);
        assert_eq!(team.get(token, &roots).status, or(reads, 200));
        assert_eq!(team.post(token, &address, body.clone()).status, or(writes, 201));
        let change = json!({ "state": "paused" });
        assert_eq!(team.patch(token, &rule, change).status, or(writes, 200));
        assert_eq!(team.delete(token, &rule).status, or(writes, 204));
    }
}

#[test]
fn a_rule_is_found_under_its_own_machine_only() {
    let team = Team::new();
    let (machine, other) = (team.publisher("laptop"), team.publisher("other"));
    let rule = make(&team, &machine, "home");
    let id = rule.rsplit('/').next().unwrap();
    for address in [
        format!("{}/{id}", rules_of(&other)),
        format!("{}/x", rules_of(&machine)),
        format!("/machines/x/rules/{id}"),
    ] {
        assert_eq!(team.get(&team.owner, &address).refusal(), (404, "not_found", ""));
        assert_eq!(team.patch(&team.owner, &address, json!({})).refusal().0, 404);
        assert_eq!(team.delete(&team.owner, &address).refusal().0, 404);
    }
}

#[test]
fn a_machine_has_at_most_so_many_rules_and_lists_them_all() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    for n in 0..RULES_MAX {
        make(&team, &machine, &format!("r{n}"));
    }
    let got = team.post(&team.owner, &rules_of(&machine), json!({ "root_id": "more" }));
    assert_eq!(got.refusal(), (409, "conflict", ""));
    let first = team.get(&team.owner, &format!("{}?limit=200", rules_of(&machine)));
    let next = first.json["next_cursor"].as_str().unwrap();
    let rest = team.get(&team.owner, &format!("{}?cursor={next}&limit=200", rules_of(&machine)));
    assert_eq!(first.items().len() + rest.items().len(), RULES_MAX);
    let got = configuration(&team, &machine, "");
    assert_eq!(got.data(200)["rules"].as_array().map(Vec::len), Some(RULES_MAX));
}

#[test]
fn a_configuration_is_sent_again_only_when_it_has_changed() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let got = configuration(&team, &machine, "");
    assert_eq!(got.data(200)["source"]["id"], machine.source_id.to_string());
    assert_eq!(got.data(200)["rules"], json!([]));
    assert!(got.data(200)["auth_epoch"].is_i64());
    let mut tag = got.header("etag").unwrap().to_owned();

    let rule = make(&team, &machine, "home");
    let source = format!("/sources/{}", machine.source_id);
    let changes: [&dyn Fn() -> u16; 5] = [
        &|| 200,
        &|| team.patch(&team.owner, &rule, json!({ "state": "paused" })).status,
        &|| team.patch(&team.owner, &source, json!({ "state": "paused" })).status,
        &|| team.post(&team.owner, "/members", json!({ "name": "B", "role": "viewer" })).status,
        &|| team.delete(&team.owner, &rule).status,
    ];
    for change in changes {
        assert!(change() < 300);
        let got = configuration(&team, &machine, &tag);
        assert_eq!(got.status, 200);
        tag = got.header("etag").unwrap().to_owned();
        for known in [tag.clone(), format!("\"x\", W/{tag}"), "*".into()] {
            let got = configuration(&team, &machine, &known);
            assert_eq!((got.status, got.bytes.len()), (304, 0));
            assert_eq!(got.header("etag"), Some(tag.as_str()));
        }
    }
    // What its own captures move is nothing that it works by.
    team.driver.connection().execute("UPDATE sources SET last_received_at = 5", ()).unwrap();
    assert_eq!(configuration(&team, &machine, &tag).status, 304);
}

#[test]
fn a_configuration_is_for_that_machine_and_while_its_custodian_is_active() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let address = format!("/machines/{}/configuration", machine.machine_id);
    let other = team.publisher("other");
    for token in [&team.owner, &other.token, &team.app("bot", &["sessions:read"]).token] {
        assert_eq!(team.get(token, &address).refusal(), (403, "forbidden", ""));
    }
    let custodian = format!("/members/{}", machine.custodian_id);
    team.patch(&team.owner, &custodian, json!({ "active": false }));
    assert_eq!(configuration(&team, &machine, "").refusal(), (403, "forbidden", ""));
    team.patch(&team.owner, &custodian, json!({ "active": true }));
    assert_eq!(configuration(&team, &machine, "").status, 200);
    assert_eq!(team.get(&machine.token, "/machines/x/configuration").refusal().0, 404);
}

#[test]
fn a_revoked_machine_takes_no_rules() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let rule = make(&team, &machine, "home");
    let address = format!("/machines/{}", machine.machine_id);
    team.send(&team.owner, "DELETE", &address, &[("if-match", "*")], None);
    assert_eq!(team.get(&team.owner, &rule).refusal().0, 404);
    let got = team.post(&team.owner, &rules_of(&machine), json!({ "root_id": "r" }));
    assert_eq!(got.refusal(), (409, "conflict", ""));
    let none: &[Json] = &[];
    assert_eq!(team.get(&team.owner, &rules_of(&machine)).items(), none);
}

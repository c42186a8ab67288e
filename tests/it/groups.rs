use crate::team::{Got, Person, Team};
use serde_json::{Value as Json, json};
use teamplane::auth::Role;
use teamplane::ids::Id;
use teamplane::limits::GROUPS_MAX;

fn make(team: &Team, name: &str) -> String {
    let got = team.post(&team.owner, "/groups", json!({ "name": name }));
    format!("/groups/{}", got.data(201)["id"].as_str().unwrap())
}

fn seat(group: &str, person: &Person) -> String {
    format!("{group}/members/{}", person.id)
}

fn delete(team: &Team, token: &str, group: &str, tag: &str) -> Got {
    team.send(token, "DELETE", group, &[("if-match", tag)], None)
}

#[test]
fn a_group_is_made_renamed_and_read_back() {
    let team = Team::new();
    let marks = team.marks();
    let got = team.post(&team.owner, "/groups", json!({ "name": "Core" }));
    let expected = json!({
        "id": got.data(201)["id"], "name": "Core", "principal_ids": [], "revision": 1,
        "created_at": team.now_ms.get()
    });
    assert_eq!(got.data(201), &expected);
    assert_eq!(got.header("etag"), Some("\"1\""));
    assert_eq!(team.events_since(marks.0), ["group.changed"]);
    let address = format!("/groups/{}", expected["id"].as_str().unwrap());
    assert_eq!(team.get(&team.owner, &address).data(200), &expected);

    let got = team.patch(&team.owner, &address, json!({ "name": "Base" }));
    assert_eq!((&got.data(200)["name"], &got.data(200)["revision"]), (&"Base".into(), &2.into()));
    let marks = team.marks();
    assert_eq!(team.patch(&team.owner, &address, json!({})).data(200)["revision"], 2);
    assert_eq!(team.patch(&team.owner, &address, json!({ "name": "Base" })).status, 200);
    assert_eq!(team.marks(), marks);
    let late = br#"{"name":"Late"}"#;
    let got = team.send(&team.owner, "PATCH", &address, &[("if-match", "\"1\"")], Some(late));
    assert_eq!(got.refusal(), (409, "revision_mismatch", ""));
}

#[test]
fn members_come_and_go_and_each_change_is_one_of_authority() {
    let team = Team::new();
    let group = make(&team, "Core");
    let (bob, eve) = (team.person("Bob", Role::Member), team.person("Eve", Role::Viewer));
    let sequence = team.marks().0;
    for person in [&bob, &eve] {
        let got = team.send(&team.owner, "PUT", &seat(&group, person), &[], None);
        assert!(got.data(200)["principal_ids"].as_array().unwrap().contains(&json!(person.id)));
    }
    let change = ["group.changed", "authorization_changed"];
    assert_eq!(team.events_since(sequence), [change, change].concat());
    let marks = team.marks();
    let again = team.send(&team.owner, "PUT", &seat(&group, &bob), &[], None);
    assert_eq!(again.data(200)["revision"], 3);
    assert_eq!(team.marks(), marks);

    assert_eq!(team.delete(&team.owner, &seat(&group, &bob)).status, 204);
    assert_eq!(team.get(&bob.token, &group).data(200)["principal_ids"], json!([eve.id]));
    assert_eq!(team.events_since(marks.0), change);
    let marks = team.marks();
    assert_eq!(team.delete(&team.owner, &seat(&group, &bob)).status, 204);
    assert_eq!(team.marks(), marks);
    // Whoever leaves the team leaves its groups.
    assert_eq!(team.delete(&team.owner, &format!("/members/{}", eve.id)).status, 204);
    let got = team.get(&team.owner, &group);
    assert_eq!(got.data(200)["principal_ids"], json!([]));
    assert_eq!(got.data(200)["revision"], 5);
}

#[test]
fn a_deleted_group_takes_its_grants_along() {
    let team = Team::new();
    let (group, other) = (make(&team, "Core"), make(&team, "Other"));
    let bob = team.person("Bob", Role::Member);
    team.send(&team.owner, "PUT", &seat(&group, &bob), &[], None);
    for address in [&group, &other] {
        let id = address.rsplit('/').next().unwrap();
        let grant = "INSERT INTO session_grants VALUES (?1, 'session_1', 'group', ?2, 'read', 0)";
        team.driver.connection().execute(grant, (team.id.as_str(), id)).unwrap();
    }
    assert_eq!(team.delete(&team.owner, &group).refusal(), (428, "precondition_required", ""));
    assert_eq!(delete(&team, &team.owner, &group, "\"1\"").refusal().1, "revision_mismatch");
    let sequence = team.marks().0;
    assert_eq!(delete(&team, &team.owner, &group, "\"2\"").status, 204);
    assert_eq!(team.events_since(sequence), ["group.changed", "authorization_changed"]);
    assert_eq!(team.get(&team.owner, &group).refusal(), (404, "not_found", ""));
    assert_eq!(delete(&team, &team.owner, &group, "\"2\"").refusal().0, 404);
    assert_eq!(team.count("SELECT count(*) FROM session_grants"), 1);
    assert_eq!(team.count("SELECT count(*) FROM group_members"), 0);
    let current = "SELECT count(*) FROM event_resources WHERE resource_kind = 'group'";
    assert_eq!(team.count(current), 1);
}

#[test]
fn everyone_reads_groups_and_admins_change_them() {
    let team = Team::new();
    let group = make(&team, "Core");
    let bob = team.person("Bob", Role::Viewer);
    let machine = team.publisher("laptop");
    let reader = team.app("reader", &["sessions:read"]);
    for (token, admin) in [
        (&bob.token, false),
        (&team.person("M", Role::Member).token, false),
        (&team.person("A", Role::Admin).token, true),
        (&machine.token, false),
        (&reader.token, false),
    ] {
        assert_eq!(team.get(token, "/groups").status, 200);
        assert_eq!(team.get(token, &group).status, 200);
        let or = |status| if admin { status } else { 403 };
        assert_eq!(team.post(token, "/groups", json!({ "name": "New" })).status, or(201));
        assert_eq!(team.patch(token, &group, json!({ "name": "Renamed" })).status, or(200));
        assert_eq!(team.send(token, "PUT", &seat(&group, &bob), &[], None).status, or(200));
        assert_eq!(team.delete(token, &seat(&group, &bob)).status, or(204));
        let spare = make(&team, "spare");
        assert_eq!(delete(&team, token, &spare, "\"1\"").status, or(204));
    }
    let blind = team.app("blind", &["runs:read"]);
    assert_eq!(team.get(&blind.token, "/groups").refusal().0, 403);
}

#[test]
fn bad_groups_and_unknown_ones_are_refused() {
    let team = Team::new();
    let group = make(&team, "Core");
    let marks = team.marks();
    for (body, field) in [
        (json!({}), "name"),
        (json!({ "name": "" }), "name"),
        (json!({ "name": "x".repeat(129) }), "name"),
        (json!({ "name": null }), "name"),
        (json!({ "name": "x", "principal_ids": [] }), "principal_ids"),
    ] {
        let got = team.post(&team.owner, "/groups", body.clone());
        assert_eq!(got.refusal(), (400, "invalid_request", field), "{body}");
        if body != json!({}) {
            let got = team.patch(&team.owner, &group, body.clone());
            assert_eq!(got.refusal(), (400, "invalid_request", field), "{body}");
        }
    }
    let nobody = format!("principal_{}", "0".repeat(32));
    let other_team = team.another("Other").1;
    for (method, address) in [
        ("GET", "/groups/x".to_owned()),
        ("DELETE", format!("/groups/group_{}", "0".repeat(32))),
        ("PUT", format!("{group}/members/{nobody}")),
        ("PUT", format!("{group}/members/x")),
        ("DELETE", format!("{group}/members/x")),
        ("PUT", format!("/groups/group_{}/members/{nobody}", "0".repeat(32))),
    ] {
        let got = team.send(&team.owner, method, &address, &[], None);
        assert_eq!(got.refusal(), (404, "not_found", ""), "{method} {address}");
        assert_eq!(team.send(&other_team, method, &address, &[], None).status, 404);
    }
    assert_eq!(team.marks().1, marks.1);
}

#[test]
fn a_team_has_at_most_so_many_groups() {
    let team = Team::new();
    let fill = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?2)
                INSERT INTO groups_table (team_id, id, name)
                SELECT ?1, 'group_' || i, 'n' FROM n";
    let count = i64::try_from(GROUPS_MAX).unwrap() - 1;
    team.driver.connection().execute(fill, (team.id.as_str(), count)).unwrap();
    make(&team, "last");
    let got = team.post(&team.owner, "/groups", json!({ "name": "more" }));
    assert_eq!(got.refusal(), (409, "conflict", ""));
}

#[test]
fn a_page_of_groups_ends_early_when_its_members_are_many() {
    let team = Team::new();
    let groups: Vec<String> = (0..5).map(|n| make(&team, &format!("g{n}"))).collect();
    let fill = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?3)
                INSERT INTO group_members SELECT ?1, ?2, 'principal_' || i FROM n";
    for group in &groups {
        let id = group.rsplit('/').next().unwrap();
        team.driver.connection().execute(fill, (team.id.as_str(), id, 600)).unwrap();
    }
    let (mut sizes, mut seen, mut cursor) = (Vec::new(), Vec::new(), String::new());
    loop {
        let got = team.get(&team.owner, &format!("/groups?limit=4{cursor}"));
        sizes.push(got.items().len());
        seen.extend(got.items().iter().map(|g| g["id"].as_str().unwrap().to_owned()));
        for group in got.items() {
            assert_eq!(group["principal_ids"].as_array().map(Vec::len), Some(600));
        }
        let Some(next) = got.json["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(sizes, [2, 2, 1]);
    let count = seen.len();
    seen.sort();
    seen.dedup();
    assert_eq!((count, seen.len()), (5, 5));
    let none = Team::new();
    let got = none.get(&none.owner, "/groups");
    assert_eq!((got.items().len(), &got.json["next_cursor"]), (0, &Json::Null));
}

use crate::team::Team;
use serde_json::{Value as Json, json};
use teamplane::auth::Role;
use teamplane::ids::Id;
use teamplane::limits::{ROWS_EXAMINED_MAX, SOURCES_MAX};

fn make(team: &Team, token: &str, name: &str, visibility: &str) -> Json {
    let body = json!({ "name": name, "kind": "import", "visibility": visibility });
    team.post(token, "/sources", body).data(201).clone()
}

fn path(source: &Json) -> String {
    format!("/sources/{}", source["id"].as_str().unwrap())
}

#[test]
fn a_source_is_made_for_its_maker_and_read_back() {
    let team = Team::new();
    let eve = team.person("Eve", Role::Member);
    let marks = team.marks();
    let body = json!({ "name": "Slack", "kind": "app", "visibility": "restricted" });
    let got = team.post(&eve.token, "/sources", body);
    let expected = json!({
        "id": got.data(201)["id"], "name": "Slack", "kind": "app", "machine_id": null,
        "custodian_id": eve.id.to_string(), "visibility": "restricted", "state": "active",
        "last_received_at": null, "revision": 1, "created_at": team.now_ms.get()
    });
    assert_eq!(got.data(201), &expected);
    assert_eq!(got.header("etag"), Some("\"1\""));
    assert_eq!(team.get(&eve.token, &path(&expected)).data(200), &expected);
    assert_eq!(team.get(&eve.token, "/sources").items(), std::slice::from_ref(&expected));
    assert_eq!(team.events_since(marks.0), ["source.changed"]);
    let journal = team.get(&team.owner, "/journal");
    assert_eq!(journal.items()[0]["action"], "source.created");
}

#[test]
fn members_and_apps_that_publish_make_sources() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    for (n, (token, status)) in [
        (&team.person("V", Role::Viewer).token, 403),
        (&team.person("M", Role::Member).token, 201),
        (&team.person("A", Role::Admin).token, 201),
        (&team.owner, 201),
        (&machine.token, 403),
        (&team.app("reader", &["sessions:read"]).token, 403),
        (&team.app("writer", &["captures:write"]).token, 201),
    ]
    .into_iter()
    .enumerate()
    {
        let body = json!({ "name": format!("s{n}"), "kind": "app", "visibility": "team" });
        assert_eq!(team.post(token, "/sources", body).status, status, "{n}");
    }
}

#[test]
fn a_bad_source_is_refused_by_its_field_and_writes_nothing() {
    let team = Team::new();
    let known = make(&team, &team.owner, "known", "team");
    let marks = team.marks();
    let with = |field: &str, value: Json| {
        let mut body = json!({ "name": "x", "kind": "app", "visibility": "team" });
        body[field] = value;
        body
    };
    for (body, field) in [
        (json!({ "kind": "app", "visibility": "team" }), "name"),
        (json!({ "name": "x", "visibility": "team" }), "kind"),
        (json!({ "name": "x", "kind": "app" }), "visibility"),
        (with("state", "active".into()), "state"),
        (with("name", "x".repeat(129).into()), "name"),
        (with("name", " ".into()), "name"),
        (with("kind", "connector".into()), "kind"),
        (with("visibility", "public".into()), "visibility"),
    ] {
        let got = team.post(&team.owner, "/sources", body.clone());
        assert_eq!(got.refusal(), (400, "invalid_request", field), "{body}");
    }
    for (body, field) in [
        (json!({ "kind": "app" }), "kind"),
        (json!({ "name": null }), "name"),
        (json!({ "name": "" }), "name"),
        (json!({ "visibility": "public" }), "visibility"),
        (json!({ "state": "revoked" }), "state"),
        (json!({ "state": null }), "state"),
    ] {
        let got = team.patch(&team.owner, &path(&known), body.clone());
        assert_eq!(got.refusal(), (400, "invalid_request", field), "{body}");
    }
    assert_eq!(team.marks(), marks);
}

#[test]
fn a_taken_name_is_refused_at_once_and_on_renaming() {
    let team = Team::new();
    let first = make(&team, &team.owner, "one", "team");
    let second = make(&team, &team.owner, "two", "team");
    let marks = team.marks();
    let body = json!({ "name": "one", "kind": "app", "visibility": "team" });
    assert_eq!(team.post(&team.owner, "/sources", body).refusal(), (409, "conflict", "name"));
    let rename = json!({ "name": "one", "visibility": "restricted" });
    let got = team.patch(&team.owner, &path(&second), rename);
    assert_eq!(got.refusal(), (409, "conflict", "name"));
    assert_eq!(team.get(&team.owner, &path(&second)).data(200), &second);
    assert_eq!(team.marks(), marks);
    // Its own name is not another's.
    let own = json!({ "name": "one", "state": "paused" });
    assert_eq!(team.patch(&team.owner, &path(&first), own).data(200)["state"], "paused");
    // Another team's names are its own.
    let (other_id, other) = team.another("Other");
    let body = json!({ "name": "one", "kind": "app", "visibility": "team" }).to_string();
    let address = format!("/v1/teams/{other_id}/sources");
    let got = team.send_to(&address, &other, "POST", &[], Some(body.as_bytes()));
    assert_eq!(got.status, 201);
}

#[test]
fn a_restricted_source_is_seen_by_its_custodian_and_admins() {
    let team = Team::new();
    let eve = team.person("Eve", Role::Member);
    let machine = team.publisher_of(&eve.id, "laptop");
    let shown = make(&team, &eve.token, "shown", "team");
    let hidden = make(&team, &eve.token, "hidden", "restricted");
    let viewer = team.person("V", Role::Viewer);
    let other = team.person("M", Role::Member);
    let admin = team.person("A", Role::Admin);
    let app = team.app("bot", &["sessions:read"]);
    for (token, sees) in [
        (&eve.token, true),
        (&machine.token, true),
        (&viewer.token, false),
        (&other.token, false),
        (&app.token, false),
        (&admin.token, true),
        (&team.owner, true),
    ] {
        let got = team.get(token, &path(&hidden));
        assert_eq!(got.status, if sees { 200 } else { 404 });
        assert_eq!(team.get(token, &path(&shown)).status, 200);
        let listed = team.get(token, "/sources");
        assert_eq!(listed.items().contains(&hidden), sees);
        assert!(listed.items().contains(&shown));
    }
    let blind = team.app("blind", &["runs:read"]);
    assert_eq!(team.get(&blind.token, "/sources").refusal().0, 403);
    assert_eq!(team.get(&blind.token, &path(&shown)).refusal().0, 403);
}

#[test]
fn its_custodian_and_admins_change_a_source() {
    let team = Team::new();
    let eve = team.person("Eve", Role::Member);
    let machine = team.publisher_of(&eve.id, "laptop");
    let other = team.person("M", Role::Member);
    let shown = make(&team, &eve.token, "shown", "team");
    let hidden = make(&team, &eve.token, "hidden", "restricted");
    let pause = json!({ "state": "paused" });
    for (token, source, status) in [
        (&other.token, &shown, 403),
        (&other.token, &hidden, 404),
        (&team.person("V", Role::Viewer).token, &hidden, 403),
        (&machine.token, &hidden, 403),
        (&team.app("bot", &["sessions:read"]).token, &shown, 403),
        (&eve.token, &shown, 200),
        (&team.person("A", Role::Admin).token, &hidden, 200),
    ] {
        assert_eq!(team.patch(token, &path(source), pause.clone()).status, status);
    }
    let (_, stranger) = team.another("Other");
    assert_eq!(team.patch(&stranger, &path(&shown), pause).refusal().0, 404);
    assert_eq!(team.get(&team.owner, "/sources/x").refusal().0, 404);
}

#[test]
fn showing_and_hiding_changes_authority_and_pausing_does_not() {
    let team = Team::new();
    let source = make(&team, &team.owner, "s", "restricted");
    let change = |body: Json| {
        let sequence = team.marks().0;
        let got = team.patch(&team.owner, &path(&source), body);
        (got.data(200)["revision"].as_i64().unwrap(), team.events_since(sequence))
    };
    let changed = "source.changed".to_owned();
    let authority = "authorization_changed".to_owned();
    assert_eq!(change(json!({ "state": "paused" })), (2, vec![changed.clone()]));
    assert_eq!(change(json!({ "visibility": "team" })), (3, vec![changed.clone(), authority]));
    assert_eq!(change(json!({ "visibility": "team", "state": "paused" })), (3, vec![]));
    assert_eq!(change(json!({ "name": "t", "state": "active" })), (4, vec![changed]));
}

#[test]
fn a_change_of_another_revision_is_refused() {
    let team = Team::new();
    let source = make(&team, &team.owner, "s", "restricted");
    let change = |tag: &str| {
        let body = br#"{"state":"paused"}"#;
        team.send(&team.owner, "PATCH", &path(&source), &[("if-match", tag)], Some(body))
    };
    assert_eq!(change("\"2\"").refusal(), (409, "revision_mismatch", ""));
    assert_eq!(change("\"1\"").header("etag"), Some("\"2\""));
}

#[test]
fn a_revoked_source_may_be_shown_but_not_resumed() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    team.delete(&team.owner, &format!("/members/{}", machine.custodian_id));
    let address = format!("/sources/{}", machine.source_id);
    let got = team.patch(&team.owner, &address, json!({ "state": "active" }));
    assert_eq!(got.refusal(), (409, "conflict", ""));
    let got = team.patch(&team.owner, &address, json!({ "visibility": "team" }));
    assert_eq!(
        (&got.data(200)["state"], &got.data(200)["visibility"]),
        (&"revoked".into(), &"team".into())
    );
}

#[test]
fn a_team_has_at_most_so_many_sources_and_a_page_looks_at_a_bounded_number() {
    let team = Team::new();
    let eve = team.person("Eve", Role::Member);
    let fill = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?2)
                INSERT INTO sources
                    (team_id, id, name, kind, custodian_id, visibility, state)
                SELECT ?1, 'source_' || i, 'n' || i, 'app', 'principal_x', 'restricted', 'active'
                  FROM n";
    let filled = i64::try_from(SOURCES_MAX).unwrap() - 1;
    team.driver.connection().execute(fill, (team.id.as_str(), filled)).unwrap();
    let own = make(&team, &eve.token, "own", "restricted");
    let body = json!({ "name": "more", "kind": "app", "visibility": "team" });
    assert_eq!(team.post(&eve.token, "/sources", body).refusal(), (409, "conflict", ""));

    let (mut pages, mut seen, mut cursor) = (0, Vec::new(), String::new());
    loop {
        let got = team.get(&eve.token, &format!("/sources?limit=1{cursor}"));
        seen.extend(got.items().clone());
        pages += 1;
        let Some(next) = got.json["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(seen, [own]);
    assert!(pages >= SOURCES_MAX / ROWS_EXAMINED_MAX, "{pages} pages");
}

#[test]
fn every_source_is_listed_once_over_the_pages() {
    let team = Team::new();
    for n in 0..9 {
        make(&team, &team.owner, &format!("s{n}"), if n % 2 == 0 { "team" } else { "restricted" });
    }
    let eve = team.person("Eve", Role::Viewer);
    for limit in [1, 2, 5, 6] {
        let (mut seen, mut cursor) = (Vec::new(), String::new());
        loop {
            let got = team.get(&eve.token, &format!("/sources?limit={limit}{cursor}"));
            seen.extend(got.items().iter().map(|s| s["name"].as_str().unwrap().to_owned()));
            let Some(next) = got.json["next_cursor"].as_str() else { break };
            cursor = format!("&cursor={next}");
        }
        seen.sort();
        assert_eq!(seen, ["s0", "s2", "s4", "s6", "s8"]);
    }
}

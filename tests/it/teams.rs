use crate::team::Team;
use serde_json::{Value as Json, json};
use teamplane::auth::Role;

#[test]
fn a_new_team_is_read_back_by_its_owner() {
    let team = Team::new();
    let got = team.get(&team.owner, "");
    assert_eq!(got.data(200)["name"], "Acme");
    assert_eq!(got.data(200)["retention"]["events_days"], 7);
    assert_eq!(got.header("etag"), Some("\"1\""));
    assert_eq!(got.json["context"]["team_id"], team.id.to_string());
}

#[test]
fn a_change_keeps_what_it_does_not_name_and_raises_the_revision_once() {
    let team = Team::new();
    let got = team.patch(
        &team.owner,
        "",
        json!({ "name": "Acme & Co", "retention": { "journal_days": 3650, "sessions_days": 1 } }),
    );
    let retention = json!({
        "events_days": 7, "deliveries_days": 7, "journal_days": 3650, "sessions_days": 1
    });
    assert_eq!(got.data(200)["name"], "Acme & Co");
    assert_eq!(got.data(200)["retention"], retention);
    assert_eq!((got.data(200)["revision"].as_i64(), got.header("etag")), (Some(2), Some("\"2\"")));
    assert_eq!(team.get(&team.owner, "").data(200), got.data(200));

    let (name, resource, data) = team.last_event();
    assert_eq!((name.as_str(), resource), ("team.changed", team.id.to_string()));
    assert_eq!((&data["revision"], &data["name"]), (&json!(2), &json!("Acme & Co")));
    let journal = team.get(&team.owner, "/journal");
    assert_eq!(journal.items()[0]["action"], "team.changed");

    let got = team.patch(&team.owner, "", json!({ "retention": { "sessions_days": null } }));
    assert_eq!(got.data(200)["retention"]["sessions_days"], Json::Null);
    assert_eq!(got.data(200)["retention"]["journal_days"], 3650);
}

#[test]
fn a_change_that_changes_nothing_writes_nothing() {
    let team = Team::new();
    let marks = team.marks();
    for body in [json!({}), json!({ "name": "Acme" }), json!({ "retention": { "events_days": 7 } })]
    {
        assert_eq!(team.patch(&team.owner, "", body).data(200)["revision"], 1);
    }
    assert_eq!(team.marks(), marks);
}

#[test]
fn a_bad_change_is_refused_by_its_field_and_writes_nothing() {
    let team = Team::new();
    let marks = team.marks();
    for (body, field) in [
        (json!({ "title": "x" }), "title"),
        (json!({ "name": 1 }), "name"),
        (json!({ "name": null }), "name"),
        (json!({ "name": "" }), "name"),
        (json!({ "name": " " }), "name"),
        (json!({ "name": "a\nb" }), "name"),
        (json!({ "name": "x".repeat(129) }), "name"),
        (json!({ "retention": null }), "retention"),
        (json!({ "retention": { "days": 1 } }), "retention.days"),
        (json!({ "retention": { "events_days": 0 } }), "retention.events_days"),
        (json!({ "retention": { "events_days": null } }), "retention.events_days"),
        (json!({ "retention": { "deliveries_days": 3651 } }), "retention.deliveries_days"),
        (json!({ "retention": { "journal_days": 1.5 } }), "retention.journal_days"),
        (json!({ "retention": { "sessions_days": 0 } }), "retention.sessions_days"),
        (json!({ "retention": { "sessions_days": 3651 } }), "retention.sessions_days"),
        (json!({ "retention": { "sessions_days": "1" } }), "retention.sessions_days"),
    ] {
        let got = team.patch(&team.owner, "", body.clone());
        assert_eq!(got.refusal(), (400, "invalid_request", field), "{body}");
    }
    let longest = team.patch(&team.owner, "", json!({ "name": "é".repeat(128) }));
    assert_eq!(longest.status, 200);
    assert_eq!(team.marks(), (marks.0 + 1, marks.1 + 1));
}

#[test]
fn only_people_who_are_admins_change_the_team() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let app = team.app("bot", &["sessions:read"]);
    let marks = team.marks();
    let viewer = team.person("V", Role::Viewer).token;
    let member = team.person("M", Role::Member).token;
    for token in [&viewer, &member, &machine.token, &app.token] {
        let got = team.patch(token, "", json!({ "name": "Mine" }));
        assert_eq!(got.refusal(), (403, "forbidden", ""));
        // A bad field is named before a missing role.
        assert_eq!(team.patch(token, "", json!({ "nam": "" })).refusal().0, 400);
    }
    assert_eq!(team.marks(), marks);
    let admin = team.person("A", Role::Admin).token;
    assert_eq!(team.patch(&admin, "", json!({ "name": "Ours" })).status, 200);
}

#[test]
fn a_change_of_another_revision_is_refused_and_says_the_current_one() {
    let team = Team::new();
    let change = |tag: &str, name: &str| {
        let body = json!({ "name": name }).to_string();
        team.send(&team.owner, "PATCH", "", &[("if-match", tag)], Some(body.as_bytes()))
    };
    assert_eq!(change("\"1\"", "Two").status, 200);
    let late = change("\"1\"", "Three");
    assert_eq!(late.refusal(), (409, "revision_mismatch", ""));
    assert_eq!(late.json["error"]["details"]["revision"], 2);
    assert_eq!(team.get(&team.owner, "").data(200)["name"], "Two");
    assert_eq!(change("*", "Three").status, 200);
}

#[test]
fn another_teams_token_finds_no_team_here() {
    let team = Team::new();
    let (_, stranger) = team.another("Other");
    assert_eq!(team.get(&stranger, "").refusal(), (404, "not_found", ""));
    assert_eq!(team.patch(&stranger, "", json!({ "name": "Mine" })).refusal().0, 404);
    assert_eq!(team.get(&stranger, "/me").refusal().0, 404);
}

#[test]
fn me_says_whom_each_kind_of_token_acts_for() {
    let team = Team::new();
    let person = team.person("Eve", Role::Viewer);
    let got = team.get(&person.token, "/me");
    let me = got.data(200);
    assert_eq!(me["principal"]["id"], person.id.to_string());
    assert_eq!(
        (&me["principal"]["kind"], &me["principal"]["name"]),
        (&"user".into(), &"Eve".into())
    );
    assert_eq!(me["principal"]["email"], Json::Null);
    assert_eq!(me["role"], "viewer");
    assert_eq!(me["team"]["id"], team.id.to_string());
    assert_eq!(me["credential"]["kind"], "user");
    assert_eq!(me["credential"]["last_used_at"], team.now_ms.get());
    assert!(me["credential"].get("token").is_none(), "a token is shown once");

    let machine = team.publisher("laptop");
    let got = team.get(&machine.token, "/me");
    assert_eq!(got.data(200)["principal"]["id"], machine.custodian_id.to_string());
    assert_eq!(got.data(200)["credential"]["machine_id"], machine.machine_id.to_string());
    assert_eq!(got.data(200)["role"], "member");

    let app = team.app("bot", &[]);
    let got = team.get(&app.token, "/me");
    assert_eq!(got.data(200)["principal"]["kind"], "app");
    assert_eq!(got.data(200)["role"], Json::Null);

    assert_eq!(team.get("", "/me").refusal(), (401, "unauthenticated", ""));
}

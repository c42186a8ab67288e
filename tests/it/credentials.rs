use crate::team::Team;
use serde_json::{Value as Json, json};
use teamplane::auth::Role;
use teamplane::limits::{CREDENTIALS_PER_PRINCIPAL_MAX, DAY_MS};

fn own_id(team: &Team, token: &str) -> String {
    team.get(token, "/me").data(200)["credential"]["id"].as_str().unwrap().to_owned()
}

fn ids(items: &[Json]) -> Vec<String> {
    items.iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn one_more_token_acts_for_the_same_person_as_long_as_asked() {
    let team = Team::new();
    let eve = team.person("Eve", Role::Viewer);
    let marks = team.marks();
    let got = team.post(&eve.token, "/credentials", json!({ "expires_in_ms": 60_000 }));
    let made = got.data(201);
    assert_eq!(made["kind"], "user");
    assert_eq!(made["principal_id"], eve.id.to_string());
    assert_eq!((&made["machine_id"], &made["app_id"]), (&Json::Null, &Json::Null));
    assert_eq!((&made["revoked_at"], &made["last_used_at"]), (&Json::Null, &Json::Null));
    let token = made["token"].as_str().unwrap();
    assert_eq!(team.get(token, "/me").data(200)["principal"]["id"], eve.id.to_string());
    // More tokens of the same authority change none.
    assert_eq!(team.marks(), (marks.0, marks.1 + 1));

    let got = team.get(&eve.token, &format!("/credentials/{}", made["id"].as_str().unwrap()));
    assert!(got.data(200).get("token").is_none());
    assert_eq!(got.data(200)["last_used_at"], team.now_ms.get());
    team.advance(60_000);
    assert!(!team.is_accepted(token));
}

#[test]
fn a_bad_credential_is_refused_by_its_field() {
    let team = Team::new();
    let marks = team.marks();
    for (body, field) in [
        (json!({ "kind": "user" }), "kind"),
        (json!({ "expires_in_ms": "1" }), "expires_in_ms"),
        (json!({ "expires_in_ms": 0 }), "expires_in_ms"),
        (json!({ "expires_in_ms": 400 * DAY_MS + 1 }), "expires_in_ms"),
    ] {
        let got = team.post(&team.owner, "/credentials", body.clone());
        assert_eq!(got.refusal(), (400, "invalid_request", field), "{body}");
    }
    assert_eq!(team.marks(), marks);
    assert_eq!(team.post(&team.owner, "/credentials", json!({})).status, 201);
}

#[test]
fn machines_and_apps_make_no_tokens() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let app = team.app("bot", &["sessions:read"]);
    for token in [&machine.token, &app.token] {
        assert_eq!(team.post(token, "/credentials", json!({})).refusal(), (403, "forbidden", ""));
    }
}

#[test]
fn people_see_their_own_credentials_and_their_machines_and_admins_all() {
    let team = Team::new();
    let eve = team.person("Eve", Role::Member);
    let machine = team.publisher_of(&eve.id, "laptop");
    let app = team.app("bot", &[]);
    let admin = team.person("A", Role::Admin);
    let (_, _) = team.another("Other");
    let mut own = vec![own_id(&team, &eve.token), own_id(&team, &machine.token)];
    own.sort();
    assert_eq!(ids(team.get(&eve.token, "/credentials").items()), own);
    assert_eq!(team.get(&admin.token, "/credentials").items().len(), 5);
    for token in [&machine.token, &app.token] {
        let only = [own_id(&team, token)];
        assert_eq!(ids(team.get(token, "/credentials").items()), only);
    }

    let others = format!("/credentials/{}", own_id(&team, &admin.token));
    let mine = format!("/credentials/{}", own_id(&team, &eve.token));
    assert_eq!(team.get(&eve.token, &others).refusal(), (404, "not_found", ""));
    assert_eq!(team.delete(&eve.token, &others).refusal(), (404, "not_found", ""));
    assert_eq!(team.get(&machine.token, &mine).refusal().0, 404);
    assert_eq!(team.delete(&machine.token, &mine).refusal().0, 404);
    assert_eq!(team.get(&admin.token, &mine).status, 200);
    assert!(team.is_accepted(&admin.token) && team.is_accepted(&eve.token));
}

#[test]
fn pages_hold_every_credential_once() {
    let team = Team::new();
    let people: Vec<_> = (0..4).map(|_| team.person("p", Role::Member)).collect();
    for person in &people {
        team.publisher_of(&person.id, &person.id.to_string());
        team.post(&person.token, "/credentials", json!({}));
    }
    for limit in [1, 4, 5, 12, 13, 200] {
        let (mut seen, mut cursor) = (Vec::new(), String::new());
        loop {
            let got = team.get(&team.owner, &format!("/credentials?limit={limit}{cursor}"));
            seen.extend(ids(got.items()));
            let Some(next) = got.json["next_cursor"].as_str() else { break };
            cursor = format!("&cursor={next}");
        }
        assert_eq!(seen.len(), 13);
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 13);
    }
    let got = team.get(&people[0].token, "/credentials?limit=2");
    let next = got.json["next_cursor"].as_str().unwrap();
    let rest = team.get(&people[0].token, &format!("/credentials?cursor={next}"));
    assert_eq!((rest.items().len(), &rest.json["next_cursor"]), (1, &Json::Null));
}

#[test]
fn a_revoked_token_is_refused_at_once_and_revoking_it_again_changes_nothing() {
    let team = Team::new();
    let eve = team.person("Eve", Role::Member);
    let address = format!("/credentials/{}", own_id(&team, &eve.token));
    let marks = team.marks();
    assert_eq!(team.delete(&team.owner, &address).status, 204);
    assert_eq!(team.get(&eve.token, "/me").refusal(), (401, "unauthenticated", ""));
    assert_eq!(team.events_since(marks.0), ["authorization_changed"]);
    assert_eq!(team.get(&team.owner, "/journal").items()[0]["action"], "credential.revoked");
    let revoked_at = team.now_ms.get();
    team.advance(5);
    let marks = team.marks();
    assert_eq!(team.delete(&team.owner, &address).status, 204);
    assert_eq!(team.marks(), marks);
    assert_eq!(team.get(&team.owner, &address).data(200)["revoked_at"], revoked_at);
}

#[test]
fn a_machine_and_an_app_may_end_their_own_token() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let app = team.app("bot", &[]);
    for token in [&machine.token, &app.token] {
        let address = format!("/credentials/{}", own_id(&team, token));
        assert_eq!(team.delete(token, &address).status, 204);
        assert!(!team.is_accepted(token));
    }
}

#[test]
fn other_teams_and_malformed_credentials_are_unknown() {
    let team = Team::new();
    let (other_id, other) = team.another("Other");
    let me = team.send_to(&format!("/v1/teams/{other_id}/me"), &other, "GET", &[], None);
    let stranger = me.data(200)["credential"]["id"].as_str().unwrap();
    for id in [stranger, "x", "credential_", "principal_00000000000000000000000000000000"] {
        let address = format!("/credentials/{id}");
        assert_eq!(team.get(&team.owner, &address).refusal(), (404, "not_found", ""));
        assert_eq!(team.delete(&team.owner, &address).refusal(), (404, "not_found", ""));
    }
    let still = team.send_to(&format!("/v1/teams/{other_id}/me"), &other, "GET", &[], None);
    assert_eq!(still.status, 200);
}

#[test]
fn a_person_has_at_most_so_many_live_tokens() {
    let team = Team::new();
    let eve = team.person("Eve", Role::Member);
    team.publisher_of(&eve.id, "machines do not count");
    let make = || team.post(&eve.token, "/credentials", json!({ "expires_in_ms": 60_000 }));
    for _ in 1..CREDENTIALS_PER_PRINCIPAL_MAX {
        assert_eq!(make().status, 201);
    }
    let marks = team.marks();
    assert_eq!(make().refusal(), (409, "conflict", ""));
    assert_eq!(team.marks(), marks);
    team.advance(60_000);
    assert_eq!(make().status, 201);
}

#[test]
fn a_repeated_creation_makes_one_token_and_shows_it_once() {
    let team = Team::new();
    let make =
        || team.send(&team.owner, "POST", "/credentials", &[("idempotency-key", "k")], Some(b"{}"));
    let (first, again) = (make(), make());
    assert!(first.data(201)["token"].is_string());
    assert_eq!(again.data(201)["token"], Json::Null);
    assert_eq!(again.data(201)["id"], first.data(201)["id"]);
    assert_eq!(team.count("SELECT count(*) FROM credentials"), 2);
}

//! Apps: who may make them, what they are let in with, and what ends with them.
use crate::capture::{messages, session};
use crate::team::{Got, Team};
use serde_json::{Value as Json, json};
use teamplane::auth::Role;
use teamplane::ids::Id;
use teamplane::limits::{APPS_MAX, DAY_MS, INSTALL_CODE_AGE_MS, INSTALL_CODES_MAX};

fn make(team: &Team, body: Json) -> String {
    team.post(&team.owner, "/apps", body).data(201)["id"].as_str().unwrap().to_owned()
}

fn code(team: &Team, app: &str) -> String {
    let made = team.post(&team.owner, &format!("/apps/{app}/install-codes"), json!({}));
    made.data(201)["code"].as_str().unwrap().to_owned()
}

fn install(team: &Team, code: &str) -> Got {
    let body = json!({ "code": code }).to_string();
    team.send_to("/v1/apps/install", "", "POST", &[], Some(body.as_bytes()))
}

fn token(installed: &Got) -> String {
    installed.data(201)["credential"]["token"].as_str().unwrap().to_owned()
}

#[test]
fn a_code_works_once_within_ten_minutes_and_is_kept_as_a_hash() {
    let team = Team::new();
    let app = make(&team, json!({ "name": "a", "webhook_url": "https://example.com/" }));
    let (first, late) = (code(&team, &app), code(&team, &app));
    let pattern = format!("tpi_{}_", &team.id.as_str()["team_".len()..]);
    assert!(first.starts_with(&pattern) && first.len() == pattern.len() + 32, "{first}");
    let stored = "SELECT count(*) FROM app_install_codes WHERE typeof(code_hash) = 'blob'
                     AND length(code_hash) = 32 AND instr(hex(code_hash), 'tpi') = 0";
    assert_eq!(team.count(stored), 2);

    let installed = install(&team, &first);
    let data = installed.data(201);
    assert_eq!(data["app"]["id"], app.as_str());
    assert!(data["webhook_secret"].as_str().unwrap().starts_with("whsec_"));
    assert!(team.is_accepted(&token(&installed)));
    assert_eq!(install(&team, &first).refusal(), (401, "unauthenticated", ""));
    team.advance(INSTALL_CODE_AGE_MS);
    assert_eq!(install(&team, &late).refusal(), (401, "unauthenticated", ""));
}

#[test]
fn a_malformed_or_foreign_code_is_refused_and_leaves_no_trace() {
    let team = Team::new();
    let (other, _) = team.another("Other");
    let app = make(&team, json!({ "name": "a" }));
    let good = code(&team, &app);
    let marks = team.marks();
    let elsewhere = good.replace(&team.id.as_str()["team_".len()..], &other.as_str()[5..]);
    assert_eq!(install(&team, &elsewhere).refusal().0, 401);
    for bad in ["", "tpi_", &good[..good.len() - 1], &good.to_uppercase(), &format!("{good}0")] {
        assert_eq!(install(&team, bad).refusal(), (400, "invalid_request", "code"), "{bad}");
    }
    let send = |headers: &[(&'static str, &str)], body: &str| {
        let answer = team.send_to("/v1/apps/install", "", "POST", headers, Some(body.as_bytes()));
        answer.refusal().0
    };
    assert_eq!(send(&[("content-type", "text/plain")], "{}"), 415);
    assert_eq!(send(&[], &format!("{{\"code\":\"{}\"}}", "a".repeat(5_000))), 413);
    assert_eq!(send(&[], "{"), 400);
    assert_eq!(send(&[], &json!({ "code": good, "x": 1 }).to_string()), 400);
    assert_eq!(team.marks(), marks);
    assert_eq!(install(&team, &good).status, 201);
}

#[test]
fn a_second_installation_ends_the_first_ones_token() {
    let team = Team::new();
    let app = make(&team, json!({ "name": "a" }));
    let epoch = || team.count("SELECT auth_epoch FROM teams ORDER BY created_at, id LIMIT 1");
    let before = epoch();
    let first = token(&install(&team, &code(&team, &app)));
    assert_eq!(epoch(), before);
    let second = token(&install(&team, &code(&team, &app)));
    assert!(!team.is_accepted(&first) && team.is_accepted(&second));
    assert_eq!(epoch(), before + 1);
}

#[test]
fn deleting_an_app_ends_its_token_grants_and_codes_at_once_and_its_deliveries_soon() {
    let team = Team::new();
    let app = make(
        &team,
        json!({ "name": "a", "webhook_url": "https://example.com/", "events": ["*"],
                "scopes": ["sessions:read"] }),
    );
    let ada = team.person("ada", Role::Member);
    let laptop = team.publisher_of(&ada.id, "laptop");
    let published = session(&team.publish(&laptop.token, "n", &messages(0, 1, "a")));
    let installed = install(&team, &code(&team, &app));
    let principal = installed.data(201)["app"]["principal_id"].as_str().unwrap().to_owned();
    let token = token(&installed);
    let grant = format!("/sessions/{published}/grants/principal/{principal}");
    assert_eq!(team.put(&ada.token, &grant, r#"{"access":"read"}"#).status, 200);
    let seen = || team.get(&token, &format!("/sessions/{published}")).status;
    assert_eq!(seen(), 200);
    let unused = code(&team, &app);
    assert!(team.count("SELECT count(*) FROM app_webhook_deliveries") > 0);

    assert_eq!(team.delete(&team.owner, &format!("/apps/{app}")).status, 204);
    assert!(!team.is_accepted(&token));
    assert_eq!(install(&team, &unused).refusal().0, 401);
    assert_eq!(team.get(&team.owner, &format!("/apps/{app}")).refusal().0, 404);
    assert_eq!(team.events_since(0).iter().filter(|name| *name == "app.deleted").count(), 1);
    assert_eq!(team.count("SELECT count(*) FROM session_grants"), 0);
    team.settle();
    assert_eq!(team.count("SELECT count(*) FROM app_webhook_deliveries"), 0);
    assert_eq!(team.count("SELECT count(*) FROM deleted_apps"), 0);
    assert_eq!(team.count("SELECT count(*) FROM principals WHERE kind = 'app'"), 0);
}

#[test]
fn a_team_has_at_most_100_apps_and_an_app_10_unused_codes() {
    let team = Team::new();
    for n in 0..APPS_MAX {
        make(&team, json!({ "name": format!("app {n}") }));
    }
    let refused = team.post(&team.owner, "/apps", json!({ "name": "one more" }));
    assert_eq!(refused.refusal(), (409, "conflict", ""));
    let app = team.get(&team.owner, "/apps?limit=1").items()[0]["id"].clone();
    let app = app.as_str().unwrap();
    for _ in 0..INSTALL_CODES_MAX {
        code(&team, app);
    }
    let path = format!("/apps/{app}/install-codes");
    assert_eq!(team.post(&team.owner, &path, json!({})).refusal(), (409, "conflict", ""));
    assert_eq!(team.delete(&team.owner, &format!("/apps/{app}")).status, 204);
    make(&team, json!({ "name": "one more" }));
}

#[test]
fn without_a_root_secret_what_needs_one_says_so_and_nothing_else_does() {
    let mut team = Team::new();
    let hook = json!({ "name": "a", "webhook_url": "https://example.com/" });
    let with_hook = make(&team, hook.clone());
    team.config.app_root_secret = None;
    let plain = make(&team, json!({ "name": "b" }));
    let refused = |got: Got| assert_eq!(got.refusal(), (503, "not_configured", ""));
    refused(team.post(&team.owner, "/apps", hook));
    let url = json!({ "webhook_url": "https://example.com/" });
    refused(team.patch(&team.owner, &format!("/apps/{plain}"), url));
    refused(team.post(&team.owner, &format!("/apps/{with_hook}/rotate-secret"), json!({})));
    refused(team.post(&team.owner, &format!("/apps/{with_hook}/test"), json!({})));
    let kept = code(&team, &with_hook);
    refused(install(&team, &kept));
    let installed = install(&team, &code(&team, &plain));
    assert_eq!(installed.data(201)["webhook_secret"], Json::Null);
    let name = json!({ "name": "c" });
    assert_eq!(team.patch(&team.owner, &format!("/apps/{with_hook}"), name).status, 200);
    team.config.app_root_secret = Some("root".into());
    assert_eq!(install(&team, &kept).status, 201, "the refusal did not use it up");
}

#[test]
fn secrets_and_codes_are_shown_once_also_to_who_repeats_a_request() {
    let team = Team::new();
    let app = make(&team, json!({ "name": "a" }));
    for (path, field, status) in
        [("rotate-secret", "webhook_secret", 200), ("install-codes", "code", 201)]
    {
        let send = || {
            let path = format!("/apps/{app}/{path}");
            team.send(&team.owner, "POST", &path, &[("idempotency-key", "k1")], Some(b"{}"))
        };
        // Another path under the same key is another request.
        team.advance(2 * DAY_MS);
        assert!(send().data(status)[field].is_string());
        let again = send();
        assert_eq!(again.data(status)[field], Json::Null);
        assert_eq!(again.json["data"]["replayed"], true);
    }
    assert_eq!(team.count("SELECT secret_version FROM apps LIMIT 1"), 2);
    let secrets = "SELECT count(*) FROM idempotency
                    WHERE instr(response_json, 'whsec_') + instr(response_json, 'tpi_') > 0";
    assert_eq!(team.count(secrets), 0);
}

#[test]
fn a_change_of_scopes_is_one_of_authority_and_other_changes_are_not() {
    let team = Team::new();
    let app = make(&team, json!({ "name": "a" }));
    let epoch = || team.count("SELECT auth_epoch FROM teams");
    let path = format!("/apps/{app}");
    let before = epoch();
    let same = team.patch(&team.owner, &path, json!({ "name": "a", "scopes": [] }));
    assert_eq!(same.data(200)["revision"], 1);
    team.patch(&team.owner, &path, json!({ "name": "b", "events": ["*"] })).data(200);
    assert_eq!(epoch(), before);
    team.patch(&team.owner, &path, json!({ "scopes": ["runs:read"] })).data(200);
    assert_eq!(epoch(), before + 1);
    let null = team.patch(&team.owner, &path, json!({ "scopes": null }));
    assert_eq!(null.refusal(), (400, "invalid_request", "scopes"));
}

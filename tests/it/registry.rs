use crate::team::{START_MS, Team};
use serde_json::{Value as Json, json};
use teamplane::api::{Answer, Body, Request};
use teamplane::domain::registry::{self, AskAfter, Begun, Wanted};
use teamplane::domain::team_removal;
use teamplane::error::Result;
use teamplane::ids::{Id, TeamId};
use teamplane::limits::{DAY_MS, MAKE_TEAM_AGE_MS, TEAMS_ASKED_MS};

const BODY: &str = r#"{"name":"Acme","owner":{"name":"Ada"}}"#;

fn wanted(body: &str, headers: &[(&'static str, &str)], query: &str) -> Result<Wanted> {
    let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, (*value).into())).collect();
    registry::wanted(&Request {
        method: "POST",
        path: "/v1/teams",
        query,
        headers: &headers,
        body: Some(body.as_bytes()),
        request_id: "request_1",
    })
}

fn keyed(body: &str) -> Wanted {
    wanted(body, &[("idempotency-key", "k")], "").expect("the request is good")
}

fn begin(store: &Team, wanted: &Wanted, running: bool) -> Result<Begun> {
    store.db().transaction(|tx| registry::begin(tx, wanted, running))
}

fn begun(store: &Team, wanted: &Wanted) -> TeamId {
    match begin(store, wanted, false).expect("it begins") {
        Begun::Team(team_id) => team_id,
        Begun::Answered(_) => panic!("it was answered before"),
    }
}

fn finish(store: &Team, wanted: &Wanted, team_id: &TeamId) -> Answer {
    let created = json!({ "team": { "id": team_id }, "credential": { "token": "tp_user_secret" } });
    store
        .db()
        .transaction(|tx| registry::finish(tx, &store.server_id, wanted, team_id, &created))
        .expect("it ends")
}

fn body(answer: &Answer) -> Json {
    let Body::Json(text) = &answer.body else { panic!("an answer is JSON") };
    serde_json::from_str(text).expect("an answer is JSON")
}

fn states(store: &Team) -> (i64, i64, i64) {
    (
        store.count("SELECT count(*) FROM registry WHERE state = 'creating'"),
        store.count("SELECT count(*) FROM registry WHERE state = 'active'"),
        store.count("SELECT count(*) FROM global_idempotency"),
    )
}

/// A body, headers, and the code and field of its refusal.
type Case<'a> = (&'a str, Vec<(&'static str, &'a str)>, &'a str, &'a str);

#[test]
fn a_request_that_does_not_fit_is_refused_by_name() {
    let long = "k".repeat(129);
    let key = |key| vec![("idempotency-key", key)];
    let cases: &[Case] = &[
        (r#"{"name":"Acme"}"#, vec![], "", "owner"),
        (r#"{"name":"Acme","owner":{"name":"Ada","x":1}}"#, vec![], "", "owner.x"),
        (r#"{"name":" ","owner":{"name":"Ada"}}"#, vec![], "", "name"),
        (BODY, key(""), "", "Idempotency-Key"),
        (BODY, key(&long), "", "Idempotency-Key"),
        (BODY, key("ä"), "", "Idempotency-Key"),
        (BODY, vec![], "dry_run=1", "dry_run"),
    ];
    for (body, headers, query, field) in cases {
        let error = wanted(body, headers, query).err().expect("it is refused");
        assert_eq!(error.details.get("field"), Some(&json!(field)), "{body} {query}");
    }
    assert!(wanted(BODY, &key(&long[1..]), "").is_ok());
}

#[test]
fn a_team_is_creating_until_its_object_has_made_it() {
    let store = Team::new();
    let request = wanted(BODY, &[], "").expect("the request is good");
    let team_id = begun(&store, &request);
    assert_eq!(states(&store), (1, 0, 0));

    let answer = finish(&store, &request, &team_id);
    assert_eq!(states(&store), (0, 1, 0));
    assert_eq!(answer.status, 201);
    assert_eq!(body(&answer)["context"]["team_id"], team_id.to_string());
    assert_eq!(body(&answer)["context"]["principal_id"], Json::Null);
    assert_eq!(body(&answer)["data"]["credential"]["token"], "tp_user_secret");
}

#[test]
fn a_repeated_request_gets_the_first_answer_without_its_token_for_a_day() {
    let store = Team::new();
    let team_id = begun(&store, &keyed(BODY));
    finish(&store, &keyed(BODY), &team_id);
    assert_eq!(
        store.count("SELECT count(*) FROM global_idempotency WHERE response_json LIKE '%secret%'"),
        0
    );

    store.now_ms.set(START_MS + DAY_MS - 1);
    let Ok(Begun::Answered(answer)) = begin(&store, &keyed(BODY), false) else {
        panic!("it was answered before")
    };
    assert!(answer.headers.contains(&("Idempotent-Replayed", "true".into())));
    assert_eq!(body(&answer)["data"]["credential"], json!({ "token": null, "replayed": true }));

    store.now_ms.set(START_MS + DAY_MS);
    assert_ne!(begun(&store, &keyed(BODY)), team_id);
}

#[test]
fn another_request_under_the_same_key_is_refused_whether_or_not_the_first_has_ended() {
    let store = Team::new();
    let other = keyed(r#"{"name":"Other","owner":{"name":"Ada"}}"#);
    let team_id = begun(&store, &keyed(BODY));
    for running in [true, false] {
        let error = begin(&store, &other, running).err().expect("it is refused");
        assert_eq!(error.code.text(), "idempotency_mismatch");
    }
    finish(&store, &keyed(BODY), &team_id);
    assert!(begin(&store, &other, false).is_err());
    assert_eq!(states(&store), (0, 1, 1));
}

#[test]
fn a_repeated_request_waits_for_one_that_runs_and_resumes_one_that_died() {
    let store = Team::new();
    let team_id = begun(&store, &keyed(BODY));

    let error = begin(&store, &keyed(BODY), true).err().expect("it is refused");
    assert_eq!(error.code.text(), "conflict");
    assert_eq!(error.header, Some(("Retry-After", "1".into())));

    assert_eq!(begun(&store, &keyed(BODY)), team_id);
    assert_eq!(states(&store), (1, 0, 1));
}

#[test]
fn a_failure_leaves_the_key_free() {
    let store = Team::new();
    begun(&store, &keyed(BODY));
    store.db().transaction(|tx| registry::abandon(tx, &keyed(BODY), None)).expect("it is given up");
    assert_eq!(states(&store), (1, 0, 0));

    let other = keyed(r#"{"name":"Other","owner":{"name":"Ada"}}"#);
    let team_id = begun(&store, &other);
    finish(&store, &other, &team_id);
    store.db().transaction(|tx| registry::abandon(tx, &other, None)).expect("nothing to give up");
    assert_eq!(states(&store), (1, 1, 1));
}

#[test]
fn teams_that_are_neither_active_nor_gone_are_asked_after() {
    let store = Team::new();
    let db = || store.db();
    assert_eq!(registry::asked_at(&db()), Ok(None));
    let refused = begun(&store, &keyed(BODY));
    db().transaction(|tx| registry::abandon(tx, &keyed(BODY), Some(&refused))).unwrap();
    assert_eq!(states(&store), (0, 0, 0));
    let lost = begun(&store, &keyed(BODY));
    db().transaction(|tx| registry::abandon(tx, &keyed(BODY), None)).unwrap();
    let made = begun(&store, &keyed(BODY));
    finish(&store, &keyed(BODY), &made);
    // A day long the same key might have gone on with it.
    assert_eq!(registry::asked_at(&db()), Ok(Some(START_MS + MAKE_TEAM_AGE_MS)));
    store.now_ms.set(START_MS + MAKE_TEAM_AGE_MS - 1);
    assert!(registry::unsettled(&db()).unwrap().is_empty());
    store.advance(1);
    let asked = registry::unsettled(&db()).unwrap();
    assert_eq!((asked.len(), &asked[0].team_id, asked[0].is_given_up), (1, &lost, true));
    // Its object has it after all, so it is being deleted.
    db().transaction(|tx| registry::asked(tx, &lost, false)).unwrap();
    db().transaction(|tx| registry::mark_deleting(tx, &made)).unwrap();
    assert_eq!(registry::asked_at(&db()), Ok(Some(store.now_ms.get() + TEAMS_ASKED_MS)));
    assert_eq!(registry::unsettled(&db()).unwrap().len(), 2);
    for team_id in [&lost, &made] {
        db().transaction(|tx| registry::asked(tx, team_id, true)).unwrap();
    }
    assert_eq!(store.count("SELECT count(*) FROM registry"), 0);
    assert_eq!(registry::asked_at(&db()), Ok(None));
}

#[test]
fn a_team_whose_making_was_given_up_is_deleted_where_it_is() {
    let store = Team::new();
    let ask = |team_id: &TeamId, is_given_up| {
        let asked = AskAfter { team_id: team_id.clone(), is_given_up };
        store.db().transaction(|tx| team_removal::ask_after(tx, &asked)).unwrap()
    };
    let none = TeamId::from_hex(&"9".repeat(32));
    assert!(ask(&none, true));
    assert!(!ask(&store.id, false));
    assert!(store.is_accepted(&store.owner));
    assert!(!ask(&store.id, true));
    assert!(!store.is_accepted(&store.owner));
    store.settle();
    assert!(ask(&store.id, false));
}

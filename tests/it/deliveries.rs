//! Which events become deliveries, which of those are sent when, and what their answers do.
use crate::capture::{messages, session};
use crate::team::Team;
use serde_json::{Value as Json, json};
use std::collections::HashSet;
use teamplane::auth::Role;
use teamplane::domain::delivering::{self, Outcome, Sending};
use teamplane::domain::events;
use teamplane::ids::Id;
use teamplane::limits::{
    BATCH_UNITS_MAX, DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, WEBHOOK_ATTEMPTS_KEPT,
    WEBHOOK_FAILING_MS_MAX, WEBHOOK_LEASE_MS, WEBHOOK_STEPS_MS, WEBHOOK_UNSIGNED_WAIT_MS,
};
use teamplane::webhooks::signature;

const URL: &str = "https://example.com/hook";

impl Team {
    fn hook(&self, events: &[&str]) -> String {
        let body = json!({ "name": "hook", "webhook_url": URL, "events": events });
        self.post(&self.owner, "/apps", body).data(201)["id"].as_str().unwrap().to_owned()
    }
    /// An event that every test may have.
    fn group(&self) {
        self.post(&self.owner, "/groups", json!({ "name": "g" })).data(201);
    }
    fn lease(&self) -> Vec<Sending> {
        delivering::lease(&self.db(), &self.config).unwrap()
    }
    fn answer(&self, sending: &Sending, status: u16) {
        self.outcome(sending, &Outcome { status: Some(status), ..Outcome::default() });
    }
    fn outcome(&self, sending: &Sending, outcome: &Outcome) {
        self.db().transaction(|tx| delivering::record(tx, sending, outcome)).unwrap();
    }
    /// Sends all that is due and has it answered.
    fn answer_all(&self, status: u16) -> usize {
        let mut count = 0;
        loop {
            let leased = self.lease();
            if leased.is_empty() {
                return count;
            }
            for sending in leased {
                self.answer(&sending, status);
                count += 1;
            }
        }
    }
    fn deliveries(&self, app: &str) -> Vec<Json> {
        self.get(&self.owner, &format!("/apps/{app}/deliveries?limit=200")).items().clone()
    }
    fn next_at(&self) -> Option<i64> {
        delivering::next_at(&self.db()).unwrap()
    }
    fn ask(&self, app: &str, what: &str, body: Json) -> crate::team::Got {
        self.post(&self.owner, &format!("/apps/{app}/{what}"), body)
    }
}

#[test]
fn an_event_becomes_one_thin_delivery_to_each_app_that_wants_it() {
    let team = Team::new();
    let (all, some, other) = (team.hook(&["*"]), team.hook(&["group.changed"]), team.hook(&[]));
    let silent = json!({ "name": "silent", "events": ["*"] });
    let silent = team.post(&team.owner, "/apps", silent).data(201)["id"].clone();
    let before = team.deliveries(&all).len();
    team.group();
    assert_eq!(team.deliveries(&some).len(), 1);
    assert_eq!(team.deliveries(&other).len(), 0);
    assert_eq!(team.deliveries(silent.as_str().unwrap()).len(), 0);
    // The group's, the authority's.
    assert!(team.deliveries(&all).len() > before);

    let sending = team.lease().into_iter().find(|s| s.app_id.as_str() == some).unwrap();
    let body: Json = serde_json::from_str(&sending.body).unwrap();
    assert_eq!(body["type"], "group.changed");
    assert_eq!(body["timestamp"], "2023-11-14T22:13:20.000Z");
    let position = body["data"]["position"].as_str().unwrap();
    let (epoch, sequence) = position.split_once('.').unwrap();
    assert_eq!(epoch.len(), 8);
    let after = format!("/events?after={epoch}.{}", sequence.parse::<i64>().unwrap() - 1);
    let logged = team.get(&team.owner, &after).items()[0].clone();
    assert_eq!(logged["position"], position);
    assert_eq!(logged["resource_id"], body["data"]["resource_id"]);
    assert_eq!(body["data"]["name"], Json::Null, "no more than ids");
    assert_eq!(body["data"]["team_id"], team.id_text());
}

/// Wherever the source names an event, or passes its name on.
#[test]
fn every_recorded_type_can_be_subscribed_to() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/domain");
    let mut named = HashSet::new();
    for entry in std::fs::read_dir(source).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        for line in text.lines().filter(|line| line.contains("name: ") || line.contains("announce"))
        {
            let parts = line.split('"').skip(1).step_by(2);
            named.extend(
                parts.filter(|part| part.contains('.') && !part.contains('{')).map(str::to_owned),
            );
        }
    }
    assert!(named.len() >= 10, "{named:?}");
    let unknown: Vec<_> =
        named.iter().filter(|name| !events::TYPES.contains(&name.as_str())).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn an_app_hears_only_of_what_it_may_see() {
    let team = Team::new();
    let ada = team.person("ada", Role::Member);
    let laptop = team.publisher_of(&ada.id, "laptop");
    let app = team.hook(&["session.created", "session.updated", "source.changed"]);
    let principal =
        team.get(&team.owner, &format!("/apps/{app}")).data(200)["principal_id"].clone();
    let types = || -> Vec<String> {
        let mut types: Vec<String> = team
            .deliveries(&app)
            .iter()
            .map(|delivery| delivery["event_type"].as_str().unwrap().to_owned())
            .collect();
        types.sort();
        types
    };
    let published = session(&team.publish(&laptop.token, "n", &messages(0, 1, "a")));
    assert_eq!(types(), Vec::<String>::new(), "a restricted source");
    let grant = format!("/sessions/{published}/grants/principal/{}", principal.as_str().unwrap());
    assert_eq!(team.put(&ada.token, &grant, r#"{"access":"read"}"#).status, 200);
    team.publish(&laptop.token, "n", &messages(0, 2, "a"));
    assert_eq!(types(), ["session.updated"], "a grant");
    team.publish(&laptop.token, "other", &messages(0, 1, "a"));
    assert_eq!(types(), ["session.updated"]);
    let path = format!("/sources/{}", laptop.source_id);
    team.patch(&ada.token, &path, json!({ "visibility": "team" })).data(200);
    team.publish(&laptop.token, "third", &messages(0, 1, "a"));
    assert_eq!(types(), ["session.created", "session.updated", "source.changed"]);

    // What it missed, it may see now.
    assert_eq!(team.ask(&app, "deliveries/recover", json!({ "since": 0 })).data(200)["created"], 2);
}

#[test]
fn a_refused_request_leaves_no_delivery() {
    let team = Team::new();
    let app = team.hook(&["*"]);
    let before = team.deliveries(&app).len();
    assert_eq!(team.post(&team.owner, "/groups", json!({ "name": "" })).status, 400);
    assert_eq!(team.deliveries(&app).len(), before);
}

#[test]
fn a_team_without_apps_pays_one_look_for_an_event() {
    let team = Team::new();
    let cost = |team: &Team| {
        let before = team.db().cost();
        team.group();
        team.db().cost() - before
    };
    cost(&team);
    let without = cost(&team);
    let hook = team.hook(&["member.added"]);
    team.delete(&team.owner, &format!("/apps/{hook}"));
    let again = cost(&team);
    assert_eq!(without.rows_written, again.rows_written);
    assert!(team.count("SELECT count(*) FROM app_webhook_deliveries") == 0);
}

#[test]
fn a_delivery_is_leased_signed_and_sent_again_under_its_id_when_its_sender_dies() {
    let team = Team::new();
    let app = team.hook(&["group.changed"]);
    team.group();
    let first = team.lease().remove(0);
    assert!(team.lease().is_empty(), "it is in flight");
    team.advance(WEBHOOK_LEASE_MS - 1);
    assert!(team.lease().is_empty());
    team.advance(1);
    let second = team.lease().remove(0);
    assert_eq!(second.delivery_id, first.delivery_id);
    assert_eq!(second.body, first.body);
    let header = |sending: &Sending, name: &str| {
        sending.headers.iter().find(|(n, _)| *n == name).unwrap().1.clone()
    };
    let seconds = |s: &Sending| header(s, "webhook-timestamp").parse::<i64>().unwrap();
    assert_eq!(seconds(&second) - seconds(&first), WEBHOOK_LEASE_MS / SECOND_MS);
    assert_ne!(header(&second, "webhook-signature"), header(&first, "webhook-signature"));
    let id = &second.app_id;
    let key = signature::key("root", &team.id, id, 1);
    let signed = signature::sign(
        &key,
        second.delivery_id.as_str(),
        seconds(&second),
        second.body.as_bytes(),
    );
    assert_eq!(header(&second, "webhook-signature"), signed);

    // The first sender lives after all: its lease has gone, and so has its say.
    team.answer(&first, 500);
    assert_eq!(team.deliveries(&app)[0]["attempts"], 0);
    team.answer(&second, 204);
    team.answer(&second, 500);
    let delivery = team.deliveries(&app).remove(0);
    assert_eq!((&delivery["state"], &delivery["attempts"]), (&json!("delivered"), &json!(1)));
    assert_eq!(delivery["last_status"], 204);
    assert_eq!(team.next_at(), None);
}

#[test]
fn it_is_tried_eight_times_over_more_than_a_day_and_then_failed() {
    let team = Team::new();
    let app = team.hook(&["group.changed"]);
    team.group();
    for (index, step) in WEBHOOK_STEPS_MS.into_iter().enumerate() {
        let sending = team.lease().remove(0);
        team.outcome(&sending, &Outcome { error: Some("no answer".into()), ..Outcome::default() });
        let delivery = team.deliveries(&app).remove(0);
        assert_eq!(delivery["attempts"], index + 1);
        assert_eq!(delivery["last_error"], "no answer");
        let wait = delivery["next_at"].as_i64().unwrap() - team.now_ms.get();
        assert!((step * 4 / 5..=step * 6 / 5).contains(&wait), "{step}: {wait}");
        assert_eq!(team.next_at(), delivery["next_at"].as_i64());
        team.advance(wait - 1);
        assert!(team.lease().is_empty());
        team.advance(1);
    }
    let sending = team.lease().remove(0);
    team.answer(&sending, 503);
    let delivery = team.deliveries(&app).remove(0);
    assert_eq!((&delivery["state"], &delivery["attempts"]), (&json!("failed"), &json!(8)));
    assert_eq!((&delivery["next_at"], &delivery["last_status"]), (&Json::Null, &json!(503)));
    assert_eq!(team.next_at(), None);
    assert_eq!(team.count("SELECT count(*) FROM app_webhook_attempts"), 8);

    let id = delivery["id"].as_str().unwrap().to_owned();
    let retried = team.ask(&app, &format!("deliveries/{id}/retry"), json!({}));
    assert_eq!(retried.data(200)["attempts"], 0);
    let sending = team.lease().remove(0);
    assert_eq!(sending.delivery_id.as_str(), id);
    team.answer(&sending, 200);
    let again = team.ask(&app, &format!("deliveries/{id}/retry"), json!({}));
    assert_eq!(again.refusal(), (409, "conflict", ""));
    let journal = team.get(&team.owner, "/journal");
    assert_eq!(journal.items()[0]["action"], "delivery.retried");
}

#[test]
fn retry_after_is_honoured_within_twice_the_step() {
    let team = Team::new();
    let app = team.hook(&["group.changed"]);
    team.group();
    let sending = team.lease().remove(0);
    let retry_after = Some("8".into());
    team.outcome(&sending, &Outcome { status: Some(429), retry_after, ..Outcome::default() });
    let next_at = team.deliveries(&app)[0]["next_at"].as_i64().unwrap();
    assert_eq!(next_at - team.now_ms.get(), 8_000);
}

#[test]
fn only_2xx_delivers() {
    for status in [100, 199, 300, 301, 302, 307, 308, 400, 404, 429, 500, 599] {
        let team = Team::new();
        let app = team.hook(&["group.changed"]);
        team.group();
        team.answer(&team.lease().remove(0), status);
        assert_eq!(team.deliveries(&app)[0]["state"], "pending", "{status}");
    }
    for status in [200, 201, 202, 204, 299] {
        let team = Team::new();
        let app = team.hook(&["group.changed"]);
        team.group();
        team.answer(&team.lease().remove(0), status);
        assert_eq!(team.deliveries(&app)[0]["state"], "delivered", "{status}");
    }
}

#[test]
fn an_answer_of_410_disables_the_webhook_and_holds_what_is_pending() {
    let team = Team::new();
    let app = team.hook(&["group.changed"]);
    let witness = team.hook(&["app.disabled"]);
    team.group();
    team.answer(&team.lease().remove(0), 410);
    let shown = team.get(&team.owner, &format!("/apps/{app}")).data(200).clone();
    assert_eq!(shown["disabled_at"], team.now_ms.get());
    assert_eq!(team.deliveries(&app)[0]["state"], "pending");
    assert_eq!(team.deliveries(&witness)[0]["event_type"], "app.disabled");
    team.answer_all(200);
    assert_eq!(team.next_at(), None);
    assert_eq!(team.ask(&app, "test", json!({})).refusal(), (409, "conflict", ""));
    team.post(&team.owner, "/groups", json!({ "name": "missed" })).data(201);
    team.advance(DAY_MS);
    assert!(team.lease().is_empty());
    assert_eq!(team.deliveries(&app).len(), 1);

    let recovered = team.ask(&app, "deliveries/recover", json!({ "since": 0 }));
    assert_eq!(recovered.data(200), &json!({ "created": 1, "retried": 0, "next_since": null }));
    assert!(team.lease().is_empty(), "recovered, but held");
    assert_eq!(team.ask(&app, "enable", json!({})).data(200)["disabled_at"], Json::Null);
    assert_eq!(team.answer_all(200), 2);
    let again = team.ask(&app, "deliveries/recover", json!({ "since": 0 }));
    assert_eq!(again.data(200)["created"], 0, "each event once");
}

#[test]
fn five_days_of_nothing_but_failures_disable_and_one_success_begins_anew() {
    let team = Team::new();
    let app = team.hook(&["group.changed"]);
    let disabled =
        || !team.get(&team.owner, &format!("/apps/{app}")).data(200)["disabled_at"].is_null();
    let attempt = |name: String, status: u16| {
        team.post(&team.owner, "/groups", json!({ "name": name })).data(201);
        for sending in team.lease() {
            team.answer(&sending, status);
        }
    };
    attempt("a".into(), 500);
    team.advance(WEBHOOK_FAILING_MS_MAX - HOUR_MS);
    attempt("b".into(), 500);
    assert!(!disabled());
    attempt("c".into(), 200);
    team.advance(2 * HOUR_MS);
    attempt("d".into(), 500);
    assert!(!disabled());
    team.advance(WEBHOOK_FAILING_MS_MAX - 1);
    attempt("e".into(), 500);
    assert!(!disabled());
    team.advance(1);
    attempt("f".into(), 500);
    assert!(disabled());
}

#[test]
fn recover_makes_what_was_missed_since_a_moment_and_sends_failed_ones_again() {
    let team = Team::new();
    let app = team.hook(&["group.changed"]);
    team.group();
    let hold = |held: bool| {
        team.patch(&team.owner, &format!("/apps/{app}"), json!({ "disabled": held })).data(200);
    };
    hold(true);
    for n in 0..500 {
        team.advance(SECOND_MS);
        team.post(&team.owner, "/groups", json!({ "name": format!("g{n}") })).data(201);
    }
    hold(false);
    assert_eq!(team.deliveries(&app).len(), 1);
    let since = team.now_ms.get() - 299 * SECOND_MS;
    let recovered = team.ask(&app, "deliveries/recover", json!({ "since": since }));
    assert_eq!(recovered.data(200)["created"], 300);
    assert_eq!(team.count("SELECT count(*) FROM app_webhook_deliveries"), 301);
    let ids = team.count("SELECT count(DISTINCT id) FROM app_webhook_deliveries");
    assert_eq!(ids, 301);

    team.driver
        .connection()
        .execute_batch(
            "UPDATE app_webhook_deliveries SET state = 'failed', attempts = 8,
                               settled_at = created_at",
        )
        .unwrap();
    let recovered = team.ask(&app, "deliveries/recover", json!({ "since": since }));
    assert_eq!(recovered.data(200), &json!({ "created": 0, "retried": 300, "next_since": null }));
    assert_eq!(team.count("SELECT count(*) FROM app_webhook_deliveries WHERE state = 'failed'"), 1);
    assert_eq!(team.next_at(), Some(team.now_ms.get()));
    let bad = team.ask(&app, "deliveries/recover", json!({ "since": -1 }));
    assert_eq!(bad.refusal(), (400, "invalid_request", "since"));
}

#[test]
fn a_recovered_delivery_is_the_one_that_the_event_would_have_made() {
    let team = Team::new();
    let app = team.hook(&["group.changed"]);
    team.group();
    let body = || team.lease().remove(0);
    let made = body();
    team.driver.connection().execute_batch("DELETE FROM app_webhook_deliveries").unwrap();
    team.advance(MINUTE_MS);
    team.ask(&app, "deliveries/recover", json!({ "since": 0 })).data(200);
    let again = body();
    assert_eq!((again.delivery_id, again.body), (made.delivery_id, made.body));
}

#[test]
fn both_secrets_sign_for_a_day_after_a_rotation_the_newest_first() {
    let team = Team::new();
    let app = team.hook(&["group.changed"]);
    let rotated = team.ask(&app, "rotate-secret", json!({})).data(200).clone();
    assert_eq!(rotated["previous_until"], team.now_ms.get() + DAY_MS);
    let entries = || {
        team.post(&team.owner, "/groups", json!({ "name": team.now_ms.get().to_string() }));
        let sending = team.lease().remove(0);
        team.answer(&sending, 200);
        let key = |version| signature::key("root", &team.id, &sending.app_id, version);
        let (_, timestamp) = &sending.headers[2];
        let at = timestamp.parse().unwrap();
        let sign =
            |key| signature::sign(key, sending.delivery_id.as_str(), at, sending.body.as_bytes());
        let all: Vec<String> = sending.headers[3].1.split(' ').map(str::to_owned).collect();
        (all, sign(&key(2)), sign(&key(1)))
    };
    team.advance(DAY_MS - 1);
    let (all, new, old) = entries();
    assert_eq!(all, [new, old]);
    team.advance(1);
    let (all, new, _) = entries();
    assert_eq!(all, [new]);
}

/// How many of each app's deliveries were leased, fewest first.
fn flying(leased: &[Sending]) -> Vec<usize> {
    let apps: HashSet<_> = leased.iter().map(|sending| sending.app_id.clone()).collect();
    let mut counts: Vec<usize> = apps
        .iter()
        .map(|app| leased.iter().filter(|sending| sending.app_id == *app).count())
        .collect();
    counts.sort_unstable();
    counts
}

#[test]
fn at_most_six_are_in_flight_two_of_an_app_and_a_slow_one_delays_no_other() {
    let team = Team::new();
    let apps: Vec<String> = (0..3).map(|_| team.hook(&["member.added"])).collect();
    for n in 0..5 {
        let body = json!({ "name": format!("m{n}"), "role": "viewer" });
        team.post(&team.owner, "/members", body).data(201);
    }
    let slow = team.lease();
    assert_eq!(flying(&slow), [1, 2, 2], "a place is left for somebody else's first");
    let late = team.hook(&["group.changed"]);
    team.group();
    let next = team.lease();
    assert_eq!(next.iter().map(|s| s.app_id.as_str()).collect::<Vec<_>>(), [late.as_str()]);
    assert!(team.lease().is_empty(), "six are in flight");
    team.answer(&next[0], 200);
    // Slow ones that answer at last share three places from then on.
    for sending in &slow {
        let outcome = Outcome { status: Some(200), was_slow: true, ..Outcome::default() };
        team.outcome(sending, &outcome);
    }
    let leased = team.lease();
    assert_eq!(flying(&leased), [1, 1, 1]);
    assert!(apps.iter().all(|app| leased.iter().any(|s| s.app_id.as_str() == app)));
    team.post(&team.owner, "/groups", json!({ "name": "h" })).data(201);
    let leased = team.lease();
    assert_eq!(leased.len(), 1);
    assert_eq!(leased[0].app_id.as_str(), late);
}

#[test]
fn failing_apps_have_one_in_flight_each_and_three_together_and_nobody_waits_for_them() {
    let team = Team::new();
    let dead: Vec<String> = (0..20).map(|_| team.hook(&["member.added"])).collect();
    let body = |n: i64| json!({ "name": format!("m{n}"), "role": "viewer" });
    team.post(&team.owner, "/members", body(0)).data(201);
    assert_eq!(team.answer_all(500), 20);
    for n in 1..4 {
        team.post(&team.owner, "/members", body(n)).data(201);
    }
    let leased = team.lease();
    assert_eq!(flying(&leased), [1, 1, 1]);
    assert!(team.lease().is_empty());
    let live = team.hook(&["group.changed"]);
    team.group();
    team.post(&team.owner, "/groups", json!({ "name": "h" })).data(201);
    let leased = team.lease();
    assert_eq!(flying(&leased), [2]);
    assert_eq!(leased[0].app_id.as_str(), live);
    // Every dead one has its turn: all attempts are made in the end.
    let mut seen = HashSet::new();
    for _ in 0..40 {
        team.advance(WEBHOOK_LEASE_MS);
        seen.extend(team.lease().into_iter().map(|sending| sending.app_id.to_string()));
    }
    assert!(dead.iter().all(|app| seen.contains(app)), "{} of 20", seen.len());
}

#[test]
fn an_address_is_checked_again_when_something_is_sent() {
    let mut team = Team::new();
    team.config.webhook_allow_local = true;
    let app = team.hook(&["group.changed"]);
    let local = json!({ "webhook_url": "http://127.0.0.1:1/" });
    team.patch(&team.owner, &format!("/apps/{app}"), local).data(200);
    team.group();
    team.config.webhook_allow_local = false;
    let sending = team.lease().remove(0);
    assert!(sending.refused.as_deref().is_some_and(|why| why.contains("https")));
}

#[test]
fn pending_deliveries_go_where_the_app_says_now_and_wait_while_that_is_nowhere() {
    let team = Team::new();
    let app = team.hook(&["group.changed"]);
    team.group();
    let path = format!("/apps/{app}");
    team.patch(&team.owner, &path, json!({ "webhook_url": null })).data(200);
    assert_eq!(team.next_at(), None);
    team.post(&team.owner, "/groups", json!({ "name": "unheard" })).data(201);
    let url = "https://example.org/new";
    team.patch(&team.owner, &path, json!({ "webhook_url": url })).data(200);
    let leased = team.lease();
    assert_eq!(leased.iter().map(|s| s.url.as_str()).collect::<Vec<_>>(), [url]);
}

#[test]
fn without_a_root_secret_deliveries_wait_unharmed() {
    let mut team = Team::new();
    let app = team.hook(&["group.changed"]);
    team.group();
    team.config.app_root_secret = None;
    assert!(team.lease().is_empty());
    assert_eq!(team.next_at(), Some(team.now_ms.get() + WEBHOOK_UNSIGNED_WAIT_MS));
    assert_eq!(team.deliveries(&app)[0]["attempts"], 0);
    team.advance(WEBHOOK_UNSIGNED_WAIT_MS);
    team.config.app_root_secret = Some("root".into());
    assert_eq!(team.answer_all(200), 1);
}

#[test]
fn a_deleted_teams_deliveries_are_not_sent() {
    let team = Team::new();
    team.hook(&["*"]);
    team.group();
    let gone = team.send(&team.owner, "DELETE", "", &[], Some(br#"{"confirm":"Acme"}"#));
    assert_eq!(gone.status, 202);
    assert!(team.lease().is_empty());
    assert_eq!(team.next_at(), None);
    team.settle();
    assert_eq!(team.count("SELECT count(*) FROM app_webhook_deliveries"), 0);
    assert_eq!(team.count("SELECT count(*) FROM apps"), 0);
    assert_eq!(team.count("SELECT count(*) FROM principals WHERE kind = 'app'"), 0);
    assert_eq!(team.next_at(), None);
}

#[test]
fn a_wipe_takes_deliveries_and_keeps_the_app_awake_for_nothing_no_longer() {
    let team = Team::new();
    let app = team.hook(&["group.changed"]);
    team.group();
    let wiped = team.post(&team.owner, "/wipe", json!({ "confirm": "Acme" }));
    assert_eq!(wiped.status, 200);
    team.settle();
    assert_eq!(team.deliveries(&app).len(), 0);
    assert!(team.lease().is_empty());
    assert_eq!(team.next_at(), None);
}

#[test]
fn the_list_pages_by_state_also_over_many_of_another() {
    let team = Team::new();
    let app = team.hook(&["group.changed"]);
    team.group();
    team.driver
        .connection()
        .execute_batch(&format!(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2500)
             INSERT INTO app_webhook_deliveries
                 (id, team_id, app_id, event_type, body, state, next_at, created_at, settled_at)
             SELECT printf('delivery_%032x', i), '{}', '{app}', 'x', '', 'delivered', 0, 0, 0 FROM n",
            team.id
        ))
        .unwrap();
    let (mut cursor, mut found, mut pages) = (String::new(), 0, 0);
    loop {
        let path = format!("/apps/{app}/deliveries?state=pending{cursor}");
        let page = team.get(&team.owner, &path);
        found += page.items().len();
        pages += 1;
        let Some(next) = page.json["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!((found, pages), (1, 3));
    let other = team.hook(&[]);
    let stolen = format!("/apps/{other}/deliveries?state=pending{cursor}");
    assert_eq!(team.get(&team.owner, &stolen).refusal().1, "invalid_cursor");
}

#[test]
fn only_the_last_attempts_are_kept() {
    let team = Team::new();
    let app = team.hook(&["group.changed"]);
    team.group();
    let id = team.deliveries(&app)[0]["id"].as_str().unwrap().to_owned();
    for _ in 0..WEBHOOK_ATTEMPTS_KEPT + 5 {
        team.answer(&team.lease().remove(0), 500);
        team.ask(&app, &format!("deliveries/{id}/retry"), json!({})).data(200);
    }
    let kept = team.count("SELECT count(*) FROM app_webhook_attempts");
    assert_eq!(kept, WEBHOOK_ATTEMPTS_KEPT);
}

#[test]
fn a_batch_of_retention_stays_within_its_units_when_twenty_apps_hear_of_all_it_does() {
    let team = Team::new();
    for _ in 0..20 {
        team.hook(&["*"]);
    }
    for n in 0..10 {
        team.driver
            .connection()
            .execute_batch(&format!(
                "INSERT INTO machine_presence (team_id, machine_id, linked, lost_at, changed_at)
                 VALUES ('{}', 'machine_{n:032x}', 1, {}, 0)",
                team.id,
                team.now_ms.get()
            ))
            .unwrap();
    }
    team.advance(MINUTE_MS);
    for outcome in team.settle() {
        assert!(outcome.largest_batch <= BATCH_UNITS_MAX, "{}", outcome.largest_batch);
    }
    let told = "SELECT count(*) FROM app_webhook_deliveries WHERE event_type = 'machine.unlinked'";
    assert_eq!(team.count(told), 200);
}

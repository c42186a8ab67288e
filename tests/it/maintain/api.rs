//! What admins see of maintenance, the alarm, and the pass that several wait for.
use crate::capture::{messages, session};
use crate::team::Team;
use serde_json::json;
use teamplane::auth::Role;
use teamplane::limits::{DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS};
use teamplane::maintain::alarm::{self, Outside};
use teamplane::maintain::{Runner, presence};

#[test]
fn maintenance_is_for_admins() {
    let team = Team::new();
    let member = team.person("Mia", Role::Member).token;
    let admin = team.person("Amy", Role::Admin).token;
    for (method, path) in [
        ("GET", "/maintain"),
        ("POST", "/maintain"),
        ("GET", "/metrics"),
        ("GET", "/usage/storage"),
    ] {
        let got = team.send(&member, method, path, &[], None);
        assert_eq!((got.status, got.refusal().1), (403, "forbidden"), "{method} {path}");
        assert_eq!(team.send(&admin, method, path, &[], None).status, 200, "{method} {path}");
    }
    let got = team.post(&team.owner, "/maintain", json!({ "hurry": true }));
    assert_eq!(got.refusal(), (400, "invalid_request", "hurry"));
}

#[test]
fn a_pass_on_request_answers_what_it_did() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    team.publish(&laptop.token, "n", &messages(0, 2, "a"));
    team.publish(&laptop.token, "n", &messages(0, 2, "b"));
    let got = team.post(&team.owner, "/maintain", json!({}));
    let outcome = got.data(200);
    assert_eq!(outcome["removed"], json!({ "messages": 2, "parts": 2, "versions": 1 }));
    assert_eq!((&outcome["failed"], &outcome["backlog"]), (&json!([]), &json!(false)));
    for count in ["rows_read", "rows_written", "statements", "units", "slices"] {
        assert!(outcome["cost"][count].as_i64().unwrap() > 0, "{count}");
    }
    assert_eq!(outcome["cost"]["ms"], 0);
    // Settled captures are the next to go, a day later.
    assert_eq!(outcome["next_alarm_at"], team.now_ms.get() + DAY_MS);

    let seen = team.get(&team.owner, "/maintain");
    let seen = seen.data(200);
    assert_eq!(seen["running"], false);
    assert_eq!(seen["passes"][0]["removed"]["versions"], 1);
    assert_eq!(seen["queues"]["message_prune_queue"], json!({ "depth": 0, "more": false }));
    assert_eq!(seen["walks"]["sessions"], json!({ "after_rowid": 0, "done": true }));
    let metrics = team.get(&team.owner, "/metrics");
    let text = String::from_utf8(metrics.bytes.clone()).unwrap();
    assert!(metrics.header("content-type").unwrap().starts_with("text/plain"));
    assert!(text.contains("\nteamplane_maintain_removed_total{kind=\"versions\"} 1\n"), "{text}");
    assert!(text.contains("\nteamplane_maintain_passes_total 1\n"), "{text}");
    assert!(text.contains("\nteamplane_queue_depth{queue=\"blob_prune_queue\"} 0\n"), "{text}");
}

#[test]
fn depths_are_counted_to_10000() {
    let team = Team::new();
    team.sql(&format!(
        "{} INSERT INTO blob_prune_queue SELECT '{}', 'b' || i FROM n",
        super::numbers(10_001),
        team.id
    ));
    let seen = team.get(&team.owner, "/maintain");
    let depth = &seen.data(200)["queues"]["blob_prune_queue"];
    assert_eq!(*depth, json!({ "depth": 10_000, "more": true }));
}

#[test]
fn storage_is_counted_in_slices_and_at_most_hourly() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    team.publish(&laptop.token, "n", &messages(0, 3, "a"));
    team.sql(&format!(
        "{} INSERT INTO journal
             (team_id, principal_id, action, target_id, request_id, created_at)
         SELECT '{}', 'p', 'a', 't', 'r', 0 FROM n",
        super::numbers(9_999),
        team.id
    ));
    let first = team.get(&team.owner, "/usage/storage");
    let first = first.data(200);
    assert_eq!((&first["rows"]["messages"], &first["rows"]["sessions"]), (&json!(3), &json!(1)));
    assert!(first["rows"]["journal"].as_i64().unwrap() >= 9_999);
    assert_eq!(first["counted_at"], team.now_ms.get());
    assert!(first["bytes"].as_i64().unwrap() > 0);
    team.publish(&laptop.token, "m", &messages(0, 3, "a"));
    team.advance(HOUR_MS - 1);
    let second = team.get(&team.owner, "/usage/storage");
    assert_eq!(second.data(200)["rows"], first["rows"]);
    team.advance(1);
    let third = team.get(&team.owner, "/usage/storage");
    assert_eq!(third.data(200)["rows"]["messages"], 6);
    assert_eq!(third.data(200)["counted_at"], team.now_ms.get());
}

#[test]
fn all_who_wait_for_a_pass_get_its_outcome() {
    let team = Team::new();
    team.sql(&format!(
        "{} INSERT INTO blob_prune_queue SELECT '{}', 'b' || i FROM n",
        super::numbers(5_000),
        team.id
    ));
    let mut runner = Runner::default();
    let alarm = runner.join(team.now_ms.get());
    assert!(runner.slice(&team.db(), alarm).is_none());
    let request = runner.join(team.now_ms.get());
    assert_eq!(alarm, request);
    let outcome = loop {
        if let Some(outcome) = runner.slice(&team.db(), request) {
            break outcome;
        }
    };
    assert!(!runner.is_running());
    let same = runner.slice(&team.db(), alarm).expect("it is over");
    assert_eq!(same.cost.units, outcome.cost.units);
    assert_ne!(runner.join(team.now_ms.get()), alarm, "the next is another");
}

#[test]
fn the_clocks_mark_is_kept_with_what_a_pass_writes() {
    let team = Team::new();
    team.settle();
    let mark = "SELECT clock_high_at FROM server";
    let before = team.count(mark);
    team.advance(MINUTE_MS);
    team.pass();
    assert_eq!(team.count(mark), before, "an idle pass writes nothing");
    team.advance(8 * DAY_MS);
    team.person("Mia", Role::Member);
    team.sql("UPDATE credentials SET revoked_at = 1");
    team.pass();
    assert_eq!(team.count(mark), team.now_ms.get());
}

fn next(team: &Team, is_linked: bool) -> Option<i64> {
    alarm::next(&team.db(), &Outside { is_linked, sockets_expire_at: None }).unwrap()
}

#[test]
fn an_idle_team_sleeps_until_something_can_be_due() {
    let team = Team::new();
    team.settle();
    let now = team.now_ms.get();
    // Its own log ages in a week, but somebody looks after a day.
    assert_eq!(next(&team, false), Some(now + DAY_MS));
    assert_eq!(next(&team, true), Some(now + MINUTE_MS));
    team.advance(DAY_MS);
    assert!(!alarm::is_pass_due(&team.db()).unwrap());
    let outside = Outside { is_linked: false, sockets_expire_at: Some(now + DAY_MS + 5) };
    assert_eq!(alarm::next(&team.db(), &outside).unwrap(), Some(now + DAY_MS + 5));
    let next_at = next(&team, false).unwrap();
    assert_eq!(next_at, now + 2 * DAY_MS);
}

#[test]
fn an_alarm_is_set_once_for_ten_thousand_writes() {
    let now = 1_700_000_000_000;
    let mut alarm_at = None;
    let mut sets = 0;
    for request in 0..10_000 {
        if let Some(at) = alarm::after_write(alarm_at, now + request) {
            (alarm_at, sets) = (Some(at), sets + 1);
        }
    }
    assert_eq!(sets, 1);
    assert_eq!(alarm::after_write(Some(now + DAY_MS), now), Some(now + MINUTE_MS));
}

#[test]
fn the_next_pass_comes_in_3_seconds_with_a_backlog_and_in_a_minute_without() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let now = team.now_ms.get();
    team.publish(&laptop.token, "n", &messages(0, 2, "a"));
    team.sql(&format!(
        "{} INSERT INTO blob_prune_queue SELECT '{}', 'b' || i FROM n",
        super::numbers(60_000),
        team.id
    ));
    assert!(team.pass().backlog);
    assert_eq!(next(&team, false), Some(now + 3 * SECOND_MS));
    team.advance(SECOND_MS);
    assert!(!alarm::is_pass_due(&team.db()).unwrap());
    team.settle();
    team.publish(&laptop.token, "n", &messages(0, 2, "b"));
    assert_eq!(next(&team, false), Some(team.now_ms.get() + MINUTE_MS));
    team.advance(MINUTE_MS);
    assert!(alarm::is_pass_due(&team.db()).unwrap());
}

#[test]
fn a_lost_link_and_an_overdue_effect_are_not_put_off_to_the_minutes_pass() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    team.publish(&laptop.token, "n", &messages(0, 2, "a"));
    team.settle();
    let now = team.now_ms.get();
    team.sql(&format!(
        "INSERT INTO machine_presence (team_id, machine_id, linked, lost_at, changed_at)
         VALUES ('{}', '{}', 1, {now} - 20000, 0)",
        team.id, laptop.machine_id
    ));
    assert_eq!(next(&team, false), Some(now + 25 * SECOND_MS));
    team.advance(25 * SECOND_MS);
    assert!(alarm::is_pass_due(&team.db()).unwrap());
    team.settle();
    let now = team.now_ms.get();
    team.sql(&format!(
        "INSERT INTO operations
             (team_id, id, principal_id, kind, state, input_json, created_at, updated_at)
         VALUES ('{0}', 'operation_1', 'p', 'message', 'pending', '{{}}', 0, 0);
         INSERT INTO native_effects
             (team_id, id, operation_id, machine_id, state, request_json, created_at)
         VALUES ('{0}', 'e', 'operation_1', '{1}', 'pending', '{{}}', {now} + 10000 - {DAY_MS})",
        team.id, laptop.machine_id
    ));
    assert_eq!(next(&team, false), Some(now + 10 * SECOND_MS));
    team.advance(10 * SECOND_MS);
    team.settle();
    assert_eq!(team.lines("SELECT state FROM operations"), ["unknown"]);
    assert_eq!(team.last_event().0, "operation.changed");
}

#[test]
fn links_without_a_socket_are_lost_from_now_on() {
    let team = Team::new();
    let machines = ["a", "b", "c"].map(|name| team.publisher(name).machine_id);
    for (machine, lost_at) in machines.iter().zip(["NULL", "NULL", "7"]) {
        team.sql(&format!(
            "INSERT INTO machine_presence (team_id, machine_id, linked, lost_at, changed_at)
             VALUES ('{0}', '{machine}', 1, {lost_at}, 0);
             INSERT INTO machine_presence_cursors (team_id, linked) VALUES ('{0}', 1)
             ON CONFLICT DO UPDATE SET linked = linked + 1",
            team.id
        ));
    }
    assert_eq!(presence::linked(&team.db()).unwrap(), 3);
    let held = [machines[0].clone()].into();
    assert_eq!(presence::lose_missing(&team.db(), &held).unwrap(), 1);
    let now = team.now_ms.get().to_string();
    let mut lost = team.lines("SELECT coalesce(lost_at, 'held') FROM machine_presence");
    lost.sort();
    assert_eq!(lost, [now, "7".into(), "held".into()]);
    team.advance(45 * SECOND_MS);
    team.settle();
    assert_eq!(presence::linked(&team.db()).unwrap(), 1);
}

#[test]
fn a_store_as_large_as_it_may_be_is_still_maintained() {
    let mut team = Team::new();
    team.config.store_bytes_max = 1;
    let laptop = team.publisher("laptop");
    let got = team.post(&laptop.token, "/captures", json!({ "harness": "h", "native_id": "n" }));
    assert_eq!(got.refusal().1, "storage_full");
    assert_eq!(team.post(&team.owner, "/maintain", json!({})).status, 200);
    assert_eq!(team.get(&team.owner, "/usage/storage").status, 200);
}

#[test]
fn versions_that_went_are_404_and_the_rest_reads_as_before() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let id = session(&team.publish(&laptop.token, "n", &messages(0, 5, "a")));
    let mut second = messages(0, 7, "a");
    second[2] = json!({ "ordinal": 2, "role": "user", "text": "rewritten" });
    team.publish(&laptop.token, "n", &second);
    team.settle();
    let path = |revision| format!("/sessions/{id}/messages?revision={revision}");
    assert_eq!(team.get(&laptop.token, &path(1)).status, 404);
    assert_eq!(team.get(&laptop.token, &path(2)).items(), &second);
    assert_eq!(team.count("SELECT count(*) FROM messages"), 7);
}

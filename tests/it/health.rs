//! How far retention lags behind.
use crate::team::Team;
use teamplane::limits::{CAPTURE_EXPIRY_AGE_MS, MINUTE_MS, PASS_WAIT_MS};
use teamplane::maintain::health;

fn age_ms(team: &Team, alarm_at: Option<i64>) -> i64 {
    health::backlog_age_ms(&team.db(), alarm_at).expect("the age is read")
}

/// A team in which a pass has just removed something, so that the next is put off by a minute.
fn team() -> Team {
    let team = Team::new();
    team.settle();
    note_expired(&team, team.now_ms.get());
    assert_eq!(team.settle()[0].removed.get("expiries"), Some(&1));
    team
}

fn note_expired(team: &Team, due_at: i64) {
    team.sql(&format!(
        "INSERT INTO capture_expiries (team_id, source_id, id, expired_at)
         VALUES ('team', 'source', 'capture', {})",
        due_at - CAPTURE_EXPIRY_AGE_MS
    ));
}

fn queue_blob(team: &Team) {
    team.sql("INSERT INTO blob_prune_queue (team_id, sha256) VALUES ('team', 'blob')");
}

#[test]
fn nothing_overdue_has_no_age() {
    let team = team();
    note_expired(&team, team.now_ms.get() + 1);
    assert_eq!(age_ms(&team, None), 0);
}

#[test]
fn what_is_due_ages_from_its_moment() {
    let team = team();
    note_expired(&team, team.now_ms.get() - 5);
    assert_eq!(age_ms(&team, Some(team.now_ms.get())), 5);
    team.now_ms.set(team.now_ms.get() + MINUTE_MS);
    assert_eq!(age_ms(&team, None), MINUTE_MS + 5);
}

#[test]
fn what_waits_in_a_queue_ages_from_when_a_pass_was_due() {
    let team = team();
    queue_blob(&team);
    assert_eq!(age_ms(&team, None), 0);
    team.now_ms.set(team.now_ms.get() + PASS_WAIT_MS + 7);
    assert_eq!(age_ms(&team, None), 7);
}

#[test]
fn an_alarm_that_a_write_has_set_says_how_old_a_queue_may_be() {
    let team = team();
    team.now_ms.set(team.now_ms.get() + 30 * MINUTE_MS);
    queue_blob(&team);
    let now_ms = team.now_ms.get();
    assert_eq!(age_ms(&team, Some(now_ms + PASS_WAIT_MS)), 0);
    // It did not come.
    assert_eq!(age_ms(&team, Some(now_ms - MINUTE_MS)), MINUTE_MS + PASS_WAIT_MS);
}

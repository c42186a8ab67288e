//! What must hold of the pass, case by case.
use super::numbers;
use crate::capture::{messages, session};
use crate::team::{Publisher, Team};
use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};
use teamplane::ids::{Id, TeamId, hex};
use teamplane::limits::{
    BATCH_UNITS_MAX, CAPTURE_AGE_MS, CURSOR_AGE_MS, DAY_MS, MINUTE_MS, PASS_UNITS_MAX, SECOND_MS,
    SLICE_UNITS_MAX, UPLOAD_AGE_MS,
};
use teamplane::maintain::{Pass, STEPS, Slice};
use teamplane::text;

const CHUNK: usize = 64 << 10;

fn removed(outcomes: &[teamplane::maintain::Outcome], kind: &str) -> u64 {
    outcomes.iter().filter_map(|outcome| outcome.removed.get(kind)).sum()
}

impl Team {
    fn kept_answers(&self, count: u64, expires_at: i64) {
        self.sql(&format!(
            "{} INSERT INTO idempotency
                 (team_id, principal_id, key, request_hash, status, response_json, created_at,
                  expires_at)
             SELECT '{}', 'p', 'k' || {expires_at} || '-' || i, x'00', 200, '{{}}', 0, {expires_at}
               FROM n",
            numbers(count),
            self.id
        ));
    }

    /// A committed upload of the publisher, with chunks of the given first bytes.
    fn upload_of(&self, publisher: &Publisher, chunks: &[u8]) -> String {
        let file: Vec<u8> = chunks.iter().flat_map(|byte| vec![*byte; CHUNK]).collect();
        let body = json!({ "size": file.len(), "sha256": hex(&Sha256::digest(&file)),
                           "media_type": "x/y", "chunk_size": CHUNK });
        let got = self.post(&publisher.token, "/uploads", body);
        let upload = got.data(201)["id"].as_str().unwrap().to_owned();
        for (index, byte) in chunks.iter().enumerate() {
            self.put_chunk_of(publisher, &upload, index, *byte);
        }
        let got =
            self.send(&publisher.token, "POST", &format!("/uploads/{upload}/commit"), &[], None);
        assert_eq!(got.status, 200, "{}", got.json);
        upload
    }

    fn put_chunk_of(&self, publisher: &Publisher, upload: &str, index: usize, byte: u8) {
        use base64::Engine as _;
        let bytes = vec![byte; CHUNK];
        let digest = base64::engine::general_purpose::STANDARD.encode(Sha256::digest(&bytes));
        let digest = format!("sha-256=:{digest}:");
        let path = format!("/uploads/{upload}/chunks/{index}");
        let headers = [("content-digest", digest.as_str())];
        let got = self.send(&publisher.token, "PUT", &path, &headers, Some(&bytes));
        assert_eq!(got.status, 204, "{}", got.json);
    }

    fn continuation(&self, id: &str, session: &str, body: &str) {
        let now = self.now_ms.get();
        let uploads = json!(text::upload_ids(body)).to_string();
        self.sql(&format!(
            "INSERT INTO continuations
                 (team_id, id, session_id, state, value_json, upload_ids_json, created_at,
                  updated_at)
             VALUES ('{}', '{id}', '{session}', 'pending', '{{}}', '{uploads}', {now}, {now})",
            self.id
        ));
    }

    fn delete_session(&self, id: &str) {
        self.sql("UPDATE sources SET visibility = 'team'");
        assert_eq!(self.delete(&self.owner, &format!("/sessions/{id}")).status, 204);
    }

    fn upload_exists(&self, upload: &str) -> bool {
        self.count(&format!("SELECT count(*) FROM uploads WHERE id = '{upload}'")) == 1
    }

    /// A link that was lost long enough ago.
    fn lost_link(&self, publisher: &Publisher) {
        let lost_at = self.now_ms.get() - MINUTE_MS;
        self.sql(&format!(
            "INSERT INTO machine_presence (team_id, machine_id, linked, lost_at, changed_at)
             VALUES ('{0}', '{1}', 1, {lost_at}, 0);
             INSERT INTO machine_presence_cursors (team_id, linked) VALUES ('{0}', 1)
             ON CONFLICT DO UPDATE SET linked = 1",
            self.id, publisher.machine_id
        ));
    }
}

#[test]
fn a_pass_ends_by_its_units_while_the_clock_stands_still() {
    let team = Team::new();
    team.kept_answers(60_000, team.now_ms.get());
    let outcome = team.pass();
    assert!(outcome.backlog);
    assert!(outcome.cost.units > PASS_UNITS_MAX / 2, "{outcome:?}");
    assert!(outcome.cost.slices > 10, "{outcome:?}");
    assert_eq!(team.count("SELECT pass_due_at FROM maintain_state"), team.now_ms.get() + 3_000);
    team.settle();
    assert_eq!(team.count("SELECT count(*) FROM idempotency"), 0);
}

#[test]
fn no_slice_spends_more_than_its_units() {
    let team = Team::new();
    team.kept_answers(10_000, team.now_ms.get());
    let mut pass = Pass::new(team.now_ms.get());
    loop {
        let before = pass.outcome().cost.units;
        let over = pass.slice(&team.db());
        assert!(pass.outcome().cost.units - before <= SLICE_UNITS_MAX + BATCH_UNITS_MAX);
        if over == Slice::Done {
            break;
        }
    }
}

#[test]
fn every_step_gets_a_batch_however_fast_the_clock_runs_and_however_much_another_has() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    team.upload_of(&laptop, &[1]);
    let s = session(&team.publish(&laptop.token, "n", &messages(0, 3, "a")));
    team.publish(&laptop.token, "n", &messages(0, 1, "b"));
    team.begin(&laptop.token, json!({ "harness": "h", "native_id": "other" }));
    team.advance(8 * DAY_MS);
    team.lost_link(&laptop);
    team.continuation("continuation_1", &s, "{}");
    team.sql("UPDATE continuations SET updated_at = 0");
    team.kept_answers(60_000, team.now_ms.get());
    let mut pass = Pass::new(team.now_ms.get());
    while pass.slice(&team.db()) == Slice::More {
        team.advance(SECOND_MS);
    }
    let outcome = pass.into_outcome();
    assert!(outcome.cost.slices <= 4, "the clock ended it: {outcome:?}");
    for kind in [
        "idempotency",
        "captures",
        "versions",
        "messages",
        "uploads",
        "links",
        "continuations_expired",
    ] {
        assert!(outcome.removed.contains_key(kind), "{kind} starved: {outcome:?}");
    }
}

#[test]
fn what_is_left_of_the_budget_begins_behind_the_step_that_ended_it() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let now = team.now_ms.get();
    team.kept_answers(60_000, now);
    team.sql(&format!(
        "{} INSERT INTO captures (team_id, id, source_id, state, begin_json, created_at, settled_at)
         SELECT '{}', 'c' || i, '{}', 'committed', '{{}}', 0, 0 FROM n",
        numbers(60_000),
        team.id,
        laptop.source_id
    ));
    let first = team.pass();
    let second = team.pass();
    assert!(first.removed["idempotency"] > 100 * first.removed["captures"], "{first:?}");
    assert_eq!(team.lines("SELECT next_step FROM maintain_state").len(), 1);
    assert!(second.removed.contains_key("captures"), "{second:?}");
    let third = team.pass();
    let fourth = team.pass();
    let captures: u64 =
        [&second, &third, &fourth].iter().map(|outcome| outcome.removed["captures"]).sum();
    assert!(captures > 2_000, "captures had their turn: {second:?} {third:?} {fourth:?}");
}

#[test]
fn a_failing_step_is_named_and_the_others_run() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    team.upload_of(&laptop, &[1]);
    team.sql(
        "CREATE TRIGGER broken BEFORE DELETE ON artifact_blobs
         BEGIN SELECT RAISE(ABORT, 'broken by the test'); END",
    );
    team.advance(UPLOAD_AGE_MS);
    team.kept_answers(5, team.now_ms.get());
    let outcome = team.pass();
    assert_eq!(outcome.failed, ["blobs"]);
    assert!(outcome.faults[0].contains("broken by the test"), "{:?}", outcome.faults);
    assert!(outcome.backlog);
    assert_eq!(outcome.removed["idempotency"], 5);
    assert_eq!(outcome.removed["uploads"], 1);
    assert_eq!(team.count("SELECT count(*) FROM artifact_blobs"), 1);
    assert_eq!(team.count("SELECT count(*) FROM blob_prune_queue"), 1, "nothing half-done");
    // Not in a tight loop: a minute later.
    let due_at = team.count("SELECT pass_due_at FROM maintain_state");
    assert_eq!(due_at, team.now_ms.get() + MINUTE_MS);
    team.sql("DROP TRIGGER broken");
    team.settle();
    assert_eq!(team.count("SELECT count(*) FROM artifact_blobs"), 0);
}

#[test]
fn an_idle_pass_reads_little_and_writes_nothing_with_one_team_or_500() {
    let team = Team::new();
    for n in 1..500 {
        team.another(&format!("Team {n}"));
    }
    team.settle();
    for _ in 0..10 {
        team.advance(MINUTE_MS);
        let before = team.driver.connection().total_changes();
        let outcome = team.pass();
        assert_eq!(team.driver.connection().total_changes(), before);
        assert!(!outcome.backlog);
        assert_eq!(outcome.cost.rows_written, 0);
        assert!(outcome.cost.rows_read <= 120, "an estimate of few: {outcome:?}");
        assert!(outcome.cost.statements <= 2 + STEPS.len() as u64 * 2, "{outcome:?}");
    }
}

#[test]
fn the_last_of_500_teams_is_served_under_pressure() {
    let team = Team::new();
    let mut teams: Vec<TeamId> = (1..500).map(|n| team.another(&format!("Team {n}")).0).collect();
    teams.sort();
    let now = team.now_ms.get();
    for id in &teams {
        team.sql(&format!(
            "{} INSERT INTO org_events
                 (team_id, resource_kind, resource_id, type, value_json, created_at)
             SELECT '{id}', 'x', 'r' || i, 'x', '{{}}', {now} FROM n",
            numbers(200)
        ));
    }
    team.advance(8 * DAY_MS);
    let mut passes = 0;
    let left = |id: &TeamId| {
        team.count(&format!(
            "SELECT count(*) FROM org_events WHERE team_id = '{}' AND resource_kind = 'x'",
            id.as_str()
        ))
    };
    while left(teams.last().unwrap()) > 0 {
        team.pass();
        team.advance(3 * SECOND_MS);
        passes += 1;
        assert!(passes < 12, "the last team starves");
    }
}

#[test]
fn a_long_lived_row_holds_nothing_behind_it() {
    let team = Team::new();
    let now = team.now_ms.get();
    team.kept_answers(1, now + 30 * DAY_MS);
    team.kept_answers(9_999, now);
    team.settle();
    assert_eq!(team.count("SELECT count(*) FROM idempotency"), 1);
}

#[test]
fn a_pending_delivery_holds_no_settled_one_behind_it() {
    let team = Team::new();
    let now = team.now_ms.get();
    team.sql(&format!(
        "INSERT INTO app_webhook_deliveries
             (id, team_id, app_id, event_type, body, state, next_at, created_at)
         VALUES ('pending', '{0}', 'a', 'x', 'b', 'pending', 0, 0);
         {1} INSERT INTO app_webhook_deliveries
             (id, team_id, app_id, event_type, body, state, next_at, created_at, settled_at)
         SELECT 'd' || i, '{0}', 'a', 'x', 'b', 'delivered', 0, 0, {now} FROM n;
         {1} INSERT INTO app_webhook_attempts (delivery_id, attempt, at)
         SELECT 'd' || i, 1, 0 FROM n",
        team.id,
        numbers(5_000)
    ));
    team.advance(7 * DAY_MS - 1);
    team.settle();
    assert_eq!(team.count("SELECT count(*) FROM app_webhook_deliveries"), 5_001);
    team.advance(1);
    team.settle();
    assert_eq!(team.lines("SELECT id FROM app_webhook_deliveries"), ["pending"]);
    assert_eq!(team.count("SELECT count(*) FROM app_webhook_attempts"), 0);
}

#[test]
fn an_upload_named_anywhere_in_a_text_is_kept() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let [alone, first, second, key, unnamed] =
        [1, 2, 3, 4, 5].map(|byte| team.upload_of(&laptop, &[byte]));
    let s = session(&team.publish(&laptop.token, "n", &messages(0, 1, "a")));
    team.continuation(
        "continuation_1",
        &s,
        &format!(
            r#"{{"prompt":"upload_notes.txt and {alone}","two":"{first}{second}","{key}":1}}"#
        ),
    );
    team.advance(UPLOAD_AGE_MS);
    team.settle();
    for named in [&alone, &first, &second, &key] {
        assert!(team.upload_exists(named));
    }
    assert!(!team.upload_exists(&unnamed));
    team.sql(&format!("UPDATE continuations SET upload_ids_json = '[\"{alone}\"]'"));
    team.settle();
    let left = [&alone, &first, &second, &key].map(|id| team.upload_exists(id));
    assert_eq!(left, [true, false, false, false]);
    // Expired a day later, and gone 30 days after that.
    team.advance(31 * DAY_MS);
    team.settle();
    assert!(!team.upload_exists(&alone));
    for table in ["uploads", "artifact_chunk_refs", "artifact_blobs", "upload_refs"] {
        assert_eq!(team.count(&format!("SELECT count(*) FROM {table}")), 0, "{table}");
    }
}

#[test]
fn an_upload_is_safe_for_a_day_after_its_commit_also_once_a_capture_let_it_go() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let upload = team.upload_of(&laptop, &[1]);
    let capture = team.begin(
        &laptop.token,
        json!({ "harness": "h", "native_id": "n",
                "artifacts": [{ "bundle_id": "b", "upload_id": upload, "name": "N" }] }),
    );
    team.delete(&laptop.token, &format!("/captures/{capture}"));
    team.advance(UPLOAD_AGE_MS - 1);
    team.settle();
    assert!(team.upload_exists(&upload));
    team.advance(1);
    team.settle();
    assert!(!team.upload_exists(&upload));
}

#[test]
fn ten_busy_sessions_do_not_keep_a_large_one_waiting() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let ids: Vec<String> = (0..11)
        .map(|n| session(&team.publish(&laptop.token, &format!("n{n}"), &messages(0, 1, "a"))))
        .collect();
    let now = team.now_ms.get();
    team.sql(&format!(
        "{} INSERT INTO session_versions
             (team_id, session_id, revision, source_id, message_count, created_at)
         SELECT team_id, session_id, i + 1, source_id, 1, {now}
           FROM n, session_versions WHERE session_id = '{}';
         UPDATE sessions SET revision = 10001 WHERE id = '{1}'",
        numbers(10_000),
        ids[0]
    ));
    let large = format!("SELECT count(*) FROM session_versions WHERE session_id = '{}'", ids[0]);
    let (mut before, mut revision) = (team.count(&large), 1);
    for _ in 0..5 {
        revision += 1;
        for id in &ids[1..] {
            team.sql(&format!(
                "INSERT INTO session_versions
                     (team_id, session_id, revision, source_id, message_count, created_at)
                 SELECT team_id, session_id, {revision}, source_id, 1, {}
                   FROM session_versions WHERE session_id = '{id}' LIMIT 1;
                 UPDATE sessions SET revision = {revision} WHERE id = '{id}'",
                team.now_ms.get()
            ));
        }
        team.pass();
        team.advance(3 * SECOND_MS);
        let after = team.count(&large);
        assert!(after < before - 100 || after == 1, "the large one shrinks: {before} → {after}");
        before = after;
    }
    team.settle();
    assert_eq!(team.count("SELECT count(*) FROM session_versions"), 11);
}

#[test]
fn a_message_streamed_300_times_leaves_one_row_and_a_deleted_session_none() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let mut id = String::new();
    for n in 0..300 {
        id = session(&team.publish(&laptop.token, "n", &messages(0, 1, &format!("w{n}"))));
    }
    team.advance(DAY_MS);
    team.settle();
    for table in ["messages", "session_versions", "message_search", "version_sources"] {
        assert_eq!(team.count(&format!("SELECT count(*) FROM {table}")), 1, "{table}");
    }
    let parts = "SELECT count(*) FROM capture_parts";
    assert_eq!(team.count(parts), 0);
    team.delete_session(&id);
    team.settle();
    let tables = team.lines(
        "SELECT m.name, c.name FROM sqlite_schema m, pragma_table_info(m.name) c
          WHERE m.type = 'table' AND c.type = 'TEXT' AND m.name NOT LIKE 'message_search%'
            AND m.name NOT IN ('journal', 'org_events', 'idempotency')",
    );
    for line in tables {
        let (table, column) = line.split_once(' ').unwrap();
        let named =
            team.count(&format!("SELECT count(*) FROM {table} WHERE instr({column}, '{id}') > 0"));
        assert_eq!(named, 0, "{table}.{column} names the session");
    }
    assert_eq!(team.count("SELECT count(*) FROM message_search"), 0);
    team.advance(91 * DAY_MS);
    team.settle();
    assert_eq!(team.count("SELECT count(*) FROM org_events WHERE resource_kind = 'session'"), 0);
}

#[test]
fn a_deleted_sessions_origin_says_so_before_and_after_it_is_removed() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let id = session(&team.publish(&laptop.token, "n", &messages(0, 2, "a")));
    team.delete_session(&id);
    let begin = json!({ "harness": "claude-code", "native_id": "n" });
    for _ in 0..2 {
        let got = team.post(&laptop.token, "/captures", begin.clone());
        assert_eq!(got.refusal(), (410, "session_deleted", ""));
        team.settle();
    }
    assert_eq!(team.lines("SELECT session_id FROM origins"), ["NULL"]);
    let again = json!({ "harness": "claude-code", "native_id": "n", "restore": true });
    let again = team.publish_with(&laptop.token, again, &messages(0, 1, "b"));
    assert_ne!(session(&again), id);
    team.settle();
    assert_eq!(team.count("SELECT count(*) FROM messages"), 1);
}

#[test]
fn a_capture_that_ran_out_is_410_until_its_note_is_gone() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let begin = json!({ "harness": "h", "native_id": "n" });
    let capture = team.begin(&laptop.token, begin);
    let part = json!({ "messages": messages(0, 3, "a") }).to_string();
    team.put(&laptop.token, &format!("/captures/{capture}/parts/0"), &part);
    let path = format!("/captures/{capture}");
    team.advance(CAPTURE_AGE_MS - 1);
    team.settle();
    assert_eq!(team.get(&laptop.token, &path).status, 200);
    team.advance(1);
    assert_eq!(team.get(&laptop.token, &path).refusal(), (410, "expired", ""));
    let outcomes = team.settle();
    assert_eq!((removed(&outcomes, "captures"), removed(&outcomes, "parts")), (1, 1));
    assert_eq!(team.get(&laptop.token, &path).refusal(), (410, "expired", ""));
    team.advance(28 * DAY_MS);
    team.settle();
    assert_eq!(team.get(&laptop.token, &path).refusal(), (410, "expired", ""));
    team.advance(2 * DAY_MS);
    team.settle();
    assert_eq!(team.count("SELECT count(*) FROM capture_expiries"), 0);
}

#[test]
fn a_commit_answers_the_same_for_a_day() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let capture = team.begin(&laptop.token, json!({ "harness": "h", "native_id": "n" }));
    let first = team.fill(&laptop.token, &capture, &messages(0, 3, "a"));
    let path = format!("/captures/{capture}/commit");
    team.settle();
    assert_eq!(team.count("SELECT count(*) FROM capture_parts"), 0);
    team.advance(DAY_MS - 1);
    team.settle();
    assert_eq!(team.post(&laptop.token, &path, json!({ "parts": 1 })).json, first.json);
    team.advance(1);
    team.settle();
    assert_eq!(team.count("SELECT count(*) FROM captures"), 0);
}

#[test]
fn a_pinned_version_stays_until_its_last_cursor_ends() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let id = session(&team.publish(&laptop.token, "n", &messages(0, 2, "a")));
    team.publish(&laptop.token, "n", &messages(0, 2, "b"));
    team.publish(&laptop.token, "n", &messages(0, 2, "c"));
    let old = format!("/sessions/{id}/messages?revision=1");
    let before = team.get(&laptop.token, &old).json;
    team.settle();
    assert_eq!(team.get(&laptop.token, &old).json["items"], before["items"]);
    let gone = team.get(&laptop.token, &format!("/sessions/{id}/messages?revision=2"));
    assert_eq!(gone.status, 404, "nothing pinned it");
    let due = team.count("SELECT due_at FROM version_prune_queue");
    let expires = team.count("SELECT max(expires_at) FROM cursors");
    assert_eq!(due, expires);
    team.advance(due - team.now_ms.get() - 1);
    team.settle();
    assert_eq!(team.count("SELECT count(*) FROM session_versions"), 2);
    team.advance(1);
    team.settle();
    assert_eq!(team.count("SELECT count(*) FROM session_versions"), 1);
    assert_eq!(team.get(&laptop.token, &old).status, 404);
    assert!(expires <= team.now_ms.get() + CURSOR_AGE_MS);
}

#[test]
fn a_superseded_event_goes_without_touching_another_teams() {
    let team = Team::new();
    let (other, _) = team.another("Other");
    let now = team.now_ms.get();
    team.sql(&format!(
        "INSERT INTO event_retention (team_id, deleted_through) VALUES ('{0}', 1000), ('{1}', 1000);
         INSERT INTO org_events
             (sequence, team_id, resource_kind, resource_id, type, value_json, created_at)
         VALUES (900, '{0}', 'x', 'r', 'x', '{{}}', {now});
         INSERT INTO event_resources VALUES ('{1}', '', 'x', 'r', 900);
         UPDATE event_resources SET sequence = 901 WHERE team_id = '{1}' AND resource_kind = 'x'",
        team.id, other
    ));
    assert_eq!(team.count("SELECT count(*) FROM org_events WHERE sequence = 900"), 1);
}

#[test]
fn a_current_event_stays_whatever_its_age_and_goes_when_a_newer_one_comes() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let id = session(&team.publish(&laptop.token, "n", &messages(0, 1, "a")));
    team.publish(&laptop.token, "n", &messages(0, 1, "b"));
    team.advance(8 * DAY_MS);
    team.settle();
    let events = "SELECT count(*) FROM org_events WHERE resource_kind = 'session'";
    assert_eq!(team.count(events), 1);
    let marks =
        "SELECT pruned_through = deleted_through AND deleted_through > 0 FROM event_retention";
    assert_eq!(team.count(marks), 1);
    team.publish(&laptop.token, "n", &messages(0, 1, "c"));
    assert_eq!(team.count(events), 1, "the older one went at once");
    team.delete_session(&id);
    assert_eq!(team.count(events), 2, "the end ages like any other");
    team.advance(8 * DAY_MS);
    team.settle();
    assert_eq!(team.count(events), 0);
}

#[test]
fn intake_of_twice_a_batch_each_pass_leaves_no_growing_backlog() {
    let team = Team::new();
    let now = team.now_ms.get();
    for round in 0..40 {
        team.kept_answers(300, now + round);
        team.advance(SECOND_MS);
        team.pass();
    }
    assert!(team.count("SELECT count(*) FROM idempotency") <= 300);
}

#[test]
fn shortened_retention_removes_a_large_log_in_bounded_steps() {
    let team = Team::new();
    let now = team.now_ms.get();
    team.sql(&format!(
        "{} INSERT INTO org_events
             (team_id, resource_kind, resource_id, type, value_json, created_at)
         SELECT '{}', 'x', 'r', 'x', '{{}}', {now} FROM n",
        numbers(30_000),
        team.id
    ));
    team.advance(2 * DAY_MS);
    team.settle();
    assert!(team.count("SELECT count(*) FROM org_events") > 30_000);
    let body = json!({ "retention": { "events_days": 1 } });
    assert_eq!(team.patch(&team.owner, "", body).status, 200);
    let mut before = team.count("SELECT count(*) FROM org_events");
    loop {
        let outcome = team.pass();
        let after = team.count("SELECT count(*) FROM org_events");
        assert!(after < before);
        before = after;
        if !outcome.backlog {
            break;
        }
    }
    assert_eq!(team.count("SELECT count(*) FROM org_events WHERE resource_kind = 'x'"), 0);
}

#[test]
fn a_chunk_that_goes_while_another_upload_wants_it_is_missing_or_whole() {
    for cut in 0..60 {
        let team = Team::new();
        let laptop = team.publisher("laptop");
        team.upload_of(&laptop, &[7, 8]);
        let file: Vec<u8> = [7, 8].iter().flat_map(|byte| vec![*byte; CHUNK]).collect();
        let sums = [7, 8].map(|byte| hex(&Sha256::digest(vec![byte; CHUNK])));
        team.advance(UPLOAD_AGE_MS);
        team.driver.fail_after(Some(cut));
        let mut pass = Pass::new(team.now_ms.get());
        while pass.slice(&team.db()) == Slice::More {}
        team.driver.fail_after(None);

        let body = json!({ "size": file.len(), "sha256": hex(&Sha256::digest(&file)),
                           "media_type": "x/y", "chunk_size": CHUNK });
        let got = team.post(&laptop.token, "/uploads", body);
        let second = got.data(201)["id"].as_str().unwrap().to_owned();
        let chunks = json!([{ "index": 0, "sha256": sums[0] }, { "index": 1, "sha256": sums[1] }]);
        let path = format!("/uploads/{second}/chunks");
        let got = team.post(&laptop.token, &path, json!({ "chunks": chunks }));
        let missing: Vec<Json> = got.data(200)["missing"].as_array().unwrap().clone();
        team.settle();
        let commit = format!("/uploads/{second}/commit");
        let got = team.send(&laptop.token, "POST", &commit, &[], None);
        if missing.is_empty() {
            assert_eq!(got.status, 200, "cut at {cut}: {}", got.json);
        } else {
            assert_eq!(got.refusal().1, "upload_incomplete", "cut at {cut}");
            for index in &missing {
                let index = usize::try_from(index.as_i64().unwrap()).unwrap();
                team.put_chunk_of(&laptop, &second, index, [7, 8][index]);
                team.pass();
            }
            assert_eq!(team.send(&laptop.token, "POST", &commit, &[], None).status, 200);
        }
        team.settle();
        let content = team.get(&laptop.token, &format!("/uploads/{second}/content"));
        assert_eq!(content.bytes, file, "cut at {cut}");
    }
}

#[test]
fn old_sessions_are_deleted_as_by_a_member() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    for n in 0..30 {
        team.publish(&laptop.token, &format!("n{n}"), &messages(0, 2, "a"));
        team.advance(SECOND_MS);
    }
    team.settle();
    let body = json!({ "retention": { "sessions_days": 1 } });
    assert_eq!(team.patch(&team.owner, "", body).status, 200);
    team.settle();
    assert_eq!(team.count("SELECT count(*) FROM sessions"), 30);
    let first = team.count("SELECT min(updated_at) FROM sessions");
    assert_eq!(
        team.count("SELECT due_at FROM retention_due WHERE step = 'sessions'"),
        first + DAY_MS
    );
    team.advance(first + DAY_MS - team.now_ms.get() + 9 * SECOND_MS);
    team.settle();
    assert_eq!(team.count("SELECT count(*) FROM sessions"), 20);
    let deleted = "SELECT count(*) FROM org_events WHERE type = 'session.deleted'";
    assert_eq!(team.count(deleted), 10);
    team.advance(DAY_MS);
    team.settle();
    assert_eq!(team.count("SELECT count(*) FROM sessions"), 0);
    assert_eq!(team.count("SELECT count(*) FROM origins WHERE session_id IS NULL"), 30);
}

#[test]
fn a_link_is_given_up_after_its_grace_with_one_event() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    team.lost_link(&laptop);
    let lost_at = team.count("SELECT lost_at FROM machine_presence");
    team.advance(lost_at + 45_000 - 1 - team.now_ms.get());
    team.settle();
    assert_eq!(team.count("SELECT linked FROM machine_presence"), 1);
    team.advance(1);
    team.settle();
    team.settle();
    assert_eq!(team.count("SELECT linked FROM machine_presence"), 0);
    assert_eq!(team.count("SELECT linked FROM machine_presence_cursors"), 0);
    assert_eq!(team.count("SELECT count(*) FROM machine_presence_events"), 1);
    let events = "SELECT count(*) FROM org_events WHERE type = 'machine.unlinked'";
    assert_eq!(team.count(events), 1);
}

/// Every table with a team in it, and how many rows the team has there.
fn rows_of(team: &Team, id: &TeamId) -> Vec<(String, i64)> {
    team.lines(
        "SELECT m.name FROM sqlite_schema m, pragma_table_info(m.name) c
          WHERE m.type = 'table' AND c.name = 'team_id'",
    )
    .into_iter()
    .map(|table| {
        let count = format!("SELECT count(*) FROM {table} WHERE team_id = '{}'", id.as_str());
        (table, team.count(&count))
    })
    .collect()
}

fn busy_team() -> Team {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let upload = team.upload_of(&laptop, &[1, 2]);
    let begin = json!({ "harness": "claude-code", "native_id": "n0",
        "artifacts": [{ "bundle_id": "b", "upload_id": upload, "name": "N" }] });
    team.publish_with(&laptop.token, begin, &messages(0, 200, "a"));
    for n in 0..60 {
        let id = session(&team.publish(&laptop.token, &format!("n{n}"), &messages(0, 3, "b")));
        team.continuation(&format!("continuation_{n}"), &id, &upload);
    }
    team.begin(&laptop.token, json!({ "harness": "h", "native_id": "staging" }));
    team.get(&team.owner, "/sessions?limit=1");
    team.lost_link(&laptop);
    team
}

#[test]
fn a_deleted_team_leaves_nothing_and_its_neighbour_everything() {
    let team = busy_team();
    let (other, owner) = team.another("Other");
    let before = rows_of(&team, &other);
    team.sql(&format!("UPDATE teams SET removing = 'delete' WHERE id = '{}'", team.id));
    team.settle();
    let left = rows_of(&team, &team.id);
    assert!(left.iter().all(|(_, rows)| *rows == 0), "{left:?}");
    let principals = "SELECT count(*) FROM principals";
    assert_eq!(team.count(principals), 1, "the other team's owner");
    assert_eq!(team.count("SELECT count(*) FROM message_search"), 0);
    assert_eq!(rows_of(&team, &other), before);
    let got = team.send_to(&format!("/v1/teams/{other}"), &owner, "GET", &[], None);
    assert_eq!(got.status, 200);
}

#[test]
fn a_wiped_team_keeps_its_people_machines_and_their_current_events() {
    let team = busy_team();
    let kept = ["memberships", "credentials", "machines", "sources", "journal"];
    let count = |table: &str| team.count(&format!("SELECT count(*) FROM {table}"));
    let before = kept.map(count);
    let current = "SELECT count(*) FROM event_resources WHERE resource_kind = 'team'";
    assert_eq!(team.count(current), 1);
    team.advance(8 * DAY_MS);
    team.settle();
    team.sql("UPDATE teams SET removing = 'wipe'");
    team.settle();
    assert_eq!(kept.map(count), before);
    for table in [
        "sessions",
        "messages",
        "origins",
        "captures",
        "uploads",
        "continuations",
        "artifact_blobs",
        "message_search",
        "title_search",
        "cursors",
        "upload_refs",
    ] {
        assert_eq!(count(table), 0, "{table}");
    }
    assert_eq!(team.count(current), 1);
    let content = "SELECT count(*) FROM org_events WHERE resource_kind = 'session'";
    assert_eq!(team.count(content), 0);
    assert_eq!(team.count("SELECT count(*) FROM teams WHERE removing IS NULL"), 1);
}

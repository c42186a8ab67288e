//! What retention costs: batches stay within their bound however large the thing, a removed row
//! costs the same however much the store holds, and no statement or trigger walks a table.
use super::{ESTIMATE_FACTOR, numbers};
use crate::capture::{messages, session};
use crate::team::Team;
use serde_json::json;
use teamplane::limits::{BATCH_UNITS_MAX, DAY_MS, MINUTE_MS, UPLOAD_AGE_MS};
use teamplane::maintain::Outcome;
use teamplane::store::migrate;
use teamplane::store::native::Native;

/// The schema before the retention migration.
const BASE_VERSION: i64 = 7;

/// Settles, and fails if a batch was larger than batches may be.
fn in_bounded_batches(team: &Team) -> Vec<Outcome> {
    let outcomes = team.settle();
    let largest = outcomes.iter().map(|outcome| outcome.largest_batch).max().unwrap();
    assert!(largest <= BATCH_UNITS_MAX * ESTIMATE_FACTOR, "a batch of {largest} units");
    outcomes
}

/// Units for each row of a kind that went.
fn units_per(outcomes: &[Outcome], kinds: &[&str]) -> u64 {
    let units: u64 = outcomes.iter().map(|outcome| outcome.cost.units).sum();
    let rows: u64 = outcomes
        .iter()
        .flat_map(|outcome| kinds.iter().filter_map(|kind| outcome.removed.get(kind)))
        .sum();
    assert!(rows > 0, "nothing of {kinds:?} went");
    units * 10 / rows
}

/// Within a tenth, or a unit.
#[track_caller]
fn is_flat(name: &str, tenths: &[u64]) {
    let (least, most) = (tenths.iter().min().unwrap(), tenths.iter().max().unwrap());
    assert!(most - least <= (least / 10).max(10), "{name} costs {tenths:?} tenths a row");
}

#[test]
fn a_cursor_with_500_pins_goes_in_batches() {
    let team = Team::new();
    let now = team.now_ms.get();
    let pairs: Vec<_> = (0..500).map(|n| json!([format!("s{n}"), 1])).collect();
    for n in 0..5 {
        team.sql(&format!(
            "INSERT INTO cursors
                 (id, team_id, principal_id, kind, filters_hash, snapshot_json, expires_at)
             VALUES ('c{n}', '{}', 'p', 'list', '', '{}', {now})",
            team.id,
            json!(pairs)
        ));
    }
    assert_eq!(team.count("SELECT count(*) FROM cursor_pins"), 2_500);
    in_bounded_batches(&team);
    assert_eq!(team.count("SELECT count(*) FROM cursors"), 0);
    assert_eq!(team.count("SELECT count(*) FROM cursor_pins"), 0);
}

fn upload(team: &Team, id: &str, chunks: u64, state: &str) {
    team.sql(&format!(
        "{0} INSERT INTO artifact_chunk_refs
             (team_id, upload_id, chunk_index, sha256, size, source_id)
         SELECT '{1}', '{id}', i, '{id}-' || i, 65536, 's' FROM n;
         {0} INSERT INTO artifact_blobs (team_id, sha256, size, bytes)
         SELECT '{1}', '{id}-' || i, 65536, x'00' FROM n;
         INSERT INTO uploads
             (team_id, id, source_id, media_type, size, sha256, chunk_size, state, committed_at,
              created_at)
         VALUES ('{1}', '{id}', 's', 'x/y', 1, 'x', 65536, '{state}', {2}, {2})",
        numbers(chunks),
        team.id,
        team.now_ms.get()
    ));
}

#[test]
fn an_upload_of_4096_chunks_goes_in_batches() {
    for state in ["committed", "pending"] {
        let team = Team::new();
        upload(&team, "u", 4_096, state);
        team.advance(UPLOAD_AGE_MS);
        in_bounded_batches(&team);
        for table in ["uploads", "artifact_chunk_refs", "artifact_blobs", "blob_prune_queue"] {
            assert_eq!(team.count(&format!("SELECT count(*) FROM {table}")), 0, "{table}");
        }
        let notes = i64::from(state == "pending");
        assert_eq!(team.count("SELECT count(*) FROM capture_expiries"), notes);
    }
}

#[test]
fn large_values_count_by_their_size() {
    let team = Team::new();
    for n in 0..10 {
        team.sql(&format!(
            "INSERT INTO artifact_blobs (team_id, sha256, size, bytes)
             VALUES ('{0}', 'b{n}', 1048576, zeroblob(1048576));
             INSERT INTO blob_prune_queue VALUES ('{0}', 'b{n}');
             INSERT INTO captures
                 (team_id, id, source_id, state, begin_json, created_at, settled_at)
             VALUES ('{0}', 'c{n}', 's', 'committed', '{{}}', {1}, {1});
             INSERT INTO capture_parts
                 (team_id, capture_id, part_index, digest, messages_json, digests_json, created_at)
             VALUES ('{0}', 'c{n}', 0, 'd', hex(zeroblob(500000)), '{{}}', {1});
             INSERT INTO parts_prune_queue VALUES ('{0}', 'c{n}')",
            team.id,
            team.now_ms.get()
        ));
    }
    let outcomes = in_bounded_batches(&team);
    let units: u64 = outcomes.iter().map(|outcome| outcome.cost.units).sum();
    assert!(units > 10 * 256 + 10 * 244, "{units}");
}

#[test]
fn a_capture_of_2000_parts_goes_in_batches() {
    let team = Team::new();
    let now = team.now_ms.get();
    team.sql(&format!(
        "INSERT INTO captures (team_id, id, source_id, state, begin_json, created_at)
         VALUES ('{0}', 'c', 's', 'staging', '{{}}', {now});
         {1} INSERT INTO capture_parts
             (team_id, capture_id, part_index, digest, messages_json, digests_json, created_at)
         SELECT '{0}', 'c', i, 'd', '[]', '{{}}', {now} FROM n",
        team.id,
        numbers(2_000)
    ));
    team.advance(DAY_MS);
    in_bounded_batches(&team);
    assert_eq!(team.count("SELECT count(*) FROM capture_parts"), 0);
    assert_eq!(team.count("SELECT count(*) FROM captures"), 0);
}

#[test]
fn a_capture_and_a_version_with_all_they_may_name_go_in_batches() {
    let team = Team::new();
    let now = team.now_ms.get();
    for n in 0..50 {
        upload(&team, &format!("upload{n}"), 1, "committed");
    }
    let ids: Vec<String> = (0..50).map(|n| format!("upload{n}")).collect();
    for n in 0..12 {
        team.sql(&format!(
            "INSERT INTO captures
                 (team_id, id, source_id, state, begin_json, upload_ids_json, created_at)
             VALUES ('{0}', 'c{n}', 's', 'staging', '{{}}', '{1}', {now});
             INSERT INTO continuations
                 (team_id, id, session_id, state, value_json, upload_ids_json, created_at,
                  updated_at, settled_at)
             VALUES ('{0}', 'k{n}', 's', 'failed', '{{}}', '{1}', 0, 0, {now});
             INSERT INTO session_versions
                 (team_id, session_id, revision, source_id, message_count, created_at)
             VALUES ('{0}', 's', {n} + 1, 'source', 0, {now})",
            team.id,
            json!(ids)
        ));
        for bundle in 0..32 {
            team.sql(&format!(
                "INSERT INTO session_artifacts
                     (team_id, session_id, revision, bundle_id, upload_id, name, provenance)
                 VALUES ('{}', 's', {n} + 1, 'b{bundle}', 'upload{bundle}', 'N', 'capture')",
                team.id
            ));
        }
    }
    team.advance(30 * DAY_MS);
    in_bounded_batches(&team);
    assert_eq!(team.count("SELECT count(*) FROM session_versions"), 1);
    assert_eq!(team.count("SELECT count(*) FROM session_artifacts"), 32);
    assert_eq!(team.count("SELECT count(*) FROM captures"), 0);
    assert_eq!(team.count("SELECT count(*) FROM continuations"), 0);
    assert_eq!(team.count("SELECT count(*) FROM uploads"), 32);
}

/// A session with that many messages, each rewritten once if asked.
fn large_session(team: &Team, count: u64, versions: u64) -> String {
    let laptop = team.publisher("laptop");
    let id = session(&team.publish(&laptop.token, "n", &messages(0, 1, "a")));
    team.sql(&format!(
        "{} INSERT INTO messages
             (team_id, session_id, ordinal, revision, until_revision, role, digest, value_json)
         SELECT '{1}', '{id}', i, i % {versions} + 1,
                CASE WHEN i % 3 THEN 9007199254740991 ELSE i % {versions} + 2 END, 'user', 'd',
                '{{}}'
           FROM n;
         INSERT INTO message_search (rowid, text)
         SELECT id, 'word' FROM messages
          WHERE until_revision = 9007199254740991 AND ordinal > 0",
        numbers(count),
        team.id
    ));
    id
}

#[test]
fn a_deleted_session_of_50000_messages_goes_in_batches() {
    let team = Team::new();
    let id = large_session(&team, 50_000, 10);
    team.sql(&format!("UPDATE sessions SET deleted_at = 1 WHERE id = '{id}'"));
    let outcomes = in_bounded_batches(&team);
    assert!(outcomes.len() > 1);
    for table in ["sessions", "messages", "message_search", "session_versions"] {
        assert_eq!(team.count(&format!("SELECT count(*) FROM {table}")), 0, "{table}");
    }
}

#[test]
fn expiries_cost_the_same_however_many_there_are() {
    let cost = |expired: u64, alive: u64| {
        let team = Team::new();
        let now = team.now_ms.get();
        for (count, at) in [(expired, now), (alive, now + DAY_MS)] {
            team.sql(&format!(
                "{} INSERT INTO idempotency
                     (team_id, principal_id, key, request_hash, status, response_json, created_at,
                      expires_at)
                 SELECT '{}', 'p', 'k' || i || '-{at}', x'00', 200, '{{}}', 0, {at} FROM n",
                numbers(count),
                team.id
            ));
        }
        units_per(&team.settle(), &["idempotency"])
    };
    is_flat("idempotency", &[cost(3_000, 1), cost(3_000, 50_000), cost(30_000, 1_000)]);
}

#[test]
fn events_cost_the_same_however_many_there_are() {
    let cost = |old: u64, young: u64| {
        let team = Team::new();
        let event = |count: u64| {
            team.sql(&format!(
                "{} INSERT INTO org_events
                     (team_id, resource_kind, resource_id, type, value_json, created_at)
                 SELECT '{}', 'x', 'r' || i, 'x', '{{}}', {} FROM n",
                numbers(count),
                team.id,
                team.now_ms.get()
            ));
        };
        event(old);
        team.advance(7 * DAY_MS);
        event(young);
        units_per(&team.settle(), &["events"])
    };
    is_flat("events", &[cost(1_000, 1), cost(1_000, 30_000), cost(20_000, 1_000)]);
}

/// Units for each version that goes: `versions` of them, each closing one message, in a session
/// with other messages, other sources and pins in front.
fn versions_cost(versions: u64, carried: u64, sources: u64, pinned: u64) -> u64 {
    let team = Team::new();
    let now = team.now_ms.get();
    let last = sources + pinned + versions;
    team.sql(&format!(
        "INSERT INTO sessions (team_id, id, revision, harness, message_count, created_at, updated_at)
         VALUES ('{team}', 's', {last}, 'h', 1, {now}, {now});
         {others} INSERT INTO session_versions
             (team_id, session_id, revision, source_id, message_count, created_at)
         SELECT '{team}', 's', i, 'source' || i, 1, {now} FROM n",
        team = team.id,
        others = numbers(sources),
    ));
    team.settle();
    team.sql(&format!(
        "{mine} INSERT INTO session_versions
             (team_id, session_id, revision, source_id, message_count, created_at)
         SELECT '{team}', 's', {sources} + i, 'source', 1, {now} FROM n;
         {mine} INSERT INTO messages
             (team_id, session_id, ordinal, revision, until_revision, role, digest, value_json)
         SELECT '{team}', 's', 0, {sources} + i, {sources} + i + 1, 'user', 'd', '{{}}' FROM n;
         {carried} INSERT INTO messages
             (team_id, session_id, ordinal, revision, role, digest, value_json)
         SELECT '{team}', 's', i, {sources} + 1, 'user', 'd', '{{}}' FROM n;
         UPDATE messages SET until_revision = 9007199254740991
          WHERE until_revision = {last} + 1",
        team = team.id,
        mine = numbers(pinned + versions),
        carried = numbers(carried),
    ));
    if pinned > 0 {
        let pairs: Vec<_> = (1..=pinned).map(|n| json!(["s", sources + n])).collect();
        for (n, pairs) in pairs.chunks(500).enumerate() {
            team.sql(&format!(
                "INSERT INTO cursors
                     (id, team_id, principal_id, kind, filters_hash, snapshot_json, expires_at)
                 VALUES ('c{n}', '{}', 'p', 'list', '', '{}', {now} + {MINUTE_MS})",
                team.id,
                json!(pairs)
            ));
        }
    }
    let outcomes = in_bounded_batches(&team);
    let left = team.count("SELECT count(*) FROM session_versions").unsigned_abs();
    assert_eq!(left, sources + pinned + 1);
    units_per(&outcomes, &["versions"])
}

#[test]
fn a_version_costs_the_same_however_large_its_session() {
    let costs = [
        versions_cost(1_000, 20, 1, 0),
        versions_cost(1_000, 20_000, 1, 0),
        versions_cost(5_000, 20, 1, 0),
        versions_cost(5_000, 20, 1_000, 0),
    ];
    is_flat("a version", &costs);
    // A pinned version is looked at once.
    let pinned = versions_cost(5_000, 20, 1, 1_000);
    assert!(pinned < costs[2] + 20, "{pinned} tenths, {costs:?} without pins");
}

/// A history in which rows that an old version holds are closed at each removed version.
#[test]
fn rows_that_another_source_still_holds_are_not_read_again_and_again() {
    let cost = |held: u64| {
        let team = Team::new();
        let now = team.now_ms.get();
        team.sql(&format!(
            "INSERT INTO sessions
                 (team_id, id, revision, harness, message_count, created_at, updated_at)
             VALUES ('{team}', 's', 1000, 'h', 1, {now}, {now});
             INSERT INTO session_versions
                 (team_id, session_id, revision, source_id, message_count, created_at)
             VALUES ('{team}', 's', 1, 'old', 1, {now});
             {versions} INSERT INTO session_versions
                 (team_id, session_id, revision, source_id, message_count, created_at)
             SELECT '{team}', 's', i + 1, 'busy', 1, {now} FROM n;
             {held} INSERT INTO messages
                 (team_id, session_id, ordinal, revision, until_revision, role, digest, value_json)
             SELECT '{team}', 's', i, 1, 1000, 'user', 'd', '{{}}' FROM n",
            team = team.id,
            versions = numbers(999),
            held = numbers(held),
        ));
        let outcomes = in_bounded_batches(&team);
        assert_eq!(team.count("SELECT count(*) FROM messages").unsigned_abs(), held);
        units_per(&outcomes, &["versions"])
    };
    is_flat("a version over held rows", &[cost(10), cost(20_000)]);
}

#[test]
fn migrations_from_retention_on_cost_the_same_on_a_large_store() {
    let cost = |count: u64| {
        let team = Team::over(Native::open_in_memory(), BASE_VERSION);
        team.sql(&format!(
            "{0} INSERT INTO messages (team_id, session_id, ordinal, revision, role, digest, value_json)
             SELECT '{1}', 's', i, 1, 'user', 'd', '{{}}' FROM n;
             {0} INSERT INTO session_versions
                 (team_id, session_id, revision, source_id, message_count, created_at)
             SELECT '{1}', 's', i, 'a', 0, 0 FROM n;
             {0} INSERT INTO cursors
                 (id, team_id, principal_id, kind, filters_hash, snapshot_json, expires_at)
             SELECT 'c' || i, '{1}', 'p', 'list', '', '[]', i FROM n",
            numbers(count),
            team.id
        ));
        let before = team.driver.connection().total_changes();
        team.migrate();
        team.driver.connection().total_changes() - before
    };
    assert_eq!(cost(10), cost(5_000));
}

#[test]
fn the_retention_migration_builds_no_index_on_a_table_that_may_hold_rows() {
    let (_, sql) = migrate::MIGRATIONS[7];
    for index in sql.split("CREATE INDEX ").skip(1) {
        let table = index.split(" ON ").nth(1).unwrap().split_whitespace().next().unwrap();
        assert!(sql.contains(&format!("CREATE TABLE {table} ")), "{table} is older");
    }
    assert!(!sql.contains("CREATE UNIQUE INDEX"));
}

/// The statements of each trigger, with its row's columns as parameters.
fn trigger_statements(team: &Team) -> Vec<String> {
    let triggers = team.lines("SELECT sql FROM sqlite_schema WHERE type = 'trigger'");
    let mut statements = Vec::new();
    for trigger in triggers {
        let body = trigger.split("BEGIN").nth(1).unwrap();
        for statement in body.split(';').filter(|text| text.trim().len() > 5) {
            let mut out = String::new();
            let mut rest = statement;
            while let Some(at) = rest.find("NEW.").into_iter().chain(rest.find("OLD.")).min() {
                out.push_str(&rest[..at]);
                out.push_str("?1");
                rest = rest[at + 4..].trim_start_matches(|c: char| c.is_alphanumeric() || c == '_');
            }
            out.push_str(rest);
            statements.push(out);
        }
    }
    statements
}

#[test]
fn no_trigger_walks_a_table() {
    let team = Team::new();
    let statements = trigger_statements(&team);
    assert!(statements.len() > 30, "{}", statements.len());
    for statement in statements {
        let scans = crate::plans::scans(team.driver.connection(), &statement);
        assert!(scans.is_empty(), "a trigger walks a table: {scans:?} in: {statement}");
    }
}

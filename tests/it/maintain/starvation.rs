//! Whatever waits, every step moves in every pass, and no entry waits for long.
use super::numbers;
use crate::team::Team;
use teamplane::limits::{DAY_MS, PASS_MS_MAX};
use teamplane::maintain::{Outcome, Pass, Slice};

const PASSES: usize = 200;
/// Every step has its share of what is left of a pass within so many.
const SETTLED_AFTER: usize = 20;
/// How many slices a pass has time for: a first round of all steps takes two or three.
const SLICES: i64 = 5;

/// More than `PASSES` passes can take away, for each step: what it removes, and rows for it.
/// `:n` begins a statement with numbers, `:team` is the team, `:old` long ago, `:now` the time.
const BACKLOGS: &[(&str, u64, &str)] = &[
    (
        "idempotency",
        112_000,
        ":n INSERT INTO idempotency
                (team_id, principal_id, key, request_hash, status, response_json, created_at,
                 expires_at)
            SELECT :team, 'p', 'k' || i, x'00', 200, '{}', :old, :old FROM n",
    ),
    (
        "captures",
        125_000,
        ":n INSERT INTO captures
                (team_id, id, source_id, state, begin_json, created_at, settled_at)
            SELECT :team, 'c' || i, 's', 'committed', '{}', :old, :old FROM n;
         DELETE FROM parts_prune_queue",
    ),
    (
        "uploads_in_flight",
        22_000,
        ":n INSERT INTO uploads
                (team_id, id, source_id, media_type, size, sha256, chunk_size, state, created_at)
            SELECT :team, 'flight' || i, 's', 'x/y', 1, '', 65536, 'pending', :old FROM n",
    ),
    (
        "messages",
        150_000,
        ":n INSERT INTO messages
                (team_id, session_id, ordinal, revision, until_revision, role, digest, value_json)
            SELECT :team, 'long', i, 1, 2, 'user', '', '{}' FROM n;
         INSERT INTO message_prune_queue (team_id, session_id, revision, after_until)
         VALUES (:team, 'long', 1, 1)",
    ),
    (
        "parts",
        112_000,
        ":n INSERT INTO capture_parts
                (team_id, capture_id, part_index, digest, messages_json, digests_json, created_at)
            SELECT :team, 'old', i, '', '[]', '{}', :old FROM n;
         INSERT INTO parts_prune_queue (team_id, capture_id) VALUES (:team, 'old')",
    ),
    (
        "chunk_refs",
        112_000,
        ":n INSERT INTO artifact_chunk_refs
                (team_id, upload_id, chunk_index, sha256, size, source_id)
            SELECT :team, 'whole', i, 'shared', 1, 's' FROM n;
         INSERT INTO artifact_chunk_refs VALUES (:team, 'kept', 0, 'shared', 1, 's');
         INSERT INTO uploads
             (team_id, id, source_id, media_type, size, sha256, chunk_size, state, committed_at,
              created_at)
         VALUES (:team, 'whole', 's', 'x/y', 1, '', 65536, 'committed', :old, :old)",
    ),
    (
        "blobs",
        62_000,
        ":n INSERT INTO artifact_blobs (team_id, sha256, size, bytes)
            SELECT :team, 'blob' || i, 1, x'00' FROM n;
         :n INSERT INTO blob_prune_queue (team_id, sha256) SELECT :team, 'blob' || i FROM n",
    ),
    (
        "events",
        150_000,
        "DELETE FROM org_events;
         :n INSERT INTO org_events
                (team_id, resource_kind, resource_id, type, value_json, created_at)
            SELECT :team, 'x', 'r' || i, 'x', '{}', :old FROM n",
    ),
    (
        "presence_events",
        125_000,
        ":n INSERT INTO machine_presence_events (team_id, machine_id, linked, created_at)
            SELECT :team, 'm' || i, 0, :old FROM n",
    ),
    (
        "deliveries",
        125_000,
        ":n INSERT INTO app_webhook_deliveries
                (id, team_id, app_id, event_type, body, state, next_at, created_at, settled_at)
            SELECT 'd' || i, :team, 'app', 'x', '{}', 'delivered', 0, :old, :old FROM n",
    ),
    (
        "settled",
        125_000,
        ":n INSERT INTO attachments
                (team_id, id, session_id, machine_id, binding_id, principal_id, state, created_at,
                 settled_at)
            SELECT :team, 'a' || i, 's', 'm', 'b', 'p', 'closed', 0, :old FROM n",
    ),
    // Old sessions wait by design until those that are deleted already have gone.
    (
        "sessions",
        62_000,
        ":n INSERT INTO sessions
                (team_id, id, revision, harness, message_count, created_at, updated_at)
            SELECT :team, printf('session_%032x', i), 1, 'codex', 0, :old, :old FROM n;
         UPDATE sessions SET deleted_at = :old",
    ),
];

/// What comes in meanwhile: twice what one batch takes, in every pass.
const INTAKE: u64 = 180;

#[test]
fn no_step_starves_while_all_have_a_backlog_and_one_an_intake_of_two_batches() {
    let team = Team::new();
    let now = team.now_ms.get();
    let run = |count: u64, sql: &str| {
        team.sql(
            &sql.replace(":n ", &format!("{} ", numbers(count)))
                .replace(":team", &format!("'{}'", team.id))
                .replace(":old", &(now - 400 * DAY_MS).to_string()),
        );
    };
    for (_, count, sql) in BACKLOGS {
        run(*count, sql);
    }
    let waiting = "SELECT count(*) FROM journal WHERE action = 'intake'";
    let mut longest = 0;
    for pass in 0..PASSES {
        run(
            INTAKE,
            &format!(
                ":n INSERT INTO journal
                     (team_id, principal_id, action, target_id, request_id, created_at)
                 SELECT :team, 'p', 'intake', '{pass}', '', :old FROM n"
            ),
        );
        let outcome = quick_pass(&team);
        assert_eq!(outcome.faults, Vec::<String>::new());
        for (kind, ..) in BACKLOGS {
            assert!(outcome.removed.contains_key(kind), "pass {pass}: {kind} stands still");
        }
        let waits = team.count(waiting);
        if pass < SETTLED_AFTER {
            longest = longest.max(waits);
        } else {
            assert!(waits <= longest, "pass {pass}: {waits} wait, {longest} did");
        }
        let oldest = team.lines(
            "SELECT coalesce(min(CAST(target_id AS INTEGER)), -1) FROM journal
              WHERE action = 'intake'",
        );
        let oldest: i64 = oldest[0].parse().unwrap();
        let waited = if oldest < 0 { 0 } else { i64::try_from(pass).unwrap() - oldest };
        assert!(waited <= 20, "pass {pass}: an entry has waited {waited} passes");
    }
    let left: Vec<_> = BACKLOGS.iter().map(|(kind, ..)| *kind).collect();
    let last = quick_pass(&team);
    assert!(left.iter().all(|kind| last.removed.contains_key(kind)), "all had work: {last:?}");
}

/// A pass with time for `SLICES` slices.
fn quick_pass(team: &Team) -> Outcome {
    let mut pass = Pass::new(team.now_ms.get());
    while pass.slice(&team.db()) == Slice::More {
        team.advance(PASS_MS_MAX / SLICES);
    }
    pass.into_outcome()
}

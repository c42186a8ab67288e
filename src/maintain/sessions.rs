//! Deleted sessions: all that they hold, in batches, their row last. Their origins become
//! tombstones, so that a connector that publishes one again is told that it was deleted.
use super::work::{AT_ONCE, Batch, Walks, Work, json, rows};
use crate::error::Result;
use crate::ids::{SessionId, TeamId};
use crate::params;
use crate::store::{Db, Tx};

/// A message costs 10 units or 5, with its row in the search index.
const MESSAGES_MAX: usize = 45;
const MESSAGE_UNITS: u64 = 9;
const ARTIFACTS_MAX: u64 = 25;
const VERSIONS_MAX: u64 = 25;
/// With what its triggers do.
const VERSION_UNITS: u64 = 10;
const ROWS_MAX: u64 = 50;
/// The most that one kind of rows costs; the next kind waits for another batch without it.
const KIND_UNITS: u64 = 250;

type Remove = fn(&Tx, &mut Work, &TeamId, &SessionId) -> Result<Batch>;
/// What a session may hold, and whether it does is asked first: most hold little.
const KINDS: [Remove; 8] =
    [messages, artifacts, versions, queued_versions, queued_messages, grants, bindings, origins];

pub fn due(db: &Db, _walks: &Walks) -> Result<Option<i64>> {
    let waits = db.query_optional(
        "SELECT 1 FROM session_prune_queue WHERE team_id > '' LIMIT 1",
        params![],
        |row| row.get::<i64>(),
    )?;
    Ok(waits.map(|_| AT_ONCE))
}

pub fn batch(tx: &Tx, work: &mut Work) -> Result<Batch> {
    while work.has_room(tx, KIND_UNITS) {
        if session(tx, work)? == Batch::Done {
            return Ok(Batch::Done);
        }
    }
    Ok(Batch::More)
}

/// Removes the first session, or what of it fits into the batch.
fn session(tx: &Tx, work: &mut Work) -> Result<Batch> {
    let first = tx.query_optional(
        "SELECT team_id, session_id,
                EXISTS (SELECT 1 FROM messages AS m
                         WHERE m.team_id = q.team_id AND m.session_id = q.session_id),
                EXISTS (SELECT 1 FROM session_artifacts AS a
                         WHERE a.team_id = q.team_id AND a.session_id = q.session_id),
                EXISTS (SELECT 1 FROM session_versions AS v
                         WHERE v.team_id = q.team_id AND v.session_id = q.session_id),
                EXISTS (SELECT 1 FROM version_prune_queue AS v
                         WHERE v.team_id = q.team_id AND v.session_id = q.session_id),
                EXISTS (SELECT 1 FROM message_prune_queue AS m
                         WHERE m.team_id = q.team_id AND m.session_id = q.session_id),
                EXISTS (SELECT 1 FROM session_grants AS g
                         WHERE g.team_id = q.team_id AND g.session_id = q.session_id),
                EXISTS (SELECT 1 FROM bindings AS b
                         WHERE b.team_id = q.team_id AND b.session_id = q.session_id),
                EXISTS (SELECT 1 FROM origins AS o
                         WHERE o.team_id = q.team_id AND o.session_id = q.session_id)
           FROM session_prune_queue AS q
          WHERE q.team_id > ''
          LIMIT 1",
        params![],
        |row| {
            let (team_id, session_id): (TeamId, SessionId) = (row.get()?, row.get()?);
            let holds = KINDS.iter().map(|_| row.get()).collect::<Result<Vec<bool>>>()?;
            Ok((team_id, session_id, holds))
        },
    )?;
    let Some((team_id, session_id, holds)) = first else { return Ok(Batch::Done) };
    for (remove, _) in KINDS.iter().zip(holds).filter(|(_, holds)| *holds) {
        if !work.has_room(tx, KIND_UNITS) || remove(tx, work, &team_id, &session_id)? == Batch::More
        {
            return Ok(Batch::More);
        }
    }
    tx.execute(
        "DELETE FROM title_search
          WHERE rowid = (SELECT rowid FROM sessions WHERE team_id = ?1 AND id = ?2)",
        params![&team_id, &session_id],
    )?;
    let sessions = tx.execute_counted(
        "DELETE FROM sessions WHERE team_id = ?1 AND id = ?2",
        params![&team_id, &session_id],
    )?;
    tx.execute(
        "DELETE FROM session_prune_queue WHERE team_id = ?1 AND session_id = ?2",
        params![&team_id, &session_id],
    )?;
    work.removed("sessions", sessions);
    Ok(Batch::More)
}

/// Counts what went, and says whether there may be more of it.
fn gone(work: &mut Work, count: u64, rows_max: u64) -> Batch {
    work.removed("session_rows", count);
    Batch::more_if(count == rows_max)
}

fn messages(tx: &Tx, work: &mut Work, team_id: &TeamId, session_id: &SessionId) -> Result<Batch> {
    let rows = tx.query(
        "SELECT id, octet_length(value_json)
           FROM messages
          WHERE team_id = ?1 AND session_id = ?2
          ORDER BY ordinal
          LIMIT ?3",
        params![team_id, session_id, MESSAGES_MAX],
        |row| Ok((row.get::<i64>()?, row.get::<i64>()?)),
    )?;
    let count = rows.len();
    let taken = work.take(tx, rows, MESSAGE_UNITS);
    if taken.is_empty() {
        return Ok(Batch::more_if(count > 0));
    }
    rows!("message_search").delete(tx, &taken)?;
    rows!("messages").delete(tx, &taken)?;
    work.removed("session_rows", taken.len() as u64);
    Ok(Batch::more_if(count == MESSAGES_MAX || taken.len() < count))
}

fn artifacts(tx: &Tx, work: &mut Work, team_id: &TeamId, session_id: &SessionId) -> Result<Batch> {
    let row_ids = tx.query(
        "SELECT rowid FROM session_artifacts WHERE team_id = ?1 AND session_id = ?2 LIMIT ?3",
        params![team_id, session_id, ARTIFACTS_MAX],
        |row| row.get::<i64>(),
    )?;
    rows!("session_artifacts").delete(tx, &row_ids)?;
    Ok(gone(work, row_ids.len() as u64, ARTIFACTS_MAX))
}

fn versions(tx: &Tx, work: &mut Work, team_id: &TeamId, session_id: &SessionId) -> Result<Batch> {
    let rows = tx.query(
        "SELECT rowid, coalesce(octet_length(source_projection_json), 0)
           FROM session_versions
          WHERE team_id = ?1 AND session_id = ?2
          LIMIT ?3",
        params![team_id, session_id, VERSIONS_MAX],
        |row| Ok((row.get::<i64>()?, row.get::<i64>()?)),
    )?;
    let count = rows.len() as u64;
    let taken = work.take(tx, rows, VERSION_UNITS);
    if taken.is_empty() {
        return Ok(Batch::more_if(count > 0));
    }
    rows!("session_versions").delete(tx, &taken)?;
    work.removed("session_rows", taken.len() as u64);
    Ok(Batch::more_if(count == VERSIONS_MAX || (taken.len() as u64) < count))
}

fn queued_versions(
    tx: &Tx,
    work: &mut Work,
    team_id: &TeamId,
    session_id: &SessionId,
) -> Result<Batch> {
    let count = tx.execute_counted(
        "DELETE FROM version_prune_queue
          WHERE (team_id, session_id, source_id) IN (
                SELECT team_id, session_id, source_id
                  FROM version_prune_queue
                 WHERE team_id = ?1 AND session_id = ?2
                 LIMIT ?3)",
        params![team_id, session_id, ROWS_MAX],
    )?;
    Ok(gone(work, count, ROWS_MAX))
}

fn queued_messages(
    tx: &Tx,
    work: &mut Work,
    team_id: &TeamId,
    session_id: &SessionId,
) -> Result<Batch> {
    let count = tx.execute_counted(
        "DELETE FROM message_prune_queue
          WHERE (team_id, session_id, revision) IN (
                SELECT team_id, session_id, revision
                  FROM message_prune_queue
                 WHERE team_id = ?1 AND session_id = ?2
                 LIMIT ?3)",
        params![team_id, session_id, ROWS_MAX],
    )?;
    Ok(gone(work, count, ROWS_MAX))
}

fn grants(tx: &Tx, work: &mut Work, team_id: &TeamId, session_id: &SessionId) -> Result<Batch> {
    let count = tx.execute_counted(
        "DELETE FROM session_grants
          WHERE (team_id, session_id, subject_kind, subject_id) IN (
                SELECT team_id, session_id, subject_kind, subject_id
                  FROM session_grants
                 WHERE team_id = ?1 AND session_id = ?2
                 LIMIT ?3)",
        params![team_id, session_id, ROWS_MAX],
    )?;
    Ok(gone(work, count, ROWS_MAX))
}

/// A binding says what a machine has open, and a heartbeat that repeats it writes nothing: so it
/// stays until the machine says otherwise, without the session.
fn bindings(tx: &Tx, work: &mut Work, team_id: &TeamId, session_id: &SessionId) -> Result<Batch> {
    let count = tx.execute_counted(
        "UPDATE bindings SET session_id = NULL
          WHERE (team_id, machine_id, id) IN (
                SELECT team_id, machine_id, id
                  FROM bindings
                 WHERE team_id = ?1 AND session_id = ?2
                 LIMIT ?3)",
        params![team_id, session_id, ROWS_MAX],
    )?;
    Ok(gone(work, count, ROWS_MAX))
}

/// Last, because a session's activity is found through its origins.
fn origins(tx: &Tx, work: &mut Work, team_id: &TeamId, session_id: &SessionId) -> Result<Batch> {
    let origins = tx.query(
        "SELECT source_id, harness, native_id
           FROM origins
          WHERE team_id = ?1 AND session_id = ?2
          LIMIT ?3",
        params![team_id, session_id, ROWS_MAX / 2],
        |row| Ok([row.get::<String>()?, row.get::<String>()?, row.get::<String>()?]),
    )?;
    if origins.is_empty() {
        return Ok(Batch::Done);
    }
    let keys = json(&origins)?;
    let activities = tx.execute_counted(
        "DELETE FROM session_activity
          WHERE (team_id, source_id, harness, native_id) IN (
                SELECT ?1, value ->> 0, value ->> 1, value ->> 2 FROM json_each(?2))",
        params![team_id, &keys],
    )?;
    tx.execute(
        "UPDATE origins SET session_id = NULL
          WHERE (team_id, source_id, harness, native_id) IN (
                SELECT ?1, value ->> 0, value ->> 1, value ->> 2 FROM json_each(?2))",
        params![team_id, &keys],
    )?;
    work.removed("session_rows", activities);
    Ok(Batch::more_if(origins.len() as u64 == ROWS_MAX / 2))
}

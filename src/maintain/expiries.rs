//! What carries its own end: kept answers, cursors with their pins, install codes, notes of
//! expired captures; and the journal, which ages by the team's days.
//!
//! Those that are due share a batch, so that none waits for another.
use super::retention;
use super::work::{Batch, Walks, Work, earliest, json};
use crate::error::Result;
use crate::limits::{CAPTURE_EXPIRY_AGE_MS, DAY_MS};
use crate::params;
use crate::store::{Db, Tx};

/// What the kinds that are due share.
const SHARED_UNITS: u64 = 400;
/// A row is found by its time, found by its key, deleted.
const ROW_UNITS: u64 = 3;
const PIN_UNITS: u64 = 4;
/// With up to 40 KB of snapshot.
const CURSOR_UNITS: u64 = 14;

/// Removes up to so many units' worth of a kind.
type Remove = fn(&Tx, &mut Work, u64) -> Result<Batch>;
const KINDS: [Remove; 7] =
    [idempotency, global_idempotency, codes, notes, global_cursors, cursors, journal];

/// When each of [`KINDS`] next has something to lose.
fn times(db: &Db) -> Result<Vec<Option<i64>>> {
    db.query_one(
        "SELECT (SELECT min(expires_at) FROM idempotency),
                (SELECT min(expires_at) FROM global_idempotency),
                (SELECT min(expires_at) FROM app_install_codes),
                (SELECT min(expired_at) FROM capture_expiries) + ?1,
                (SELECT min(expires_at) FROM global_cursors),
                (SELECT min(expires_at) FROM cursors),
                (SELECT min(due_at) FROM retention_due WHERE step = 'journal')",
        params![CAPTURE_EXPIRY_AGE_MS],
        |row| KINDS.iter().map(|_| row.get()).collect(),
    )
}

pub fn due(db: &Db, _walks: &Walks) -> Result<Option<i64>> {
    times(db).map(earliest)
}

pub fn batch(tx: &Tx, work: &mut Work) -> Result<Batch> {
    let times = times(tx)?;
    let is_due = |at: &Option<i64>| at.is_some_and(|at| at <= tx.now_ms);
    let count = times.iter().filter(|at| is_due(at)).count() as u64;
    let mut outcome = Batch::Done;
    for (remove, _) in KINDS.iter().zip(&times).filter(|(_, at)| is_due(at)) {
        if remove(tx, work, SHARED_UNITS / count)? == Batch::More {
            outcome = Batch::More;
        }
    }
    Ok(outcome)
}

fn expire(
    tx: &Tx,
    work: &mut Work,
    kind: &'static str,
    units: u64,
    delete: &'static str,
) -> Result<Batch> {
    let limit = units / ROW_UNITS;
    let count = tx.execute_counted(delete, params![tx.now_ms, limit])?;
    work.removed(kind, count);
    Ok(Batch::more_if(count == limit))
}

fn idempotency(tx: &Tx, work: &mut Work, units: u64) -> Result<Batch> {
    expire(
        tx,
        work,
        "idempotency",
        units,
        "DELETE FROM idempotency
          WHERE rowid IN (
                SELECT rowid FROM idempotency WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2)",
    )
}

fn global_idempotency(tx: &Tx, work: &mut Work, units: u64) -> Result<Batch> {
    expire(
        tx,
        work,
        "idempotency",
        units,
        "DELETE FROM global_idempotency
          WHERE rowid IN (
                SELECT rowid
                  FROM global_idempotency
                 WHERE expires_at <= ?1
                 ORDER BY expires_at
                 LIMIT ?2)",
    )
}

fn codes(tx: &Tx, work: &mut Work, units: u64) -> Result<Batch> {
    expire(
        tx,
        work,
        "codes",
        units,
        "DELETE FROM app_install_codes
          WHERE rowid IN (
                SELECT rowid
                  FROM app_install_codes
                 WHERE expires_at <= ?1
                 ORDER BY expires_at
                 LIMIT ?2)",
    )
}

fn notes(tx: &Tx, work: &mut Work, units: u64) -> Result<Batch> {
    let limit = units / ROW_UNITS;
    let count = tx.execute_counted(
        "DELETE FROM capture_expiries
          WHERE rowid IN (
                SELECT rowid
                  FROM capture_expiries
                 WHERE expired_at <= ?1
                 ORDER BY expired_at
                 LIMIT ?2)",
        params![tx.now_ms - CAPTURE_EXPIRY_AGE_MS, limit],
    )?;
    work.removed("expiries", count);
    Ok(Batch::more_if(count == limit))
}

fn global_cursors(tx: &Tx, work: &mut Work, units: u64) -> Result<Batch> {
    let limit = units / CURSOR_UNITS;
    let count = tx.execute_counted(
        "DELETE FROM global_cursors
          WHERE id IN (
                SELECT id FROM global_cursors WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2)",
        params![tx.now_ms, limit],
    )?;
    work.removed("cursors", count);
    Ok(Batch::more_if(count == limit))
}

/// Pins first: a cursor may have 500.
fn cursors(tx: &Tx, work: &mut Work, units: u64) -> Result<Batch> {
    let (cursors_max, pins_max) = (units / 2 / CURSOR_UNITS, units / 2 / PIN_UNITS);
    let ids = tx.query(
        "SELECT id FROM cursors WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2",
        params![tx.now_ms, cursors_max],
        |row| row.get::<String>(),
    )?;
    let full = ids.len() as u64 == cursors_max;
    let ids = json(&ids)?;
    let pins = tx.execute_counted(
        "DELETE FROM cursor_pins
          WHERE (team_id, session_id, revision, expires_at, cursor_id) IN (
                SELECT p.team_id, p.session_id, p.revision, p.expires_at, p.cursor_id
                  FROM json_each(?1) AS c
                 CROSS JOIN cursor_pins AS p ON p.cursor_id = c.value
                 LIMIT ?2)",
        params![&ids, pins_max],
    )?;
    work.removed("cursor_pins", pins);
    if pins == pins_max {
        return Ok(Batch::More);
    }
    let count = tx.execute_counted(
        "DELETE FROM cursors WHERE id IN (SELECT value FROM json_each(?1))",
        params![&ids],
    )?;
    work.removed("cursors", count);
    Ok(Batch::more_if(full))
}

fn journal(tx: &Tx, work: &mut Work, units: u64) -> Result<Batch> {
    let Some(due) = retention::first(tx, "journal")? else { return Ok(Batch::Done) };
    let Some(retention) = &due.retention else {
        due.set(tx, None)?;
        return Ok(Batch::More);
    };
    let age_ms = retention.journal_days * DAY_MS;
    let count = tx.execute_counted(
        "DELETE FROM journal
          WHERE sequence IN (
                SELECT sequence
                  FROM journal
                 WHERE team_id = ?1 AND created_at <= ?2
                 ORDER BY created_at
                 LIMIT ?3)",
        params![&due.team_id, tx.now_ms - age_ms, units / ROW_UNITS],
    )?;
    work.removed("journal", count);
    let first: Option<i64> = tx.query_one(
        "SELECT min(created_at) FROM journal WHERE team_id = ?1",
        params![&due.team_id],
        |row| row.get(),
    )?;
    // A team with more to lose goes behind those that wait already.
    due.set(tx, first.map(|created_at| (created_at + age_ms).max(tx.now_ms)))?;
    Ok(Batch::More)
}

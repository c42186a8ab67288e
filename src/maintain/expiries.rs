//! What carries its own end: kept answers, cursors with their pins, install codes, notes of
//! expired captures; and the journal, which ages by the team's days.
//!
//! Those that are due share a batch, so that none waits for another.
use super::retention;
use super::work::{Batch, LISTED_UNITS, Remove, Rows, Walks, Work, earliest, json, rows, share};
use crate::error::Result;
use crate::limits::{CAPTURE_EXPIRY_AGE_MS, DAY_MS};
use crate::params;
use crate::store::{Db, Tx};

/// What the kinds that are due share.
const SHARED_UNITS: u64 = 420;
/// A row is found by its time and deleted.
const ROW_UNITS: u64 = 1 + LISTED_UNITS;
/// Cursors that are looked at, and the pins of each that are counted.
const CURSORS_MAX: u64 = 8;
const PINS_COUNTED_MAX: u64 = 25;
const PINS_MAX: u64 = 60;
const CURSOR_UNITS: u64 = 6;
const PIN_UNITS: u64 = 2;

/// Removes up to so many units' worth of a kind.
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
    share(tx, work, &KINDS, &times(tx)?, SHARED_UNITS)
}

/// Deletes the rows that `front` finds first.
fn expire(
    tx: &Tx,
    work: &mut Work,
    kind: &'static str,
    (front, rows): (&'static str, &Rows),
    (before, units): (i64, u64),
) -> Result<Batch> {
    let limit = units / ROW_UNITS;
    let row_ids = tx.query(front, params![before, limit], |row| row.get::<i64>())?;
    rows.delete(tx, &row_ids)?;
    work.removed(kind, row_ids.len() as u64);
    Ok(Batch::more_if(row_ids.len() as u64 == limit))
}

fn idempotency(tx: &Tx, work: &mut Work, units: u64) -> Result<Batch> {
    let front = "SELECT rowid FROM idempotency WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2";
    expire(tx, work, "idempotency", (front, &rows!("idempotency")), (tx.now_ms, units))
}

fn global_idempotency(tx: &Tx, work: &mut Work, units: u64) -> Result<Batch> {
    let front =
        "SELECT rowid FROM global_idempotency WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2";
    expire(tx, work, "idempotency", (front, &rows!("global_idempotency")), (tx.now_ms, units))
}

fn codes(tx: &Tx, work: &mut Work, units: u64) -> Result<Batch> {
    let front =
        "SELECT rowid FROM app_install_codes WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2";
    expire(tx, work, "codes", (front, &rows!("app_install_codes")), (tx.now_ms, units))
}

fn notes(tx: &Tx, work: &mut Work, units: u64) -> Result<Batch> {
    let front =
        "SELECT rowid FROM capture_expiries WHERE expired_at <= ?1 ORDER BY expired_at LIMIT ?2";
    let before = tx.now_ms - CAPTURE_EXPIRY_AGE_MS;
    expire(tx, work, "expiries", (front, &rows!("capture_expiries")), (before, units))
}

fn global_cursors(tx: &Tx, work: &mut Work, units: u64) -> Result<Batch> {
    let limit = units / (2 * CURSOR_UNITS);
    let count = tx.execute_counted(
        "DELETE FROM global_cursors
          WHERE id IN (
                SELECT id FROM global_cursors WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2)",
        params![tx.now_ms, limit],
    )?;
    work.removed("cursors", count);
    Ok(Batch::more_if(count == limit))
}

/// A cursor with few pins goes with them, by a trigger; one with many, up to 500, loses them first.
fn cursors(tx: &Tx, work: &mut Work, units: u64) -> Result<Batch> {
    let expired = tx.query(
        "SELECT c.id, octet_length(c.snapshot_json),
                (SELECT count(*)
                   FROM (SELECT 1 FROM cursor_pins AS p WHERE p.cursor_id = c.id LIMIT ?3))
           FROM cursors AS c
          WHERE c.expires_at <= ?1
          ORDER BY c.expires_at
          LIMIT ?2",
        params![tx.now_ms, CURSORS_MAX, PINS_COUNTED_MAX],
        |row| Ok((row.get::<String>()?, row.get::<i64>()?, row.get::<u64>()?)),
    )?;
    let Some((first, _, pins)) = expired.first() else { return Ok(Batch::Done) };
    if *pins == PINS_COUNTED_MAX {
        trim(tx, work, first)?;
        return Ok(Batch::More);
    }
    let full = expired.len() as u64 == CURSORS_MAX;
    let small = expired.into_iter().take_while(|(.., pins)| *pins < PINS_COUNTED_MAX);
    let weighed =
        small.map(|(id, octets, pins)| ((id, pins), octets, CURSOR_UNITS + PIN_UNITS * pins));
    let mut left = units;
    let small = weighed.take_while(|(.., units)| {
        left = left.saturating_sub(*units);
        left > 0
    });
    let small = work.take_weighed(tx, small.collect());
    let ids = small.iter().map(|(id, _)| id).collect::<Vec<_>>();
    tx.execute(
        "DELETE FROM cursors WHERE id IN (SELECT value FROM json_each(?1))",
        params![&json(&ids)?],
    )?;
    work.removed("cursors", small.len() as u64);
    work.removed("cursor_pins", small.iter().map(|(_, pins)| pins).sum());
    Ok(Batch::more_if(full || !small.is_empty()))
}

/// Removes pins of a cursor, which pins a session once or a few times.
fn trim(tx: &Tx, work: &mut Work, cursor_id: &str) -> Result<()> {
    let last = tx.query_optional(
        "SELECT team_id, session_id
           FROM cursor_pins
          WHERE cursor_id = ?1
          ORDER BY team_id, session_id
          LIMIT 1 OFFSET ?2",
        params![cursor_id, PINS_MAX - 1],
        |row| Ok((row.get::<String>()?, row.get::<String>()?)),
    )?;
    let pins = match last {
        Some((team_id, session_id)) => tx.execute_counted(
            "DELETE FROM cursor_pins
              WHERE cursor_id = ?1 AND team_id = ?2 AND session_id <= ?3",
            params![cursor_id, &team_id, &session_id],
        )?,
        None => {
            tx.execute_counted("DELETE FROM cursor_pins WHERE cursor_id = ?1", params![cursor_id])?
        }
    };
    work.removed("cursor_pins", pins);
    Ok(())
}

fn journal(tx: &Tx, work: &mut Work, units: u64) -> Result<Batch> {
    let Some(due) = retention::first(tx, "journal")? else { return Ok(Batch::Done) };
    let Some(retention) = &due.retention else {
        due.set(tx, None)?;
        return Ok(Batch::More);
    };
    let age_ms = retention.journal_days * DAY_MS;
    let old = tx.query(
        "SELECT sequence
           FROM journal
          WHERE team_id = ?1 AND created_at <= ?2
          ORDER BY created_at
          LIMIT ?3",
        params![&due.team_id, tx.now_ms - age_ms, units / ROW_UNITS],
        |row| row.get::<i64>(),
    )?;
    rows!("journal").delete(tx, &old)?;
    work.removed("journal", old.len() as u64);
    let first: Option<i64> = tx.query_one(
        "SELECT min(created_at) FROM journal WHERE team_id = ?1",
        params![&due.team_id],
        |row| row.get(),
    )?;
    // A team with more to lose goes behind those that wait already.
    due.set(tx, first.map(|created_at| (created_at + age_ms).max(tx.now_ms)))?;
    Ok(Batch::More)
}

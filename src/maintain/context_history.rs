//! What repeated calls of contexts are known by, after 30 days; audits at their end; records of
//! usage after 400 days. Those that are due share a batch.
use super::work::{Batch, LISTED_UNITS, Remove, Rows, Walks, Work, earliest, rows, share};
use crate::error::Result;
use crate::limits::{CONTEXT_OPERATION_AGE_MS, USAGE_AGE_MS};
use crate::params;
use crate::store::{Db, Tx};

const SHARED_UNITS: u64 = 420;
/// A row is found by its time and deleted; one of usage is taken out of three sums too.
const ROW_UNITS: u64 = 1 + LISTED_UNITS;
const USAGE_UNITS: u64 = ROW_UNITS + 18;

const KINDS: [Remove; 4] = [operations, imports, audits, usage];

fn times(db: &Db) -> Result<Vec<Option<i64>>> {
    db.query_one(
        "SELECT (SELECT min(created_at) FROM context_operations) + ?1,
                (SELECT min(created_at) FROM context_imports) + ?1,
                (SELECT min(expires_at) FROM context_audits),
                (SELECT min(created_at) FROM usage_records) + ?2",
        params![CONTEXT_OPERATION_AGE_MS, USAGE_AGE_MS],
        |row| KINDS.iter().map(|_| row.get()).collect(),
    )
}

pub fn due(db: &Db, _walks: &Walks) -> Result<Option<i64>> {
    times(db).map(earliest)
}

pub fn batch(tx: &Tx, work: &mut Work) -> Result<Batch> {
    share(tx, work, &KINDS, &times(tx)?, SHARED_UNITS)
}

/// Deletes up to `limit` rows that `front` finds first.
fn expire(
    tx: &Tx,
    work: &mut Work,
    kind: &'static str,
    (front, rows): (&'static str, &Rows),
    (before, limit): (i64, u64),
) -> Result<Batch> {
    let row_ids = tx.query(front, params![before, limit], |row| row.get::<i64>())?;
    rows.delete(tx, &row_ids)?;
    work.removed(kind, row_ids.len() as u64);
    Ok(Batch::more_if(row_ids.len() as u64 == limit))
}

fn operations(tx: &Tx, work: &mut Work, units: u64) -> Result<Batch> {
    let front =
        "SELECT rowid FROM context_operations WHERE created_at <= ?1 ORDER BY created_at LIMIT ?2";
    let before = tx.now_ms - CONTEXT_OPERATION_AGE_MS;
    let rows = &rows!("context_operations");
    expire(tx, work, "context_operations", (front, rows), (before, units / ROW_UNITS))
}

fn imports(tx: &Tx, work: &mut Work, units: u64) -> Result<Batch> {
    let front =
        "SELECT rowid FROM context_imports WHERE created_at <= ?1 ORDER BY created_at LIMIT ?2";
    let before = tx.now_ms - CONTEXT_OPERATION_AGE_MS;
    let rows = &rows!("context_imports");
    expire(tx, work, "context_imports", (front, rows), (before, units / ROW_UNITS))
}

fn audits(tx: &Tx, work: &mut Work, units: u64) -> Result<Batch> {
    let front =
        "SELECT rowid FROM context_audits WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2";
    let rows = &rows!("context_audits");
    expire(tx, work, "context_audits", (front, rows), (tx.now_ms, units / ROW_UNITS))
}

fn usage(tx: &Tx, work: &mut Work, units: u64) -> Result<Batch> {
    let front =
        "SELECT rowid FROM usage_records WHERE created_at <= ?1 ORDER BY created_at LIMIT ?2";
    let before = tx.now_ms - USAGE_AGE_MS;
    let rows = &rows!("usage_records");
    expire(tx, work, "usage_records", (front, rows), (before, units / USAGE_UNITS))
}

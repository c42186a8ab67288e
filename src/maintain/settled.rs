//! What came to its end 30 days ago: operations with their effects, attachments, continuations,
//! credentials. Those that are due share a batch.
use super::work::{Batch, LISTED_UNITS, Remove, Walks, Work, earliest, json, rows, share};
use crate::error::Result;
use crate::ids::TeamId;
use crate::limits::SETTLED_AGE_MS;
use crate::params;
use crate::store::{Db, Tx};

const SHARED_UNITS: u64 = 400;
/// Found by its time and deleted.
const ROW_UNITS: u64 = 1 + LISTED_UNITS;
/// A continuation that names no upload; each that it names costs 8 more, and there may be 50.
const CONTINUATION_UNITS: u64 = LISTED_UNITS + 2;
const REF_UNITS: u64 = 8;

const KINDS: [Remove; 5] =
    [operations, attachments, expired_credentials, revoked_credentials, continuations];

fn times(db: &Db) -> Result<Vec<Option<i64>>> {
    db.query_one(
        "SELECT (SELECT min(settled_at) FROM operations WHERE settled_at IS NOT NULL) + ?1,
                (SELECT min(settled_at) FROM attachments WHERE settled_at IS NOT NULL) + ?1,
                (SELECT min(expires_at) FROM credentials) + ?1,
                (SELECT min(revoked_at) FROM credentials WHERE revoked_at IS NOT NULL) + ?1,
                (SELECT min(settled_at) FROM continuations WHERE settled_at IS NOT NULL) + ?1",
        params![SETTLED_AGE_MS],
        |row| KINDS.iter().map(|_| row.get()).collect(),
    )
}

pub fn due(db: &Db, _walks: &Walks) -> Result<Option<i64>> {
    times(db).map(earliest)
}

pub fn batch(tx: &Tx, work: &mut Work) -> Result<Batch> {
    share(tx, work, &KINDS, &times(tx)?, SHARED_UNITS)
}

/// Effects first: an operation may have one for each machine.
fn operations(tx: &Tx, work: &mut Work, units: u64) -> Result<Batch> {
    let limit = units / 2 / ROW_UNITS;
    let settled = tx.query(
        "SELECT rowid, team_id, id
           FROM operations
          WHERE settled_at <= ?1
          ORDER BY settled_at
          LIMIT ?2",
        params![tx.now_ms - SETTLED_AGE_MS, limit],
        |row| Ok((row.get::<i64>()?, row.get::<TeamId>()?, row.get::<String>()?)),
    )?;
    let effects = tx.query(
        "SELECT e.rowid
           FROM json_each(?1) AS o
          CROSS JOIN native_effects AS e
             ON e.team_id = o.value ->> 1 AND e.operation_id = o.value ->> 2
          LIMIT ?2",
        params![&json(&settled)?, limit],
        |row| row.get::<i64>(),
    )?;
    rows!("native_effects").delete(tx, &effects)?;
    work.removed("effects", effects.len() as u64);
    if effects.len() as u64 == limit {
        return Ok(Batch::More);
    }
    let row_ids = settled.iter().map(|(row_id, ..)| *row_id).collect::<Vec<_>>();
    rows!("operations").delete(tx, &row_ids)?;
    work.removed("settled", row_ids.len() as u64);
    Ok(Batch::more_if(row_ids.len() as u64 == limit))
}

fn attachments(tx: &Tx, work: &mut Work, units: u64) -> Result<Batch> {
    let limit = units / ROW_UNITS;
    let row_ids = tx.query(
        "SELECT rowid FROM attachments WHERE settled_at <= ?1 ORDER BY settled_at LIMIT ?2",
        params![tx.now_ms - SETTLED_AGE_MS, limit],
        |row| row.get::<i64>(),
    )?;
    rows!("attachments").delete(tx, &row_ids)?;
    work.removed("settled", row_ids.len() as u64);
    Ok(Batch::more_if(row_ids.len() as u64 == limit))
}

fn end_credentials(tx: &Tx, work: &mut Work, units: u64, delete: &'static str) -> Result<Batch> {
    let limit = units / ROW_UNITS;
    let count = tx.execute_counted(delete, params![tx.now_ms - SETTLED_AGE_MS, limit])?;
    work.removed("credentials", count);
    Ok(Batch::more_if(count == limit))
}

fn expired_credentials(tx: &Tx, work: &mut Work, units: u64) -> Result<Batch> {
    end_credentials(
        tx,
        work,
        units,
        "DELETE FROM credentials
          WHERE id IN (
                SELECT id FROM credentials WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2)",
    )
}

fn revoked_credentials(tx: &Tx, work: &mut Work, units: u64) -> Result<Batch> {
    end_credentials(
        tx,
        work,
        units,
        "DELETE FROM credentials
          WHERE id IN (
                SELECT id FROM credentials WHERE revoked_at <= ?1 ORDER BY revoked_at LIMIT ?2)",
    )
}

/// A trigger releases the uploads that each names.
fn continuations(tx: &Tx, work: &mut Work, units: u64) -> Result<Batch> {
    let limit = units / ROW_UNITS / 2;
    let settled = tx.query(
        "SELECT rowid, octet_length(value_json), json_array_length(upload_ids_json)
           FROM continuations
          WHERE settled_at <= ?1
          ORDER BY settled_at
          LIMIT ?2",
        params![tx.now_ms - SETTLED_AGE_MS, limit],
        |row| {
            let (row_id, octets, refs): (i64, i64, i64) = (row.get()?, row.get()?, row.get()?);
            Ok((row_id, octets, CONTINUATION_UNITS + REF_UNITS * refs.unsigned_abs()))
        },
    )?;
    let count = settled.len();
    let taken = work.take_weighed(tx, settled);
    if taken.is_empty() {
        return Ok(Batch::more_if(count > 0));
    }
    rows!("continuations").delete(tx, &taken)?;
    work.removed("settled", taken.len() as u64);
    Ok(Batch::more_if(taken.len() < count || count as u64 == limit))
}

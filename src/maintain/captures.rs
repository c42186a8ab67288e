//! Settled captures, a day after they settled and once their parts are gone. Until then a repeated
//! commit answers the same.
use super::work::{Batch, LISTED_UNITS, Walks, Work, rows};
use crate::error::Result;
use crate::limits::SETTLED_CAPTURE_AGE_MS;
use crate::params;
use crate::store::{Db, Tx};

/// A row costs 7 units: found by its time, asked for parts, deleted.
const CAPTURES_MAX: usize = 65;

pub fn due(db: &Db, _walks: &Walks) -> Result<Option<i64>> {
    db.query_one(
        "SELECT min(settled_at) + ?1 FROM captures WHERE settled_at IS NOT NULL",
        params![SETTLED_CAPTURE_AGE_MS],
        |row| row.get(),
    )
}

pub fn batch(tx: &Tx, work: &mut Work) -> Result<Batch> {
    let settled = tx.query(
        "SELECT c.rowid,
                octet_length(c.begin_json) + octet_length(c.upload_ids_json)
                    + coalesce(octet_length(c.result_json), 0),
                EXISTS (SELECT 1
                          FROM capture_parts AS p
                         WHERE p.team_id = c.team_id AND p.capture_id = c.id)
           FROM captures AS c
          WHERE c.settled_at <= ?1
          ORDER BY c.settled_at
          LIMIT ?2",
        params![tx.now_ms - SETTLED_CAPTURE_AGE_MS, CAPTURES_MAX],
        |row| Ok(((row.get::<i64>()?, row.get::<i64>()?), row.get::<bool>()?)),
    )?;
    let full = settled.len() == CAPTURES_MAX;
    // The parts step frees the others.
    let free = settled.into_iter().filter(|(_, has_parts)| !has_parts).map(|(row, _)| row);
    let free = free.collect::<Vec<_>>();
    let free_count = free.len();
    let taken = work.take(tx, free, LISTED_UNITS);
    if taken.is_empty() {
        return Ok(Batch::Done);
    }
    rows!("captures").delete(tx, &taken)?;
    work.removed("captures", taken.len() as u64);
    Ok(Batch::more_if(full || taken.len() < free_count))
}

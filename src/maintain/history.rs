//! The claim history of runs that have had neither events nor a claim for 30 days: first the
//! holders that takeovers displaced, of which a run may have any number, then its fence.
use super::work::{Batch, LISTED_UNITS, Walks, Work, json, rows};
use crate::error::Result;
use crate::limits::CLAIM_HISTORY_AGE_MS;
use crate::params;
use crate::store::{Db, Tx};

/// A fence is found by its time, read again for its holders and deleted; a holder is found and
/// deleted.
const RUNS_MAX: u64 = 24;
const HOLDERS_MAX: u64 = 36;
const _: () = assert!(
    (2 + LISTED_UNITS) * RUNS_MAX + (2 + LISTED_UNITS) * HOLDERS_MAX < 440,
    "with its statements it is a batch"
);

pub fn due(db: &Db, _walks: &Walks) -> Result<Option<i64>> {
    db.query_one(
        "SELECT min(settled_at) + ?1 FROM run_fences WHERE settled_at IS NOT NULL",
        params![CLAIM_HISTORY_AGE_MS],
        |row| row.get(),
    )
}

pub fn batch(tx: &Tx, work: &mut Work) -> Result<Batch> {
    let settled = tx.query(
        "SELECT rowid FROM run_fences WHERE settled_at <= ?1 ORDER BY settled_at LIMIT ?2",
        params![tx.now_ms - CLAIM_HISTORY_AGE_MS, RUNS_MAX],
        |row| row.get::<i64>(),
    )?;
    if settled.is_empty() {
        return Ok(Batch::Done);
    }
    let holders = tx.query(
        "SELECT h.rowid
           FROM json_each(?1) AS j
          CROSS JOIN run_fences AS f ON f.rowid = j.value
          CROSS JOIN fenced_holders AS h ON h.team_id = f.team_id AND h.run_id = f.run_id
          LIMIT ?2",
        params![&json(&settled)?, HOLDERS_MAX],
        |row| row.get::<i64>(),
    )?;
    rows!("fenced_holders").delete(tx, &holders)?;
    work.removed("claim_history", holders.len() as u64);
    if holders.len() as u64 == HOLDERS_MAX {
        return Ok(Batch::More);
    }
    rows!("run_fences").delete(tx, &settled)?;
    work.removed("claim_history", settled.len() as u64);
    Ok(Batch::more_if(settled.len() as u64 == RUNS_MAX))
}

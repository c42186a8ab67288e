//! The parts of captures that left staging: committed, aborted, expired or deleted.
use super::work::{AT_ONCE, Batch, LISTED_UNITS, Walks, Work, rows};
use crate::error::Result;
use crate::ids::TeamId;
use crate::params;
use crate::store::{Db, Tx};

/// A part costs 6 units and its size: up to 2 MB, which is nearly a whole batch.
const PARTS_MAX: usize = 70;
/// Finding out what the next capture in the queue has.
const CAPTURE_UNITS: u64 = PARTS_MAX as u64 + 60;

pub fn due(db: &Db, _walks: &Walks) -> Result<Option<i64>> {
    let waits = db.query_optional(
        "SELECT 1 FROM parts_prune_queue WHERE team_id > '' LIMIT 1",
        params![],
        |row| row.get::<i64>(),
    )?;
    Ok(waits.map(|_| AT_ONCE))
}

pub fn batch(tx: &Tx, work: &mut Work) -> Result<Batch> {
    while work.has_room(tx, CAPTURE_UNITS) {
        let first = tx.query_optional(
            "SELECT q.team_id, q.capture_id,
                    coalesce((SELECT c.state
                                FROM captures AS c
                               WHERE c.team_id = q.team_id AND c.id = q.capture_id), '')
               FROM parts_prune_queue AS q
              WHERE q.team_id > ''
              LIMIT 1",
            params![],
            |row| Ok((row.get::<TeamId>()?, row.get::<String>()?, row.get::<String>()?)),
        )?;
        let Some((team_id, capture_id, state)) = first else { return Ok(Batch::Done) };
        if state != "staging" && !remove(tx, work, &team_id, &capture_id)? {
            return Ok(Batch::More);
        }
        tx.execute(
            "DELETE FROM parts_prune_queue WHERE team_id = ?1 AND capture_id = ?2",
            params![&team_id, &capture_id],
        )?;
    }
    Ok(Batch::More)
}

/// Whether the last part went.
fn remove(tx: &Tx, work: &mut Work, team_id: &TeamId, capture_id: &str) -> Result<bool> {
    let parts = tx.query(
        "SELECT rowid, octet_length(messages_json) + octet_length(digests_json)
           FROM capture_parts
          WHERE team_id = ?1 AND capture_id = ?2
          ORDER BY part_index
          LIMIT ?3",
        params![team_id, capture_id, PARTS_MAX],
        |row| Ok((row.get::<i64>()?, row.get::<i64>()?)),
    )?;
    let count = parts.len();
    let taken = work.take(tx, parts, LISTED_UNITS);
    if !taken.is_empty() {
        rows!("capture_parts").delete(tx, &taken)?;
        work.removed("parts", taken.len() as u64);
    }
    Ok(taken.len() == count && count < PARTS_MAX)
}

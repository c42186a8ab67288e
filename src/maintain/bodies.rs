//! Chunks of large bodies: those that nothing names any more, and those that nobody published.
use super::work::{AT_ONCE, Batch, LISTED_UNITS, Walks, Work, json, rows};
use crate::error::Result;
use crate::ids::TeamId;
use crate::limits::STAGED_BODY_AGE_MS;
use crate::params;
use crate::store::{Db, Tx};

/// A chunk costs 6 units and its size, up to 64 units more.
const CHUNKS_MAX: usize = 40;
/// Finding out what the next body in the queue has.
const BODY_UNITS: u64 = CHUNKS_MAX as u64 + 40;
/// One costs about 12 units.
const STAGED_MAX: usize = 20;

pub fn due(db: &Db, _walks: &Walks) -> Result<Option<i64>> {
    let waits = db.query_optional(
        "SELECT 1 FROM body_prune_queue WHERE team_id > '' LIMIT 1",
        params![],
        |row| row.get::<i64>(),
    )?;
    if waits.is_some() {
        return Ok(Some(AT_ONCE));
    }
    db.query_one(
        "SELECT min(created_at) + ?1 FROM staged_bodies",
        params![STAGED_BODY_AGE_MS],
        |row| row.get(),
    )
}

pub fn batch(tx: &Tx, work: &mut Work) -> Result<Batch> {
    give_up(tx)?;
    while work.has_room(tx, BODY_UNITS) {
        let first = tx.query_optional(
            "SELECT team_id, body_id FROM body_prune_queue WHERE team_id > '' LIMIT 1",
            params![],
            |row| Ok((row.get::<TeamId>()?, row.get::<String>()?)),
        )?;
        let Some((team_id, body_id)) = first else { return Ok(Batch::Done) };
        if !remove(tx, work, &team_id, &body_id)? {
            return Ok(Batch::More);
        }
        tx.execute(
            "DELETE FROM body_prune_queue WHERE team_id = ?1 AND body_id = ?2",
            params![&team_id, &body_id],
        )?;
        work.removed("bodies", 1);
    }
    Ok(Batch::More)
}

/// What nobody published in time goes into the queue.
fn give_up(tx: &Tx) -> Result<()> {
    let old = tx.query(
        "SELECT team_id, id FROM staged_bodies
          WHERE created_at <= ?1
          ORDER BY created_at
          LIMIT ?2",
        params![tx.now_ms - STAGED_BODY_AGE_MS, STAGED_MAX],
        |row| Ok((row.get::<String>()?, row.get::<String>()?)),
    )?;
    if old.is_empty() {
        return Ok(());
    }
    let old = json(&old)?;
    tx.execute(
        "INSERT INTO body_prune_queue (team_id, body_id)
         SELECT value ->> 0, value ->> 1 FROM json_each(?1) WHERE true ON CONFLICT DO NOTHING",
        params![&old],
    )?;
    tx.execute(
        "DELETE FROM staged_bodies
          WHERE (team_id, id) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?1))",
        params![&old],
    )
}

/// Whether the last chunk went.
fn remove(tx: &Tx, work: &mut Work, team_id: &TeamId, body_id: &str) -> Result<bool> {
    let chunks = tx.query(
        "SELECT rowid, octet_length(bytes)
           FROM body_chunks
          WHERE team_id = ?1 AND body_id = ?2
          ORDER BY chunk_index
          LIMIT ?3",
        params![team_id, body_id, CHUNKS_MAX],
        |row| Ok((row.get::<i64>()?, row.get::<i64>()?)),
    )?;
    let count = chunks.len();
    let taken = work.take(tx, chunks, LISTED_UNITS);
    if !taken.is_empty() {
        rows!("body_chunks").delete(tx, &taken)?;
        work.removed("body_chunks", taken.len() as u64);
    }
    Ok(taken.len() == count && count < CHUNKS_MAX)
}

//! Checkpoints that are 30 days old and that nothing keeps: neither active, nor their context's
//! earliest, nor among its newest. Every context says in its row when its next one may go.
use super::work::{Batch, Walks, Work, json};
use crate::domain::context_checkpoints;
use crate::error::Result;
use crate::ids::TeamId;
use crate::limits::CHECKPOINT_AGE_MS;
use crate::params;
use crate::store::{Db, Tx};

/// Looking at a context costs 70 units, a checkpoint 10 with what names its payload.
const CHECKPOINTS_MAX: usize = 20;
const CONTEXT_UNITS: u64 = 80;
const CHECKPOINT_UNITS: u64 = 11;

pub fn due(db: &Db, _walks: &Walks) -> Result<Option<i64>> {
    db.query_one(
        "SELECT min(prune_at) FROM contexts WHERE prune_at IS NOT NULL",
        params![],
        |row| row.get(),
    )
}

pub fn batch(tx: &Tx, work: &mut Work) -> Result<Batch> {
    while work.has_room(tx, CONTEXT_UNITS + CHECKPOINT_UNITS * CHECKPOINTS_MAX as u64) {
        let first = tx.query_optional(
            "SELECT team_id, id FROM contexts WHERE prune_at <= ?1 ORDER BY prune_at LIMIT 1",
            params![tx.now_ms],
            |row| Ok((row.get::<TeamId>()?, row.get::<String>()?)),
        )?;
        let Some((team_id, context_id)) = first else { return Ok(Batch::Done) };
        remove(tx, work, &team_id, &context_id)?;
        context_checkpoints::schedule(tx, &team_id, &context_id)?;
    }
    Ok(Batch::More)
}

fn remove(tx: &Tx, work: &mut Work, team_id: &TeamId, context_id: &str) -> Result<()> {
    let mut old = context_checkpoints::prunable(tx, team_id, context_id, CHECKPOINTS_MAX)?;
    old.retain(|one| one.created_at + CHECKPOINT_AGE_MS <= tx.now_ms);
    if old.is_empty() {
        return Ok(());
    }
    let numbers = old.iter().map(|one| one.durable_revision).collect::<Vec<_>>();
    tx.execute(
        "DELETE FROM context_checkpoints
          WHERE team_id = ?1 AND context_id = ?2
            AND durable_revision IN (SELECT value FROM json_each(?3))",
        params![team_id, context_id, &json(&numbers)?],
    )?;
    work.removed("checkpoints", old.len() as u64);
    let refs = old.iter().filter_map(|one| one.payload_ref.as_ref()).collect::<Vec<_>>();
    if refs.is_empty() {
        return Ok(());
    }
    // What only a checkpoint named waits for its day, as when it was uploaded.
    tx.execute(
        "UPDATE context_payloads AS p SET staged_at = ?4
          WHERE team_id = ?1 AND context_id = ?2
            AND ref IN (SELECT value FROM json_each(?3))
            AND is_source = 0 AND staged_at IS NULL
            AND NOT EXISTS (
                SELECT 1 FROM context_checkpoints AS k
                 WHERE k.team_id = ?1 AND k.context_id = ?2 AND k.payload_ref = p.ref)",
        params![team_id, context_id, &json(&refs)?, tx.now_ms],
    )
}

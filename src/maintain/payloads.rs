//! Payloads that nothing has named for a day, and a year after its deletion all that a context
//! held. Only its tombstone stays.
use super::work::{Batch, LISTED_UNITS, Walks, Work, earliest, json};
use crate::error::Result;
use crate::ids::TeamId;
use crate::limits::STAGED_PAYLOAD_AGE_MS;
use crate::params;
use crate::store::{Db, Tx};

/// A payload's row costs 12 units with its triggers.
const PAYLOADS_MAX: u64 = 20;
const HELD_MAX: u64 = 15;
const HELD_UNITS: u64 = 220;
const BATCH_UNITS: u64 = 430;

fn times(db: &Db) -> Result<[Option<i64>; 2]> {
    db.query_one(
        "SELECT (SELECT min(staged_at) FROM context_payloads WHERE staged_at IS NOT NULL) + ?1,
                (SELECT min(purge_at) FROM contexts WHERE purge_at IS NOT NULL)",
        params![STAGED_PAYLOAD_AGE_MS],
        |row| Ok([row.get()?, row.get()?]),
    )
}

pub fn due(db: &Db, _walks: &Walks) -> Result<Option<i64>> {
    times(db).map(earliest)
}

pub fn batch(tx: &Tx, work: &mut Work) -> Result<Batch> {
    let [payloads, contexts] = times(tx)?.map(|at| at.is_some_and(|at| at <= tx.now_ms));
    if payloads {
        staged(tx, work)?;
    }
    if contexts && (!payloads || work.has_room(tx, HELD_UNITS)) {
        held(tx, work)?;
    }
    Ok(Batch::more_if(payloads || contexts))
}

/// `[[team, context, ref]]`
fn delete(tx: &Tx, work: &mut Work, keys: &[(TeamId, String, String)]) -> Result<()> {
    tx.execute(
        "DELETE FROM context_payloads
          WHERE (team_id, context_id, ref) IN (
                SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(?1))",
        params![&json(&keys)?],
    )?;
    work.removed("payloads", keys.len() as u64);
    Ok(())
}

fn staged(tx: &Tx, work: &mut Work) -> Result<()> {
    let old = tx.query(
        "SELECT team_id, context_id, ref FROM context_payloads
          WHERE staged_at <= ?1
          ORDER BY staged_at
          LIMIT ?2",
        params![tx.now_ms - STAGED_PAYLOAD_AGE_MS, PAYLOADS_MAX],
        |row| Ok((row.get()?, row.get()?, row.get()?)),
    )?;
    delete(tx, work, &old)
}

/// What the first of the contexts held that were deleted a year ago.
fn held(tx: &Tx, work: &mut Work) -> Result<()> {
    let first = tx.query_optional(
        "SELECT team_id, id FROM contexts WHERE purge_at <= ?1 ORDER BY purge_at LIMIT 1",
        params![tx.now_ms],
        |row| Ok((row.get::<TeamId>()?, row.get::<String>()?)),
    )?;
    let Some((team_id, context_id)) = first else { return Ok(()) };
    let refs = tx.query(
        "SELECT ref FROM context_payloads WHERE team_id = ?1 AND context_id = ?2 LIMIT ?3",
        params![&team_id, &context_id, HELD_MAX],
        |row| Ok((team_id.clone(), context_id.clone(), row.get::<String>()?)),
    )?;
    if !refs.is_empty() {
        return delete(tx, work, &refs);
    }
    let checkpoints = tx.execute_counted(
        "DELETE FROM context_checkpoints
          WHERE (team_id, context_id, durable_revision) IN (
                SELECT team_id, context_id, durable_revision FROM context_checkpoints
                 WHERE team_id = ?1 AND context_id = ?2
                 LIMIT ?3)",
        params![&team_id, &context_id, HELD_MAX],
    )?;
    work.removed("checkpoints", checkpoints);
    if checkpoints == HELD_MAX {
        return Ok(());
    }
    let room = (BATCH_UNITS.saturating_sub(work.spent(tx)) / LISTED_UNITS).max(1);
    let events = tx.execute_counted(
        "DELETE FROM context_events
          WHERE (team_id, context_id, sequence) IN (
                SELECT team_id, context_id, sequence FROM context_events
                 WHERE team_id = ?1 AND context_id = ?2
                 LIMIT ?3)",
        params![&team_id, &context_id, room],
    )?;
    work.removed("context_events", events);
    if events < room {
        tx.execute(
            "UPDATE contexts SET purge_at = NULL, checkpoint_revision = NULL, prune_at = NULL
              WHERE team_id = ?1 AND id = ?2",
            params![&team_id, &context_id],
        )?;
        work.removed("contexts", 1);
    }
    Ok(())
}

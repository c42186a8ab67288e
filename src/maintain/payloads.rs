//! Payloads that nothing has named for a day, values that never arrived, and a year after its
//! deletion all that a context held. Only its tombstone stays.
use super::work::{Batch, LISTED_UNITS, Walks, Work, earliest, json};
use crate::error::Result;
use crate::ids::TeamId;
use crate::limits::STAGED_PAYLOAD_AGE_MS;
use crate::params;
use crate::store::{Db, Tx};

/// A payload's row costs 12 units with its triggers, a staging 8, a row of a deleted context 12.
const PAYLOADS_MAX: u64 = 20;
const STAGINGS_MAX: u64 = 15;
const HELD_MAX: u64 = 30;
const STEP_UNITS: u64 = 430;

fn times(db: &Db) -> Result<[Option<i64>; 3]> {
    db.query_one(
        "SELECT (SELECT min(staged_at) FROM context_payloads WHERE staged_at IS NOT NULL) + ?1,
                (SELECT min(created_at) FROM context_stagings) + ?1,
                (SELECT min(purge_at) FROM contexts WHERE purge_at IS NOT NULL)",
        params![STAGED_PAYLOAD_AGE_MS],
        |row| Ok([row.get()?, row.get()?, row.get()?]),
    )
}

pub fn due(db: &Db, _walks: &Walks) -> Result<Option<i64>> {
    times(db).map(earliest)
}

/// In turn, so that none waits for another.
pub fn batch(tx: &Tx, work: &mut Work) -> Result<Batch> {
    let [payloads, stagings, contexts] = times(tx)?.map(|at| at.is_some_and(|at| at <= tx.now_ms));
    if payloads {
        staged(tx, work)?;
    }
    if stagings {
        never_arrived(tx, work)?;
    }
    if contexts && (!payloads && !stagings || work.has_room(tx, STEP_UNITS)) {
        held(tx, work)?;
    }
    Ok(Batch::more_if(payloads || stagings || contexts))
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

fn never_arrived(tx: &Tx, work: &mut Work) -> Result<()> {
    let old = tx.query(
        "SELECT team_id, value_id FROM context_stagings
          WHERE created_at <= ?1
          ORDER BY created_at
          LIMIT ?2",
        params![tx.now_ms - STAGED_PAYLOAD_AGE_MS, STAGINGS_MAX],
        |row| Ok((row.get::<TeamId>()?, row.get::<String>()?)),
    )?;
    let keys = json(&old)?;
    tx.execute(
        "INSERT INTO context_value_queue (team_id, value_id)
         SELECT value ->> 0, value ->> 1 FROM json_each(?1)",
        params![&keys],
    )?;
    tx.execute(
        "DELETE FROM context_stagings
          WHERE (team_id, value_id) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?1))",
        params![&keys],
    )?;
    work.removed("stagings", old.len() as u64);
    Ok(())
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
    let room = (STEP_UNITS.saturating_sub(work.spent(tx)) / LISTED_UNITS).max(1);
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
            "UPDATE contexts SET purge_at = NULL, checkpoint_revision = NULL
              WHERE team_id = ?1 AND id = ?2",
            params![&team_id, &context_id],
        )?;
        work.removed("contexts", 1);
    }
    Ok(())
}

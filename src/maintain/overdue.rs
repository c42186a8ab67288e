//! What nobody will finish any more: effects that had no result for a day become `unknown` with
//! their operations, continuations that nobody settled for a day become `expired`.
use super::work::{Batch, Walks, Work, earliest};
use crate::domain::events::{self, Event, Stage};
use crate::domain::operations::{self, Asked};
use crate::domain::sessions;
use crate::error::Result;
use crate::ids::{
    ContinuationId, EffectId, Id, MachineId, OperationId, SessionId, SourceId, TeamId,
};
use crate::limits::OVERDUE_AGE_MS;
use crate::params;
use crate::store::{Db, Tx};
use serde_json::json;

/// One costs about 50 units, with its event.
const EFFECTS_MAX: usize = 4;
const CONTINUATIONS_MAX: usize = 4;
const CONTINUATIONS_UNITS: u64 = 50 * CONTINUATIONS_MAX as u64;

pub fn due(db: &Db, _walks: &Walks) -> Result<Option<i64>> {
    let times = db.query_one(
        "SELECT (SELECT min(created_at) FROM native_effects WHERE state = 'pending') + ?1,
                (SELECT min(updated_at) FROM continuations WHERE settled_at IS NULL) + ?1",
        params![OVERDUE_AGE_MS],
        |row| Ok([row.get()?, row.get()?]),
    )?;
    Ok(earliest(times))
}

pub fn batch(tx: &Tx, work: &mut Work) -> Result<Batch> {
    let more = effects(tx, work)? == Batch::More;
    if more && !work.has_room(tx, CONTINUATIONS_UNITS) {
        return Ok(Batch::More);
    }
    Ok(Batch::more_if(continuations(tx, work)? == Batch::More || more))
}

fn effects(tx: &Tx, work: &mut Work) -> Result<Batch> {
    let overdue = tx.query(
        "SELECT e.team_id, e.id, e.operation_id, e.machine_id,
                (SELECT s.id
                   FROM sources AS s
                  WHERE s.team_id = e.team_id AND s.machine_id = e.machine_id
                  LIMIT 1)
           FROM native_effects AS e
          WHERE e.state = 'pending' AND e.created_at <= ?1
          ORDER BY e.created_at
          LIMIT ?2",
        params![tx.now_ms - OVERDUE_AGE_MS, EFFECTS_MAX],
        |row| {
            Ok((
                row.get::<TeamId>()?,
                row.get::<EffectId>()?,
                row.get::<OperationId>()?,
                row.get::<MachineId>()?,
                row.get::<Option<SourceId>>()?,
            ))
        },
    )?;
    for (team_id, effect_id, operation_id, machine_id, source_id) in &overdue {
        let spent = work.spent(tx);
        tx.execute(
            "UPDATE native_effects SET state = 'unknown' WHERE team_id = ?1 AND id = ?2",
            params![team_id, effect_id],
        )?;
        let asked = Asked { team_id, machine_id, source_id: source_id.as_ref() };
        operations::lose(tx, &asked, vec![operation_id.clone()], None)?;
        work.removed("effects_lost", 1);
        if !work.has_room_for_another(tx, spent) {
            return Ok(Batch::More);
        }
    }
    Ok(Batch::more_if(overdue.len() == EFFECTS_MAX))
}

fn continuations(tx: &Tx, work: &mut Work) -> Result<Batch> {
    let overdue = tx.query(
        "SELECT c.team_id, c.id, c.session_id, c.machine_id, c.revision + 1,
                (SELECT v.source_id
                   FROM sessions AS s
                  CROSS JOIN session_versions AS v
                     ON v.team_id = s.team_id AND v.session_id = s.id AND v.revision = s.revision
                  WHERE s.team_id = c.team_id AND s.id = c.session_id)
           FROM continuations AS c
          WHERE c.settled_at IS NULL AND c.updated_at <= ?1
          ORDER BY c.updated_at
          LIMIT ?2",
        params![tx.now_ms - OVERDUE_AGE_MS, CONTINUATIONS_MAX],
        |row| {
            Ok((
                row.get::<TeamId>()?,
                row.get::<ContinuationId>()?,
                row.get::<SessionId>()?,
                row.get::<Option<MachineId>>()?,
                row.get::<i64>()?,
                row.get::<Option<SourceId>>()?,
            ))
        },
    )?;
    for (team_id, id, session_id, machine_id, revision, source_id) in &overdue {
        let spent = work.spent(tx);
        tx.execute(
            "UPDATE continuations
                SET state = 'expired', updated_at = ?3, settled_at = ?3, revision = ?4
              WHERE team_id = ?1 AND id = ?2",
            params![team_id, id, tx.now_ms, *revision],
        )?;
        let event = Event {
            name: "continuation.changed",
            resource_kind: "continuation",
            resource_id: id.as_str(),
            source_id: source_id.as_ref(),
            principal_id: None,
            data: json!({
                "id": id, "session_id": session_id, "machine_id": machine_id,
                "state": "expired", "revision": revision,
            }),
            stage: Stage::Last,
        };
        events::record(tx, team_id, &event)?;
        // It may have been asked for while another source's version was the current one.
        sessions::end_events(tx, team_id, session_id, "continuation", id.as_str())?;
        work.removed("continuations_expired", 1);
        if !work.has_room_for_another(tx, spent) {
            return Ok(Batch::More);
        }
    }
    Ok(Batch::more_if(overdue.len() == CONTINUATIONS_MAX))
}

//! Operations: what members ask of agents, and the effects that ask it of one machine.
use crate::auth::Principal;
use crate::domain::events::{self, Event, Stage};
use crate::error::Result;
use crate::ids::{Id, MachineId, OperationId, SessionId, SourceId};
use crate::params;
use crate::store::Tx;
use serde_json::json;

/// Nobody will hear any more of what a machine was asked until `asked_until`: its unfinished
/// effects and their operations become `unknown`.
pub fn lose_effects_of(
    tx: &Tx,
    who: &Principal,
    machine_id: &MachineId,
    source_id: Option<&SourceId>,
    asked_until: i64,
) -> Result<()> {
    let team_id = &who.team_id;
    let operations = tx.execute_returning(
        "UPDATE operations
            SET state = 'unknown', updated_at = ?4, settled_at = ?4, revision = revision + 1
          WHERE team_id = ?1 AND state IN ('pending', 'running')
            AND id IN (SELECT operation_id FROM native_effects
                        WHERE team_id = ?1 AND machine_id = ?2 AND state = 'pending'
                          AND created_at <= ?3)
      RETURNING id, session_id, kind, revision",
        params![team_id, machine_id, asked_until, tx.now_ms],
        |row| {
            Ok((
                row.get::<OperationId>()?,
                row.get::<Option<SessionId>>()?,
                row.get::<String>()?,
                row.get::<i64>()?,
            ))
        },
    )?;
    tx.execute(
        "UPDATE native_effects SET state = 'unknown'
          WHERE team_id = ?1 AND machine_id = ?2 AND state = 'pending' AND created_at <= ?3",
        params![team_id, machine_id, asked_until],
    )?;
    for (id, session_id, kind, revision) in &operations {
        let event = Event {
            name: "operation.changed",
            resource_kind: "operation",
            resource_id: id.as_str(),
            source_id,
            principal_id: Some(&who.principal_id),
            data: json!({
                "id": id, "session_id": session_id, "machine_id": machine_id, "kind": kind,
                "state": "unknown", "revision": revision,
            }),
            stage: Stage::Last,
        };
        events::record(tx, team_id, &event)?;
    }
    Ok(())
}

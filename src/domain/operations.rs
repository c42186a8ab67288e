//! Operations: what members ask of agents, and the effects that ask it of one machine.
use crate::auth::Principal;
use crate::domain::events::{self, Event, Stage};
use crate::domain::sources;
use crate::error::Result;
use crate::ids::{Id, MachineId, OperationId, PrincipalId, SessionId, SourceId, TeamId};
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
    let operation_ids = tx.execute_returning(
        "UPDATE native_effects SET state = 'unknown'
          WHERE team_id = ?1 AND machine_id = ?2 AND state = 'pending' AND created_at <= ?3
      RETURNING operation_id",
        params![team_id, machine_id, asked_until],
        |row| row.get::<OperationId>(),
    )?;
    let asked = Asked { team_id, machine_id, source_id };
    lose(tx, &asked, operation_ids, Some(&who.principal_id))
}

/// An operation's event, under the source of the machine that was asked. Whoever asked hears of it
/// too, so it says who that was.
pub fn announce(
    tx: &Tx,
    who: &Principal,
    machine_id: &MachineId,
    operation_id: &OperationId,
) -> Result<()> {
    let team_id = &who.team_id;
    let source = sources::load_of_machine(tx, team_id, machine_id)?;
    let (data, settled) = tx.query_one(
        "SELECT session_id, kind, state, revision, principal_id, settled_at IS NOT NULL
           FROM operations
          WHERE team_id = ?1 AND id = ?2",
        params![team_id, operation_id],
        |row| {
            let data = json!({
                "id": operation_id, "session_id": row.get::<Option<SessionId>>()?,
                "machine_id": machine_id, "kind": row.get::<String>()?,
                "state": row.get::<String>()?, "revision": row.get::<i64>()?,
                "principal_id": row.get::<String>()?,
            });
            Ok((data, row.get::<bool>()?))
        },
    )?;
    let event = Event {
        name: "operation.changed",
        resource_kind: "operation",
        resource_id: operation_id.as_str(),
        source_id: Some(&source.id),
        principal_id: Some(&who.principal_id),
        data,
        stage: if settled { Stage::Last } else { Stage::Current },
    };
    events::record(tx, team_id, &event).map(drop)
}

/// Which machine was asked.
pub struct Asked<'a> {
    pub team_id: &'a TeamId,
    pub machine_id: &'a MachineId,
    pub source_id: Option<&'a SourceId>,
}

/// Operations whose effects on a machine were lost become `unknown`, unless they are settled.
pub fn lose(
    tx: &Tx,
    asked: &Asked,
    mut operation_ids: Vec<OperationId>,
    principal_id: Option<&PrincipalId>,
) -> Result<()> {
    let Asked { team_id, machine_id, source_id } = *asked;
    operation_ids.sort();
    operation_ids.dedup();
    if operation_ids.is_empty() {
        return Ok(());
    }
    let ids = crate::json::to_string(&operation_ids)?;
    let operations = tx.execute_returning(
        "UPDATE operations
            SET state = 'unknown', updated_at = ?3, settled_at = ?3, revision = revision + 1
          WHERE team_id = ?1 AND id IN (SELECT value FROM json_each(?2))
            AND state IN ('pending', 'running')
      RETURNING id, session_id, kind, revision, principal_id",
        params![team_id, &ids, tx.now_ms],
        |row| {
            Ok((
                row.get::<OperationId>()?,
                row.get::<Option<SessionId>>()?,
                row.get::<String>()?,
                row.get::<i64>()?,
                row.get::<String>()?,
            ))
        },
    )?;
    for (id, session_id, kind, revision, asked_by) in &operations {
        let event = Event {
            name: "operation.changed",
            resource_kind: "operation",
            resource_id: id.as_str(),
            source_id,
            principal_id,
            data: json!({
                "id": id, "session_id": session_id, "machine_id": machine_id, "kind": kind,
                "state": "unknown", "revision": revision, "principal_id": asked_by,
            }),
            stage: Stage::Last,
        };
        events::record(tx, team_id, &event)?;
    }
    Ok(())
}

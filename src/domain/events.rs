//! The team's event log. Whoever changes a resource records its event in the same transaction.
//!
//! `event_resources` names each resource's current event, which is kept whatever its age. An event
//! that reports a resource's end drops that row and ages out like any other.
use crate::domain::outbox;
use crate::error::Result;
use crate::ids::{PrincipalId, SourceId, TeamId};
use crate::params;
use crate::store::Tx;
use serde_json::Value as Json;

/// Every type, as API.md lists them; what an app may subscribe to.
pub const TYPES: &[&str] = &[
    "session.created",
    "session.updated",
    "session.deleted",
    "session.granted",
    "source.changed",
    "machine.enrolled",
    "machine.revoked",
    "machine.online",
    "machine.unlinked",
    "member.added",
    "member.changed",
    "member.removed",
    "group.changed",
    "app.created",
    "app.changed",
    "app.deleted",
    "app.disabled",
    "operation.changed",
    "continuation.changed",
    "run.created",
    "run.claimed",
    "run.released",
    "run.deleted",
    "authorization_changed",
    "team.changed",
];

/// What an event says of its resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The resource goes on; this is its current event until the next.
    Current,
    /// The resource has come to its end.
    Last,
}

pub struct Event<'a> {
    /// As in API.md: `session.updated`.
    pub name: &'static str,
    pub resource_kind: &'static str,
    pub resource_id: &'a str,
    /// Whoever may see this source may see the event; nothing means the whole team.
    pub source_id: Option<&'a SourceId>,
    pub principal_id: Option<&'a PrincipalId>,
    pub data: Json,
    pub stage: Stage,
}

/// Appends an event, with a delivery to each app that wants it, and returns its sequence.
pub fn record(tx: &Tx, team_id: &TeamId, event: &Event) -> Result<i64> {
    let Event { name, resource_kind, resource_id, source_id, principal_id, data, stage } = event;
    let sequences = tx.execute_returning(
        "INSERT INTO org_events
             (team_id, source_id, resource_kind, resource_id, type, principal_id, value_json,
              created_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
         RETURNING sequence",
        params![
            team_id,
            *source_id,
            *resource_kind,
            *resource_id,
            *name,
            *principal_id,
            &data.to_string(),
            tx.now_ms
        ],
        |row| row.get::<i64>(),
    )?;
    let sequence = sequences.first().copied().unwrap_or_default();
    let source = source_id.map_or("", crate::ids::Id::as_str);
    match stage {
        Stage::Current => tx.execute(
            "INSERT INTO event_resources
                 (team_id, source_id, resource_kind, resource_id, sequence)
             VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT (team_id, source_id, resource_kind, resource_id)
             DO UPDATE SET sequence = excluded.sequence",
            params![team_id, source, *resource_kind, *resource_id, sequence],
        )?,
        Stage::Last => end(tx, team_id, *source_id, resource_kind, resource_id)?,
    }
    outbox::enqueue(tx, team_id, sequence, event)?;
    Ok(sequence)
}

/// A resource has no current event any more.
pub fn end(
    tx: &Tx,
    team_id: &TeamId,
    source_id: Option<&SourceId>,
    resource_kind: &str,
    resource_id: &str,
) -> Result<()> {
    let source = source_id.map_or("", crate::ids::Id::as_str);
    tx.execute(
        "DELETE FROM event_resources
          WHERE team_id = ?1 AND source_id = ?2 AND resource_kind = ?3 AND resource_id = ?4",
        params![team_id, source, resource_kind, resource_id],
    )
}

//! Presence: what the store says of each machine's link.
use crate::domain::events::{self, Event, Stage};
use crate::error::Result;
use crate::ids::{Id, MachineId, TeamId};
use crate::params;
use crate::store::Tx;
use serde_json::json;

/// A revoked machine holds no link: it leaves the presence log, and the count of links.
pub fn end(tx: &Tx, team_id: &TeamId, machine_id: &MachineId) -> Result<()> {
    let were_linked = tx.execute_returning(
        "DELETE FROM machine_presence WHERE team_id = ?1 AND machine_id = ?2 RETURNING linked",
        params![team_id, machine_id],
        |row| row.get::<bool>(),
    )?;
    if were_linked != [true] {
        return Ok(());
    }
    tx.execute(
        "UPDATE machine_presence_cursors SET linked = linked - 1
          WHERE team_id = ?1 AND linked > 0",
        params![team_id],
    )?;
    tx.execute(
        "INSERT INTO machine_presence_events (team_id, machine_id, linked, created_at)
         VALUES (?1, ?2, 0, ?3)",
        params![team_id, machine_id, tx.now_ms],
    )
}

/// A link that stayed lost for its grace is given up: the machine is unlinked, with one event.
pub fn unlink(tx: &Tx, team_id: &TeamId, machine_id: &MachineId) -> Result<()> {
    let changed = tx.execute_counted(
        "UPDATE machine_presence SET linked = 0, lost_at = NULL, changed_at = ?3
          WHERE team_id = ?1 AND machine_id = ?2 AND linked = 1",
        params![team_id, machine_id, tx.now_ms],
    )?;
    if changed == 0 {
        // Nothing was linked, so nothing can be lost.
        return tx.execute(
            "UPDATE machine_presence SET lost_at = NULL
              WHERE team_id = ?1 AND machine_id = ?2 AND lost_at IS NOT NULL",
            params![team_id, machine_id],
        );
    }
    tx.execute(
        "UPDATE machine_presence_cursors SET linked = linked - 1
          WHERE team_id = ?1 AND linked > 0",
        params![team_id],
    )?;
    tx.execute(
        "INSERT INTO machine_presence_events (team_id, machine_id, linked, created_at)
         VALUES (?1, ?2, 0, ?3)",
        params![team_id, machine_id, tx.now_ms],
    )?;
    let event = Event {
        name: "machine.unlinked",
        resource_kind: "machine",
        resource_id: machine_id.as_str(),
        source_id: None,
        principal_id: None,
        data: json!({ "id": machine_id, "connection": "unlinked" }),
        stage: Stage::Current,
    };
    events::record(tx, team_id, &event).map(drop)
}

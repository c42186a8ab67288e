//! Presence: what the store says of each machine's link.
use crate::domain::events::{self, Event, Stage};
use crate::error::Result;
use crate::ids::{Id, MachineId, TeamId};
use crate::limits::LINK_GRACE_MS;
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

/// A machine has a link again: it is online, with one event unless it was so all along. Whoever
/// opens a link is there, so no heartbeat need come first.
pub fn link(tx: &Tx, team_id: &TeamId, machine_id: &MachineId) -> Result<()> {
    tx.execute(
        "UPDATE machines SET last_seen_at = ?3 WHERE team_id = ?1 AND id = ?2",
        params![team_id, machine_id, tx.now_ms],
    )?;
    let lost_at = tx.query_optional(
        "SELECT lost_at FROM machine_presence WHERE team_id = ?1 AND machine_id = ?2 AND linked = 1",
        params![team_id, machine_id],
        |row| row.get::<Option<i64>>(),
    )?;
    match lost_at {
        Some(Some(lost_at)) if lost_at + LINK_GRACE_MS <= tx.now_ms => {
            // No pass has come to it yet.
            unlink(tx, team_id, machine_id)?;
        }
        Some(Some(_)) => {
            return tx.execute(
                "UPDATE machine_presence SET lost_at = NULL
                  WHERE team_id = ?1 AND machine_id = ?2",
                params![team_id, machine_id],
            );
        }
        Some(None) => return Ok(()),
        None => {}
    }
    tx.execute(
        "INSERT INTO machine_presence (team_id, machine_id, linked, lost_at, changed_at)
         VALUES (?1, ?2, 1, NULL, ?3)
         ON CONFLICT (team_id, machine_id) DO UPDATE
            SET linked = 1, lost_at = NULL, changed_at = excluded.changed_at",
        params![team_id, machine_id, tx.now_ms],
    )?;
    tx.execute(
        "INSERT INTO machine_presence_cursors (team_id, linked)
         VALUES (?1, 1)
         ON CONFLICT (team_id) DO UPDATE SET linked = linked + 1",
        params![team_id],
    )?;
    tell(tx, team_id, machine_id, true)
}

/// A machine's link is gone without a goodbye: its grace begins, unless it runs already.
pub fn lose(tx: &Tx, team_id: &TeamId, machine_id: &MachineId) -> Result<()> {
    tx.execute(
        "UPDATE machine_presence SET lost_at = ?3
          WHERE team_id = ?1 AND machine_id = ?2 AND linked = 1 AND lost_at IS NULL",
        params![team_id, machine_id, tx.now_ms],
    )
}

/// A link is given up, after a goodbye or when it stayed lost for its grace: the machine is
/// unlinked, with one event.
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
    tell(tx, team_id, machine_id, false)
}

/// One row of the presence log, and one event.
fn tell(tx: &Tx, team_id: &TeamId, machine_id: &MachineId, linked: bool) -> Result<()> {
    tx.execute(
        "INSERT INTO machine_presence_events (team_id, machine_id, linked, created_at)
         VALUES (?1, ?2, ?3, ?4)",
        params![team_id, machine_id, i64::from(linked), tx.now_ms],
    )?;
    let (name, connection) =
        if linked { ("machine.online", "online") } else { ("machine.unlinked", "unlinked") };
    let event = Event {
        name,
        resource_kind: "machine",
        resource_id: machine_id.as_str(),
        source_id: None,
        principal_id: None,
        data: json!({ "id": machine_id, "connection": connection }),
        stage: Stage::Current,
    };
    events::record(tx, team_id, &event).map(drop)
}

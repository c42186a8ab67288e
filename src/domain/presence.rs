//! Presence: what the store says of each machine's link.
use crate::error::Result;
use crate::ids::{MachineId, TeamId};
use crate::params;
use crate::store::Tx;

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

//! Rules: what of its roots a machine publishes.
use crate::error::Result;
use crate::ids::{MachineId, TeamId};
use crate::params;
use crate::store::Tx;

/// Removes the rules of a machine that is revoked.
pub fn remove_all_of(tx: &Tx, team_id: &TeamId, machine_id: &MachineId) -> Result<()> {
    tx.execute(
        "DELETE FROM sync_rules WHERE team_id = ?1 AND machine_id = ?2",
        params![team_id, machine_id],
    )
}

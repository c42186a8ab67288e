//! Attachments: a session attached to what an agent on a machine has open.
use crate::error::Result;
use crate::ids::{MachineId, PrincipalId, TeamId};
use crate::params;
use crate::store::Tx;

/// Revokes a machine's open attachments.
pub fn revoke_all_of_machine(tx: &Tx, team_id: &TeamId, machine_id: &MachineId) -> Result<()> {
    tx.execute(
        "UPDATE attachments SET state = 'revoked', settled_at = ?3, revision = revision + 1
          WHERE team_id = ?1 AND machine_id = ?2 AND state IN ('pending', 'active')",
        params![team_id, machine_id, tx.now_ms],
    )
}

/// Closes the attachments of a connector's run that another has replaced.
pub fn close_all_of_machine(tx: &Tx, team_id: &TeamId, machine_id: &MachineId) -> Result<()> {
    tx.execute(
        "UPDATE attachments SET state = 'closed', settled_at = ?3, revision = revision + 1
          WHERE team_id = ?1 AND machine_id = ?2 AND state IN ('pending', 'active')",
        params![team_id, machine_id, tx.now_ms],
    )
}

/// Revokes the open attachments that a principal made, on any machine.
pub fn revoke_all_of(tx: &Tx, team_id: &TeamId, principal_id: &PrincipalId) -> Result<()> {
    // Through the team's machines, because attachments_by_machine finds the open ones.
    tx.execute(
        "UPDATE attachments SET state = 'revoked', settled_at = ?3, revision = revision + 1
          WHERE team_id = ?1 AND id IN (
                SELECT a.id
                  FROM machines m
                 CROSS JOIN attachments a
                    ON a.team_id = m.team_id AND a.machine_id = m.id
                   AND a.state IN ('pending', 'active')
                 WHERE m.team_id = ?1 AND a.principal_id = ?2)",
        params![team_id, principal_id, tx.now_ms],
    )
}

//! What was deleted and exported of contexts, by whom; kept for a year.
use crate::error::Result;
use crate::ids::{AuditId, TeamId};
use crate::limits::REVOKED_AGE_MS;
use crate::params;
use crate::store::Tx;

/// Writes one audit: of a `delete` or an `export`, with its size in bytes and the revision.
pub fn write(
    tx: &Tx,
    (team_id, principal_id): (&TeamId, &str),
    context_id: &str,
    action: &'static str,
    size: i64,
    revision: i64,
) -> Result<AuditId> {
    let audit_id: AuditId = tx.new_id();
    tx.execute(
        "INSERT INTO context_audits
             (team_id, id, context_id, principal_id, action, size, revision, created_at,
              expires_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8 + ?9)",
        params![
            team_id,
            &audit_id,
            context_id,
            principal_id,
            action,
            size,
            revision,
            tx.now_ms,
            REVOKED_AGE_MS
        ],
    )?;
    Ok(audit_id)
}

//! Grants: access to one session for a principal or a group, beyond who sees its sources.
use crate::error::Result;
use crate::ids::TeamId;
use crate::params;
use crate::store::Tx;

/// Who holds a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubjectKind {
    Principal,
    Group,
}

impl SubjectKind {
    pub fn text(self) -> &'static str {
        match self {
            SubjectKind::Principal => "principal",
            SubjectKind::Group => "group",
        }
    }
}

/// Takes back every grant of a principal or group that has gone.
pub fn remove_all_of(tx: &Tx, team_id: &TeamId, kind: SubjectKind, id: &str) -> Result<()> {
    tx.execute(
        "DELETE FROM session_grants
          WHERE team_id = ?1 AND subject_kind = ?2 AND subject_id = ?3",
        params![team_id, kind.text(), id],
    )
}

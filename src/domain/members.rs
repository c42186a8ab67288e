//! Members: the people of a team and their roles. The last owner cannot leave.
use crate::auth::Role;
use crate::error::{Error, Result};
use crate::ids::{PrincipalId, TeamId};
use crate::params;
use crate::store::{Db, Tx};

#[derive(Debug, serde::Serialize)]
pub struct Member {
    pub principal_id: PrincipalId,
    pub name: String,
    pub email: Option<String>,
    pub role: String,
    pub active: bool,
    pub revision: i64,
    pub created_at: i64,
}

/// Makes a person and their membership.
pub fn insert(
    tx: &Tx,
    team_id: &TeamId,
    name: &str,
    email: Option<&str>,
    role: Role,
) -> Result<PrincipalId> {
    let principal_id: PrincipalId = tx.new_id();
    tx.execute(
        "INSERT INTO principals (id, kind, name, email, created_at)
         VALUES (?1, 'user', ?2, ?3, ?4)",
        params![&principal_id, name, email, tx.now_ms],
    )?;
    tx.execute(
        "INSERT INTO memberships (team_id, principal_id, role, created_at)
         VALUES (?1, ?2, ?3, ?4)",
        params![team_id, &principal_id, role.text(), tx.now_ms],
    )?;
    Ok(principal_id)
}

pub fn load(db: &Db, team_id: &TeamId, principal_id: &PrincipalId) -> Result<Member> {
    db.query_optional(
        "SELECT p.name, p.email, m.role, m.active, m.revision, m.created_at
           FROM memberships m CROSS JOIN principals p ON p.id = m.principal_id
          WHERE m.team_id = ?1 AND m.principal_id = ?2",
        params![team_id, principal_id],
        |row| {
            Ok(Member {
                principal_id: principal_id.clone(),
                name: row.get()?,
                email: row.get()?,
                role: row.get()?,
                active: row.get()?,
                revision: row.get()?,
                created_at: row.get()?,
            })
        },
    )?
    .ok_or_else(Error::not_found)
}

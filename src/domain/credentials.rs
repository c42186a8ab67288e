//! Credentials: what proves who a caller is. A token is shown once, when it is made.
use crate::api::{Answer, Call};
use crate::auth::{Kind, Principal, Role, Token};
use crate::error::{Error, Result};
use crate::guard;
use crate::ids::{AppId, CredentialId, Id, MachineId, PrincipalId, SourceId, TeamId, hex};
use crate::limits::{
    CREDENTIALS_PER_PRINCIPAL_MAX, LAST_USED_STEP_MS, USER_TOKEN_AGE_MS, USER_TOKEN_AGE_MS_MAX,
    USER_TOKEN_AGE_MS_MIN,
};
use crate::page::{Keyset, PageQuery};
use crate::params;
use crate::store::{Db, Row, Tx};

#[derive(Debug, Clone, serde::Serialize)]
pub struct Credential {
    pub id: CredentialId,
    pub kind: String,
    pub principal_id: PrincipalId,
    pub machine_id: Option<MachineId>,
    pub app_id: Option<AppId>,
    pub created_at: i64,
    pub expires_at: i64,
    pub revoked_at: Option<i64>,
    pub last_used_at: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

/// Whose credential is made, and for what.
pub struct Holder<'a> {
    pub kind: Kind,
    pub team_id: &'a TeamId,
    pub principal_id: &'a PrincipalId,
    pub source_id: Option<&'a SourceId>,
    pub machine_id: Option<&'a MachineId>,
    pub app_id: Option<&'a AppId>,
}

/// Makes a credential with a fresh token that lives for `age_ms`.
pub fn issue(tx: &Tx, holder: &Holder, age_ms: i64) -> Result<Credential> {
    let Holder { kind, team_id, principal_id, source_id, machine_id, app_id } = holder;
    let id: CredentialId = tx.new_id();
    let token = Token::new(*kind, team_id, &id, &hex(&tx.random::<32>()));
    let expires_at = tx.now_ms + age_ms;
    tx.execute(
        "INSERT INTO credentials
             (id, token_hash, kind, team_id, principal_id, source_id, machine_id, app_id,
              created_at, expires_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        params![
            &id,
            &token.hash()[..],
            kind.text(),
            *team_id,
            *principal_id,
            *source_id,
            *machine_id,
            *app_id,
            tx.now_ms,
            expires_at
        ],
    )?;
    Ok(Credential {
        id,
        kind: kind.text().into(),
        principal_id: (*principal_id).clone(),
        machine_id: machine_id.cloned(),
        app_id: app_id.cloned(),
        created_at: tx.now_ms,
        expires_at,
        revoked_at: None,
        last_used_at: None,
        token: Some(token.text()),
    })
}

/// The life of a user's token: as asked, within its limits.
pub fn user_token_age(expires_in_ms: Option<i64>) -> Result<i64> {
    let age_ms = expires_in_ms.unwrap_or(USER_TOKEN_AGE_MS);
    guard::in_range("expires_in_ms", age_ms, USER_TOKEN_AGE_MS_MIN..=USER_TOKEN_AGE_MS_MAX)?;
    Ok(age_ms)
}

/// Notes that the credential was used, at most hourly.
pub fn touch(db: &Db, who: &Principal) -> Result<()> {
    if who.last_used_at.is_some_and(|at| at > db.now_ms - LAST_USED_STEP_MS) {
        return Ok(());
    }
    db.transaction(|tx| {
        tx.execute(
            "UPDATE credentials SET last_used_at = ?2 WHERE id = ?1",
            params![&who.credential_id, tx.now_ms],
        )
    })
}

/// Ends every live credential of a principal in the team.
pub fn revoke_all_of(tx: &Tx, team_id: &TeamId, principal_id: &PrincipalId) -> Result<()> {
    tx.execute(
        "UPDATE credentials SET revoked_at = ?3
          WHERE team_id = ?1 AND principal_id = ?2
            AND expires_at > ?3 AND (revoked_at IS NULL OR revoked_at > ?3)",
        params![team_id, principal_id, tx.now_ms],
    )
}

/// Ends every live credential of a machine.
pub fn revoke_all_of_machine(tx: &Tx, team_id: &TeamId, machine_id: &MachineId) -> Result<()> {
    tx.execute(
        "UPDATE credentials SET revoked_at = ?3
          WHERE team_id = ?1 AND machine_id = ?2
            AND expires_at > ?3 AND (revoked_at IS NULL OR revoked_at > ?3)",
        params![team_id, machine_id, tx.now_ms],
    )
}

fn read(row: &mut Row) -> Result<Credential> {
    Ok(Credential {
        id: row.get()?,
        kind: row.get()?,
        principal_id: row.get()?,
        machine_id: row.get()?,
        app_id: row.get()?,
        created_at: row.get()?,
        expires_at: row.get()?,
        revoked_at: row.get()?,
        last_used_at: row.get()?,
        token: None,
    })
}

//! Credentials: what proves who a caller is. A token is shown once, when it is made.
use crate::api::{Answer, Call};
use crate::auth::{Kind, Principal, Role, Token};
use crate::domain::{authority, journal, members};
use crate::error::{Error, Result};
use crate::guard;
use crate::ids::{AppId, CredentialId, Id, MachineId, PrincipalId, SourceId, TeamId, hex};
use crate::limits::{
    CREDENTIALS_PER_PRINCIPAL_MAX, LAST_USED_STEP_MS, MACHINE_TOKEN_AGE_MS,
    MACHINE_TOKEN_OVERLAP_MS, USER_TOKEN_AGE_MS, USER_TOKEN_AGE_MS_MAX, USER_TOKEN_AGE_MS_MIN,
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

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct CreateCredential {
    #[serde(default)]
    expires_in_ms: Option<i64>,
    /// Nobody: the caller.
    #[serde(default)]
    principal_id: Option<PrincipalId>,
}

/// `GET /credentials` lists a person's own credentials, their machines' among them; an admin's
/// list is the whole team's. A machine and an app see the one that they use.
pub fn list(db: &Db, call: &Call) -> Result<Answer> {
    let query: PageQuery = call.query()?;
    let page = Keyset::new(call, "", &query)?;
    let who = &call.who;
    if who.kind != Kind::User {
        let own = load(db, &who.team_id, &who.credential_id)?;
        return call.list(&[own], None);
    }

    // By credentials_by_principal, which holds the id behind it; '~' sorts after every id.
    let all = who.role >= Some(Role::Admin);
    let own = who.principal_id.as_str();
    let (first, last) = if all { ("", "~") } else { (own, own) };
    // The cursor says how far the list was read, never whose credentials it holds.
    let (principal, credential) = match page.after().split_once('.') {
        Some((principal, credential)) if all || principal == own => (principal, credential),
        _ => (first, ""),
    };
    let credentials = db.query(
        "SELECT id, kind, principal_id, machine_id, app_id, created_at, expires_at, revoked_at,
                last_used_at
           FROM credentials
          WHERE team_id = ?1 AND (principal_id, id) > (?2, ?3) AND principal_id <= ?4
          ORDER BY principal_id, id
          LIMIT ?5",
        params![&who.team_id, principal, credential, last, page.limit + 1],
        |row| {
            let credential = read(row)?;
            Ok((format!("{}.{}", credential.principal_id, credential.id), credential))
        },
    )?;

    let (items, next) = page.page(credentials);
    call.list(&items, next.as_deref())
}

/// `POST /credentials` makes one more token for the caller, a person, or for the member that an
/// admin names: those of an imported team come without one.
///
/// `403` for another's unless the caller is an admin, for an owner's an owner; `409 conflict` for a
/// member who is not active, and for a person who has as many live ones as there may be.
pub fn create(tx: &Tx, call: &Call) -> Result<Answer> {
    let body: CreateCredential = call.json()?;
    let age_ms = user_token_age(body.expires_in_ms)?;
    let Principal { team_id, principal_id: own, .. } = &call.who;
    let principal_id = body.principal_id.as_ref().unwrap_or(own);
    let role = if principal_id == own { Role::Viewer } else { Role::Admin };
    guard::role(&call.who, role)?;
    if principal_id != own {
        let member = members::load(tx, team_id, principal_id)
            .map_err(|error| error.with("field", "principal_id"))?;
        guard::role(&call.who, role.max(member.role))?;
        if !member.active {
            return Err(Error::conflict("the member is not active; make them active first"));
        }
    }

    let live = tx.query_one(
        "SELECT count(*) FROM (
                SELECT 1 FROM credentials
                 WHERE team_id = ?1 AND principal_id = ?2 AND kind = 'user'
                   AND expires_at > ?3 AND (revoked_at IS NULL OR revoked_at > ?3)
                 LIMIT ?4)",
        params![team_id, principal_id, tx.now_ms, CREDENTIALS_PER_PRINCIPAL_MAX],
        |row| row.get::<i64>(),
    )?;
    guard::room("live tokens of one person", live, CREDENTIALS_PER_PRINCIPAL_MAX)?;
    let holder = Holder {
        kind: Kind::User,
        team_id,
        principal_id,
        source_id: None,
        machine_id: None,
        app_id: None,
    };
    let credential = issue(tx, &holder, age_ms)?;
    journal::write(tx, call, "credential.created", credential.id.as_str())?;

    Ok(call.one(201, &credential)?.secret())
}

/// `GET /credentials/{credential}` is a credential of the caller's own, for an admin any.
pub fn get(db: &Db, call: &Call) -> Result<Answer> {
    let credential = load_seen(db, call)?;
    call.one(200, &credential)
}

/// `DELETE /credentials/{credential}` ends a credential at once. One that has ended stays as it
/// is.
pub fn revoke(tx: &Tx, call: &Call) -> Result<Answer> {
    let credential = load_seen(tx, call)?;

    let revoked = tx.execute_counted(
        "UPDATE credentials SET revoked_at = ?3
          WHERE team_id = ?1 AND id = ?2
            AND expires_at > ?3 AND (revoked_at IS NULL OR revoked_at > ?3)",
        params![&call.who.team_id, &credential.id, tx.now_ms],
    )?;
    if revoked > 0 {
        journal::write(tx, call, "credential.revoked", credential.id.as_str())?;
        authority::changed(tx, call)?;
    }

    Ok(Answer::no_content())
}

#[derive(serde::Serialize)]
struct Renewed {
    credential: Credential,
}

/// `POST /machines/{machine}/token` gives that machine a fresh token; the one that it has lives
/// for ten minutes more, so that a lost answer locks nobody out.
///
/// `403` for every other caller.
pub fn renew(tx: &Tx, call: &Call) -> Result<Answer> {
    call.no_fields()?;
    let machine_id: MachineId = call.id(0)?;
    guard::machine(&call.who, &machine_id)?;

    let Principal { team_id, principal_id, source_id, .. } = &call.who;
    tx.execute(
        "UPDATE credentials SET revoked_at = ?4
          WHERE team_id = ?1 AND machine_id = ?2
            AND expires_at > ?3 AND (revoked_at IS NULL OR revoked_at > ?4)",
        params![team_id, &machine_id, tx.now_ms, tx.now_ms + MACHINE_TOKEN_OVERLAP_MS],
    )?;
    let holder = Holder {
        kind: Kind::Machine,
        team_id,
        principal_id,
        source_id: source_id.as_ref(),
        machine_id: Some(&machine_id),
        app_id: None,
    };
    let credential = issue(tx, &holder, MACHINE_TOKEN_AGE_MS)?;
    journal::write(tx, call, "credential.renewed", credential.id.as_str())?;

    Ok(call.one(201, &Renewed { credential })?.secret())
}

/// The credential in the path, as far as the caller may know of it.
fn load_seen(db: &Db, call: &Call) -> Result<Credential> {
    let who = &call.who;
    let credential = load(db, &who.team_id, &call.id(0)?)?;
    let own = match who.kind {
        Kind::User => credential.principal_id == who.principal_id || who.role >= Some(Role::Admin),
        Kind::Machine | Kind::App => credential.id == who.credential_id,
    };
    if own { Ok(credential) } else { Err(Error::not_found()) }
}

pub fn load(db: &Db, team_id: &TeamId, credential_id: &CredentialId) -> Result<Credential> {
    db.query_optional(
        "SELECT id, kind, principal_id, machine_id, app_id, created_at, expires_at, revoked_at,
                last_used_at
           FROM credentials
          WHERE id = ?1 AND team_id = ?2",
        params![credential_id, team_id],
        read,
    )?
    .ok_or_else(Error::not_found)
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

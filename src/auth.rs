//! Who is calling: a token becomes a [`Principal`], or nothing.
//!
//! A token is `tp_<kind>_<team>_<credential>_<secret>`. Only the SHA-256 of the secret is stored,
//! and it is compared in constant time.
use crate::error::{Error, Result};
use crate::ids::{
    AppId, CredentialId, HEX_DIGITS, Id, MachineId, PrincipalId, SourceId, TeamId, is_hex,
};
use crate::limits::TOKEN_BYTES_MAX;
use crate::params;
use crate::store::Db;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

const SECRET_DIGITS: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    User,
    Machine,
    App,
}

impl Kind {
    pub fn text(self) -> &'static str {
        match self {
            Kind::User => "user",
            Kind::Machine => "machine",
            Kind::App => "app",
        }
    }

    pub fn parse(text: &str) -> Option<Kind> {
        [Kind::User, Kind::Machine, Kind::App].into_iter().find(|kind| kind.text() == text)
    }
}

#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    Viewer,
    Member,
    Admin,
    Owner,
}

impl Role {
    pub fn text(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Member => "member",
            Role::Admin => "admin",
            Role::Owner => "owner",
        }
    }

    pub fn parse(text: &str) -> Option<Role> {
        [Role::Viewer, Role::Member, Role::Admin, Role::Owner]
            .into_iter()
            .find(|role| role.text() == text)
    }
}

/// A well-formed token; whether it is good, the credential's row says.
#[derive(Debug, Clone)]
pub struct Token {
    pub kind: Kind,
    pub team_id: TeamId,
    pub credential_id: CredentialId,
    secret: String,
}

impl Token {
    /// Reads an `Authorization` header.
    pub fn from_header(header: Option<&str>) -> Result<Token> {
        let short = header.filter(|header| header.len() <= TOKEN_BYTES_MAX);
        short.and_then(bearer).and_then(Token::parse).ok_or_else(Error::unauthenticated)
    }

    fn parse(text: &str) -> Option<Token> {
        let mut parts = text.strip_prefix("tp_")?.split('_');
        let kind = Kind::parse(parts.next()?)?;
        let (team, credential, secret) = (parts.next()?, parts.next()?, parts.next()?);
        let whole = is_hex(team, HEX_DIGITS)
            && is_hex(credential, HEX_DIGITS)
            && is_hex(secret, SECRET_DIGITS)
            && parts.next().is_none();
        whole.then(|| Token {
            kind,
            team_id: TeamId::from_hex(team),
            credential_id: CredentialId::from_hex(credential),
            secret: secret.into(),
        })
    }

    pub fn new(kind: Kind, team_id: &TeamId, credential_id: &CredentialId, secret: &str) -> Token {
        Token {
            kind,
            team_id: team_id.clone(),
            credential_id: credential_id.clone(),
            secret: secret.into(),
        }
    }

    pub fn hash(&self) -> [u8; 32] {
        Sha256::digest(self.secret.as_bytes()).into()
    }

    /// What the caller keeps; shown once.
    pub fn text(&self) -> String {
        let Token { kind, team_id, credential_id, secret } = self;
        let (team, credential) = (team_id.hex_digits(), credential_id.hex_digits());
        format!("tp_{}_{team}_{credential}_{secret}", kind.text())
    }
}

/// The token of a `Bearer` header; the scheme's case does not matter.
pub fn bearer(header: &str) -> Option<&str> {
    let (scheme, token) = header.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Whether two secrets are equal, in a time that tells nothing of where they differ.
pub fn same_secret(a: &[u8], b: &[u8]) -> bool {
    Sha256::digest(a).ct_eq(&Sha256::digest(b)).into()
}

/// The caller: who acts, by which credential, and what it may do.
#[derive(Debug, Clone)]
pub struct Principal {
    pub kind: Kind,
    pub team_id: TeamId,
    /// For a machine its custodian.
    pub principal_id: PrincipalId,
    pub credential_id: CredentialId,
    /// Of the principal in the team; an app, and a machine whose custodian has left, has none.
    pub role: Option<Role>,
    pub machine_id: Option<MachineId>,
    pub source_id: Option<SourceId>,
    pub app_id: Option<AppId>,
    pub scopes: Vec<String>,
    pub expires_at: i64,
    pub last_used_at: Option<i64>,
    /// Retention is still removing what the team made before a wipe.
    pub team_is_wiped: bool,
    /// Some pages of an import are still to come.
    pub team_is_imported: bool,
}

impl Principal {
    /// Whom repeated requests are told apart by: machines of one custodian are not each other.
    pub fn actor(&self) -> &str {
        self.machine_id.as_ref().map_or(self.principal_id.as_str(), Id::as_str)
    }
}

/// The caller behind a token: unknown, expired and revoked ones are refused alike.
pub fn authenticate(db: &Db, token: &Token) -> Result<Principal> {
    let found = find(db, &token.team_id, &token.credential_id)?;
    let (hash, who) = found.ok_or_else(Error::unauthenticated)?;
    let same: bool = hash.ct_eq(&token.hash()).into();
    if same && who.kind == token.kind { Ok(who) } else { Err(Error::unauthenticated()) }
}

/// The caller as it is now, for work that goes on after its request was admitted.
pub fn again(db: &Db, who: &Principal) -> Result<Principal> {
    holder(db, &who.team_id, &who.credential_id)
}

/// Whoever holds a credential, while it is good.
pub fn holder(db: &Db, team_id: &TeamId, credential_id: &CredentialId) -> Result<Principal> {
    let found = find(db, team_id, credential_id)?;
    found.map(|(_, who)| who).ok_or_else(Error::unauthenticated)
}

/// A live credential's hash and principal.
fn find(
    db: &Db,
    team_id: &TeamId,
    credential_id: &CredentialId,
) -> Result<Option<(Vec<u8>, Principal)>> {
    let found = db.query_optional(
        "SELECT c.token_hash, c.kind, c.principal_id, c.machine_id, c.source_id, c.app_id,
                c.expires_at, c.last_used_at, m.role, a.scopes_json,
                t.removing IS NOT NULL, coalesce(t.import_json ->> 'is_open', 0)
           FROM credentials c
           JOIN teams t ON t.id = c.team_id AND t.removing IS NOT 'delete'
           LEFT JOIN memberships m
             ON m.team_id = c.team_id AND m.principal_id = c.principal_id AND m.active = 1
           LEFT JOIN apps a ON a.team_id = c.team_id AND a.id = c.app_id
          WHERE c.id = ?1 AND c.team_id = ?2 AND c.expires_at > ?3
            AND (c.revoked_at IS NULL OR c.revoked_at > ?3)",
        params![credential_id, team_id, db.now_ms],
        |row| {
            let hash: Vec<u8> = row.get()?;
            let kind: String = row.get()?;
            let who = Principal {
                kind: Kind::parse(&kind).ok_or_else(|| Error::internal("a credential's kind"))?,
                team_id: team_id.clone(),
                credential_id: credential_id.clone(),
                principal_id: row.get()?,
                machine_id: row.get()?,
                source_id: row.get()?,
                app_id: row.get()?,
                expires_at: row.get()?,
                last_used_at: row.get()?,
                role: row.get::<Option<String>>()?.as_deref().and_then(Role::parse),
                scopes: match row.get::<Option<String>>()? {
                    None => Vec::new(),
                    Some(json) => serde_json::from_str(&json)
                        .map_err(|e| Error::internal(format!("scopes_json: {e}")))?,
                },
                team_is_wiped: row.get()?,
                team_is_imported: row.get()?,
            };
            Ok((hash, who))
        },
    )?;
    let acts = |who: &Principal| who.kind != Kind::User || who.role.is_some();
    Ok(found.filter(|(_, who)| acts(who)))
}

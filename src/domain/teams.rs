//! Teams: made by the Directory on behalf of the operator, then run by their owners.
use crate::api::{Answer, Call};
use crate::auth::{Kind, Role};
use crate::domain::credentials::{self, Credential, Holder};
use crate::domain::events::{self, Event, Stage};
use crate::domain::journal;
use crate::domain::members::{self, Member};
use crate::error::{Error, Result};
use crate::guard;
use crate::ids::{Id, PrincipalId, TeamId, hex};
use crate::json::{self, Patch};
use crate::limits::{EMAIL_CHARS_MAX, NAME_CHARS_MAX, RETENTION_DAYS_MAX, USER_TOKEN_AGE_MS};
use crate::params;
use crate::store::{Db, Tx};
use serde_json::json;

#[derive(Debug, serde::Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields)]
pub struct CreateTeam {
    pub name: String,
    pub owner: NewOwner,
}

#[derive(Debug, serde::Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields)]
pub struct NewOwner {
    pub name: String,
    #[serde(default)]
    pub email: Option<String>,
}

impl CreateTeam {
    pub fn validate(&self) -> Result<()> {
        guard::name("name", &self.name, NAME_CHARS_MAX)?;
        guard::name("owner.name", &self.owner.name, NAME_CHARS_MAX)?;
        match &self.owner.email {
            Some(email) => guard::line("owner.email", email, EMAIL_CHARS_MAX),
            None => Ok(()),
        }
    }
}

#[derive(Debug, serde::Serialize)]
pub struct Created {
    pub team: Team,
    pub member: Member,
    pub credential: Credential,
}

/// Makes a team with its owner. Made again by a Directory that died before it could answer, it
/// ends the owner's first token, which nobody has seen, and makes another.
pub fn create(tx: &Tx, team_id: &TeamId, body: &CreateTeam) -> Result<Created> {
    let made_before = tx.query_optional(
        "SELECT principal_id FROM memberships WHERE team_id = ?1 AND role = 'owner' LIMIT 1",
        params![team_id],
        |row| row.get::<PrincipalId>(),
    )?;
    let owner_id = match made_before {
        Some(owner_id) => {
            credentials::revoke_all_of(tx, team_id, &owner_id)?;
            owner_id
        }
        None => make(tx, team_id, body)?,
    };
    let holder = Holder {
        kind: Kind::User,
        team_id,
        principal_id: &owner_id,
        source_id: None,
        machine_id: None,
        app_id: None,
    };
    Ok(Created {
        team: load(tx, team_id)?,
        member: members::load(tx, team_id, &owner_id)?,
        credential: credentials::issue(tx, &holder, USER_TOKEN_AGE_MS)?,
    })
}

fn make(tx: &Tx, team_id: &TeamId, body: &CreateTeam) -> Result<PrincipalId> {
    tx.execute(
        "INSERT INTO teams (id, name, epoch, created_at) VALUES (?1, ?2, ?3, ?4)",
        params![team_id, &body.name, &hex(&tx.random::<4>()), tx.now_ms],
    )?;
    let (owner, email) = (&body.owner.name, body.owner.email.as_deref());
    let owner_id = members::insert(tx, team_id, owner, email, Role::Owner)?;
    announce(tx, &load(tx, team_id)?, &owner_id)?;
    Ok(owner_id)
}

#[derive(Debug, serde::Serialize)]
pub struct Team {
    pub id: TeamId,
    pub name: String,
    pub retention: Retention,
    pub auth_epoch: i64,
    pub revision: i64,
    pub created_at: i64,
}

/// How many days what ages is kept; no number of `sessions_days` keeps sessions for good.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Retention {
    pub events_days: i64,
    pub deliveries_days: i64,
    pub journal_days: i64,
    pub sessions_days: Option<i64>,
}

impl Default for Retention {
    fn default() -> Retention {
        use crate::limits::{DELIVERIES_DAYS, EVENTS_DAYS, JOURNAL_DAYS};
        Retention {
            events_days: EVENTS_DAYS,
            deliveries_days: DELIVERIES_DAYS,
            journal_days: JOURNAL_DAYS,
            sessions_days: None,
        }
    }
}

impl Retention {
    /// As the `teams` row keeps it: what was never set reads as its default.
    pub fn from_column(json: &str) -> Result<Retention> {
        serde_json::from_str(json).map_err(|e| Error::internal(format!("retention_json: {e}")))
    }
}

pub fn load(db: &Db, team_id: &TeamId) -> Result<Team> {
    db.query_one(
        "SELECT name, retention_json, auth_epoch, revision, created_at FROM teams WHERE id = ?1",
        params![team_id],
        |row| {
            Ok(Team {
                id: team_id.clone(),
                name: row.get()?,
                retention: Retention::from_column(&row.get::<String>()?)?,
                auth_epoch: row.get()?,
                revision: row.get()?,
                created_at: row.get()?,
            })
        },
    )
}

/// `GET /` is the team.
pub fn get(db: &Db, call: &Call) -> Result<Answer> {
    let team = load(db, &call.who.team_id)?;
    call.versioned(200, &team, team.revision)
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeTeam {
    #[serde(default, deserialize_with = "json::not_null")]
    name: Option<String>,
    #[serde(default, deserialize_with = "json::not_null")]
    retention: Option<ChangeRetention>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(clippy::struct_field_names)] // The names of the API.
struct ChangeRetention {
    #[serde(default, deserialize_with = "json::not_null")]
    events_days: Option<i64>,
    #[serde(default, deserialize_with = "json::not_null")]
    deliveries_days: Option<i64>,
    #[serde(default, deserialize_with = "json::not_null")]
    journal_days: Option<i64>,
    #[serde(default)]
    sessions_days: Patch<i64>,
}

impl ChangeRetention {
    fn validate(&self) -> Result<()> {
        let sessions_days = match self.sessions_days {
            Patch::Set(days) => Some(days),
            Patch::Keep | Patch::Clear => None,
        };
        for (field, days) in [
            ("retention.events_days", self.events_days),
            ("retention.deliveries_days", self.deliveries_days),
            ("retention.journal_days", self.journal_days),
            ("retention.sessions_days", sessions_days),
        ] {
            guard::in_range(field, days.unwrap_or(1), 1..=RETENTION_DAYS_MAX)?;
        }
        Ok(())
    }

    fn over(self, before: &Retention) -> Retention {
        Retention {
            events_days: self.events_days.unwrap_or(before.events_days),
            deliveries_days: self.deliveries_days.unwrap_or(before.deliveries_days),
            journal_days: self.journal_days.unwrap_or(before.journal_days),
            sessions_days: match self.sessions_days {
                Patch::Keep => before.sessions_days,
                Patch::Clear => None,
                Patch::Set(days) => Some(days),
            },
        }
    }
}

/// `PATCH /` changes the team's name and how long it keeps what ages; what is absent stays.
///
/// `403` unless the caller is an admin.
pub fn change(tx: &Tx, call: &Call) -> Result<Answer> {
    let body: ChangeTeam = call.json()?;
    if let Some(name) = &body.name {
        guard::name("name", name, NAME_CHARS_MAX)?;
    }
    if let Some(retention) = &body.retention {
        retention.validate()?;
    }
    guard::role(&call.who, Role::Admin)?;

    let before = load(tx, &call.who.team_id)?;
    call.if_match(before.revision)?;
    let name = body.name.unwrap_or_else(|| before.name.clone());
    let retention =
        body.retention.map_or_else(|| before.retention.clone(), |r| r.over(&before.retention));
    if (&name, &retention) == (&before.name, &before.retention) {
        return call.versioned(200, &before, before.revision);
    }
    let kept = json::to_string(&retention)?;
    tx.execute(
        "UPDATE teams SET name = ?2, retention_json = ?3, revision = revision + 1 WHERE id = ?1",
        params![&before.id, &name, &kept],
    )?;
    let team = load(tx, &before.id)?;
    announce(tx, &team, &call.who.principal_id)?;
    journal::write(tx, call, "team.changed", team.id.as_str())?;

    call.versioned(200, &team, team.revision)
}

#[derive(serde::Serialize)]
struct Me {
    principal: Person,
    /// Of the principal in the team; an app has none.
    role: Option<Role>,
    credential: Credential,
    team: Team,
}

#[derive(serde::Serialize)]
struct Person {
    id: PrincipalId,
    kind: String,
    name: String,
    email: Option<String>,
    created_at: i64,
}

/// `GET /me` is whom the token acts for, with what role, by which credential, in which team.
pub fn me(db: &Db, call: &Call) -> Result<Answer> {
    let who = &call.who;

    let principal = db.query_one(
        "SELECT id, kind, name, email, created_at FROM principals WHERE id = ?1",
        params![&who.principal_id],
        |row| {
            Ok(Person {
                id: row.get()?,
                kind: row.get()?,
                name: row.get()?,
                email: row.get()?,
                created_at: row.get()?,
            })
        },
    )?;
    let credential = credentials::load(db, &who.team_id, &who.credential_id)?;
    let team = load(db, &who.team_id)?;

    call.one(200, &Me { principal, role: who.role, credential, team })
}

pub fn announce(tx: &Tx, team: &Team, principal_id: &PrincipalId) -> Result<()> {
    let Team { id, name, retention, revision, .. } = team;
    let event = Event {
        name: "team.changed",
        resource_kind: "team",
        resource_id: id.as_str(),
        source_id: None,
        principal_id: Some(principal_id),
        data: json!({ "id": id, "name": name, "retention": retention, "revision": revision }),
        stage: Stage::Current,
    };
    events::record(tx, id, &event).map(drop)
}

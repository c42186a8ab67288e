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
use crate::limits::{EMAIL_CHARS_MAX, NAME_CHARS_MAX, USER_TOKEN_AGE_MS};
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
    let event = Event {
        name: "team.changed",
        resource_kind: "team",
        resource_id: team_id.as_str(),
        source_id: None,
        principal_id: Some(&owner_id),
        data: json!({ "id": team_id, "name": body.name, "revision": 1 }),
        stage: Stage::Current,
    };
    events::record(tx, team_id, &event)?;
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

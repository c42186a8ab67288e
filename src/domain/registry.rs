//! The Directory's registry: the teams of this server, and what the operator asks of them.
//!
//! A team lives in an object of its own, so it is made in steps: `begin` writes it down as
//! creating, its object makes it, `finish` marks it active and keeps the answer. A Directory that
//! dies in between goes on with the same team when the operator repeats the request by its key;
//! without a key nobody holds a token of it. A team that stays creating is deleted after a day, and
//! one that is being deleted leaves the registry when its object holds it no more ([`unsettled`]).
use crate::api::{Answer, Envelope, Payload, Request};
use crate::domain::idempotency;
use crate::domain::team_removal::Confirmed;
use crate::domain::teams::CreateTeam;
use crate::error::{Error, Result};
use crate::ids::{Id, ServerId, TeamId, hex};
use crate::json;
use crate::limits::{
    IDEMPOTENCY_AGE_MS, JSON_BYTES_MAX, MAKE_TEAM_AGE_MS, TEAMS_ASKED_MAX, TEAMS_ASKED_MS,
};
use crate::page::{Keyset, PageQuery};
use crate::params;
use crate::store::{Db, Tx};
use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};

/// `global_idempotency.status` while the first request is under way.
const RUNNING: i64 = 0;

/// `POST /v1/teams`, checked.
pub struct Wanted {
    pub team: CreateTeam,
    pub key: Option<String>,
    fingerprint: [u8; 32],
}

/// What the Directory asks of the object that is to hold a team.
#[derive(serde::Serialize, serde::Deserialize)]
pub struct MakeTeam<S = ServerId, T = TeamId, C = CreateTeam> {
    pub server_id: S,
    pub team_id: T,
    pub team: C,
}

/// What the Directory asks of the object that holds a team which the operator deletes.
#[derive(serde::Serialize, serde::Deserialize)]
pub struct DeleteTeam {
    pub team_id: TeamId,
    pub confirmed: Confirmed,
}

/// What the Directory asks of the object that should hold a team.
#[derive(serde::Serialize, serde::Deserialize)]
pub struct AskAfter {
    pub team_id: TeamId,
    /// Whether to delete it where it is there: its making was given up.
    pub is_given_up: bool,
}

/// When teams that are neither active nor gone are next looked after; nothing where none is.
pub fn asked_at(db: &Db) -> Result<Option<i64>> {
    let (deleting, creating_since) = db.query_one(
        "SELECT EXISTS (SELECT 1 FROM registry WHERE state = 'deleting'),
                (SELECT min(created_at) FROM registry WHERE state = 'creating')",
        params![],
        |row| Ok((row.get::<bool>()?, row.get::<Option<i64>>()?)),
    )?;
    let soon = db.now_ms + TEAMS_ASKED_MS;
    let given_up_at = creating_since.map(|since| soon.max(since + MAKE_TEAM_AGE_MS));
    Ok(if deleting { Some(soon) } else { given_up_at })
}

/// The teams to ask after now.
pub fn unsettled(db: &Db) -> Result<Vec<AskAfter>> {
    db.query(
        "SELECT id, state = 'creating'
           FROM registry
          WHERE (state = 'deleting' OR (state = 'creating' AND created_at <= ?1))
          ORDER BY state, created_at
          LIMIT ?2",
        params![db.now_ms - MAKE_TEAM_AGE_MS, TEAMS_ASKED_MAX],
        |row| Ok(AskAfter { team_id: row.get()?, is_given_up: row.get()? }),
    )
}

/// What the object said: a team that it does not hold leaves the registry.
pub fn asked(tx: &Tx, team_id: &TeamId, is_gone: bool) -> Result<()> {
    if !is_gone {
        return mark_deleting(tx, team_id);
    }
    tx.execute("DELETE FROM registry WHERE id = ?1 AND state <> 'active'", params![team_id])
}

/// The state of a team in the registry, for the operator.
///
/// `404` for one that the server has not.
pub fn state(db: &Db, team_id: &TeamId) -> Result<String> {
    db.query_optional("SELECT state FROM registry WHERE id = ?1", params![team_id], |row| {
        row.get()
    })?
    .ok_or_else(Error::not_found)
}

/// Notes that the team's object has begun to delete it.
pub fn mark_deleting(tx: &Tx, team_id: &TeamId) -> Result<()> {
    tx.execute(
        "UPDATE registry SET state = 'deleting' WHERE id = ?1 AND state <> 'deleting'",
        params![team_id],
    )
}

/// Answers a deletion, the operator's as the owner's.
pub fn deleting(server_id: &ServerId, team_id: &TeamId) -> Result<Answer> {
    let data = json!({ "id": team_id, "state": "deleting" });
    Envelope::new(server_id, Some(team_id), None).one(202, &data)
}

pub enum Begun {
    /// The same request was answered before.
    Answered(Answer),
    /// The team that its object is to make now.
    Team(TeamId),
}

/// Reads `POST /v1/teams`, which makes a team with its owner and answers the owner's token.
pub fn wanted(request: &Request) -> Result<Wanted> {
    let body = request.payload(Payload::Json(JSON_BYTES_MAX))?;
    request.no_query()?;
    let team: CreateTeam = json::body(body)?;
    team.validate()?;
    let key = request.header("idempotency-key").map(str::to_owned);
    key.as_deref().map_or(Ok(()), idempotency::validate)?;
    Ok(Wanted { team, key, fingerprint: Sha256::digest(body).into() })
}

/// Writes the team down as creating, or finds what the same key led to.
///
/// `409 idempotency_mismatch` for another body; `409 conflict` while `running` says that a call
/// with this key has not come to its end.
pub fn begin(tx: &Tx, wanted: &Wanted, running: bool) -> Result<Begun> {
    if let Some(begun) = begun_before(tx, wanted, running)? {
        return Ok(begun);
    }
    let team_id: TeamId = tx.new_id();
    tx.execute(
        "INSERT INTO registry (id, name, state, created_at) VALUES (?1, ?2, 'creating', ?3)",
        params![&team_id, &wanted.team.name, tx.now_ms],
    )?;
    if let Some(key) = &wanted.key {
        tx.execute(
            "INSERT INTO global_idempotency
                 (key, request_hash, status, response_json, created_at, expires_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)
             ON CONFLICT (key) DO UPDATE
                SET request_hash = excluded.request_hash, status = excluded.status,
                    response_json = excluded.response_json, created_at = excluded.created_at,
                    expires_at = excluded.expires_at",
            params![
                key,
                &wanted.fingerprint[..],
                RUNNING,
                &json!({ "team_id": team_id }).to_string(),
                tx.now_ms,
                tx.now_ms + IDEMPOTENCY_AGE_MS
            ],
        )?;
    }
    Ok(Begun::Team(team_id))
}

fn begun_before(tx: &Tx, wanted: &Wanted, running: bool) -> Result<Option<Begun>> {
    #[derive(serde::Deserialize)]
    struct Under {
        team_id: TeamId,
    }
    let Some(key) = &wanted.key else { return Ok(None) };
    let known = tx.query_optional(
        "SELECT request_hash, status, response_json
           FROM global_idempotency
          WHERE key = ?1 AND expires_at > ?2",
        params![key, tx.now_ms],
        |row| Ok((row.get::<Vec<u8>>()?, row.get::<i64>()?, row.get::<String>()?)),
    )?;
    let Some((hash, status, response)) = known else { return Ok(None) };
    if hash != wanted.fingerprint {
        return Err(idempotency::mismatch());
    }
    if status != RUNNING {
        return idempotency::replay(status, &response).map(|answer| Some(Begun::Answered(answer)));
    }
    if running {
        let message = "the first request with this key is still running; ask again";
        return Err(Error::conflict(message).with_header("Retry-After", "1"));
    }
    let under: Under =
        serde_json::from_str(&response).map_err(|e| Error::internal(e.to_string()))?;
    Ok(Some(Begun::Team(under.team_id)))
}

/// Marks the team active and keeps the answer, without its token, for who repeats the request.
pub fn finish(
    tx: &Tx,
    server_id: &ServerId,
    wanted: &Wanted,
    team_id: &TeamId,
    created: &Json,
) -> Result<Answer> {
    tx.execute(
        "UPDATE registry SET state = 'active' WHERE id = ?1 AND state = 'creating'",
        params![team_id],
    )?;
    let answer = Envelope::new(server_id, Some(team_id), None).one(201, created)?.secret();
    if let Some(key) = &wanted.key {
        tx.execute(
            "UPDATE global_idempotency SET status = ?2, response_json = ?3 WHERE key = ?1",
            params![key, i64::from(answer.status), &idempotency::keep(&answer)?],
        )?;
    }
    Ok(answer)
}

/// Leaves the key free, since the team could not be made. Where its object has refused it, it
/// leaves the registry at once; otherwise nobody knows what is there.
pub fn abandon(tx: &Tx, wanted: &Wanted, refused: Option<&TeamId>) -> Result<()> {
    if let Some(team_id) = refused {
        tx.execute("DELETE FROM registry WHERE id = ?1 AND state = 'creating'", params![team_id])?;
    }
    tx.execute(
        "DELETE FROM global_idempotency WHERE key = ?1 AND status = ?2",
        params![wanted.key.as_ref(), RUNNING],
    )
}

#[derive(serde::Serialize)]
struct Entry {
    id: TeamId,
    name: String,
    state: String,
    created_at: i64,
}

/// `GET /v1/teams` lists the teams of the server, by id.
pub fn list(db: &Db, server_id: &ServerId, request: &Request) -> Result<Answer> {
    let query: PageQuery = json::query(request.query)?;
    let list_name = [server_id.as_str(), "/v1/teams"].join("\n");
    let page = Keyset::over(hex(&Sha256::digest(list_name)[..16]), &query)?;

    let entries = db.query(
        "SELECT id, name, state, created_at
           FROM registry
          WHERE id > ?1
          ORDER BY id
          LIMIT ?2",
        params![page.after(), page.limit + 1],
        |row| {
            let entry = Entry {
                id: row.get()?,
                name: row.get()?,
                state: row.get()?,
                created_at: row.get()?,
            };
            Ok((entry.id.to_string(), entry))
        },
    )?;

    let (items, next) = page.page(entries);
    Envelope::new(server_id, None, None).list(&items, next.as_deref())
}

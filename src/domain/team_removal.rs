//! Wiping and deleting a team. Both only mark it; retention then empties it table by table
//! (`maintain/teams.rs`), and a deleted team's row goes last.
use crate::api::{Answer, Call};
use crate::auth::Role;
use crate::domain::registry::AskAfter;
use crate::domain::{journal, teams};
use crate::error::{Error, Result};
use crate::guard;
use crate::ids::{Id, TeamId, hex};
use crate::params;
use crate::store::{Db, Tx};
use serde_json::json;

#[derive(serde::Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields)]
pub struct Confirmed {
    /// The team's name.
    pub confirm: String,
}

/// `POST /wipe` removes all that the team made, and begins a new epoch; its people, machines,
/// sources, groups and apps stay. Until all is gone, requests that make something are refused.
///
/// `400` on `confirm` when that is not the team's name; `403` unless the caller is an owner; `409
/// conflict` while a wipe is under way.
pub fn wipe(tx: &Tx, call: &Call) -> Result<Answer> {
    let body: Confirmed = call.json()?;
    must_be_name(tx, &call.who.team_id, &body)?;
    guard::role(&call.who, Role::Owner)?;

    let team_id = &call.who.team_id;
    let changed = tx.execute_counted(
        "UPDATE teams
            SET removing = 'wipe', import_json = NULL, epoch = ?2, revision = revision + 1
          WHERE id = ?1 AND removing IS NULL",
        params![team_id, &hex(&tx.random::<4>())],
    )?;
    guard::changed_one(changed, Error::conflict("the team is being wiped already"))?;
    let team = teams::load(tx, team_id)?;
    teams::announce(tx, &team, &call.who.principal_id)?;
    journal::write(tx, call, "team.wiped", team_id.as_str())?;

    call.versioned(200, &team, team.revision)
}

/// `DELETE /` deletes the team: from here on every token of it is refused, and everything goes.
///
/// `400` on `confirm` when that is not the team's name; `403` unless the caller is an owner.
pub fn delete(tx: &Tx, call: &Call) -> Result<Answer> {
    let body: Confirmed = call.json()?;
    must_be_name(tx, &call.who.team_id, &body)?;
    guard::role(&call.who, Role::Owner)?;

    journal::write(tx, call, "team.deleted", call.who.team_id.as_str())?;
    mark_deleted(tx, &call.who.team_id)?;

    call.one(202, &json!({ "id": call.who.team_id, "state": "deleting" }))
}

/// As [`delete`], for the operator; `404` for a team that is not there.
pub fn delete_for_operator(
    tx: &Tx,
    team_id: &TeamId,
    body: &Confirmed,
    request_id: &str,
) -> Result<()> {
    must_be_name(tx, team_id, body)?;
    journal::write_for_operator(tx, team_id, "team.deleted", request_id)?;
    mark_deleted(tx, team_id)
}

/// Answers whether the object holds no such team; where its making was given up, deletes it.
pub fn ask_after(tx: &Tx, asked: &AskAfter) -> Result<bool> {
    let found =
        tx.query_optional("SELECT 1 FROM teams WHERE id = ?1", params![&asked.team_id], |row| {
            row.get::<i64>()
        })?;
    if found.is_some() && asked.is_given_up {
        mark_deleted(tx, &asked.team_id)?;
    }
    Ok(found.is_none())
}

/// Whether the object holds no team any more, so that it may go.
pub fn is_last_gone(db: &Db) -> Result<bool> {
    db.query_one("SELECT NOT EXISTS (SELECT 1 FROM teams)", params![], |row| row.get())
}

fn mark_deleted(tx: &Tx, team_id: &TeamId) -> Result<()> {
    tx.execute("UPDATE teams SET removing = 'delete' WHERE id = ?1", params![team_id])
}

fn must_be_name(db: &Db, team_id: &TeamId, body: &Confirmed) -> Result<()> {
    let name =
        db.query_optional("SELECT name FROM teams WHERE id = ?1", params![team_id], |row| {
            row.get::<String>()
        })?;
    if name.ok_or_else(Error::not_found)? == body.confirm {
        return Ok(());
    }
    Err(Error::field("confirm", "must be the team's name, as it is"))
}

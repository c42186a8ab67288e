//! What a connector works by: its source, its rules, and the epoch of the team's authority.
use crate::api::{Answer, Call};
use crate::domain::rules::{self, Rule};
use crate::domain::sources::{self, Source};
use crate::domain::teams;
use crate::error::{Error, Result};
use crate::guard;
use crate::ids::MachineId;
use crate::store::Db;
use sha2::{Digest, Sha256};

#[derive(serde::Serialize)]
struct Configuration {
    source: Source,
    rules: Vec<Rule>,
    auth_epoch: i64,
}

/// `GET /machines/{machine}/configuration`, for that machine; `304` while it is what
/// `If-None-Match` names.
///
/// `403` for every other caller, and once its custodian is no active member.
pub fn get(db: &Db, call: &Call) -> Result<Answer> {
    let machine_id: MachineId = call.id(0)?;
    guard::machine(&call.who, &machine_id)?;
    guard::reads(&call.who, "")?;

    let team_id = &call.who.team_id;
    let configuration = Configuration {
        source: sources::load_of_machine(db, team_id, &machine_id)?,
        rules: rules::all_of(db, team_id, &machine_id)?,
        auth_epoch: teams::load(db, team_id)?.auth_epoch,
    };

    let tag = tag(&configuration)?;
    if call.names_tag("if-none-match", &tag) == Some(true) {
        return Ok(Answer { status: 304, ..Answer::default() }.with("ETag", tag));
    }
    Ok(call.one(200, &configuration)?.with("ETag", tag))
}

/// Changes with what the connector works by; not with `last_received_at`, which its own captures
/// move.
fn tag(configuration: &Configuration) -> Result<String> {
    let Configuration { source, rules, auth_epoch } = configuration;
    let rules: Vec<_> = rules.iter().map(|rule| (&rule.id, rule.revision)).collect();
    let parts = serde_json::to_vec(&(&source.id, source.revision, rules, auth_epoch))
        .map_err(|e| Error::internal(e.to_string()))?;
    Ok(format!("\"{}\"", crate::ids::hex(&Sha256::digest(parts)[..16])))
}

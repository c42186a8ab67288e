//! Which agent and tools a named conversation was admitted with.
use crate::api::{Answer, Call};
use crate::domain::context_access::{self, APP_SCOPE, Scope};
use crate::domain::{snapshots, worktrees};
use crate::error::{Error, Result};
use crate::guard;
use crate::json;
use crate::limits::{ADMISSION_BYTES_MAX, ADMISSION_NAMES_MAX, LABEL_BYTES_MAX};
use crate::params;
use crate::store::{Db, Tx};

#[derive(Default, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Admission {
    #[serde(default)]
    agent: String,
    #[serde(default)]
    digest: String,
    names: Vec<String>,
}

/// `PUT /snapshots/{name}/admission` keeps it; without names there is none any more. The name need
/// not have a snapshot.
pub fn put(tx: &Tx, call: &Call) -> Result<Answer> {
    let admission: Admission = call.json()?;
    snapshots::name("name", call.segment(0))?;
    let scope = context_access::scope(call)?;
    for (field, text) in [("agent", &admission.agent), ("digest", &admission.digest)] {
        if !text.is_empty() {
            guard::label(field, text, LABEL_BYTES_MAX)?;
        }
    }
    guard::at_most("names", admission.names.len(), ADMISSION_NAMES_MAX)?;
    for (index, one) in admission.names.iter().enumerate() {
        guard::label(format!("names[{index}]"), one, LABEL_BYTES_MAX)?;
    }
    let value = json::to_string(&admission)?;
    if value.len() > ADMISSION_BYTES_MAX {
        return Err(Error::too_large(ADMISSION_BYTES_MAX, "an admission"));
    }
    guard::member_or_app(&call.who, APP_SCOPE)?;
    worktrees::require_active(tx, &call.who.team_id, &scope)?;

    if admission.names.is_empty() {
        remove(tx, call, &scope, call.segment(0))?;
        return call.one(200, &Admission::default());
    }
    tx.execute(
        "INSERT INTO snapshot_admissions
             (team_id, workspace, instance_id, subject_id, name, value_json, updated_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
         ON CONFLICT (team_id, workspace, instance_id, subject_id, name) DO UPDATE
            SET value_json = excluded.value_json, updated_at = excluded.updated_at
          WHERE value_json <> excluded.value_json",
        params![
            &call.who.team_id,
            &scope.workspace,
            &scope.instance_id,
            &call.who.principal_id,
            call.segment(0),
            &value,
            tx.now_ms
        ],
    )?;
    call.one(200, &admission)
}

/// `GET /snapshots/{name}/admission` answers it; an empty one where there is none.
pub fn get(db: &Db, call: &Call) -> Result<Answer> {
    snapshots::name("name", call.segment(0))?;
    let scope = context_access::scope(call)?;
    guard::viewer_or_app(&call.who, APP_SCOPE)?;
    worktrees::require_active(db, &call.who.team_id, &scope)?;

    let value = db.query_optional(
        "SELECT value_json FROM snapshot_admissions
          WHERE team_id = ?1 AND workspace = ?2 AND instance_id = ?3 AND subject_id = ?4
            AND name = ?5",
        params![
            &call.who.team_id,
            &scope.workspace,
            &scope.instance_id,
            &call.who.principal_id,
            call.segment(0)
        ],
        |row| row.get::<String>(),
    )?;
    match value {
        None => call.one(200, &Admission::default()),
        Some(value) => call.raw(value),
    }
}

pub fn remove(tx: &Tx, call: &Call, scope: &Scope, name: &str) -> Result<()> {
    tx.execute(
        "DELETE FROM snapshot_admissions
          WHERE team_id = ?1 AND workspace = ?2 AND instance_id = ?3 AND subject_id = ?4
            AND name = ?5",
        params![
            &call.who.team_id,
            &scope.workspace,
            &scope.instance_id,
            &call.who.principal_id,
            name
        ],
    )
}

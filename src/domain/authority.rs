//! Authority: what a caller may do. It changes when a member, group, grant, source's visibility or
//! machine changes, and when a credential ends; not when someone makes one more token of their own.
use crate::api::Call;
use crate::auth::Principal;
use crate::domain::events::{self, Event, Stage};
use crate::error::{Error, Result};
use crate::ids::Id;
use crate::params;
use crate::store::Tx;
use serde_json::json;

/// Ends every change of authority, once: raises the team's epoch and tells its readers, so that
/// whoever holds a channel open asks again what it may.
///
/// The event belongs to a resource of its own, so that the team's current event stays what it is.
pub fn changed(tx: &Tx, call: &Call) -> Result<()> {
    changed_by(tx, &call.who)
}

/// As `changed`, for work that goes on after its request was admitted.
pub fn changed_by(tx: &Tx, who: &Principal) -> Result<()> {
    let team_id = &who.team_id;
    let epochs = tx.execute_returning(
        "UPDATE teams SET auth_epoch = auth_epoch + 1 WHERE id = ?1 RETURNING auth_epoch",
        params![team_id],
        |row| row.get::<i64>(),
    )?;
    let auth_epoch = epochs.first().ok_or_else(|| Error::internal("a team without a row"))?;
    let event = Event {
        name: "authorization_changed",
        resource_kind: "authorization",
        resource_id: team_id.as_str(),
        source_id: None,
        principal_id: Some(&who.principal_id),
        data: json!({ "auth_epoch": auth_epoch }),
        stage: Stage::Current,
    };
    events::record(tx, team_id, &event).map(drop)
}

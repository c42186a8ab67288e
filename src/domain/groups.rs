//! Groups: members who are granted sessions together.
use crate::api::Call;
use crate::domain::events::{self, Event, Stage};
use crate::error::Result;
use crate::ids::{GroupId, Id, PrincipalId};
use crate::params;
use crate::store::Tx;
use serde_json::json;

/// Takes a member who leaves the team out of every group.
pub fn remove_member_everywhere(tx: &Tx, call: &Call, principal_id: &PrincipalId) -> Result<()> {
    let groups = tx.execute_returning(
        "UPDATE groups_table SET revision = revision + 1
          WHERE team_id = ?1 AND id IN (
                SELECT group_id FROM group_members WHERE team_id = ?1 AND principal_id = ?2)
      RETURNING id, name, revision",
        params![&call.who.team_id, principal_id],
        |row| Ok((row.get::<GroupId>()?, row.get::<String>()?, row.get::<i64>()?)),
    )?;
    tx.execute(
        "DELETE FROM group_members WHERE team_id = ?1 AND principal_id = ?2",
        params![&call.who.team_id, principal_id],
    )?;
    for (id, name, revision) in &groups {
        announce(tx, call, id, name, *revision, Stage::Current)?;
    }
    Ok(())
}

fn announce(
    tx: &Tx,
    call: &Call,
    id: &GroupId,
    name: &str,
    revision: i64,
    stage: Stage,
) -> Result<()> {
    let event = Event {
        name: "group.changed",
        resource_kind: "group",
        resource_id: id.as_str(),
        source_id: None,
        principal_id: Some(&call.who.principal_id),
        data: json!({
            "id": id, "name": name, "revision": revision, "deleted": stage == Stage::Last,
        }),
        stage,
    };
    events::record(tx, &call.who.team_id, &event).map(drop)
}

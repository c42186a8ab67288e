//! The end of a worktree's instance: what the caller keeps under it goes.
use crate::api::{Answer, Call, Job};
use crate::auth::Principal;
use crate::domain::contexts;
use crate::domain::worktrees::{self, Worktree};
use crate::error::{Error, Result};
use crate::ids::Id;
use crate::limits::WORKTREE_ROWS_AT_ONCE;
use crate::params;
use crate::store::{Db, Tx};
use serde_json::json;

/// `POST /worktrees/{instance}/finish-deletion` ends an instance whose deletion has begun, and
/// removes what the caller keeps under it: snapshots, admissions, routes; contexts are deleted.
/// `deleted` counts snapshots and contexts. Another principal removes its own by the same call,
/// and again: nothing. It works in slices, and may be repeated where it broke off.
pub fn finish(db: &Db, call: &Call) -> Result<Job> {
    let target = worktrees::target(call)?;
    let team_id = &call.who.team_id;
    let ended = db.transaction(|tx| {
        let mut found = target.find(tx, team_id, &["deleting", "deleted"])?;
        if found.state == "deleting" {
            worktrees::set(tx, team_id, &mut found, "deleted")?;
        }
        tx.execute(
            "DELETE FROM worktree_routes
              WHERE team_id = ?1 AND workspace = ?2 AND subject_id = ?3 AND worktree = ?4
                AND instance_id = ?5",
            params![
                team_id,
                &found.workspace,
                &call.who.principal_id,
                &found.worktree,
                &found.instance_id
            ],
        )?;
        Ok(found)
    })?;
    let (who, envelope) = (call.who.clone(), call.envelope());
    let mut deleted = 0;
    Ok(Box::new(move |db: &Db| -> Result<Option<Answer>> {
        let count = db.transaction(|tx| slice(tx, &who, &ended))?;
        deleted += count.counted;
        if count.removed > 0 {
            return Ok(None);
        }
        let mut data = json!(ended);
        data["deleted"] = json!(deleted);
        envelope.one(200, &data).map(Some)
    }))
}

struct Count {
    removed: u64,
    counted: u64,
}

fn slice(tx: &Tx, who: &Principal, ended: &Worktree) -> Result<Count> {
    let key = params![
        &who.team_id,
        &ended.workspace,
        &ended.instance_id,
        &who.principal_id,
        WORKTREE_ROWS_AT_ONCE
    ];
    let snapshots = tx.execute_counted(
        "DELETE FROM context_snapshots
          WHERE rowid IN (
                SELECT rowid FROM context_snapshots
                 WHERE team_id = ?1 AND workspace = ?2 AND instance_id = ?3 AND subject_id = ?4
                 LIMIT ?5)",
        key,
    )?;
    let admissions = tx.execute_counted(
        "DELETE FROM snapshot_admissions
          WHERE rowid IN (
                SELECT rowid FROM snapshot_admissions
                 WHERE team_id = ?1 AND workspace = ?2 AND instance_id = ?3 AND subject_id = ?4
                 LIMIT ?5)",
        key,
    )?;
    let ids = tx.query(
        "SELECT id FROM contexts INDEXED BY contexts_of_instance
          WHERE team_id = ?1 AND workspace = ?2 AND instance_id = ?3 AND subject_id = ?4
            AND deleted_at IS NULL
          LIMIT ?5",
        key,
        |row| row.get::<String>(),
    )?;
    for id in &ids {
        let context = contexts::load(tx, &who.team_id, id)?;
        let mut context = context.ok_or_else(|| Error::internal("a found context is there"))?;
        contexts::bury(tx, &who.team_id, who.principal_id.as_str(), &mut context)?;
    }
    let counted = snapshots + ids.len() as u64;
    Ok(Count { removed: counted + admissions, counted })
}

//! Instances of worktrees that were deleted, or never came to be, 30 days ago: with their routes,
//! and with what principals left under them that did not remove it themselves.
use super::work::{Batch, Walks, Work, json};
use crate::domain::contexts;
use crate::error::{Error, Result};
use crate::ids::TeamId;
use crate::limits::WORKTREE_AGE_MS;
use crate::params;
use crate::store::{Db, Tx};

/// An empty instance costs 45 units; a route, a snapshot or an admission 8, a context 30.
const INSTANCE_UNITS: u64 = 60;
const LEFT_MAX: u64 = 8;
const CONTEXTS_MAX: u64 = 3;
const LEFT_UNITS: u64 = 3 * 9 * LEFT_MAX + 32 * CONTEXTS_MAX;

pub fn due(db: &Db, _walks: &Walks) -> Result<Option<i64>> {
    db.query_one(
        "SELECT min(updated_at) + ?1 FROM worktrees WHERE state IN ('creating', 'deleted')",
        params![WORKTREE_AGE_MS],
        |row| row.get(),
    )
}

pub fn batch(tx: &Tx, work: &mut Work) -> Result<Batch> {
    let mut cleared = false;
    while work.has_room(tx, INSTANCE_UNITS) {
        let first = tx.query_optional(
            "SELECT team_id, workspace, instance_id
               FROM worktrees
              WHERE state IN ('creating', 'deleted') AND updated_at <= ?1
              ORDER BY updated_at
              LIMIT 1",
            params![tx.now_ms - WORKTREE_AGE_MS],
            |row| Ok((row.get::<TeamId>()?, row.get::<String>()?, row.get::<String>()?)),
        )?;
        let Some((team_id, workspace, instance_id)) = first else { return Ok(Batch::Done) };
        let key = (&team_id, workspace.as_str(), instance_id.as_str());
        if anything_left(tx, key)? {
            if cleared && !work.has_room(tx, LEFT_UNITS) {
                return Ok(Batch::More);
            }
            cleared = true;
            clear(tx, work, key)?;
            continue;
        }
        tx.execute(
            "DELETE FROM worktrees WHERE team_id = ?1 AND workspace = ?2 AND instance_id = ?3",
            params![&team_id, &workspace, &instance_id],
        )?;
        work.removed("worktrees", 1);
    }
    Ok(Batch::More)
}

type Key<'a> = (&'a TeamId, &'a str, &'a str);

fn anything_left(db: &Db, (team_id, workspace, instance_id): Key) -> Result<bool> {
    db.query_one(
        "SELECT EXISTS (SELECT 1 FROM worktree_routes
                         WHERE team_id = ?1 AND workspace = ?2 AND instance_id = ?3
                           AND instance_id <> '')
             OR EXISTS (SELECT 1 FROM context_snapshots
                         WHERE team_id = ?1 AND workspace = ?2 AND instance_id = ?3)
             OR EXISTS (SELECT 1 FROM snapshot_admissions
                         WHERE team_id = ?1 AND workspace = ?2 AND instance_id = ?3)
             OR EXISTS (SELECT 1 FROM contexts INDEXED BY contexts_of_instance
                         WHERE team_id = ?1 AND workspace = ?2 AND instance_id = ?3
            AND deleted_at IS NULL)",
        params![team_id, workspace, instance_id],
        |row| row.get(),
    )
}

fn clear(tx: &Tx, work: &mut Work, (team_id, workspace, instance_id): Key) -> Result<()> {
    let key = params![team_id, workspace, instance_id, LEFT_MAX];
    let routes = tx.query(
        "SELECT subject_id, worktree FROM worktree_routes
          WHERE team_id = ?1 AND workspace = ?2 AND instance_id = ?3 AND instance_id <> ''
          LIMIT ?4",
        key,
        |row| Ok((row.get::<String>()?, row.get::<String>()?)),
    )?;
    tx.execute(
        "DELETE FROM worktree_routes
          WHERE (team_id, workspace, instance_id, subject_id, worktree) IN (
                SELECT ?1, ?2, ?3, value ->> 0, value ->> 1 FROM json_each(?4))",
        params![team_id, workspace, instance_id, &json(&routes)?],
    )?;
    work.removed("worktree_routes", routes.len() as u64);
    let snapshots = tx.execute_counted(
        "DELETE FROM context_snapshots
          WHERE rowid IN (
                SELECT rowid FROM context_snapshots
                 WHERE team_id = ?1 AND workspace = ?2 AND instance_id = ?3
                 LIMIT ?4)",
        key,
    )?;
    work.removed("snapshots", snapshots);
    let admissions = tx.execute_counted(
        "DELETE FROM snapshot_admissions
          WHERE rowid IN (
                SELECT rowid FROM snapshot_admissions
                 WHERE team_id = ?1 AND workspace = ?2 AND instance_id = ?3
                 LIMIT ?4)",
        key,
    )?;
    work.removed("admissions", admissions);
    let ids = tx.query(
        "SELECT id FROM contexts INDEXED BY contexts_of_instance
          WHERE team_id = ?1 AND workspace = ?2 AND instance_id = ?3
            AND deleted_at IS NULL
          LIMIT ?4",
        params![team_id, workspace, instance_id, CONTEXTS_MAX],
        |row| row.get::<String>(),
    )?;
    for id in &ids {
        let context = contexts::load(tx, team_id, id)?;
        let mut context = context.ok_or_else(|| Error::internal("a found context is there"))?;
        let subject_id = context.subject_id.clone();
        contexts::bury(tx, team_id, &subject_id, &mut context)?;
    }
    work.removed("contexts_ended", ids.len() as u64);
    Ok(())
}

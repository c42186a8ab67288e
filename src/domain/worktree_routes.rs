//! Where a worktree's name leads, for each principal: by hand, or to an instance.
use crate::api::{Answer, Call};
use crate::auth::Principal;
use crate::domain::context_access::{APP_SCOPE, workspace};
use crate::domain::worktrees::{self, Worktree};
use crate::error::{Error, Result};
use crate::guard;
use crate::params;
use crate::store::{Db, Row, Tx};
use serde_json::json;

#[derive(serde::Serialize)]
struct Route {
    workspace: String,
    worktree: String,
    instance_id: Option<String>,
    dir: String,
    created_at: i64,
    updated_at: i64,
}

fn read(row: &mut Row) -> Result<Route> {
    Ok(Route {
        workspace: row.get()?,
        worktree: row.get()?,
        instance_id: Some(row.get::<String>()?).filter(|id| !id.is_empty()),
        dir: row.get()?,
        created_at: row.get()?,
        updated_at: row.get()?,
    })
}

/// The route that was made by hand.
fn legacy(db: &Db, who: &Principal, workspace: &str, worktree: &str) -> Result<Option<Route>> {
    db.query_optional(
        "SELECT workspace, worktree, instance_id, dir, created_at, updated_at
           FROM worktree_routes
          WHERE team_id = ?1 AND workspace = ?2 AND subject_id = ?3 AND worktree = ?4
            AND instance_id = ''",
        params![&who.team_id, workspace, &who.principal_id, worktree],
        read,
    )
}

/// There is a route made by hand, and it leads to `dir` where that is asked.
pub fn require(
    db: &Db,
    who: &Principal,
    workspace: &str,
    worktree: &str,
    dir: Option<&str>,
) -> Result<()> {
    required(db, who, workspace, worktree, dir).map(drop)
}

fn required(
    db: &Db,
    who: &Principal,
    workspace: &str,
    worktree: &str,
    dir: Option<&str>,
) -> Result<Route> {
    let route = legacy(db, who, workspace, worktree)?;
    let route = route.filter(|route| dir.is_none_or(|dir| route.dir == dir));
    route.ok_or_else(|| worktrees::refusal("no such route was made by hand", None))
}

/// The caller's route to an instance that has become active.
pub fn bind(tx: &Tx, who: &Principal, to: &Worktree) -> Result<()> {
    save(tx, who, (&to.workspace, &to.worktree, &to.instance_id), &to.path)
}

fn save(tx: &Tx, who: &Principal, key: (&str, &str, &str), dir: &str) -> Result<()> {
    let (workspace, worktree, instance_id) = key;
    tx.execute(
        "INSERT INTO worktree_routes
             (team_id, workspace, subject_id, worktree, instance_id, dir, created_at, updated_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7)
         ON CONFLICT (team_id, workspace, subject_id, worktree, instance_id) DO UPDATE
            SET dir = excluded.dir, updated_at = excluded.updated_at
          WHERE dir <> excluded.dir",
        params![&who.team_id, workspace, &who.principal_id, worktree, instance_id, dir, tx.now_ms],
    )
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct RouteQuery {
    workspace: Option<String>,
    require: Option<bool>,
    dir: Option<String>,
    all: Option<bool>,
}

impl RouteQuery {
    /// The query with its workspace, where `takes` names what else it may say.
    fn read(call: &Call, takes: &[&str]) -> Result<(RouteQuery, String)> {
        worktrees::name("worktree", call.segment(0))?;
        let mut query: RouteQuery = call.query()?;
        let said = [
            ("require", query.require.is_some()),
            ("dir", query.dir.is_some()),
            ("all", query.all.is_some()),
        ];
        if let Some((name, _)) = said.iter().find(|(name, said)| *said && !takes.contains(name)) {
            return Err(Error::field(*name, "is no parameter of this call"));
        }
        let workspace = workspace(query.workspace.take())?;
        Ok((query, workspace))
    }
}

/// `GET /worktree-routes/{worktree}` answers the caller's route: the one made by hand, else the
/// newest one to an active instance.
///
/// With `require=true` only the one made by hand counts, and only if it leads to `dir` where that
/// is given: `409 worktree_state` otherwise.
pub fn get(db: &Db, call: &Call) -> Result<Answer> {
    let (query, workspace) = RouteQuery::read(call, &["require", "dir"])?;
    guard::viewer_or_app(&call.who, APP_SCOPE)?;
    let worktree = call.segment(0);
    if query.require == Some(true) {
        let route = required(db, &call.who, &workspace, worktree, query.dir.as_deref())?;
        return call.one(200, &route);
    }
    if query.dir.is_some() {
        return Err(Error::field("dir", "goes together with require=true"));
    }
    let route = match legacy(db, &call.who, &workspace, worktree)? {
        Some(route) => Some(route),
        None => bound(db, &call.who, &workspace, worktree)?,
    };
    call.one(200, &route.ok_or_else(Error::not_found)?)
}

/// A name has at most one active instance.
fn bound(db: &Db, who: &Principal, workspace: &str, worktree: &str) -> Result<Option<Route>> {
    db.query_optional(
        "SELECT r.workspace, r.worktree, r.instance_id, r.dir, r.created_at, r.updated_at
           FROM worktrees AS w
          CROSS JOIN worktree_routes AS r
             ON r.team_id = w.team_id AND r.workspace = w.workspace AND r.subject_id = ?3
            AND r.worktree = w.worktree AND r.instance_id = w.instance_id
          WHERE w.team_id = ?1 AND w.workspace = ?2 AND w.worktree = ?4
            AND w.state <> 'deleted' AND w.state = 'active'
          LIMIT 1",
        params![&who.team_id, workspace, &who.principal_id, worktree],
        read,
    )
}

/// `PUT /worktree-routes/{worktree}` makes the caller's route by hand, or leads it elsewhere.
pub fn put(tx: &Tx, call: &Call) -> Result<Answer> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Put {
        dir: String,
    }
    let Put { dir } = call.json()?;
    let (_, workspace) = RouteQuery::read(call, &[])?;
    worktrees::path("dir", &dir)?;
    guard::member_or_app(&call.who, APP_SCOPE)?;

    save(tx, &call.who, (&workspace, call.segment(0), ""), &dir)?;
    let route = legacy(tx, &call.who, &workspace, call.segment(0))?;
    call.one(200, &route.ok_or_else(|| Error::internal("a saved route is there"))?)
}

/// `DELETE /worktree-routes/{worktree}` removes the caller's route made by hand; with `all=true`
/// those to instances too. Answers how many went.
pub fn delete(tx: &Tx, call: &Call) -> Result<Answer> {
    let (query, workspace) = RouteQuery::read(call, &["all"])?;
    guard::member_or_app(&call.who, APP_SCOPE)?;

    let deleted = tx.execute_counted(
        "DELETE FROM worktree_routes
          WHERE team_id = ?1 AND workspace = ?2 AND subject_id = ?3 AND worktree = ?4
            AND (?5 OR instance_id = '')",
        params![
            &call.who.team_id,
            &workspace,
            &call.who.principal_id,
            call.segment(0),
            query.all == Some(true)
        ],
    )?;
    call.one(200, &json!({ "deleted": deleted }))
}

//! What the caller may go on with: snapshots, live contexts that have none, and the worktrees that
//! routes lead to. Newest first; of the same time by name.
use crate::api::{Answer, Call};
use crate::domain::context_access::{APP_SCOPE, Scope, ScopeQuery};
use crate::domain::worktrees;
use crate::error::Result;
use crate::guard;
use crate::page::{Keyset, PageQuery};
use crate::params;
use crate::store::{Db, Row};
use serde_json::json;

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    workspace: Option<String>,
    worktree: Option<String>,
    instance: Option<String>,
    limit: Option<i64>,
    cursor: Option<String>,
}

#[derive(serde::Serialize)]
struct Item {
    kind: &'static str,
    name: String,
    session_id: Option<String>,
    title: Option<String>,
    model: Option<String>,
    provider: Option<String>,
    turns: i64,
    tokens: i64,
    message_count: i64,
    worktree: Option<String>,
    instance_id: Option<String>,
    dir: Option<String>,
    route: bool,
    created_at: i64,
    updated_at: i64,
}

/// Behind which item a page begins.
struct After<'a> {
    updated_at: i64,
    name: &'a str,
    kind: &'a str,
}

impl After<'_> {
    /// Digits of a moment in a key.
    const DIGITS: usize = 16;

    fn read(key: &str) -> After<'_> {
        let (kind, key) = key.split_once('\n').unwrap_or_default();
        match key.split_at_checked(After::DIGITS) {
            Some((at, name)) => After { updated_at: at.parse().unwrap_or(0), name, kind },
            None => After { updated_at: crate::limits::SAFE_INTEGER_MAX, name: "", kind: "" },
        }
    }

    fn key(item: &Item) -> String {
        let Item { kind, name, updated_at, .. } = item;
        format!("{kind}\n{updated_at:0width$}{name}", width = After::DIGITS)
    }

    /// Whether an item of the same moment comes behind.
    fn precedes(&self, item: &Item) -> bool {
        item.updated_at < self.updated_at
            || (item.name.as_str(), item.kind) > (self.name, self.kind)
    }
}

/// `GET /contexts` lists them in a workspace, or in an active instance of a worktree, which has no
/// routes.
pub fn list(db: &Db, call: &Call) -> Result<Answer> {
    let ListQuery { workspace, worktree, instance, limit, cursor } = call.query()?;
    let scope = ScopeQuery { workspace, worktree, instance }.scope()?;
    let Scope { workspace, worktree, instance_id } = &scope;
    let filters = json!([workspace, worktree, instance_id]).to_string();
    let keyset = Keyset::new(call, &filters, &PageQuery { limit, cursor })?;
    guard::viewer_or_app(&call.who, APP_SCOPE)?;
    worktrees::require_active(db, &call.who.team_id, &scope)?;

    let after = After::read(keyset.after());
    let from = From { call, scope: &scope, after: &after, limit: keyset.limit + 2 };
    let mut items = from.snapshots(db)?;
    items.extend(from.contexts(db)?);
    if scope.instance_id.is_empty() {
        items.extend(from.routes(db)?);
    }
    items.retain(|item| after.precedes(item));
    items.sort_by(|a, b| {
        let order = b.updated_at.cmp(&a.updated_at);
        order.then_with(|| (&a.name, a.kind).cmp(&(&b.name, b.kind)))
    });
    items.truncate(keyset.limit + 1);
    let rows = items.into_iter().map(|item| (After::key(&item), item)).collect();
    let (items, next) = keyset.page(rows);
    call.list(&items, next.as_deref())
}

/// Each kind is read from its own index, up to a page of it.
struct From<'a> {
    call: &'a Call<'a>,
    scope: &'a Scope,
    after: &'a After<'a>,
    limit: usize,
}

impl From<'_> {
    /// Those of the very moment and name are read again, and told apart by kind.
    fn read(
        &self,
        db: &Db,
        sql: &'static str,
        item: impl FnMut(&mut Row) -> Result<Item>,
    ) -> Result<Vec<Item>> {
        db.query(
            sql,
            params![
                &self.call.who.team_id,
                &self.scope.workspace,
                &self.scope.instance_id,
                &self.call.who.principal_id,
                self.after.updated_at,
                self.after.name,
                self.limit
            ],
            item,
        )
    }

    fn snapshots(&self, db: &Db) -> Result<Vec<Item>> {
        let sql = "SELECT s.name, c.id, c.title, s.model, s.provider, s.turns, s.tokens,
                          s.message_count, s.worktree, s.instance_id, s.dir, s.created_at,
                          s.updated_at
                     FROM context_snapshots AS s
                     LEFT JOIN contexts AS c
                       ON c.team_id = s.team_id AND c.id = s.session_id AND c.deleted_at IS NULL
                    WHERE s.team_id = ?1 AND s.workspace = ?2 AND s.instance_id = ?3
                      AND s.subject_id = ?4 AND s.updated_at <= ?5
                      AND (s.updated_at < ?5 OR s.name >= ?6)
                    ORDER BY s.updated_at DESC, s.name
                    LIMIT ?7";
        self.read(db, sql, |row| {
            Ok(Item {
                kind: "snapshot",
                name: row.get()?,
                session_id: row.get()?,
                title: row.get()?,
                model: row.get()?,
                provider: row.get()?,
                turns: row.get()?,
                tokens: row.get()?,
                message_count: row.get()?,
                worktree: named(row.get()?),
                instance_id: named(row.get()?),
                dir: row.get()?,
                route: false,
                created_at: row.get()?,
                updated_at: row.get()?,
            })
        })
    }

    /// Live contexts whose id is no snapshot's name.
    fn contexts(&self, db: &Db) -> Result<Vec<Item>> {
        let sql = "SELECT c.id, c.title, c.model, c.provider, c.source_revision, c.worktree,
                          c.instance_id, c.dir, coalesce(c.first_commit_at, c.created_at),
                          c.listed_at
                     FROM contexts AS c
                    WHERE c.team_id = ?1 AND c.workspace = ?2 AND c.instance_id = ?3
                      AND c.subject_id = ?4 AND c.listed_at <= ?5
                      AND (c.listed_at < ?5 OR c.id >= ?6)
                      AND NOT EXISTS (
                          SELECT 1 FROM context_snapshots AS s
                           WHERE s.team_id = ?1 AND s.workspace = ?2 AND s.instance_id = ?3
                             AND s.subject_id = ?4 AND s.name = c.id)
                    ORDER BY c.listed_at DESC, c.id
                    LIMIT ?7";
        self.read(db, sql, |row| {
            let (id, title): (String, Option<String>) = (row.get()?, row.get()?);
            let (model, provider): (String, String) = (row.get()?, row.get()?);
            let source: i64 = row.get()?;
            Ok(Item {
                kind: "context",
                name: id.clone(),
                session_id: Some(id),
                title,
                model: Some(model),
                provider: Some(provider),
                turns: source,
                tokens: 0,
                message_count: source,
                worktree: named(row.get()?),
                instance_id: named(row.get()?),
                dir: row.get()?,
                route: false,
                created_at: row.get()?,
                updated_at: row.get()?,
            })
        })
    }

    /// Routes made by hand or to an active instance, unless something listed is in their directory
    /// already.
    fn routes(&self, db: &Db) -> Result<Vec<Item>> {
        let sql = "SELECT r.worktree, r.instance_id, r.dir, r.created_at, r.updated_at
                     FROM worktree_routes AS r
                    WHERE r.team_id = ?1 AND r.workspace = ?2 AND r.subject_id = ?4
                      AND r.updated_at <= ?5
                      AND (r.updated_at < ?5 OR 'worktree:' || r.worktree >= ?6)
                      AND (r.instance_id = '' OR EXISTS (
                          SELECT 1 FROM worktrees AS w
                           WHERE w.team_id = ?1 AND w.workspace = ?2
                             AND w.instance_id = r.instance_id AND w.state = 'active'))
                      AND NOT EXISTS (
                          SELECT 1 FROM context_snapshots AS s
                           WHERE s.team_id = ?1 AND s.workspace = ?2 AND s.instance_id = ?3
                             AND s.subject_id = ?4 AND s.dir = r.dir)
                      AND NOT EXISTS (
                          SELECT 1 FROM contexts AS c INDEXED BY contexts_in_dir
                           WHERE c.team_id = ?1 AND c.workspace = ?2 AND c.instance_id = ?3
                             AND c.subject_id = ?4 AND c.dir = r.dir AND c.listed_at IS NOT NULL)
                    ORDER BY r.updated_at DESC, r.worktree
                    LIMIT ?7";
        self.read(db, sql, |row| {
            let (worktree, instance_id): (String, String) = (row.get()?, row.get()?);
            Ok(Item {
                kind: if instance_id.is_empty() { "route" } else { "route_to_instance" },
                name: format!("worktree:{worktree}"),
                session_id: None,
                title: None,
                model: None,
                provider: None,
                turns: 0,
                tokens: 0,
                message_count: 0,
                worktree: Some(worktree),
                instance_id: named(instance_id),
                dir: row.get()?,
                route: true,
                created_at: row.get()?,
                updated_at: row.get()?,
            })
        })
    }
}

fn named(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

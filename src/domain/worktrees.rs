//! Worktrees: working directories that agents make and remove, by name. Each life of one is an
//! instance: creating → active → deleting → deleted. What is kept under an instance can be used
//! only while it is active, which every such call asks inside its own transaction: a write that
//! was on its way when the deletion began fails and leaves nothing.
use crate::api::{Answer, Call};
use crate::domain::context_access::{APP_SCOPE, Scope, workspace};
use crate::domain::worktree_routes;
use crate::error::{Code, Error, Result};
use crate::guard;
use crate::ids::TeamId;
use crate::limits::{DIR_BYTES_MAX, ROWS_EXAMINED_MAX};
use crate::page::{Keyset, PageQuery};
use crate::params;
use crate::store::{Db, Row, Tx};
use serde_json::{Value as Json, json};

#[derive(Debug, Clone, serde::Serialize)]
pub struct Worktree {
    pub workspace: String,
    pub worktree: String,
    pub instance_id: String,
    pub path: String,
    pub state: String,
    pub adopted: bool,
    pub created_at: i64,
    pub updated_at: i64,
}

fn read(row: &mut Row) -> Result<Worktree> {
    Ok(Worktree {
        workspace: row.get()?,
        worktree: row.get()?,
        instance_id: row.get()?,
        path: row.get()?,
        state: row.get()?,
        adopted: row.get()?,
        created_at: row.get()?,
        updated_at: row.get()?,
    })
}

pub fn find(
    db: &Db,
    team_id: &TeamId,
    workspace: &str,
    instance_id: &str,
) -> Result<Option<Worktree>> {
    db.query_optional(
        "SELECT workspace, worktree, instance_id, path, state, adopted, created_at, updated_at
           FROM worktrees
          WHERE team_id = ?1 AND workspace = ?2 AND instance_id = ?3",
        params![team_id, workspace, instance_id],
        read,
    )
}

/// The state of an instance, if there is one.
pub fn state(
    db: &Db,
    team_id: &TeamId,
    workspace: &str,
    instance_id: &str,
) -> Result<Option<String>> {
    Ok(find(db, team_id, workspace, instance_id)?.map(|worktree| worktree.state))
}

/// `409 worktree_state`, with the state that there is.
pub fn refusal(message: impl Into<String>, state: Option<&str>) -> Error {
    Error::new(Code::WorktreeState, message).with("state", json!(state))
}

/// The scope names no worktree, or an active instance of the one it names.
pub fn require_active(db: &Db, team_id: &TeamId, scope: &Scope) -> Result<()> {
    if scope.instance_id.is_empty() {
        return Ok(());
    }
    let found = find(db, team_id, &scope.workspace, &scope.instance_id)?;
    let found = found.filter(|found| found.worktree == scope.worktree);
    match found.as_ref().map(|found| found.state.as_str()) {
        Some("active") => Ok(()),
        state => Err(refusal("the worktree's instance is not active", state)),
    }
}

pub fn name(field: &str, text: &str) -> Result<()> {
    guard::identifier(field, text)?;
    if text.contains(['/', '\\']) {
        return Err(Error::field(field, "must have no slash"));
    }
    Ok(())
}

/// An absolute path in its shortest form; whether it leads through links, only its machine knows.
pub fn path(field: &str, text: &str) -> Result<()> {
    if text.len() > DIR_BYTES_MAX || text.contains('\0') {
        let message = format!("must have at most {DIR_BYTES_MAX} bytes, and no NUL");
        return Err(Error::field(field, message));
    }
    let drive = text.as_bytes().get(1) == Some(&b':') && text.as_bytes()[0].is_ascii_alphabetic();
    let (rest, separators): (_, &[char]) =
        if drive { (&text[2..], &['/', '\\']) } else { (text, &['/']) };
    let Some(rest) = rest.strip_prefix(separators) else {
        return Err(Error::field(field, "must be an absolute path"));
    };
    let is_clean = |part: &str| !matches!(part, "" | "." | "..");
    if rest.is_empty() || rest.split(separators).all(is_clean) {
        return Ok(());
    }
    Err(Error::field(field, "must be in its shortest form: no empty part, no . and no .."))
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Begin {
    #[serde(default)]
    workspace: Option<String>,
    worktree: String,
    instance_id: String,
    path: String,
    #[serde(default)]
    adopt: bool,
}

/// `POST /worktrees` begins the creation of an instance, or with `adopt` that of one for a
/// directory that a route of the caller leads to already.
///
/// `409 worktree_state` where the instance is there, the name has one that is not deleted, or no
/// route leads to the directory to adopt.
pub fn begin(tx: &Tx, call: &Call) -> Result<Answer> {
    let Begin { workspace: asked, worktree, instance_id, path: dir, adopt } = call.json()?;
    let workspace = workspace(asked)?;
    name("worktree", &worktree)?;
    guard::identifier("instance_id", &instance_id)?;
    path("path", &dir)?;
    guard::member_or_app(&call.who, APP_SCOPE)?;
    let team_id = &call.who.team_id;
    if let Some(state) = state(tx, team_id, &workspace, &instance_id)? {
        return Err(refusal("there is an instance of that id", Some(&state)));
    }
    let alive = tx.query_optional(
        "SELECT state FROM worktrees
          WHERE team_id = ?1 AND workspace = ?2 AND worktree = ?3 AND state <> 'deleted'",
        params![team_id, &workspace, &worktree],
        |row| row.get::<String>(),
    )?;
    if let Some(state) = alive {
        return Err(refusal("the worktree has an instance that is not deleted", Some(&state)));
    }
    if adopt {
        worktree_routes::require(tx, &call.who, &workspace, &worktree, Some(&dir))?;
    }
    tx.execute(
        "INSERT INTO worktrees
             (team_id, workspace, instance_id, worktree, path, state, adopted, created_at,
              updated_at)
         VALUES (?1, ?2, ?3, ?4, ?5, 'creating', ?6, ?7, ?7)",
        params![team_id, &workspace, &instance_id, &worktree, &dir, adopt, tx.now_ms],
    )?;
    let begun = find(tx, team_id, &workspace, &instance_id)?;
    call.one(201, &begun.ok_or_else(|| Error::internal("a new instance is there"))?)
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    workspace: Option<String>,
    state: Option<Filter>,
    limit: Option<i64>,
    cursor: Option<String>,
}

#[derive(serde::Deserialize, Clone, Copy)]
#[serde(rename_all = "snake_case")]
enum Filter {
    Creating,
    Active,
    Deleting,
    Deleted,
    /// In any state but deleted.
    Live,
}

impl Filter {
    fn takes(self, state: &str) -> bool {
        match self {
            Filter::Creating => state == "creating",
            Filter::Active => state == "active",
            Filter::Deleting => state == "deleting",
            Filter::Deleted => state == "deleted",
            Filter::Live => state != "deleted",
        }
    }
}

/// Between the parts of a key, none of which has it.
const KEY_SEPARATOR: char = '\u{1f}';

/// `GET /worktrees` lists instances by name.
pub fn list(db: &Db, call: &Call) -> Result<Answer> {
    let ListQuery { workspace: asked, state, limit, cursor } = call.query()?;
    let workspace = workspace(asked)?;
    let filters = format!("{workspace}\n{}", state.map_or(0, |state| 1 + state as u8));
    let keyset = Keyset::new(call, &filters, &PageQuery { limit, cursor })?;
    guard::viewer_or_app(&call.who, APP_SCOPE)?;

    let (after_name, after_id) = keyset.after().split_once(KEY_SEPARATOR).unwrap_or_default();
    let examined = if state.is_some() { ROWS_EXAMINED_MAX } else { keyset.limit + 1 };
    let rows = db.query(
        "SELECT workspace, worktree, instance_id, path, state, adopted, created_at, updated_at
           FROM worktrees
          WHERE team_id = ?1 AND workspace = ?2 AND (worktree, instance_id) > (?3, ?4)
          ORDER BY worktree, instance_id
          LIMIT ?5",
        params![&call.who.team_id, &workspace, after_name, after_id, examined],
        read,
    )?;
    let key = |one: &Worktree| format!("{}{KEY_SEPARATOR}{}", one.worktree, one.instance_id);
    let last = rows.last().filter(|_| state.is_some() && rows.len() == examined).map(key);
    let mut taken = rows.into_iter().filter(|one| state.is_none_or(|s| s.takes(&one.state)));
    let taken = taken.by_ref().take(keyset.limit + 1).map(|one| (key(&one), one)).collect();
    let (items, next) = keyset.page_of_examined(taken, || Ok(last))?;
    call.list(&items, next.as_deref())
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct GetQuery {
    workspace: Option<String>,
}

/// `GET /worktrees/{instance}` answers one in whatever state.
pub fn get(db: &Db, call: &Call) -> Result<Answer> {
    guard::identifier("instance", call.segment(0))?;
    let workspace = workspace(call.query::<GetQuery>()?.workspace)?;
    guard::viewer_or_app(&call.who, APP_SCOPE)?;

    let found = find(db, &call.who.team_id, &workspace, call.segment(0))?;
    call.one(200, &found.ok_or_else(Error::not_found)?)
}

/// Which instance a transition is about. What the body says besides must be true of it.
pub struct Target {
    pub workspace: String,
    pub instance_id: String,
    worktree: Option<String>,
    path: Option<String>,
}

pub fn target(call: &Call) -> Result<Target> {
    #[derive(Default, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Fields {
        #[serde(default)]
        workspace: Option<String>,
        #[serde(default)]
        worktree: Option<String>,
        #[serde(default)]
        path: Option<String>,
    }
    let fields: Fields = if call.bytes().is_empty() { Fields::default() } else { call.json()? };
    let asked = call.query::<GetQuery>()?.workspace;
    if let (Some(asked), Some(sent)) = (&asked, &fields.workspace)
        && asked != sent
    {
        return Err(Error::field("workspace", "is another one in the address"));
    }
    let instance_id = call.segment(0).to_owned();
    guard::identifier("instance", &instance_id)?;
    if let Some(worktree) = &fields.worktree {
        name("worktree", worktree)?;
    }
    if let Some(dir) = &fields.path {
        path("path", dir)?;
    }
    let workspace = workspace(asked.or(fields.workspace))?;
    let Fields { worktree, path, .. } = fields;
    guard::member_or_app(&call.who, APP_SCOPE)?;
    Ok(Target { workspace, instance_id, worktree, path })
}

impl Target {
    /// The instance, if it is what the body says and in one of those states.
    pub fn find(&self, db: &Db, team_id: &TeamId, states: &[&str]) -> Result<Worktree> {
        let found = find(db, team_id, &self.workspace, &self.instance_id)?;
        let Some(found) = found else { return Err(refusal("there is no such instance", None)) };
        let is_other = |said: &Option<String>, is: &str| said.as_ref().is_some_and(|s| s != is);
        if is_other(&self.worktree, &found.worktree) || is_other(&self.path, &found.path) {
            let message = "the instance has another worktree or path";
            return Err(refusal(message, Some(&found.state)));
        }
        if states.contains(&found.state.as_str()) {
            return Ok(found);
        }
        let message = format!("the instance is {}, not {}", found.state, states.join(" or "));
        Err(refusal(message, Some(&found.state)))
    }
}

fn move_to(tx: &Tx, call: &Call, from: &str, to: &'static str) -> Result<Worktree> {
    let mut found = target(call)?.find(tx, &call.who.team_id, &[from])?;
    set(tx, &call.who.team_id, &mut found, to)?;
    Ok(found)
}

pub fn set(tx: &Tx, team_id: &TeamId, worktree: &mut Worktree, to: &'static str) -> Result<()> {
    tx.execute(
        "UPDATE worktrees SET state = ?4, updated_at = ?5
          WHERE team_id = ?1 AND workspace = ?2 AND instance_id = ?3",
        params![team_id, &worktree.workspace, &worktree.instance_id, to, tx.now_ms],
    )?;
    worktree.state = to.into();
    worktree.updated_at = tx.now_ms;
    Ok(())
}

/// `POST /worktrees/{instance}/register` makes a created instance active, and a route of the
/// caller to it. An adopted one needs the route that it was adopted by.
pub fn register(tx: &Tx, call: &Call) -> Result<Answer> {
    let team_id = &call.who.team_id;
    let mut found = target(call)?.find(tx, team_id, &["creating"])?;
    if found.adopted {
        let (workspace, worktree) = (&found.workspace, &found.worktree);
        worktree_routes::require(tx, &call.who, workspace, worktree, Some(&found.path))
            .map_err(|error| refusal(error.message, Some(&found.state)))?;
    }
    set(tx, team_id, &mut found, "active")?;
    worktree_routes::bind(tx, &call.who, &found)?;
    call.one(200, &found)
}

/// `POST /worktrees/{instance}/abandon` forgets an instance whose creation did not come to an end.
pub fn abandon(tx: &Tx, call: &Call) -> Result<Answer> {
    let found = target(call)?.find(tx, &call.who.team_id, &["creating"])?;
    tx.execute(
        "DELETE FROM worktrees WHERE team_id = ?1 AND workspace = ?2 AND instance_id = ?3",
        params![&call.who.team_id, &found.workspace, &found.instance_id],
    )?;
    let mut gone = json!(found);
    gone["state"] = Json::Null;
    call.one(200, &gone)
}

/// `POST /worktrees/{instance}/begin-deletion`: from then on nothing kept under it can be used.
pub fn begin_deletion(tx: &Tx, call: &Call) -> Result<Answer> {
    call.one(200, &move_to(tx, call, "active", "deleting")?)
}

/// `POST /worktrees/{instance}/reactivate` takes a deletion back.
pub fn reactivate(tx: &Tx, call: &Call) -> Result<Answer> {
    call.one(200, &move_to(tx, call, "deleting", "active")?)
}

/// `POST /worktrees/{instance}/validate` answers an active instance that is what the body says.
pub fn validate(tx: &Tx, call: &Call) -> Result<Answer> {
    call.one(200, &target(call)?.find(tx, &call.who.team_id, &["active"])?)
}

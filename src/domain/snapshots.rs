//! Conversations kept under a name, in a workspace or in one instance of a worktree. One that
//! says whose projection it is follows its live context: as long as that has something committed,
//! it is what is read, and a snapshot older than the last clearing is never read again.
use crate::api::{Answer, Call};
use crate::domain::bodies;
use crate::domain::context_access::{self, APP_SCOPE, Scope};
use crate::domain::context_checkpoints::{self, Working};
use crate::domain::context_commit::body;
use crate::domain::context_values::Stored;
use crate::domain::contexts::{self, Context};
use crate::domain::{snapshot_admissions, worktrees};
use crate::error::{Error, Result};
use crate::guard;
use crate::ids::{BodyId, Id, TeamId};
use crate::json;
use crate::limits::{
    IDENTIFIER_BYTES_MAX, SAFE_INTEGER_MAX, SNAPSHOT_NAME_BYTES_MAX, SNAPSHOTS_PRUNED_MAX,
};
use crate::params;
use crate::store::{Db, Tx};
use serde_json::value::RawValue;
use serde_json::{Value as Json, json};
use std::collections::BTreeSet;

/// An empty list, which is as good as nothing.
const NOTHING_BYTES: i64 = 2;

pub fn name(field: &str, text: &str) -> Result<()> {
    if text.trim().is_empty() || text.len() > SNAPSHOT_NAME_BYTES_MAX {
        let message = format!("must have 1 to {SNAPSHOT_NAME_BYTES_MAX} bytes and not be blank");
        return Err(Error::field(field, message));
    }
    if text.contains(['/', '\\', '\0']) {
        return Err(Error::field(field, "must have no slash and no NUL"));
    }
    Ok(())
}

pub struct Snapshot {
    row_id: i64,
    name: String,
    model: Option<String>,
    provider: Option<String>,
    turns: i64,
    tokens: i64,
    message_count: i64,
    dir: Option<String>,
    session_id: Option<String>,
    session_revision: Option<i64>,
    body_id: BodyId,
    size: i64,
    created_at: i64,
    updated_at: i64,
}

impl Snapshot {
    /// Its fields, with the live context that it is a projection of.
    fn shape(&self, live: Option<&Context>) -> Json {
        json!({
            "name": self.name,
            "model": self.model,
            "provider": self.provider,
            "turns": self.turns,
            "tokens": self.tokens,
            "message_count": self.message_count,
            "dir": self.dir,
            "session_id": live.map(|live| &live.id),
            "session_revision": live.and(self.session_revision),
            "title": live.and_then(|live| live.title.as_ref()),
            "created_at": self.created_at,
            "updated_at": self.updated_at,
        })
    }
}

/// What the fields of a snapshot would say of a live context that has none.
fn live_shape(live: &Context) -> Json {
    json!({
        "name": live.id,
        "model": live.binding.model,
        "provider": live.binding.provider,
        "turns": live.revision.source,
        "tokens": 0,
        "message_count": live.revision.source,
        "dir": live.dir,
        "session_id": live.id,
        "session_revision": live.revision.session,
        "title": live.title,
        "created_at": live.created_at,
        "updated_at": live.updated_at,
    })
}

pub fn find(db: &Db, call: &Call, scope: &Scope, name: &str) -> Result<Option<Snapshot>> {
    db.query_optional(
        "SELECT rowid, name, model, provider, turns, tokens, message_count, dir, session_id,
                session_revision, body_id, size, created_at, updated_at
           FROM context_snapshots
          WHERE team_id = ?1 AND workspace = ?2 AND instance_id = ?3 AND subject_id = ?4
            AND name = ?5",
        params![
            &call.who.team_id,
            &scope.workspace,
            &scope.instance_id,
            &call.who.principal_id,
            name
        ],
        |row| {
            Ok(Snapshot {
                row_id: row.get()?,
                name: row.get()?,
                model: row.get()?,
                provider: row.get()?,
                turns: row.get()?,
                tokens: row.get()?,
                message_count: row.get()?,
                dir: row.get()?,
                session_id: row.get()?,
                session_revision: row.get()?,
                body_id: row.get()?,
                size: row.get()?,
                created_at: row.get()?,
                updated_at: row.get()?,
            })
        },
    )
}

/// The caller's live context of that id, made in the same place.
pub fn live(db: &Db, call: &Call, scope: &Scope, id: &str) -> Result<Option<Context>> {
    let context = contexts::load(db, &call.who.team_id, id)?;
    Ok(context.filter(|context| {
        context_access::is_subjects(&call.who, scope, context)
            && context.instance_id == scope.instance_id
            && context.deleted_at.is_none()
    }))
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Put<'a> {
    /// Any JSON value but null, kept as it was sent.
    #[serde(borrow)]
    messages: &'a RawValue,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    provider: Option<String>,
    #[serde(default)]
    turns: i64,
    #[serde(default)]
    tokens: i64,
    #[serde(default)]
    message_count: i64,
    #[serde(default)]
    dir: Option<String>,
    #[serde(default)]
    session_id: Option<String>,
    /// Of the session when the messages were taken; by default its present one.
    #[serde(default)]
    session_revision: Option<i64>,
}

impl Put<'_> {
    fn validate(&self) -> Result<()> {
        if matches!(self.messages.get(), "null" | r#""""#) {
            return Err(Error::field("messages", "must not be empty"));
        }
        for (field, text) in [("model", &self.model), ("provider", &self.provider)] {
            if let Some(text) = text.as_deref().filter(|text| !text.is_empty()) {
                guard::label(field, text, IDENTIFIER_BYTES_MAX)?;
            }
        }
        let counts = [("turns", self.turns), ("tokens", self.tokens)];
        for (field, n) in counts.into_iter().chain([("message_count", self.message_count)]) {
            guard::in_range(field, n, 0..=SAFE_INTEGER_MAX)?;
        }
        if let Some(id) = &self.session_id {
            guard::identifier("session_id", id)?;
        }
        let revision = self.session_revision.unwrap_or(0);
        guard::in_range("session_revision", revision, 0..=SAFE_INTEGER_MAX)
    }
}

/// `PUT /snapshots/{name}` keeps a conversation under that name, in place of what was there. With
/// the name as its `session_id`, and a live context of that id, it is that one's projection.
pub fn put(tx: &Tx, call: &Call) -> Result<Answer> {
    let put: Put = body(call)?;
    name("name", call.segment(0))?;
    let scope = context_access::scope(call)?;
    put.validate()?;
    let dir = contexts::dir(put.dir.clone())?;
    guard::member_or_app(&call.who, APP_SCOPE)?;
    let team_id = &call.who.team_id;
    worktrees::require_active(tx, team_id, &scope)?;

    let declared = put.session_id.as_deref() == Some(call.segment(0));
    let of = if declared { live(tx, call, &scope, call.segment(0))? } else { None };
    let revision = of.as_ref().map(|of| put.session_revision.unwrap_or(of.revision.session));
    let messages = put.messages.get().as_bytes();
    let body_id = bodies::write(tx, team_id, messages)?;
    tx.execute(
        "INSERT INTO context_snapshots
             (team_id, workspace, instance_id, subject_id, name, worktree, model, provider, turns,
              tokens, message_count, dir, session_id, session_revision, body_id, size, created_at,
              updated_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?17)
         ON CONFLICT (team_id, workspace, instance_id, subject_id, name) DO UPDATE
            SET model = excluded.model, provider = excluded.provider, turns = excluded.turns,
                tokens = excluded.tokens, message_count = excluded.message_count,
                dir = excluded.dir, session_id = excluded.session_id,
                session_revision = excluded.session_revision, body_id = excluded.body_id,
                size = excluded.size, updated_at = excluded.updated_at",
        params![
            team_id,
            &scope.workspace,
            &scope.instance_id,
            &call.who.principal_id,
            call.segment(0),
            &scope.worktree,
            put.model.as_ref(),
            put.provider.as_ref(),
            put.turns,
            put.tokens,
            put.message_count,
            dir.as_ref(),
            of.as_ref().map(|of| &of.id),
            revision,
            &body_id,
            messages.len(),
            tx.now_ms
        ],
    )?;
    let saved = find(tx, call, &scope, call.segment(0))?;
    let saved = saved.ok_or_else(|| Error::internal("a saved snapshot is there"))?;
    call.one(200, &saved.shape(of.as_ref()))
}

/// What is read under a name.
enum Read {
    Snapshot(Option<Context>),
    /// The live context's working context; nothing once it was cleared.
    Live(Context, Option<Working>),
}

fn what_is_read(db: &Db, call: &Call, scope: &Scope, snapshot: Option<&Snapshot>) -> Result<Read> {
    let id = match snapshot {
        None => call.segment(0),
        Some(Snapshot { session_id: Some(id), .. }) => id,
        Some(_) => return Ok(Read::Snapshot(None)),
    };
    let Some(of) = live(db, call, scope, id)? else {
        return if snapshot.is_some() { Ok(Read::Snapshot(None)) } else { Err(Error::not_found()) };
    };
    let active = context_checkpoints::active(db, &call.who.team_id, &of)?;
    let active = active.filter(|active| active.size > NOTHING_BYTES);
    let fresh = snapshot.and_then(|snapshot| snapshot.session_revision);
    let is_fresh = fresh.is_some_and(|revision| revision >= of.revision.session);
    if active.is_none() && is_fresh {
        Ok(Read::Snapshot(Some(of)))
    } else {
        Ok(Read::Live(of, active))
    }
}

/// `GET /snapshots/{name}` answers the conversation: of a projection the live one, where that has
/// something committed or was cleared since; of a name without a snapshot the live context of that
/// id. `messages` stand as they were sent; those that are a payload are named instead.
pub fn get(db: &Db, call: &Call) -> Result<Answer> {
    name("name", call.segment(0))?;
    let scope = context_access::scope(call)?;
    guard::viewer_or_app(&call.who, APP_SCOPE)?;
    worktrees::require_active(db, &call.who.team_id, &scope)?;

    let snapshot = find(db, call, &scope, call.segment(0))?;
    let team_id = call.who.team_id.clone();
    let (mut shape, payload_ref, stored) =
        match (what_is_read(db, call, &scope, snapshot.as_ref())?, &snapshot) {
            (Read::Snapshot(of), Some(snapshot)) => {
                let Snapshot { body_id, size, .. } = snapshot;
                let stored = Stored { team_id, body_id: body_id.clone(), size: *size };
                (snapshot.shape(of.as_ref()), None, Some(stored))
            }
            (Read::Live(of, active), snapshot) => {
                let shape =
                    snapshot.as_ref().map_or_else(|| live_shape(&of), |s| s.shape(Some(&of)));
                match active {
                    None => (shape, None, None),
                    Some(Working { payload_ref, stored, .. }) => (shape, payload_ref, stored),
                }
            }
            (Read::Snapshot(_), None) => return Err(Error::not_found()),
        };
    shape["messages_ref"] = json!(payload_ref);
    let mut lead = shape.to_string();
    lead.truncate(lead.len() - 1);
    match stored.filter(|_| payload_ref.is_none()) {
        Some(stored) => {
            stored.enclosed(db, call, call.opened(&format!(r#"{lead},"messages":"#)), "}}")
        }
        None if payload_ref.is_some() => call.raw(format!(r#"{lead},"messages":null}}"#)),
        None => call.raw(format!(r#"{lead},"messages":[]}}"#)),
    }
}

/// A move of the head that does not clear takes the context's projection along, if that was not
/// older already.
pub fn keep_up(tx: &Tx, team_id: &TeamId, context: &Context, session_revision: i64) -> Result<()> {
    tx.execute(
        "UPDATE context_snapshots SET session_revision = ?6
          WHERE team_id = ?1 AND workspace = ?2 AND instance_id = ?3 AND subject_id = ?4
            AND name = ?5 AND session_id = ?5 AND session_revision >= ?7",
        params![
            team_id,
            &context.workspace,
            &context.instance_id,
            &context.subject_id,
            &context.id,
            session_revision,
            context.revision.session
        ],
    )
}

/// Removes a snapshot and its admission; the live context behind a projection is deleted too.
fn remove(tx: &Tx, call: &Call, scope: &Scope, snapshot: &Snapshot) -> Result<()> {
    tx.execute("DELETE FROM context_snapshots WHERE rowid = ?1", params![snapshot.row_id])?;
    snapshot_admissions::remove(tx, call, scope, &snapshot.name)?;
    if let Some(id) = &snapshot.session_id
        && let Some(mut of) = live(tx, call, scope, id)?
    {
        contexts::bury(tx, &call.who.team_id, call.who.principal_id.as_str(), &mut of)?;
    }
    Ok(())
}

/// `DELETE /snapshots/{name}` removes it with its admission, and the live context behind it; of a
/// name without a snapshot, the live context of that id. No capability is asked for.
pub fn delete(tx: &Tx, call: &Call) -> Result<Answer> {
    name("name", call.segment(0))?;
    let scope = context_access::scope(call)?;
    guard::member_or_app(&call.who, APP_SCOPE)?;
    worktrees::require_active(tx, &call.who.team_id, &scope)?;

    if let Some(snapshot) = find(tx, call, &scope, call.segment(0))? {
        remove(tx, call, &scope, &snapshot)?;
        return Ok(Answer::no_content());
    }
    snapshot_admissions::remove(tx, call, &scope, call.segment(0))?;
    let Some(mut of) = live(tx, call, &scope, call.segment(0))? else {
        // An admission that nothing had any more has gone all the same.
        return Ok(Answer::refusal(Error::not_found(), call.request_id));
    };
    contexts::bury(tx, &call.who.team_id, call.who.principal_id.as_str(), &mut of)?;
    Ok(Answer::no_content())
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Prune {
    names: Vec<String>,
}

/// `POST /snapshots/prune` removes those of the names that are there, as `DELETE` does, all or
/// none. What has no snapshot is left alone.
pub fn prune(tx: &Tx, call: &Call) -> Result<Answer> {
    let Prune { names } = json::body(call.bytes())?;
    let scope = context_access::scope(call)?;
    guard::at_most("names", names.len(), SNAPSHOTS_PRUNED_MAX)?;
    for (index, one) in names.iter().enumerate() {
        name(&format!("names[{index}]"), one)?;
    }
    guard::member_or_app(&call.who, APP_SCOPE)?;
    worktrees::require_active(tx, &call.who.team_id, &scope)?;

    let mut deleted = 0;
    for one in names.iter().collect::<BTreeSet<_>>() {
        if let Some(snapshot) = find(tx, call, &scope, one)? {
            remove(tx, call, &scope, &snapshot)?;
            deleted += 1;
        }
    }
    call.one(200, &json!({ "deleted": deleted }))
}

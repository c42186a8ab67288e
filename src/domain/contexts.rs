//! Contexts: an agent's durable conversation. A head with three revisions and a binding, source
//! events, payloads and checkpoints. A commit or a move of the head is one transaction that
//! compares the head first, so a conversation is never half-committed and, once cleared, never
//! comes back.
use crate::api::{Answer, Call};
use crate::domain::context_access::{self, APP_SCOPE, Capability, Scope, ScopeQuery};
use crate::domain::{context_audits, context_checkpoints, context_source, worktrees};
use crate::error::{Code, Error, Result};
use crate::guard;
use crate::ids::{AuditId, Id, TeamId};
use crate::json::Patch;
use crate::limits::{CONTEXT_TITLE_BYTES_MAX, DIR_BYTES_MAX, REVOKED_AGE_MS, SAFE_INTEGER_MAX};
use crate::page::PageQuery;
use crate::params;
use crate::store::{Db, Tx};
use serde_json::{Value as Json, json};

/// How often the head has moved, how often durably, and how many source events there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Revision {
    pub session: i64,
    pub durable: i64,
    pub source: i64,
}

impl Revision {
    pub fn validate(self, field: &str) -> Result<()> {
        for (name, n) in
            [("session", self.session), ("durable", self.durable), ("source", self.source)]
        {
            guard::in_range(&format!("{field}.{name}"), n, 0..=SAFE_INTEGER_MAX - 1)?;
        }
        Ok(())
    }

    /// After one move of the head that adds so many events.
    #[must_use]
    pub fn next(self, events: usize) -> Revision {
        let events = i64::try_from(events).unwrap_or(0);
        Revision {
            session: self.session + 1,
            durable: self.durable + 1,
            source: self.source + events,
        }
    }
}

/// What the conversation runs on.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Binding {
    pub provider: String,
    pub model: String,
    pub generation: i64,
}

impl Binding {
    pub fn validate(&self, field: &str) -> Result<()> {
        guard::identifier(format!("{field}.provider"), &self.provider)?;
        guard::identifier(format!("{field}.model"), &self.model)?;
        guard::in_range(&format!("{field}.generation"), self.generation, 1..=SAFE_INTEGER_MAX)
    }
}

/// A context's head.
#[derive(Debug, Clone)]
pub struct Context {
    pub id: String,
    pub workspace: String,
    pub worktree: String,
    /// Empty: in no worktree.
    pub instance_id: String,
    pub subject_id: String,
    pub capability_hash: Vec<u8>,
    pub revision: Revision,
    pub binding: Binding,
    /// The durable revision of the active checkpoint; nothing once cleared.
    pub checkpoint_revision: Option<i64>,
    pub title: Option<String>,
    pub dir: Option<String>,
    pub lease_at: Option<i64>,
    pub payload_count: i64,
    pub payload_bytes: i64,
    pub deleted_at: Option<i64>,
    pub audit_id: Option<AuditId>,
    pub created_at: i64,
    pub updated_at: i64,
}

impl Context {
    pub fn shape(&self) -> Json {
        let named = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        json!({
            "id": self.id,
            "workspace": self.workspace,
            "worktree": named(&self.worktree),
            "instance_id": named(&self.instance_id),
            "principal_id": self.subject_id,
            "revision": self.revision,
            "binding": self.binding,
            "title": self.title,
            "dir": self.dir,
            "lease_at": self.lease_at,
            "created_at": self.created_at,
            "updated_at": self.updated_at,
        })
    }

    fn tag(&self) -> String {
        let Revision { session, durable, source } = self.revision;
        format!("\"{session}-{durable}-{source}\"")
    }

    /// The head in its envelope.
    pub fn answer(&self, call: &Call) -> Result<Answer> {
        Ok(call.one(200, &self.shape())?.with("ETag", self.tag()))
    }
}

pub fn load(db: &Db, team_id: &TeamId, context_id: &str) -> Result<Option<Context>> {
    db.query_optional(
        "SELECT id, workspace, worktree, instance_id, subject_id, capability_hash,
                session_revision, durable_revision, source_revision, provider, model, generation,
                checkpoint_revision, title, dir, lease_at, payload_count, payload_bytes,
                deleted_at, audit_id, created_at, updated_at
           FROM contexts
          WHERE team_id = ?1 AND id = ?2",
        params![team_id, context_id],
        |row| {
            Ok(Context {
                id: row.get()?,
                workspace: row.get()?,
                worktree: row.get()?,
                instance_id: row.get()?,
                subject_id: row.get()?,
                capability_hash: row.get()?,
                revision: Revision { session: row.get()?, durable: row.get()?, source: row.get()? },
                binding: Binding {
                    provider: row.get()?,
                    model: row.get()?,
                    generation: row.get()?,
                },
                checkpoint_revision: row.get()?,
                title: row.get()?,
                dir: row.get()?,
                lease_at: row.get()?,
                payload_count: row.get()?,
                payload_bytes: row.get()?,
                deleted_at: row.get()?,
                audit_id: row.get()?,
                created_at: row.get()?,
                updated_at: row.get()?,
            })
        },
    )
}

/// The head is where the caller believes it to be.
pub fn compare(context: &Context, expected: Revision, binding: &Binding) -> Result<()> {
    if context.revision != expected {
        let message = "the context has moved on; read it and decide again";
        return Err(
            Error::new(Code::StaleRevision, message).with("revision", json!(context.revision))
        );
    }
    if context.binding != *binding {
        return Err(stale_binding(context));
    }
    Ok(())
}

fn stale_binding(context: &Context) -> Error {
    let message = "the context is bound otherwise; read it and decide again";
    Error::new(Code::StaleBinding, message).with("binding", json!(context.binding))
}

/// A title as it is kept; nothing where nothing is left of it.
fn title(text: &str) -> Result<Option<String>> {
    let title = text.trim();
    if title.len() > CONTEXT_TITLE_BYTES_MAX {
        let message = format!("may have at most {CONTEXT_TITLE_BYTES_MAX} bytes");
        return Err(Error::field("title", message));
    }
    if title.chars().any(char::is_control) {
        return Err(Error::field("title", "must have no control characters"));
    }
    Ok((!title.is_empty()).then(|| title.to_owned()))
}

/// A directory as it is kept; an empty one is none.
pub fn dir(text: Option<String>) -> Result<Option<String>> {
    let text = text.filter(|text| !text.is_empty());
    if let Some(dir) = &text {
        if dir.len() > DIR_BYTES_MAX {
            return Err(Error::field("dir", format!("may have at most {DIR_BYTES_MAX} bytes")));
        }
        if dir.contains('\0') {
            return Err(Error::field("dir", "must have no NUL"));
        }
    }
    Ok(text)
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Ensure {
    binding: Binding,
    #[serde(default)]
    dir: Option<String>,
    #[serde(default)]
    title: Option<String>,
}

/// `PUT /contexts/{context}` makes the context unless it is there, and answers its head.
///
/// `409 worktree_state` where the instance is not active or the context is in another; `403
/// principal_mismatch` for another's; `409 tombstoned`; `409 stale_binding`.
pub fn ensure(tx: &Tx, call: &Call) -> Result<Answer> {
    let Ensure { binding, dir: asked_dir, title: asked_title } = call.json()?;
    let context_id = context_access::context_id(call)?;
    let scope = context_access::scope(call)?;
    binding.validate("binding")?;
    let dir = dir(asked_dir)?;
    let title = asked_title.as_deref().map_or(Ok(None), title)?;
    let capability = Capability::read(call)?;
    guard::member_or_app(&call.who, APP_SCOPE)?;
    let hash = capability.bound()?;
    worktrees::require_active(tx, &call.who.team_id, &scope)?;

    if let Some(context) = load(tx, &call.who.team_id, context_id)? {
        if !context_access::is_owners(&call.who, &scope, hash, &context) {
            return Err(context_access::principal_mismatch());
        }
        context_access::in_its_worktree(tx, &call.who, &scope, &context)?;
        context_access::alive(&context)?;
        if context.binding != binding {
            return Err(stale_binding(&context));
        }
        return context.answer(call);
    }
    let context = insert(tx, call, &scope, hash, &binding, dir.as_deref(), title.as_deref())?;
    context.answer(call)
}

/// A new context with nothing in it.
pub fn insert(
    tx: &Tx,
    call: &Call,
    scope: &Scope,
    hash: &[u8; 32],
    binding: &Binding,
    dir: Option<&str>,
    title: Option<&str>,
) -> Result<Context> {
    let (team_id, context_id) = (&call.who.team_id, call.segment(0));
    tx.execute(
        "INSERT INTO contexts
             (team_id, id, workspace, worktree, instance_id, subject_id, capability_hash, provider,
              model, generation, title, dir, listed_at, created_at, updated_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12,
                 iif(?11 IS NULL, NULL, ?13), ?13, ?13)",
        params![
            team_id,
            context_id,
            &scope.workspace,
            &scope.worktree,
            &scope.instance_id,
            &call.who.principal_id,
            &hash[..],
            &binding.provider,
            &binding.model,
            binding.generation,
            title,
            dir,
            tx.now_ms
        ],
    )?;
    load(tx, team_id, context_id)?.ok_or_else(|| Error::internal("a new context is there"))
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct GetQuery {
    workspace: Option<String>,
    worktree: Option<String>,
    instance: Option<String>,
    events: Option<bool>,
    limit: Option<i64>,
    cursor: Option<String>,
}

/// `GET /contexts/{context}` answers the head and the active checkpoint, with the working context
/// as it was committed; a page of its source events too where `events=true` asks for them.
pub fn get(db: &Db, call: &Call) -> Result<Answer> {
    context_access::context_id(call)?;
    let GetQuery { workspace, worktree, instance, events, limit, cursor } = call.query()?;
    let scope = ScopeQuery { workspace, worktree, instance }.scope()?;
    let page = PageQuery { limit, cursor };
    crate::page::limit(page.limit)?;
    if events != Some(true) && page.cursor.is_some() {
        return Err(Error::field("cursor", "goes together with events=true"));
    }
    let capability = Capability::read(call)?;
    guard::viewer_or_app(&call.who, APP_SCOPE)?;
    let context = context_access::usable(db, &call.who, (&scope, call.segment(0)), &capability)?;

    let mut shape = context.shape();
    if events == Some(true) {
        let (events, next_cursor) = context_source::page(db, call, &context.id, &page, None)?;
        shape["events"] = json!(events);
        shape["next_cursor"] = json!(next_cursor);
    }
    let answer = context_checkpoints::answer(db, call, &context, &shape)?;
    Ok(answer.with("ETag", context.tag()))
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    #[serde(default)]
    title: Patch<String>,
}

/// `PATCH /contexts/{context}` gives it a title; null or nothing but spaces takes it away. It
/// needs no capability and moves no revision.
pub fn change(tx: &Tx, call: &Call) -> Result<Answer> {
    let Change { title: asked } = call.json()?;
    context_access::context_id(call)?;
    let title = match &asked {
        Patch::Set(text) => title(text)?,
        _ => None,
    };
    let scope = context_access::scope(call)?;
    guard::member_or_app(&call.who, APP_SCOPE)?;
    let mut context = context_access::subjects(tx, call, &scope)?;

    if asked != Patch::Keep && context.title != title {
        tx.execute(
            "UPDATE contexts
                SET title = ?3, updated_at = ?4,
                    listed_at = iif(?3 IS NULL AND source_revision = 0, NULL,
                                    coalesce(listed_at, ?4))
              WHERE team_id = ?1 AND id = ?2",
            params![&call.who.team_id, &context.id, title.as_ref(), tx.now_ms],
        )?;
        (context.title, context.updated_at) = (title, tx.now_ms);
    }
    context.answer(call)
}

/// `DELETE /contexts/{context}` ends it: its payloads are revoked and what it holds goes after a
/// year. Again: the same answer.
pub fn delete(tx: &Tx, call: &Call) -> Result<Answer> {
    context_access::context_id(call)?;
    let scope = context_access::scope(call)?;
    let capability = Capability::read(call)?;
    guard::member_or_app(&call.who, APP_SCOPE)?;
    let mut context = context_access::owned(tx, &call.who, (&scope, call.segment(0)), &capability)?;
    context_access::in_place(tx, &call.who, &scope, &context)?;

    if context.deleted_at.is_none() {
        bury(tx, &call.who.team_id, call.who.principal_id.as_str(), &mut context)?;
    }
    let data = json!({
        "revision": context.revision,
        "payloads_revoked": context.payload_count,
        "audit_id": context.audit_id,
    });
    call.one(200, &data)
}

/// Ends a context that is alive: its tombstone stays, and one audit.
pub fn bury(tx: &Tx, team_id: &TeamId, principal_id: &str, context: &mut Context) -> Result<()> {
    context.revision.session += 1;
    let revision = context.revision.session;
    let audit_id =
        context_audits::write(tx, (team_id, principal_id), &context.id, "delete", 0, revision)?;
    tx.execute(
        "UPDATE contexts
            SET session_revision = ?3, audit_id = ?4, deleted_at = ?5, updated_at = ?5,
                purge_at = ?5 + ?6, listed_at = NULL, lease_at = NULL
          WHERE team_id = ?1 AND id = ?2",
        params![team_id, &context.id, revision, &audit_id, tx.now_ms, REVOKED_AGE_MS],
    )?;
    context.deleted_at = Some(tx.now_ms);
    context.audit_id = Some(audit_id);
    Ok(())
}

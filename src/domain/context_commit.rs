//! A turn's commit: payloads, events, a checkpoint and the new head in one transaction.
use crate::api::{Answer, Call};
use crate::domain::context_access::{self, APP_SCOPE, Capability};
use crate::domain::context_checkpoints::{self, Sent};
use crate::domain::context_operations::{self, Done, Fingerprint};
use crate::domain::context_payloads::{self, Named, Payload};
use crate::domain::context_source::Event;
use crate::domain::contexts::{self, Binding, Context, Revision};
use crate::domain::worktrees;
use crate::error::{Error, Result};
use crate::guard;
use crate::json;
use crate::limits::{
    COMMIT_EVENTS_MAX, COMMIT_PAYLOADS_MAX, COMMIT_ROWS_AT_ONCE, IDENTIFIER_BYTES_MAX,
    LABEL_BYTES_MAX, SAFE_INTEGER_MAX,
};
use crate::params;
use crate::store::Tx;
use serde_json::json;
use std::collections::BTreeSet;

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Commit<'a> {
    operation_id: String,
    expected: Revision,
    binding: Binding,
    #[serde(default)]
    new_binding: Option<Binding>,
    events: Vec<Event>,
    #[serde(default, borrow)]
    payloads: Vec<Payload<'a>>,
    #[serde(borrow)]
    checkpoint: Sent<'a>,
}

/// A body with parts that are kept as they were sent.
pub fn body<'a, T: serde::Deserialize<'a>>(call: &Call<'a>) -> Result<T> {
    let text = std::str::from_utf8(call.bytes()).map_err(|_| json::not_utf8())?;
    json::object(text)
}

impl Commit<'_> {
    fn validate(&self) -> Result<()> {
        guard::identifier("operation_id", &self.operation_id)?;
        self.expected.validate("expected")?;
        self.binding.validate("binding")?;
        self.new_binding.as_ref().map_or(Ok(()), |binding| binding.validate("new_binding"))?;
        events(&self.events)?;
        guard::at_most("payloads", self.payloads.len(), COMMIT_PAYLOADS_MAX)?;
        context_payloads::validate(&self.payloads)?;
        let first = self.expected.source + i64::from(!self.events.is_empty());
        self.checkpoint.validate(first)
    }

    fn fingerprint(&self) -> Result<[u8; 32]> {
        let Sent { turn_id, algorithm, schema_version, summary_model, .. } = &self.checkpoint;
        let fields = (
            (&self.operation_id, self.expected, &self.binding, &self.new_binding),
            (&self.events, &self.payloads),
            (turn_id, algorithm, schema_version, summary_model),
            (self.checkpoint.source_start, &self.checkpoint.active_context_ref),
        );
        let hash = Fingerprint::of(&fields)?.and(self.checkpoint.summary_metadata);
        Ok(hash.and(self.checkpoint.active_context).end())
    }
}

/// Events as a commit or an import sends them.
pub fn events(events: &[Event]) -> Result<()> {
    guard::at_most("events", events.len(), COMMIT_EVENTS_MAX)?;
    for (index, event) in events.iter().enumerate() {
        let at = |name: &str| format!("events[{index}].{name}");
        guard::label(at("kind"), &event.kind, LABEL_BYTES_MAX)?;
        guard::label(at("role"), &event.role, LABEL_BYTES_MAX)?;
        guard::label(at("provenance"), &event.provenance, LABEL_BYTES_MAX)?;
        guard::label(at("redaction_status"), &event.redaction_status, LABEL_BYTES_MAX)?;
        if let Some(id) = &event.tool_call_id {
            guard::label(at("tool_call_id"), id, IDENTIFIER_BYTES_MAX)?;
        }
        if let Some(name) = &event.payload_ref {
            guard::label(at("payload_ref"), name, LABEL_BYTES_MAX)?;
        }
        guard::in_range(&at("size"), event.size, 0..=SAFE_INTEGER_MAX)?;
    }
    Ok(())
}

/// `POST /contexts/{context}/commit` publishes a finished turn. The same call again changes
/// nothing and answers alike, also when the head has moved on.
///
/// In this order: `409 worktree_state`; `403 principal_mismatch`, `404`; `409 tombstoned`; `409
/// checkpoint_conflict` for an operation id used otherwise; `409 stale_revision`; `409
/// stale_binding`; then what the payloads, events and the checkpoint say of each other.
pub fn commit(tx: &Tx, call: &Call) -> Result<Answer> {
    let commit: Commit = body(call)?;
    context_access::context_id(call)?;
    let scope = context_access::scope(call)?;
    commit.validate()?;
    let capability = Capability::read(call)?;
    guard::member_or_app(&call.who, APP_SCOPE)?;
    let team_id = &call.who.team_id;
    capability.bound()?;
    worktrees::require_active(tx, team_id, &scope)?;
    let context = context_access::owned(tx, &call.who, (&scope, call.segment(0)), &capability)?;
    context_access::alive(&context)?;
    context_access::in_its_worktree(tx, &call.who, &scope, &context)?;

    let fingerprint = commit.fingerprint()?;
    let key = ("commit", &fingerprint);
    let known = context_operations::known(tx, team_id, &context.id, &commit.operation_id, key)?;
    if let Some(done) = known {
        return answer(call, &done, true);
    }
    contexts::compare(&context, commit.expected, &commit.binding)?;

    let revision = commit.expected.next(commit.events.len());
    let binding = commit.new_binding.as_ref().unwrap_or(&commit.binding);
    let active_ref = commit.checkpoint.active_context_ref.as_deref();
    let named = commit.events.iter().filter_map(|event| event.payload_ref.as_deref());
    let named = Named { sources: named.collect::<BTreeSet<_>>(), active: active_ref };
    let active = context_payloads::name(tx, team_id, &context.id, &commit.payloads, &named)?;
    insert_events(tx, call, &context, &commit.events)?;
    let checkpoint_id = context_checkpoints::insert(
        tx,
        &context,
        team_id,
        &commit.checkpoint,
        &commit.operation_id,
        (revision, binding),
        active,
    )?;
    publish(tx, call, &context, revision, binding, Some(revision.durable))?;
    let done = Done { revision, checkpoint_id: Some(checkpoint_id) };
    context_operations::record(tx, team_id, &context.id, &commit.operation_id, key, &done)?;

    answer(call, &done, false)
}

fn answer(call: &Call, done: &Done, replayed: bool) -> Result<Answer> {
    let Done { revision, checkpoint_id } = done;
    let data = json!({ "revision": revision, "checkpoint_id": checkpoint_id,
                       "replayed": replayed });
    call.one(200, &data)
}

/// Writes events behind the context's last one.
pub fn insert_events(tx: &Tx, call: &Call, context: &Context, events: &[Event]) -> Result<()> {
    let mut next = context.revision.source + 1;
    for some in events.chunks(COMMIT_ROWS_AT_ONCE) {
        let rows = json::to_string(some)?;
        tx.execute(
            "INSERT INTO context_events
                 (team_id, context_id, sequence, kind, role, tool_call_id, payload_ref, size,
                  provenance, redaction_status, created_at)
             SELECT ?2, ?3, ?4 + e.key, e.value ->> 'kind', e.value ->> 'role',
                    e.value ->> 'tool_call_id', e.value ->> 'payload_ref', e.value ->> 'size',
                    e.value ->> 'provenance', e.value ->> 'redaction_status', ?5
               FROM json_each(?1) AS e",
            params![&rows, &call.who.team_id, &context.id, next, tx.now_ms],
        )?;
        next += i64::try_from(some.len()).unwrap_or(0);
    }
    Ok(())
}

/// Moves the head.
pub fn publish(
    tx: &Tx,
    call: &Call,
    context: &Context,
    revision: Revision,
    binding: &Binding,
    checkpoint_revision: Option<i64>,
) -> Result<()> {
    let committed = revision.durable > context.revision.durable
        && checkpoint_revision == Some(revision.durable);
    let moved = tx.execute_counted(
        "UPDATE contexts
            SET session_revision = ?3, durable_revision = ?4, source_revision = ?5,
                provider = ?6, model = ?7, generation = ?8, checkpoint_revision = ?9,
                first_commit_at = iif(?10, coalesce(first_commit_at, ?11), first_commit_at),
                listed_at = iif(?10 AND (?5 > 0 OR title IS NOT NULL), ?11, listed_at),
                updated_at = ?11
          WHERE team_id = ?1 AND id = ?2 AND session_revision = ?12",
        params![
            &call.who.team_id,
            &context.id,
            revision.session,
            revision.durable,
            revision.source,
            &binding.provider,
            &binding.model,
            binding.generation,
            checkpoint_revision,
            committed,
            tx.now_ms,
            context.revision.session
        ],
    )?;
    guard::changed_one(moved, Error::internal("the head was compared in this transaction"))?;
    context_checkpoints::schedule(tx, &call.who.team_id, &context.id)
}

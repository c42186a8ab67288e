//! A conversation from elsewhere: its events and payloads join a context, which is made if need
//! be. Only the source counter moves; no checkpoint is published.
use crate::api::{Answer, Call};
use crate::domain::context_access::{self, APP_SCOPE, Capability};
use crate::domain::context_checkpoints::conflict;
use crate::domain::context_commit::{self, body};
use crate::domain::context_operations::Fingerprint;
use crate::domain::context_payloads::{self, Named, Payload};
use crate::domain::context_source::Event;
use crate::domain::contexts::{self, Binding, Context};
use crate::domain::worktrees;
use crate::error::{Error, Result};
use crate::guard;
use crate::limits::COMMIT_PAYLOADS_MAX;
use crate::params;
use crate::store::Tx;
use serde_json::{Value as Json, json};
use std::collections::BTreeSet;

/// What a context that an import makes is bound to.
const LEGACY: &str = "legacy";

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Import<'a> {
    legacy_id: String,
    operation_key: String,
    events: Vec<Event>,
    #[serde(default, borrow)]
    payloads: Vec<Payload<'a>>,
}

/// `POST /contexts/{context}/import` adds events behind the last one. The same call again changes
/// nothing and answers alike.
///
/// `409 checkpoint_conflict` for a key used for something else.
pub fn import(tx: &Tx, call: &Call) -> Result<Answer> {
    let import: Import = body(call)?;
    context_access::context_id(call)?;
    let scope = context_access::scope(call)?;
    guard::identifier("legacy_id", &import.legacy_id)?;
    guard::identifier("operation_key", &import.operation_key)?;
    if import.events.is_empty() {
        return Err(Error::field("events", "must not be empty"));
    }
    context_commit::events(&import.events)?;
    guard::at_most("payloads", import.payloads.len(), COMMIT_PAYLOADS_MAX)?;
    context_payloads::validate(&import.payloads)?;
    let capability = Capability::read(call)?;
    guard::member_or_app(&call.who, APP_SCOPE)?;
    let hash = capability.bound()?;
    let team_id = &call.who.team_id;
    let context = if contexts::load(tx, team_id, call.segment(0))?.is_some() {
        context_access::usable(tx, &call.who, (&scope, call.segment(0)), &capability)?
    } else {
        worktrees::require_active(tx, team_id, &scope)?;
        let (provider, model) = (LEGACY.into(), LEGACY.into());
        let binding = Binding { provider, model, generation: 1 };
        contexts::insert(tx, call, &scope, hash, &binding, None, None)?
    };

    let fingerprint = Fingerprint::of(&(&import.events, &import.payloads))?.end();
    let known = tx.query_optional(
        "SELECT fingerprint, result_json FROM context_imports
          WHERE team_id = ?1 AND context_id = ?2 AND operation_key = ?3",
        params![team_id, &context.id, &import.operation_key],
        |row| Ok((row.get::<Vec<u8>>()?, row.get::<String>()?)),
    )?;
    if let Some((known, result)) = known {
        if known != fingerprint {
            let message = "this key was used for another import; use a new one";
            return Err(conflict(message).with("field", "operation_key"));
        }
        let mut result: Json =
            serde_json::from_str(&result).map_err(|e| Error::internal(e.to_string()))?;
        result["replayed"] = json!(true);
        return call.one(200, &result);
    }
    let result = insert(tx, call, &context, &import)?;
    tx.execute(
        "INSERT INTO context_imports
             (team_id, context_id, operation_key, fingerprint, result_json, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        params![
            team_id,
            &context.id,
            &import.operation_key,
            &fingerprint[..],
            &result.to_string(),
            tx.now_ms
        ],
    )?;
    call.one(200, &result)
}

fn insert(tx: &Tx, call: &Call, context: &Context, import: &Import) -> Result<Json> {
    let sources = import.events.iter().filter_map(|event| event.payload_ref.as_deref());
    let named = Named { sources: sources.collect::<BTreeSet<_>>(), active: None };
    context_payloads::name(tx, &call.who.team_id, &context.id, &import.payloads, &named)?;
    context_commit::insert_events(tx, call, context, &import.events)?;
    let mut revision = context.revision;
    revision.source = revision.next(import.events.len()).source;
    tx.execute(
        "UPDATE contexts
            SET source_revision = ?3, listed_at = coalesce(listed_at, ?4), updated_at = ?4
          WHERE team_id = ?1 AND id = ?2",
        params![&call.who.team_id, &context.id, revision.source, tx.now_ms],
    )?;
    Ok(json!({
        "status": "imported",
        "legacy_id": import.legacy_id,
        "operation_key": import.operation_key,
        "imported": import.events.len(),
        "from": context.revision.source + 1,
        "to": revision.source,
        "revision": revision,
        "replayed": false,
    }))
}

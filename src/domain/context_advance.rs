//! The head moves without a turn: cleared, bound otherwise, or set to another checkpoint.
use crate::api::{Answer, Call};
use crate::domain::context_access::{self, APP_SCOPE, Capability};
use crate::domain::context_checkpoints;
use crate::domain::context_commit;
use crate::domain::context_operations::{self, Done, Fingerprint};
use crate::domain::contexts::{self, Binding, Revision};
use crate::domain::{snapshots, worktrees};
use crate::error::{Error, Result};
use crate::guard;
use crate::limits::{IDENTIFIER_BYTES_MAX, LABEL_BYTES_MAX};
use crate::store::Tx;
use serde_json::json;

#[derive(serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Advance {
    operation_id: String,
    expected: Revision,
    binding: Binding,
    #[serde(default)]
    new_binding: Option<Binding>,
    #[serde(default)]
    clear: bool,
    #[serde(default)]
    checkpoint_id: Option<String>,
    reason: String,
}

impl Advance {
    fn validate(&self) -> Result<()> {
        guard::identifier("operation_id", &self.operation_id)?;
        self.expected.validate("expected")?;
        self.binding.validate("binding")?;
        self.new_binding.as_ref().map_or(Ok(()), |binding| binding.validate("new_binding"))?;
        if let Some(id) = &self.checkpoint_id {
            guard::label("checkpoint_id", id, IDENTIFIER_BYTES_MAX)?;
            if self.clear {
                return Err(Error::field("checkpoint_id", "does not go together with clear"));
            }
        }
        guard::label("reason", &self.reason, LABEL_BYTES_MAX)
    }
}

/// `POST /contexts/{context}/advance` clears the context, sets it to a checkpoint, or keeps the
/// one it has, and may bind it otherwise. The same call again changes nothing and answers alike.
///
/// Refused in the order of a commit; `409 checkpoint_conflict` for a checkpoint that is not there.
pub fn advance(tx: &Tx, call: &Call) -> Result<Answer> {
    let advance: Advance = call.json()?;
    context_access::context_id(call)?;
    let scope = context_access::scope(call)?;
    advance.validate()?;
    let capability = Capability::read(call)?;
    guard::member_or_app(&call.who, APP_SCOPE)?;
    let team_id = &call.who.team_id;
    capability.bound()?;
    worktrees::require_active(tx, team_id, &scope)?;
    let context = context_access::owned(tx, &call.who, (&scope, call.segment(0)), &capability)?;
    context_access::alive(&context)?;
    context_access::in_its_worktree(tx, &call.who, &scope, &context)?;

    let fingerprint = Fingerprint::of(&advance)?.end();
    let key = ("advance", &fingerprint);
    let known = context_operations::known(tx, team_id, &context.id, &advance.operation_id, key)?;
    if let Some(done) = known {
        return call.one(200, &json!({ "revision": done.revision, "replayed": true }));
    }
    contexts::compare(&context, advance.expected, &advance.binding)?;

    let revision = advance.expected.next(0);
    let binding = advance.new_binding.as_ref().unwrap_or(&advance.binding);
    let checkpoint = match &advance.checkpoint_id {
        Some(id) => Some(context_checkpoints::selectable(tx, team_id, &context, id)?),
        None if advance.clear => None,
        None => context.checkpoint_revision,
    };
    context_commit::publish(tx, call, &context, revision, binding, checkpoint)?;
    if !advance.clear {
        snapshots::keep_up(tx, team_id, &context, revision.session)?;
    }
    let done = Done { revision, checkpoint_id: advance.checkpoint_id.clone() };
    context_operations::record(tx, team_id, &context.id, &advance.operation_id, key, &done)?;

    call.one(200, &json!({ "revision": revision, "replayed": false }))
}

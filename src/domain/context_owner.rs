//! Who holds a context. Its owner says now and then that it is alive; a process that comes after
//! it takes the context over with a capability of its own, once the lease has run out.
use crate::api::{Answer, Call};
use crate::domain::context_access::{self, APP_SCOPE, Capability};
use crate::domain::contexts::{self, Context};
use crate::domain::{context_checkpoints, worktrees};
use crate::error::{Code, Error, Result};
use crate::guard;
use crate::limits::{LEASE_AGE_MS, SECOND_MS};
use crate::params;
use crate::store::Tx;
use serde_json::json;

/// `POST /contexts/{context}/reclaim` makes the caller's capability the owner's and answers what
/// `GET` would. It renews no lease.
///
/// `403 principal_mismatch` for another principal's; `409 tombstoned`; `400` for a context of a
/// worktree that is not named; `409 live_elsewhere`, with `Retry-After`, while the lease runs.
pub fn reclaim(tx: &Tx, call: &Call) -> Result<Answer> {
    call.no_fields()?;
    context_access::context_id(call)?;
    let scope = context_access::scope(call)?;
    let capability = Capability::read(call)?;
    guard::member_or_app(&call.who, APP_SCOPE)?;
    let hash = capability.bound()?;
    let team_id = &call.who.team_id;
    let context = contexts::load(tx, team_id, call.segment(0))?;
    let mut context = context.ok_or_else(Error::not_found)?;
    if !context_access::is_subjects(&call.who, &scope, &context) {
        return Err(context_access::principal_mismatch());
    }
    context_access::alive(&context)?;
    if !context.instance_id.is_empty() && scope.instance_id.is_empty() {
        let message = "the context was made in a worktree; name that one";
        return Err(Error::field("instance", message));
    }
    context_access::in_its_worktree(tx, &call.who, &scope, &context)?;
    worktrees::require_active(tx, team_id, &scope)?;
    is_free(&context, tx.now_ms)?;

    tx.execute(
        "UPDATE contexts SET capability_hash = ?3, updated_at = ?4
          WHERE team_id = ?1 AND id = ?2 AND capability_hash <> ?3",
        params![team_id, &context.id, &hash[..], tx.now_ms],
    )?;
    context.capability_hash = hash.to_vec();
    context_checkpoints::answer(tx, call, &context, &context.shape())
}

/// Exactly at its end a lease still runs.
fn is_free(context: &Context, now_ms: i64) -> Result<()> {
    let Some(lease_at) = context.lease_at else { return Ok(()) };
    let left_ms = lease_at + LEASE_AGE_MS - now_ms;
    if left_ms < 0 {
        return Ok(());
    }
    let retry_s = left_ms / SECOND_MS + 1;
    Err(Error::new(Code::LiveElsewhere, "another process holds the context and is alive")
        .with("lease_age_ms", now_ms - lease_at)
        .with_header("Retry-After", retry_s.to_string()))
}

/// `PUT /contexts/{context}/lease` says that the owner is alive. Whoever owns the context no more
/// changes nothing: `held` says so.
pub fn renew(tx: &Tx, call: &Call) -> Result<Answer> {
    let held = set_lease(tx, call, Some(tx.now_ms))?;
    let until = held.then_some(tx.now_ms + LEASE_AGE_MS);
    call.one(200, &json!({ "held": held, "expires_at": until }))
}

/// `DELETE /contexts/{context}/lease` lets go of it, if the caller is its owner.
pub fn release(tx: &Tx, call: &Call) -> Result<Answer> {
    set_lease(tx, call, None)?;
    Ok(Answer::no_content())
}

fn set_lease(tx: &Tx, call: &Call, lease_at: Option<i64>) -> Result<bool> {
    call.no_fields()?;
    context_access::context_id(call)?;
    let scope = context_access::scope(call)?;
    let capability = Capability::read(call)?;
    guard::member_or_app(&call.who, APP_SCOPE)?;
    let hash = capability.bound()?;
    let context = contexts::load(tx, &call.who.team_id, call.segment(0))?;
    let mine =
        context.filter(|context| context_access::is_owners(&call.who, &scope, hash, context));
    let Some(context) = mine.filter(|context| context.deleted_at.is_none()) else {
        return Ok(false);
    };
    tx.execute(
        "UPDATE contexts SET lease_at = ?3 WHERE team_id = ?1 AND id = ?2 AND lease_at IS NOT ?3",
        params![&call.who.team_id, &context.id, lease_at],
    )?;
    Ok(true)
}

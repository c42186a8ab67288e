//! Who may use a context: the workspace and worktree that a request names, the capability by
//! which a context's owner proves itself, and the checks that every call makes in one order.
use crate::api::Call;
use crate::auth::Principal;
use crate::domain::contexts::{self, Context};
use crate::domain::worktrees;
use crate::error::{Code, Error, Result};
use crate::guard;
use crate::ids::Id;
use crate::limits::CAPABILITY_BYTES;
use crate::store::Db;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// What an app needs for contexts, snapshots, worktrees and usage.
pub use crate::scopes::CONTEXTS as APP_SCOPE;
pub const CAPABILITY_HEADER: &str = "X-Context-Capability";
const WORKSPACE_DEFAULT: &str = "default";

/// Where a request looks: a workspace, and in it no worktree or one instance of one.
#[derive(Debug, Clone)]
pub struct Scope {
    pub workspace: String,
    pub worktree: String,
    /// Empty: in no worktree.
    pub instance_id: String,
}

/// The query of a call that takes nothing but its scope.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScopeQuery {
    pub workspace: Option<String>,
    pub worktree: Option<String>,
    pub instance: Option<String>,
}

impl ScopeQuery {
    pub fn scope(self) -> Result<Scope> {
        let workspace = workspace(self.workspace)?;
        let (worktree, instance_id) = match (self.worktree, self.instance) {
            (None, None) => (String::new(), String::new()),
            (Some(worktree), Some(instance_id)) => {
                worktrees::name("worktree", &worktree)?;
                guard::identifier("instance", &instance_id)?;
                (worktree, instance_id)
            }
            (None, _) => return Err(Error::field("worktree", "goes together with instance")),
            (_, None) => return Err(Error::field("instance", "goes together with worktree")),
        };
        Ok(Scope { workspace, worktree, instance_id })
    }
}

pub fn scope(call: &Call) -> Result<Scope> {
    call.query::<ScopeQuery>()?.scope()
}

pub fn workspace(asked: Option<String>) -> Result<String> {
    let workspace = asked.unwrap_or_else(|| WORKSPACE_DEFAULT.into());
    guard::identifier("workspace", &workspace)?;
    Ok(workspace)
}

/// The context that a path names.
pub fn context_id<'a>(call: &'a Call) -> Result<&'a str> {
    guard::identifier("context", call.segment(0))?;
    Ok(call.segment(0))
}

/// The hash of the capability that a request carries, if it carries one.
pub struct Capability(Option<[u8; 32]>);

impl Capability {
    /// `400` for what is no capability.
    pub fn read(call: &Call) -> Result<Capability> {
        let Some(text) = call.header("x-context-capability") else { return Ok(Capability(None)) };
        let bytes = URL_SAFE_NO_PAD.decode(text.trim().trim_end_matches('='));
        let bytes = bytes.ok().filter(|bytes| bytes.len() == CAPABILITY_BYTES);
        let bytes = bytes.ok_or_else(|| {
            Error::field(CAPABILITY_HEADER, "must be 32 bytes in base64url: 43 characters")
        })?;
        let proves = bytes.iter().any(|b| *b != 0);
        Ok(Capability(proves.then(|| Sha256::digest(&bytes).into())))
    }

    /// `403 principal_mismatch` where there is none.
    pub fn bound(&self) -> Result<&[u8; 32]> {
        self.0.as_ref().ok_or_else(|| {
            let message =
                format!("send the capability of this context's owner as {CAPABILITY_HEADER}");
            Error::new(Code::PrincipalMismatch, message)
        })
    }
}

pub fn principal_mismatch() -> Error {
    let message = "the context belongs to another owner, or to another capability of it";
    Error::new(Code::PrincipalMismatch, message)
}

/// Whether the context is the caller's, by principal and workspace.
pub fn is_subjects(who: &Principal, scope: &Scope, context: &Context) -> bool {
    context.subject_id == who.principal_id.as_str() && context.workspace == scope.workspace
}

/// Whether the caller proves to be the context's owner.
pub fn is_owners(who: &Principal, scope: &Scope, hash: &[u8; 32], context: &Context) -> bool {
    let same: bool = context.capability_hash.ct_eq(hash).into();
    is_subjects(who, scope, context) && same
}

/// The caller's own context, in whatever state.
///
/// In this order: `403 principal_mismatch` without a capability, `404`, `403` for another's.
pub fn owned(
    db: &Db,
    who: &Principal,
    (scope, context_id): (&Scope, &str),
    capability: &Capability,
) -> Result<Context> {
    let hash = capability.bound()?;
    let context = contexts::load(db, &who.team_id, context_id)?;
    let context = context.ok_or_else(Error::not_found)?;
    if is_owners(who, scope, hash, &context) { Ok(context) } else { Err(principal_mismatch()) }
}

/// The context is used where it was made: in no worktree, or in the same instance, which is
/// active. `409 worktree_state` otherwise.
pub fn in_place(db: &Db, who: &Principal, scope: &Scope, context: &Context) -> Result<()> {
    in_its_worktree(db, who, scope, context)?;
    worktrees::require_active(db, &who.team_id, scope)
}

/// As `in_place`, where that the instance is active has been asked already.
pub fn in_its_worktree(db: &Db, who: &Principal, scope: &Scope, context: &Context) -> Result<()> {
    if context.instance_id == scope.instance_id && context.worktree == scope.worktree {
        return Ok(());
    }
    let state = worktrees::state(db, &who.team_id, &context.workspace, &context.instance_id)?;
    let message = "the context was made in another worktree, or in none; name that one";
    Err(worktrees::refusal(message, state.as_deref()))
}

/// `409 tombstoned` once it was deleted.
pub fn alive(context: &Context) -> Result<()> {
    if context.deleted_at.is_none() {
        return Ok(());
    }
    let message = "the context was deleted, and its id is never used again";
    Err(Error::new(Code::Tombstoned, message))
}

/// The caller's own context, alive and in its place.
pub fn usable(
    db: &Db,
    who: &Principal,
    (scope, context_id): (&Scope, &str),
    capability: &Capability,
) -> Result<Context> {
    let context = owned(db, who, (scope, context_id), capability)?;
    in_place(db, who, scope, &context)?;
    alive(&context)?;
    Ok(context)
}

/// A context of the caller's principal, alive and in its place; no capability is asked for.
pub fn subjects(db: &Db, call: &Call, scope: &Scope) -> Result<Context> {
    let context = contexts::load(db, &call.who.team_id, call.segment(0))?;
    let context = context.ok_or_else(Error::not_found)?;
    if !is_subjects(&call.who, scope, &context) {
        return Err(principal_mismatch());
    }
    alive(&context)?;
    in_place(db, &call.who, scope, &context)?;
    Ok(context)
}

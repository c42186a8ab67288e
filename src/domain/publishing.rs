//! Who may publish to a source. Captures and uploads ask here, each time they write.
use crate::auth::{Kind, Principal, Role};
use crate::domain::sources;
use crate::error::{Error, Result};
use crate::guard;
use crate::ids::SourceId;
use crate::scopes;
use crate::store::Db;

/// The source that the caller publishes to: the one it names, or a machine's own.
///
/// `400` on `source_id` when none is named and there is none by default, `403` as [`role`] and
/// for a source that the caller sees but may not publish to, `404` for one that it does not see,
/// `409 conflict` while the source is paused or once it is revoked.
pub fn source(db: &Db, who: &Principal, source_id: Option<&SourceId>) -> Result<SourceId> {
    let source_id = source_id.or(who.source_id.as_ref());
    let source_id = source_id.ok_or_else(|| {
        Error::field("source_id", "name the source to publish to; only a machine has its own")
    })?;
    role(who)?;

    let found = sources::load(db, &who.team_id, source_id);
    let source = found.map_err(|error| error.with("field", "source_id"))?;
    let mine = match who.kind {
        Kind::Machine => who.source_id.as_ref() == Some(source_id),
        Kind::User | Kind::App => who.principal_id == source.custodian_id,
    };
    if !mine {
        sources::sees(who, &source).map_err(|error| error.with("field", "source_id"))?;
        let message = "a machine publishes to its own source, others where they are custodian";
        return Err(Error::forbidden(message));
    }

    match source.state.as_str() {
        "active" => Ok(source.id),
        "paused" => Err(Error::conflict("the source is paused; set its state to active first")),
        _ => Err(Error::conflict("the source is revoked; enrol its machine again")),
    }
}

/// The caller may publish at all: a member, a machine of one, or an app with the scope.
pub fn role(who: &Principal) -> Result<()> {
    match who.kind {
        Kind::User => guard::role(who, Role::Member),
        Kind::Machine if who.role >= Some(Role::Member) => Ok(()),
        Kind::Machine => Err(Error::forbidden("this machine's custodian may no longer publish")),
        Kind::App => guard::app_scope(who, scopes::CAPTURES_WRITE),
    }
}

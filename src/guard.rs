//! Checks that handlers state before or between their statements. Inside a transaction a failed
//! guard undoes everything.
use crate::auth::{Kind, Principal, Role};
use crate::error::{Error, Result};
use crate::ids::is_hex;
use crate::limits::{IDENTIFIER_BYTES_MAX, SHA256_DIGITS};
use std::ops::RangeInclusive;

/// The caller is a person with at least `role`.
pub fn role(who: &Principal, role: Role) -> Result<()> {
    if who.kind == Kind::User && who.role >= Some(role) {
        return Ok(());
    }
    Err(Error::forbidden(format!("this needs a user token with the role {}", role.text())))
}

/// The caller may read what its principal sees: a person, a machine for its custodian, or an app
/// with the scope.
pub fn reads(who: &Principal, scope: &str) -> Result<()> {
    match who.kind {
        Kind::User => Ok(()),
        Kind::Machine if who.role.is_some() => Ok(()),
        Kind::Machine => Err(Error::forbidden("this machine's custodian has left the team")),
        Kind::App => app_scope(who, scope),
    }
}

pub fn app_scope(who: &Principal, scope: &str) -> Result<()> {
    if who.scopes.iter().any(|held| held == scope) {
        return Ok(());
    }
    Err(Error::forbidden(format!("this needs the scope {scope}")))
}

/// What agents write by themselves: a member, or an app with the scope.
pub fn member_or_app(who: &Principal, scope: &str) -> Result<()> {
    match who.kind {
        Kind::User => role(who, Role::Member),
        Kind::App => app_scope(who, scope),
        Kind::Machine => Err(Error::forbidden("this needs a user's or an app's token")),
    }
}

/// As `member_or_app`, to read.
pub fn viewer_or_app(who: &Principal, scope: &str) -> Result<()> {
    if who.kind == Kind::User { Ok(()) } else { member_or_app(who, scope) }
}

/// The caller is this machine itself.
pub fn machine(who: &Principal, machine_id: &crate::ids::MachineId) -> Result<()> {
    if who.machine_id.as_ref() == Some(machine_id) {
        return Ok(());
    }
    Err(Error::forbidden("this needs that machine's own token"))
}

pub fn in_range(field: &str, n: i64, range: RangeInclusive<i64>) -> Result<()> {
    if range.contains(&n) {
        return Ok(());
    }
    Err(Error::field(field, format!("must be from {} to {}", range.start(), range.end())))
}

/// A text of 1 to `chars_max` characters without control characters.
pub fn line(field: &str, text: &str, chars_max: usize) -> Result<()> {
    let count = text.chars().count();
    if count == 0 || count > chars_max {
        return Err(Error::field(field, format!("must have 1 to {chars_max} characters")));
    }
    if text.chars().any(char::is_control) {
        return Err(Error::field(field, "must have no control characters"));
    }
    Ok(())
}

/// A text of 1 to `bytes_max` bytes without control characters.
pub fn label(field: impl Into<String>, text: &str, bytes_max: usize) -> Result<()> {
    if text.is_empty() || text.len() > bytes_max {
        return Err(Error::field(field, format!("must have 1 to {bytes_max} bytes")));
    }
    if text.bytes().any(|b| b < 0x20 || b == 0x7f) {
        return Err(Error::field(field, "must have no control characters"));
    }
    Ok(())
}

/// An id that a client chose: a label that is not only spaces.
pub fn identifier(field: impl Into<String>, text: &str) -> Result<()> {
    let field = field.into();
    label(field.clone(), text, IDENTIFIER_BYTES_MAX)?;
    if text.trim().is_empty() {
        return Err(Error::field(field, "must not be blank"));
    }
    Ok(())
}

/// A name: a line that is not only spaces.
pub fn name(field: &str, text: &str, chars_max: usize) -> Result<()> {
    line(field, text, chars_max)?;
    if text.trim().is_empty() {
        return Err(Error::field(field, "must not be empty"));
    }
    Ok(())
}

/// A SHA-256 as this API writes it.
pub fn sha256(field: impl Into<String>, text: &str) -> Result<()> {
    if is_hex(text, SHA256_DIGITS) {
        return Ok(());
    }
    let upper = is_hex(&text.to_ascii_lowercase(), SHA256_DIGITS);
    let message = if upper { "; these have upper-case letters" } else { "" };
    Err(Error::field(field, format!("must be {SHA256_DIGITS} lowercase hex digits{message}")))
}

pub fn at_most(field: &str, count: usize, items_max: usize) -> Result<()> {
    if count <= items_max {
        return Ok(());
    }
    Err(Error::field(field, format!("may have at most {items_max} items")))
}

/// For a write whose `WHERE` or `ON CONFLICT` is the guard.
pub fn changed_one(changed: u64, refused: Error) -> Result<()> {
    debug_assert!(changed <= 1, "a guarded write changes one row");
    if changed == 1 { Ok(()) } else { Err(refused) }
}

/// One more fits beside the `count` that a team or principal has.
pub fn room(what: &str, count: i64, count_max: usize) -> Result<()> {
    if usize::try_from(count).is_ok_and(|count| count < count_max) {
        return Ok(());
    }
    let message = format!("there may be at most {count_max} {what}; remove one first");
    Err(Error::conflict(message).with("limit", count_max))
}

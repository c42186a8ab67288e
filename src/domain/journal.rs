//! The journal: changes of authority and settings, deletions, exports, for the team's admins.
use crate::api::{Answer, Call};
use crate::auth::Role;
use crate::error::Result;
use crate::guard;
use crate::ids::{PrincipalId, TeamId};
use crate::page::{Keyset, PageQuery};
use crate::params;
use crate::store::Tx;

/// Writes one line; `target_id` is the resource that was changed.
pub fn write(tx: &Tx, call: &Call, action: &'static str, target_id: &str) -> Result<()> {
    write_as(tx, &call.who.team_id, &call.who.principal_id, action, target_id, call.request_id)
}

/// As `write`, for a change without a caller's request.
pub fn write_as(
    tx: &Tx,
    team_id: &TeamId,
    principal_id: &PrincipalId,
    action: &'static str,
    target_id: &str,
    request_id: &str,
) -> Result<()> {
    tx.execute(
        "INSERT INTO journal (team_id, principal_id, action, target_id, request_id, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        params![team_id, principal_id, action, target_id, request_id, tx.now_ms],
    )
}

/// As `write_as`, for the operator, who is no principal.
pub fn write_for_operator(
    tx: &Tx,
    team_id: &TeamId,
    action: &'static str,
    request_id: &str,
) -> Result<()> {
    tx.execute(
        "INSERT INTO journal (team_id, principal_id, action, target_id, request_id, created_at)
         VALUES (?1, 'operator', ?2, ?1, ?3, ?4)",
        params![team_id, action, request_id, tx.now_ms],
    )
}

#[derive(serde::Serialize)]
struct Entry {
    sequence: i64,
    principal_id: PrincipalId,
    action: String,
    target_id: String,
    request_id: String,
    created_at: i64,
}

/// `GET /journal` lists the journal, newest first.
pub fn list(db: &crate::store::Db, call: &Call) -> Result<Answer> {
    let query: PageQuery = call.query()?;
    let page = Keyset::new(call, "", &query)?;
    guard::role(&call.who, Role::Admin)?;

    // journal_by_time holds the sequence as its rowid. The key is time and sequence, so that lines
    // of one millisecond are neither skipped nor repeated.
    let (before_at, before) = position(page.after.as_deref())?;
    let entries = db.query(
        "SELECT sequence, principal_id, action, target_id, request_id, created_at
           FROM journal
          WHERE team_id = ?1 AND (created_at, sequence) < (?2, ?3)
          ORDER BY created_at DESC, sequence DESC
          LIMIT ?4",
        params![&call.who.team_id, before_at, before, page.limit + 1],
        |row| {
            let entry = Entry {
                sequence: row.get()?,
                principal_id: row.get()?,
                action: row.get()?,
                target_id: row.get()?,
                request_id: row.get()?,
                created_at: row.get()?,
            };
            Ok((format!("{}.{}", entry.created_at, entry.sequence), entry))
        },
    )?;

    let (items, next) = page.page(entries);
    call.list(&items, next.as_deref())
}

fn position(key: Option<&str>) -> Result<(i64, i64)> {
    use crate::limits::SAFE_INTEGER_MAX;
    let Some(key) = key else { return Ok((SAFE_INTEGER_MAX, SAFE_INTEGER_MAX)) };
    key.split_once('.')
        .and_then(|(at, sequence)| Some((at.parse().ok()?, sequence.parse().ok()?)))
        .ok_or_else(crate::page::invalid_cursor)
}

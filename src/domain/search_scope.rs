//! What a search may find: every indexed row carries tokens of its team, its session and the
//! session's sources, and an expression asks for those that the caller may see. So what it may not
//! see is no hit at all, and shows neither in a page's length nor in whether there is another one.
//!
//! When a session gets a further source, its newest `WIDENED_MESSAGES_MAX` messages get its token.
use crate::auth::Principal;
use crate::error::Result;
use crate::ids::{Id, SessionId, SourceId, TeamId};
use crate::limits::{SEARCH_SCOPE_MAX, SOURCES_MAX};
use crate::params;
use crate::store::Db;

fn team(team_id: &TeamId) -> String {
    format!("t{}", team_id.hex_digits())
}

fn session(session_id: &SessionId) -> String {
    format!("n{}", session_id.hex_digits())
}

fn source(source_id: &SourceId) -> String {
    format!("s{}", source_id.hex_digits())
}

/// The tokens of a session's rows in the index.
pub fn of_session<'a>(
    team_id: &TeamId,
    session_id: &SessionId,
    source_ids: impl IntoIterator<Item = &'a str>,
) -> String {
    let mut tokens = vec![team(team_id), session(session_id)];
    tokens.extend(source_ids.into_iter().filter_map(SourceId::parse).map(|id| source(&id)));
    tokens.dedup();
    tokens.join(" ")
}

/// The expression for what the caller may see; nothing where that is nothing.
pub fn of_caller(db: &Db, who: &Principal) -> Result<Option<String>> {
    let sources = db.query(
        "SELECT id, visibility = 'team' OR custodian_id = ?2
           FROM sources
          WHERE team_id = ?1
          LIMIT ?3",
        params![&who.team_id, &who.principal_id, SOURCES_MAX],
        |row| Ok((row.get::<SourceId>()?, row.get::<bool>()?)),
    )?;
    if sources.len() < SOURCES_MAX && sources.iter().all(|(_, seen)| *seen) {
        return Ok(Some(team(&who.team_id)));
    }
    let seen = sources.iter().filter(|(_, seen)| *seen).map(|(id, _)| source(id));
    let mut tokens: Vec<String> = seen.take(SEARCH_SCOPE_MAX).collect();
    let granted = db.query(
        "SELECT session_id FROM session_grants
          WHERE team_id = ?1 AND subject_kind = 'principal' AND subject_id = ?2
          LIMIT ?3",
        params![&who.team_id, &who.principal_id, SEARCH_SCOPE_MAX],
        |row| row.get::<SessionId>(),
    )?;
    let by_group = db.query(
        "SELECT g.session_id
           FROM group_members m CROSS JOIN session_grants g
             ON g.team_id = m.team_id AND g.subject_kind = 'group' AND g.subject_id = m.group_id
          WHERE m.team_id = ?1 AND m.principal_id = ?2
          LIMIT ?3",
        params![&who.team_id, &who.principal_id, SEARCH_SCOPE_MAX],
        |row| row.get::<SessionId>(),
    )?;
    tokens.extend(granted.iter().chain(&by_group).map(session));
    Ok((!tokens.is_empty()).then(|| tokens.join(" OR ")))
}

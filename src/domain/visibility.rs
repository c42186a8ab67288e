//! Who may see a session: whoever may see any of its sources (`team`: all members; `restricted`:
//! the custodian), or holds a grant for it, directly or through a group.
//!
//! A single session is asked by [`access`], a page of them by [`visible`]. Both follow the same
//! rule.
use crate::auth::{Kind, Principal, Role};
use crate::error::{Error, Result};
use crate::guard;
use crate::ids::SessionId;
use crate::params;
use crate::scopes;
use crate::store::{Db, FromCell};
use std::collections::{BTreeSet, HashSet};

pub const READ_SCOPE: &str = scopes::SESSIONS_READ;

/// How far the caller may go with a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    None,
    Read,
    Continue,
}

/// The caller's access to a session, deleted or not.
pub fn access(db: &Db, who: &Principal, session_id: &SessionId) -> Result<Access> {
    let (sees_source, granted) = db.query_one(
        "SELECT EXISTS (
                    SELECT 1
                      FROM origins o CROSS JOIN sources s
                        ON s.team_id = o.team_id AND s.id = o.source_id
                     WHERE o.team_id = ?1 AND o.session_id = ?2
                       AND (s.visibility = 'team' OR s.custodian_id = ?3)),
                max(coalesce((SELECT 1 + (access = 'continue')
                                FROM session_grants
                               WHERE team_id = ?1 AND session_id = ?2
                                 AND subject_kind = 'principal' AND subject_id = ?3), 0),
                    coalesce((SELECT max(1 + (g.access = 'continue'))
                                FROM group_members m CROSS JOIN session_grants g
                                  ON g.team_id = m.team_id AND g.session_id = ?2
                                 AND g.subject_kind = 'group' AND g.subject_id = m.group_id
                               WHERE m.team_id = ?1 AND m.principal_id = ?3), 0))",
        params![&who.team_id, session_id, &who.principal_id],
        |row| Ok((row.get::<bool>()?, row.get::<i64>()?)),
    )?;
    Ok(match (sees_source, granted) {
        (true, _) | (_, 2) => Access::Continue,
        (_, 1) => Access::Read,
        _ => Access::None,
    })
}

/// Refuses a session that the caller may not know of.
pub fn must_see(db: &Db, who: &Principal, session_id: &SessionId) -> Result<()> {
    guard::reads(who, READ_SCOPE)?;
    if access(db, who, session_id)? == Access::None {
        return Err(Error::not_found());
    }
    Ok(())
}

/// Refuses a session that the caller may not carry on: unknown is 404, only readable 403.
pub fn must_continue(db: &Db, who: &Principal, session_id: &SessionId) -> Result<()> {
    match access(db, who, session_id)? {
        Access::None => Err(Error::not_found()),
        Access::Continue if who.kind != Kind::User || who.role >= Some(Role::Member) => Ok(()),
        Access::Read | Access::Continue => {
            Err(Error::forbidden("this session may only be read by this token"))
        }
    }
}

/// Refuses a caller who sees a session but may not decide about it: only the custodian of one of
/// its sources and admins may.
pub fn must_govern(db: &Db, who: &Principal, session_id: &SessionId) -> Result<()> {
    if who.role >= Some(Role::Admin) {
        return Ok(());
    }
    let custodian = db.query_one(
        "SELECT EXISTS (
                    SELECT 1
                      FROM origins o CROSS JOIN sources s
                        ON s.team_id = o.team_id AND s.id = o.source_id
                     WHERE o.team_id = ?1 AND o.session_id = ?2 AND s.custodian_id = ?3)",
        params![&who.team_id, session_id, &who.principal_id],
        |row| row.get::<bool>(),
    )?;
    if custodian {
        return Ok(());
    }
    Err(Error::forbidden("this needs the custodian of one of the session's sources, or an admin"))
}

/// A session that a list has come across, with what `sessions.origins_json` says of it.
pub struct Candidate<'a> {
    pub session_id: &'a str,
    pub origins: &'a [(String, String, String)],
}

/// The ids of those candidates that the caller may see. Reads each source once, and grants only
/// for the sessions that no source shows.
pub fn visible(db: &Db, who: &Principal, candidates: &[Candidate]) -> Result<HashSet<String>> {
    let sources: HashSet<&str> = candidates
        .iter()
        .flat_map(|candidate| candidate.origins)
        .map(|(source_id, _, _)| source_id.as_str())
        .collect();
    let sources: HashSet<String> = select(
        db,
        "SELECT s.id
           FROM json_each(?1) j CROSS JOIN sources s ON s.team_id = ?2 AND s.id = j.value
          WHERE s.visibility = 'team' OR s.custodian_id = ?3",
        who,
        &sources.into_iter().collect::<Vec<_>>(),
    )?;
    let (seen, rest): (Vec<&Candidate>, Vec<&Candidate>) = candidates
        .iter()
        .partition(|c| c.origins.iter().any(|(source_id, _, _)| sources.contains(source_id)));
    let mut seen: HashSet<String> = seen.iter().map(|c| c.session_id.to_owned()).collect();
    let rest: Vec<&str> = rest.iter().map(|c| c.session_id).collect();
    if !rest.is_empty() {
        seen.extend::<HashSet<String>>(select(
            db,
            "SELECT j.value
               FROM json_each(?1) j
              WHERE EXISTS (
                        SELECT 1 FROM session_grants g
                         WHERE g.team_id = ?2 AND g.session_id = j.value
                           AND g.subject_kind = 'principal' AND g.subject_id = ?3)
                 OR EXISTS (
                        SELECT 1
                          FROM group_members m CROSS JOIN session_grants g
                            ON g.team_id = m.team_id AND g.session_id = j.value
                           AND g.subject_kind = 'group' AND g.subject_id = m.group_id
                         WHERE m.team_id = ?2 AND m.principal_id = ?3)",
            who,
            &rest,
        )?);
    }
    Ok(seen)
}

/// The ids of those sessions that are there and that the caller may see.
pub fn sessions_seen(
    db: &Db,
    who: &Principal,
    session_ids: &BTreeSet<String>,
) -> Result<HashSet<String>> {
    if session_ids.is_empty() {
        return Ok(HashSet::new());
    }
    let ids = serde_json::to_string(session_ids).map_err(|e| Error::internal(e.to_string()))?;
    let stored = db.query(
        "SELECT s.id, s.origins_json
           FROM json_each(?1) j CROSS JOIN sessions s ON s.team_id = ?2 AND s.id = j.value
          WHERE s.deleted_at IS NULL",
        params![&ids, &who.team_id],
        |row| Ok((row.get::<String>()?, row.get::<Origins>()?)),
    )?;
    let candidates: Vec<Candidate> = stored
        .iter()
        .map(|(session_id, Origins(origins))| Candidate { session_id, origins })
        .collect();
    visible(db, who, &candidates)
}

/// The ids of those sources that show their sessions to the caller.
pub fn sources_seen(
    db: &Db,
    who: &Principal,
    source_ids: &BTreeSet<String>,
) -> Result<HashSet<String>> {
    if source_ids.is_empty() {
        return Ok(HashSet::new());
    }
    select(
        db,
        "SELECT s.id
           FROM json_each(?1) j CROSS JOIN sources s ON s.team_id = ?2 AND s.id = j.value
          WHERE s.visibility = 'team' OR s.custodian_id = ?3",
        who,
        &source_ids.iter().map(String::as_str).collect::<Vec<_>>(),
    )
}

fn select<C: FromIterator<String>>(
    db: &Db,
    sql: &'static str,
    who: &Principal,
    ids: &[&str],
) -> Result<C> {
    let ids = serde_json::to_string(ids).map_err(|e| Error::internal(e.to_string()))?;
    let found =
        db.query(sql, params![&ids, &who.team_id, &who.principal_id], |row| row.get::<String>())?;
    Ok(found.into_iter().collect())
}

/// The origins of a session as its row keeps them.
pub struct Origins(pub Vec<(String, String, String)>);

impl FromCell for Origins {
    fn from_cell(cell: crate::store::Cell) -> Result<Self> {
        let text = String::from_cell(cell)?;
        serde_json::from_str(&text)
            .map(Origins)
            .map_err(|e| Error::internal(format!("origins_json: {e}")))
    }
}

//! What a list of sessions pages over: the next 500 sessions as `[session_id, revision, rowid,
//! message]` (the message that was found, when searching), filtered by what the caller may see.
//!
//! A snapshot is stored as a cursor that never changes. Behind its last pair the next one begins.
use crate::api::Call;
use crate::domain::search::{self, Search};
use crate::domain::search_scope;
use crate::domain::sessions::Stored;
use crate::domain::visibility::{self, Candidate};
use crate::error::{Error, Result};
use crate::ids::{CursorId, Id};
use crate::limits::{
    CURSOR_AGE_MS, SAFE_INTEGER_MAX, SEARCH_HITS_PER_STEP, SEARCH_ROWS_MAX, SEARCH_SESSIONS_MAX,
    SNAPSHOT_PAIRS_MAX,
};
use crate::page::invalid_cursor;
use crate::params;
use crate::store::Db;
use serde_json::json;
use std::collections::{HashMap, HashSet};

/// A query made ready: what is searched, and which sessions pass.
pub struct Filter {
    pub search: Option<Search>,
    pub harness: Option<String>,
    /// Sources of which a session must have one.
    pub sources: Option<HashSet<String>>,
    pub updated_after: i64,
    pub hash: String,
}

impl Filter {
    fn passes(&self, session: &Stored) -> bool {
        session.deleted_at.is_none()
            && session.updated_at > self.updated_after
            && self.harness.as_ref().is_none_or(|harness| *harness == session.harness)
            && self.sources.as_ref().is_none_or(|sources| {
                session.origins.iter().any(|(source_id, _, _)| sources.contains(source_id))
            })
    }
}

/// `[session_id, revision, rowid of the session, rowid of the message found]`.
pub type Pair = (String, i64, i64, Option<i64>);

pub struct Snapshot {
    /// Nothing while it is not stored.
    pub cursor_id: Option<CursorId>,
    pub pairs: Vec<Pair>,
    /// Where the next snapshot begins, if there may be one.
    pub after: Option<After>,
}

#[derive(serde::Serialize, serde::Deserialize)]
#[serde(untagged)]
pub enum After {
    List { updated_at: i64, id: String },
    Search { titles_before: i64, before: i64, seen: Vec<String> },
}

pub fn take(db: &Db, call: &Call, filter: &Filter, after: Option<After>) -> Result<Snapshot> {
    match (&filter.search, after) {
        (None, None) => take_list(db, call, filter, SAFE_INTEGER_MAX, ""),
        (None, Some(After::List { updated_at, id })) => {
            take_list(db, call, filter, updated_at, &id)
        }
        (Some(search), None) => {
            let begin = (SAFE_INTEGER_MAX, SAFE_INTEGER_MAX, Vec::new());
            Taking::new(db, call, filter, search, begin)?.run()
        }
        (Some(search), Some(After::Search { titles_before, before, seen })) => {
            Taking::new(db, call, filter, search, (titles_before, before, seen))?.run()
        }
        _ => Err(invalid_cursor()),
    }
}

/// The next sessions by time. It examines as many as a snapshot holds: those that do not pass
/// leave it shorter.
fn take_list(db: &Db, call: &Call, filter: &Filter, updated_at: i64, id: &str) -> Result<Snapshot> {
    // sessions_by_update
    let mut rows = db.query(
        "SELECT id, revision, edits, harness, title, title_by, message_count, created_at,
                updated_at, deleted_at, origins_json, rowid
           FROM sessions
          WHERE team_id = ?1 AND (updated_at, id) < (?2, ?3) AND updated_at > ?4
          ORDER BY updated_at DESC, id DESC
          LIMIT ?5",
        params![&call.who.team_id, updated_at, id, filter.updated_after, SNAPSHOT_PAIRS_MAX + 1],
        |row| Ok((Stored::read(row)?, row.get::<i64>()?)),
    )?;
    let more = rows.len() > SNAPSHOT_PAIRS_MAX;
    rows.truncate(SNAPSHOT_PAIRS_MAX);
    let after = rows.last().filter(|_| more).map(|(last, _)| After::List {
        updated_at: last.updated_at,
        id: last.session_id.to_string(),
    });
    rows.retain(|(session, _)| filter.passes(session));
    let visible = visible(db, call, rows.iter().map(|(session, _)| session))?;
    let pairs = rows
        .into_iter()
        .filter(|(session, _)| visible.contains(session.session_id.as_str()))
        .map(|(session, row_id)| (session.session_id.to_string(), session.revision, row_id, None))
        .collect();
    Ok(Snapshot { cursor_id: None, pairs, after })
}

pub fn visible<'a>(
    db: &Db,
    call: &Call,
    sessions: impl Iterator<Item = &'a Stored>,
) -> Result<HashSet<String>> {
    let candidates: Vec<Candidate> = sessions
        .map(|session| Candidate {
            session_id: session.session_id.as_str(),
            origins: &session.origins,
        })
        .collect();
    visibility::visible(db, &call.who, &candidates)
}

/// A search under way: messages from the newest on, then titles of sessions in which no message
/// was found, until the page's rows are spent.
struct Taking<'a> {
    db: &'a Db<'a>,
    call: &'a Call<'a>,
    filter: &'a Filter,
    expression: Option<String>,
    titles_before: Option<i64>,
    before: Option<i64>,
    seen: HashSet<String>,
    pairs: Vec<Pair>,
    rows_spent: usize,
}

impl<'a> Taking<'a> {
    fn new(
        db: &'a Db<'a>,
        call: &'a Call<'a>,
        filter: &'a Filter,
        search: &'a Search,
        (titles_before, before, seen): (i64, i64, Vec<String>),
    ) -> Result<Taking<'a>> {
        Ok(Taking {
            db,
            call,
            filter,
            expression: search.within(search_scope::of_caller(db, &call.who)?.as_deref()),
            // Nothing is older than the first row.
            titles_before: (titles_before > 0).then_some(titles_before),
            before: (before > 0).then_some(before),
            seen: seen.into_iter().collect(),
            pairs: Vec::new(),
            rows_spent: 0,
        })
    }

    fn run(mut self) -> Result<Snapshot> {
        while let Some(expression) = self.expression.clone() {
            let full = self.pairs.len() + SEARCH_HITS_PER_STEP > SNAPSHOT_PAIRS_MAX;
            if full || self.rows_spent >= SEARCH_ROWS_MAX {
                break;
            }
            if let Some(before) = self.before {
                self.before = self.step_messages(&expression, before)?;
            } else if let Some(before) = self.titles_before {
                self.titles_before = self.step_titles(&expression, before)?;
            } else {
                break;
            }
        }
        let more = self.expression.is_some()
            && (self.titles_before.is_some() || self.before.is_some())
            && self.seen.len() < SEARCH_SESSIONS_MAX;
        let mut seen: Vec<String> = self.seen.into_iter().collect();
        seen.sort_unstable();
        let after = more.then(|| After::Search {
            titles_before: self.titles_before.unwrap_or(0),
            before: self.before.unwrap_or(0),
            seen,
        });
        Ok(Snapshot { cursor_id: None, pairs: self.pairs, after })
    }

    fn step_titles(&mut self, expression: &str, before: i64) -> Result<Option<i64>> {
        let (row_ids, more) = search::titles(self.db, expression, before, SEARCH_HITS_PER_STEP)?;
        self.rows_spent += row_ids.len();
        let sessions = by_row_id(self.db, self.call, &row_ids)?;
        self.rows_spent += 2 * row_ids.len();
        self.keep(sessions, |_| None)?;
        Ok(more)
    }

    fn step_messages(&mut self, expression: &str, before: i64) -> Result<Option<i64>> {
        let (found, more) = search::messages(self.db, expression, before, SEARCH_HITS_PER_STEP)?;
        self.rows_spent += 2 * found.len();
        let mut newest: HashMap<String, i64> = HashMap::new();
        let mut order = Vec::new();
        for hit in found {
            if !self.seen.contains(&hit.session_id) && !newest.contains_key(&hit.session_id) {
                newest.insert(hit.session_id.clone(), hit.row_id);
                order.push(hit.session_id);
            }
        }
        let sessions = self.by_id(&order)?;
        self.rows_spent += 3 * order.len();
        self.keep(sessions, |session_id| newest.get(session_id).copied())?;
        Ok(more)
    }

    fn by_id(&self, session_ids: &[String]) -> Result<Vec<(Stored, i64)>> {
        self.db.query(
            "SELECT s.id, s.revision, s.edits, s.harness, s.title, s.title_by, s.message_count,
                    s.created_at, s.updated_at, s.deleted_at, s.origins_json, s.rowid
               FROM json_each(?2) j CROSS JOIN sessions s ON s.team_id = ?1 AND s.id = j.value",
            params![&self.call.who.team_id, &json!(session_ids).to_string()],
            |row| Ok((Stored::read(row)?, row.get()?)),
        )
    }

    fn keep(
        &mut self,
        mut sessions: Vec<(Stored, i64)>,
        message: impl Fn(&str) -> Option<i64>,
    ) -> Result<()> {
        sessions.retain(|(session, _)| self.filter.passes(session));
        let visible = visible(self.db, self.call, sessions.iter().map(|(session, _)| session))?;
        for (session, row_id) in sessions {
            let session_id = session.session_id.to_string();
            if visible.contains(&session_id) && self.seen.insert(session_id.clone()) {
                let message = message(&session_id);
                self.pairs.push((session_id, session.revision, row_id, message));
            }
        }
        Ok(())
    }
}

pub fn by_row_id(db: &Db, call: &Call, row_ids: &[i64]) -> Result<Vec<(Stored, i64)>> {
    db.query(
        "SELECT s.id, s.revision, s.edits, s.harness, s.title, s.title_by, s.message_count,
                s.created_at, s.updated_at, s.deleted_at, s.origins_json, s.rowid
           FROM json_each(?2) j CROSS JOIN sessions s ON s.rowid = j.value
          WHERE s.team_id = ?1",
        params![&call.who.team_id, &json!(row_ids).to_string()],
        |row| Ok((Stored::read(row)?, row.get()?)),
    )
}

pub fn store(
    db: &Db,
    call: &Call,
    filter: &Filter,
    cursor_id: CursorId,
    snapshot: Snapshot,
) -> Result<Snapshot> {
    let text =
        |value: serde_json::Result<String>| value.map_err(|e| Error::internal(e.to_string()));
    let pairs = text(serde_json::to_string(&snapshot.pairs))?;
    let after =
        snapshot.after.as_ref().map(|after| text(serde_json::to_string(after))).transpose()?;
    db.transaction(|tx| {
        tx.execute(
            "INSERT INTO cursors
                 (id, team_id, principal_id, kind, filters_hash, snapshot_json, after_json,
                  expires_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
             ON CONFLICT (id) DO NOTHING",
            params![
                &cursor_id,
                &call.who.team_id,
                &call.who.principal_id,
                if filter.search.is_some() { "search" } else { "list" },
                &filter.hash,
                &pairs,
                after.as_deref(),
                tx.now_ms + CURSOR_AGE_MS
            ],
        )
    })?;
    Ok(Snapshot { cursor_id: Some(cursor_id), ..snapshot })
}

/// A stored snapshot; nothing once it ran out.
pub fn load(db: &Db, filter: &Filter, cursor_id: &CursorId) -> Result<Option<Snapshot>> {
    let stored = db.query_optional(
        "SELECT filters_hash, snapshot_json, after_json, expires_at FROM cursors WHERE id = ?1",
        params![cursor_id],
        |row| {
            let (hash, pairs) = (row.get::<String>()?, row.get::<String>()?);
            Ok((hash, pairs, row.get::<Option<String>>()?, row.get::<i64>()?))
        },
    )?;
    let Some((hash, pairs, after, expires_at)) = stored else { return Ok(None) };
    // The hash covers the team and the principal too.
    if hash != filter.hash {
        return Err(invalid_cursor());
    }
    if expires_at <= db.now_ms {
        return Ok(None);
    }
    let broken = |e: serde_json::Error| Error::internal(format!("a cursor: {e}"));
    Ok(Some(Snapshot {
        cursor_id: Some(cursor_id.clone()),
        pairs: serde_json::from_str(&pairs).map_err(broken)?,
        after: after.map(|json| serde_json::from_str(&json).map_err(broken)).transpose()?,
    }))
}

//! Listing and searching sessions, newest first.
//!
//! A page reads a snapshot: the next 500 sessions as `[session_id, revision, rowid, message]`
//! (the message that was found, when searching), filtered by what the caller may see. A snapshot
//! is stored as a cursor that never changes, so a token answers the same page again; behind its
//! last pair the next snapshot begins. A list that fits one page stores nothing.
use crate::api::{Answer, Call};
use crate::domain::search::{self, Hit, Search, Syntax};
use crate::domain::sessions::{self, Session, Stored};
use crate::domain::visibility::{self, Candidate};
use crate::error::{Code, Error, Result};
use crate::guard;
use crate::ids::{CursorId, Id, MachineId, SourceId, hex};
use crate::limits::{
    CURSOR_AGE_MS, HARNESS_CHARS_MAX, HITS_READ_AT_ONCE_MAX, SAFE_INTEGER_MAX,
    SEARCH_HITS_PER_STEP, SEARCH_ROWS_MAX, SEARCH_SESSIONS_MAX, SNAPSHOT_PAIRS_MAX,
};
use crate::page::{self, invalid_cursor};
use crate::params;
use crate::store::Db;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::collections::{HashMap, HashSet};

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    q: Option<String>,
    syntax: Option<Syntax>,
    harness: Option<String>,
    source: Option<SourceId>,
    machine: Option<MachineId>,
    updated_after: Option<i64>,
    limit: Option<i64>,
    cursor: Option<String>,
}

/// A query made ready: what is searched, and which sessions pass.
struct Filter {
    search: Option<Search>,
    harness: Option<String>,
    /// Sources of which a session must have one.
    sources: Option<HashSet<String>>,
    updated_after: i64,
    hash: String,
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
type Pair = (String, i64, i64, Option<i64>);

struct Snapshot {
    /// Nothing while it is not stored.
    cursor_id: Option<CursorId>,
    pairs: Vec<Pair>,
    /// Where the next snapshot begins, if there may be one.
    after: Option<After>,
}

#[derive(serde::Serialize, serde::Deserialize)]
#[serde(untagged)]
enum After {
    List { updated_at: i64, id: String },
    Search { titles_before: i64, before: i64, seen: Vec<String> },
}

/// `GET /sessions` lists the sessions that the caller may see; with `q`, those found.
///
/// `400 invalid_cursor` for a cursor of another list, `410 expired` for one that ran out.
pub fn list(db: &Db, call: &Call) -> Result<Answer> {
    let query: ListQuery = call.query()?;
    let limit = page::limit(query.limit)?;
    let position = query.cursor.as_deref().map(Position::parse).transpose()?;
    let filter = filter(db, call, query)?;
    guard::reads(&call.who, visibility::READ_SCOPE)?;

    let Some(position) = position else {
        let snapshot = take(db, call, &filter, None)?;
        if snapshot.pairs.len() <= limit && snapshot.after.is_none() {
            return answer(db, call, &filter, &snapshot, 0, limit);
        }
        let snapshot = store(db, call, &filter, db.new_id(), snapshot)?;
        return answer(db, call, &filter, &snapshot, 0, limit);
    };
    let snapshot = load(db, &filter, &position.cursor_id)?
        .ok_or_else(|| Error::new(Code::Expired, "the cursor ran out; begin without one"))?;
    if position.offset < snapshot.pairs.len() {
        return answer(db, call, &filter, &snapshot, position.offset, limit);
    }
    let Some(after) = snapshot.after.filter(|_| position.offset == snapshot.pairs.len()) else {
        return Err(invalid_cursor());
    };
    // Named after the snapshot before it, so that a repeated request finds the same one.
    let name = Sha256::digest(format!("after {}", position.cursor_id));
    let next_id = CursorId::from_hex(&hex(&name[..16]));
    let next = match load(db, &filter, &next_id)? {
        Some(next) => next,
        None => store(db, call, &filter, next_id, take(db, call, &filter, Some(after))?)?,
    };
    answer(db, call, &filter, &next, 0, limit)
}

fn filter(db: &Db, call: &Call, query: ListQuery) -> Result<Filter> {
    if let Some(harness) = &query.harness {
        guard::name("harness", harness, HARNESS_CHARS_MAX)?;
    }
    if let Some(at) = query.updated_after {
        guard::in_range("updated_after", at, 0..=SAFE_INTEGER_MAX)?;
    }
    if query.syntax.is_some() && query.q.is_none() {
        return Err(Error::field("syntax", "goes with q"));
    }
    let syntax = query.syntax.unwrap_or(Syntax::Literal);
    let filters = json!([
        query.q,
        syntax == Syntax::Fts,
        query.harness,
        query.source,
        query.machine,
        query.updated_after
    ]);
    let search = query.q.as_deref().map(|q| Search::new(q, syntax)).transpose()?;
    let of_source = query.source.map(|id| HashSet::from([id.to_string()]));
    let of_machine = match &query.machine {
        None => None,
        Some(machine_id) => Some(sources_of(db, call, machine_id)?),
    };
    let sources = match (of_source, of_machine) {
        (Some(a), Some(b)) => Some(a.intersection(&b).cloned().collect()),
        (a, b) => a.or(b),
    };
    Ok(Filter {
        search,
        harness: query.harness,
        sources,
        updated_after: query.updated_after.unwrap_or(-1),
        hash: page::filters_hash(call, &filters.to_string()),
    })
}

fn sources_of(db: &Db, call: &Call, machine_id: &MachineId) -> Result<HashSet<String>> {
    let sources = db.query(
        "SELECT id FROM sources WHERE team_id = ?1 AND machine_id = ?2 LIMIT 100",
        params![&call.who.team_id, machine_id],
        |row| row.get(),
    )?;
    Ok(sources.into_iter().collect())
}

/// A page's token: a snapshot and how many of its pairs were read.
struct Position {
    cursor_id: CursorId,
    offset: usize,
}

impl Position {
    fn parse(token: &str) -> Result<Position> {
        let position = token.split_once('.').and_then(|(id, offset)| {
            Some(Position { cursor_id: CursorId::parse(id)?, offset: offset.parse().ok()? })
        });
        position.filter(|p| p.offset <= SNAPSHOT_PAIRS_MAX).ok_or_else(invalid_cursor)
    }
}

fn take(db: &Db, call: &Call, filter: &Filter, after: Option<After>) -> Result<Snapshot> {
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

fn visible<'a>(
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

/// A search under way: titles first, then messages from the newest on, until the page's rows are
/// spent.
struct Taking<'a> {
    db: &'a Db<'a>,
    call: &'a Call<'a>,
    filter: &'a Filter,
    expression: Option<&'a str>,
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
            expression: search.expression.as_deref(),
            // Nothing is older than the first row.
            titles_before: (titles_before > 0).then_some(titles_before),
            before: (before > 0).then_some(before),
            seen: seen.into_iter().collect(),
            pairs: Vec::new(),
            rows_spent: 0,
        })
    }

    fn run(mut self) -> Result<Snapshot> {
        while let Some(expression) = self.expression {
            let full = self.pairs.len() + SEARCH_HITS_PER_STEP > SNAPSHOT_PAIRS_MAX;
            if full || self.rows_spent >= SEARCH_ROWS_MAX {
                break;
            }
            if let Some(before) = self.titles_before {
                self.titles_before = self.step_titles(expression, before)?;
            } else if let Some(before) = self.before {
                self.before = self.step_messages(expression, before)?;
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
        let team_id = &self.call.who.team_id;
        let (found, more) =
            search::messages(self.db, team_id, expression, before, SEARCH_HITS_PER_STEP)?;
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

fn by_row_id(db: &Db, call: &Call, row_ids: &[i64]) -> Result<Vec<(Stored, i64)>> {
    db.query(
        "SELECT s.id, s.revision, s.edits, s.harness, s.title, s.title_by, s.message_count,
                s.created_at, s.updated_at, s.deleted_at, s.origins_json, s.rowid
           FROM json_each(?2) j CROSS JOIN sessions s ON s.rowid = j.value
          WHERE s.team_id = ?1",
        params![&call.who.team_id, &json!(row_ids).to_string()],
        |row| Ok((Stored::read(row)?, row.get()?)),
    )
}

fn store(
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
fn load(db: &Db, filter: &Filter, cursor_id: &CursorId) -> Result<Option<Snapshot>> {
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

fn answer(
    db: &Db,
    call: &Call,
    filter: &Filter,
    snapshot: &Snapshot,
    offset: usize,
    limit: usize,
) -> Result<Answer> {
    let end = snapshot.pairs.len().min(offset + limit);
    let items = resolve(db, call, filter, &snapshot.pairs[offset..end])?;
    let more = end < snapshot.pairs.len() || snapshot.after.is_some();
    let next = match &snapshot.cursor_id {
        Some(cursor_id) if more => Some(format!("{cursor_id}.{end}")),
        _ => None,
    };
    call.list(&items, next.as_deref())
}

/// The pairs' sessions as they stood when the snapshot was taken, without those that the caller
/// may not see any more or that were deleted.
fn resolve(db: &Db, call: &Call, filter: &Filter, pairs: &[Pair]) -> Result<Vec<Session>> {
    let row_ids: Vec<i64> = pairs.iter().map(|(_, _, row_id, _)| *row_id).collect();
    let mut stored: HashMap<String, Stored> = by_row_id(db, call, &row_ids)?
        .into_iter()
        .map(|(session, _)| (session.session_id.to_string(), session))
        .collect();
    stored.retain(|_, session| session.deleted_at.is_none());
    let visible = visible(db, call, stored.values())?;
    stored.retain(|session_id, _| visible.contains(session_id));
    let versions = pinned(db, call, pairs, &stored)?;
    let mut activities = activities(db, call, &stored)?;
    let mut hits = hits(db, filter, pairs)?;

    let mut items = Vec::with_capacity(pairs.len());
    for (session_id, revision, _, message) in pairs {
        let Some(mut session) = stored.remove(session_id) else { continue };
        if session.revision != *revision {
            let Some(version) = versions.get(session_id) else { continue };
            if session.title_by.is_none() {
                session.title.clone_from(&version.title);
            }
            session.message_count = version.message_count;
            session.updated_at = version.created_at;
        }
        let hit = match (&filter.search, message) {
            (None, _) => None,
            (Some(_), Some(row_id)) => hits.remove(row_id),
            (Some(search), None) => Some(Hit {
                ordinal: None,
                snippet: search.snippet(session.title.as_deref().unwrap_or_default()),
            }),
        };
        items.push(Session {
            source_ids: session.source_ids(),
            id: session.session_id,
            revision: *revision,
            harness: session.harness,
            title: session.title,
            message_count: session.message_count,
            created_at: session.created_at,
            updated_at: session.updated_at,
            activity: activities.remove(session_id),
            hit,
        });
    }
    Ok(items)
}

struct PinnedVersion {
    title: Option<String>,
    message_count: i64,
    created_at: i64,
}

/// The versions of those pairs whose sessions have moved on.
fn pinned(
    db: &Db,
    call: &Call,
    pairs: &[Pair],
    stored: &HashMap<String, Stored>,
) -> Result<HashMap<String, PinnedVersion>> {
    let moved: Vec<(&str, i64)> = pairs
        .iter()
        .filter(|(id, revision, _, _)| stored.get(id).is_some_and(|s| s.revision != *revision))
        .map(|(id, revision, _, _)| (id.as_str(), *revision))
        .collect();
    if moved.is_empty() {
        return Ok(HashMap::new());
    }
    let versions = db.query(
        "SELECT v.session_id, v.title, v.message_count, v.created_at
           FROM json_each(?2) j CROSS JOIN session_versions v
             ON v.team_id = ?1 AND v.session_id = j.value ->> 0 AND v.revision = j.value ->> 1",
        params![&call.who.team_id, &json!(moved).to_string()],
        |row| {
            let session_id: String = row.get()?;
            let (title, message_count) = (row.get()?, row.get()?);
            Ok((session_id, PinnedVersion { title, message_count, created_at: row.get()? }))
        },
    )?;
    Ok(versions.into_iter().collect())
}

fn activities(
    db: &Db,
    call: &Call,
    stored: &HashMap<String, Stored>,
) -> Result<HashMap<String, sessions::Activity>> {
    let origins: Vec<_> = stored
        .values()
        .flat_map(|session| {
            session.origins.iter().map(|(source, harness, native_id)| {
                (session.session_id.as_str(), source, harness, native_id)
            })
        })
        .collect();
    sessions::activities(db, &call.who.team_id, &json!(origins).to_string())
}

fn hits(db: &Db, filter: &Filter, pairs: &[Pair]) -> Result<HashMap<i64, Hit>> {
    let Some(search) = &filter.search else { return Ok(HashMap::new()) };
    let row_ids: Vec<i64> = pairs.iter().filter_map(|(_, _, _, message)| *message).collect();
    let mut hits = HashMap::new();
    // A few at a time: each may have half a megabyte.
    for row_ids in row_ids.chunks(HITS_READ_AT_ONCE_MAX) {
        let messages = db.query(
            "SELECT m.id, m.value_json
               FROM json_each(?1) j CROSS JOIN messages m ON m.id = j.value",
            params![&json!(row_ids).to_string()],
            |row| Ok((row.get::<i64>()?, row.get::<String>()?)),
        )?;
        for (row_id, sent) in messages {
            hits.insert(row_id, search::hit(search, &sent)?);
        }
    }
    Ok(hits)
}

//! Listing and searching sessions, newest first.
//!
//! Pages read a snapshot (`session_snapshot.rs`), so within it nothing is skipped or repeated, and
//! a token answers the same page again. A list that fits one page stores nothing.
use crate::api::{Answer, Call};
use crate::domain::search::{self, Hit, Search, Syntax};
use crate::domain::session_snapshot::{
    Filter, Pair, Snapshot, by_row_id, load, store, take, visible,
};
use crate::domain::sessions::{self, Session, Stored};
use crate::domain::visibility;
use crate::error::{Code, Error, Result};
use crate::guard;
use crate::ids::{CursorId, Id, MachineId, SourceId, hex};
use crate::limits::{
    HARNESS_CHARS_MAX, HITS_READ_AT_ONCE_MAX, SAFE_INTEGER_MAX, SNAPSHOT_PAIRS_MAX,
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

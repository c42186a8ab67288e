//! Reading the event log by pages. A caller sees the events of what it may see: of a source that
//! shows its sessions to it, of a session that it sees otherwise, of what it asked for itself, and
//! what concerns the whole team.
use crate::api::{Answer, Call};
use crate::auth::{Principal, Role};
use crate::domain::position::{self, Log};
use crate::domain::streams::{self, EVENTS, Entry, TOPICS};
use crate::domain::visibility;
use crate::error::{Error, Result};
use crate::guard;
use crate::ids::{Id, TeamId};
use crate::json;
use crate::limits::{ROWS_EXAMINED_MAX, ROWS_FILTERED_AT_ONCE};
use crate::page::{self, Keyset, PageQuery};
use crate::params;
use crate::scopes;
use crate::store::{Db, Row};
use serde_json::value::RawValue;
use std::collections::{BTreeSet, HashSet};

pub const READ_SCOPE: &str = scopes::EVENTS_READ;

#[derive(serde::Serialize)]
pub struct Logged {
    pub sequence: i64,
    pub position: String,
    #[serde(rename = "type")]
    pub name: String,
    pub resource_kind: String,
    pub resource_id: String,
    pub source_id: Option<String>,
    pub principal_id: Option<String>,
    pub data: Box<RawValue>,
    pub created_at: i64,
}

/// `GET /events` reads the log behind the position `after`, by page or as a stream; `last` also
/// moves over what the caller may not see.
pub fn list(db: &Db, call: &Call) -> Result<Answer> {
    streams::read(db, call, &TOPICS[EVENTS])
}

/// As [`behind`], as JSON.
pub fn entries(
    db: &Db,
    who: &Principal,
    log: &Log,
    after: i64,
    limit: usize,
) -> Result<(Vec<Entry>, i64)> {
    let (events, last) = behind(db, who, log, after, limit)?;
    let entry = |event: Logged| {
        let json = json::to_string(&event)?;
        Ok(Entry { sequence: event.sequence, name: event.name, json })
    };
    Ok((events.into_iter().map(entry).collect::<Result<_>>()?, last))
}

/// Up to `limit` events behind `after` that the caller may see, and the last sequence looked at.
pub fn behind(
    db: &Db,
    who: &Principal,
    log: &Log,
    after: i64,
    limit: usize,
) -> Result<(Vec<Logged>, i64)> {
    let (mut seen, mut last, mut examined) = (Vec::new(), after, 0);
    while seen.len() < limit && examined < ROWS_EXAMINED_MAX {
        let rows = db.query(
            "SELECT sequence, type, resource_kind, resource_id, source_id, principal_id,
                    value_json, created_at
               FROM org_events
              WHERE team_id = ?1 AND sequence > ?2
              ORDER BY sequence
              LIMIT ?3",
            params![&who.team_id, last, ROWS_FILTERED_AT_ONCE],
            |row| read(log, row),
        )?;
        let ended = rows.len() < ROWS_FILTERED_AT_ONCE;
        examined += rows.len();
        let visible = visible(db, who, &rows)?;
        for event in rows {
            if seen.len() == limit {
                return Ok((seen, last));
            }
            last = event.sequence;
            if visible.contains(&event.sequence) {
                seen.push(event);
            }
        }
        if ended {
            break;
        }
    }
    Ok((seen, last))
}

/// `GET /events/current` lists the current event of every resource that the caller may see. `last`
/// is the position to go on from: the newest when the first page was read, on all its pages.
pub fn current(db: &Db, call: &Call) -> Result<Answer> {
    let query: PageQuery = call.query()?;
    let page = Keyset::new(call, "", &query)?;
    guard::reads(&call.who, READ_SCOPE)?;

    let log = log(db, &call.who.team_id)?;
    let start = match &page.after {
        None => Start { last: log.newest, ..Start::default() },
        Some(key) => Start::parse(key, &log)?,
    };
    let rows = db.query(
        "SELECT r.source_id, e.sequence, e.type, e.resource_kind, e.resource_id, e.source_id,
                e.principal_id, e.value_json, e.created_at
           FROM event_resources r
          CROSS JOIN org_events e ON e.sequence = r.sequence
          WHERE r.team_id = ?1 AND (r.source_id, r.resource_kind, r.resource_id) > (?2, ?3, ?4)
          ORDER BY r.source_id, r.resource_kind, r.resource_id
          LIMIT ?5",
        params![
            &call.who.team_id,
            &start.source_id,
            &start.kind,
            &start.resource_id,
            ROWS_EXAMINED_MAX
        ],
        |row| {
            let source_id: String = row.get()?;
            let event = read(&log, row)?;
            let (kind, id) = (&event.resource_kind, &event.resource_id);
            Ok((format!("{}.{} {source_id} {kind} {id}", log.epoch, start.last), event))
        },
    )?;
    let last = (rows.len() == ROWS_EXAMINED_MAX).then(|| rows.last().map(|(key, _)| key.clone()));
    let (keys, events): (Vec<String>, Vec<Logged>) = rows.into_iter().unzip();
    let visible = visible(db, &call.who, &events)?;
    let seen = keys
        .into_iter()
        .zip(events)
        .filter(|(_, event)| visible.contains(&event.sequence))
        .take(page.limit + 1)
        .collect();

    let (items, next) = page.page_of_examined(seen, || Ok(last.flatten()))?;
    call.log_page(&items, log.position(start.last), next.as_deref())
}

/// Where a page of current events begins.
#[derive(Default)]
struct Start {
    last: i64,
    source_id: String,
    kind: String,
    resource_id: String,
}

impl Start {
    /// `400 invalid_cursor` once the epoch is another.
    fn parse(key: &str, log: &Log) -> Result<Start> {
        // A resource's id may hold spaces.
        let mut parts = key.splitn(4, ' ').map(str::to_owned);
        let (Some(position), Some(source_id), Some(kind), Some(resource_id), None) =
            (parts.next(), parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(page::invalid_cursor());
        };
        let last = position.split_once('.').filter(|(epoch, _)| *epoch == log.epoch);
        let last = last.and_then(|(_, last)| last.parse().ok());
        let last = last.ok_or_else(page::invalid_cursor)?;
        Ok(Start { last, source_id, kind, resource_id })
    }
}

/// The sequences of those events that the caller may see.
pub fn visible(db: &Db, who: &Principal, events: &[Logged]) -> Result<HashSet<i64>> {
    let sources: BTreeSet<String> = events.iter().filter_map(|e| e.source_id.clone()).collect();
    let sources = visibility::sources_seen(db, who, &sources)?;
    let shown = |event: &Logged| match &event.source_id {
        None => true,
        Some(source_id) => sources.contains(source_id),
    };
    let rest: Vec<(&Logged, Named)> = events
        .iter()
        .filter(|event| !shown(event))
        .map(|event| (event, serde_json::from_str(event.data.get()).unwrap_or_default()))
        .collect();
    let sessions = rest.iter().filter_map(|(_, named)| named.session_id.clone()).collect();
    let sessions = visibility::sessions_seen(db, who, &sessions)?;
    // Admins see every source, though not its sessions.
    let admin = who.role >= Some(Role::Admin);
    let otherwise = |(event, named): &(&Logged, Named)| {
        let asked = event.resource_kind == "operation"
            && named.principal_id.as_deref() == Some(who.principal_id.as_str());
        (admin && event.resource_kind == "source")
            || asked
            || named.session_id.as_ref().is_some_and(|id| sessions.contains(id))
    };
    let rest: HashSet<i64> =
        rest.iter().filter(|one| otherwise(one)).map(|(event, _)| event.sequence).collect();
    let all = events.iter().filter(|event| shown(event)).map(|event| event.sequence);
    Ok(all.chain(rest).collect())
}

/// What an event's data names of who may see it.
#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Named {
    session_id: Option<String>,
    principal_id: Option<String>,
}

fn read(log: &Log, row: &mut Row) -> Result<Logged> {
    let sequence = row.get()?;
    Ok(Logged {
        sequence,
        position: log.position(sequence),
        name: row.get()?,
        resource_kind: row.get()?,
        resource_id: row.get()?,
        source_id: row.get()?,
        principal_id: row.get()?,
        data: RawValue::from_string(row.get()?)
            .map_err(|e| Error::internal(format!("an event's value_json: {e}")))?,
        created_at: row.get()?,
    })
}

pub fn log(db: &Db, team_id: &TeamId) -> Result<Log> {
    let (pruned_through, newest) = db.query_one(
        "SELECT coalesce((SELECT pruned_through FROM event_retention WHERE team_id = ?1), 0),
                coalesce((SELECT max(sequence) FROM org_events WHERE team_id = ?1), 0)",
        params![team_id],
        |row| Ok((row.get::<i64>()?, row.get::<i64>()?)),
    )?;
    let epoch = position::epoch(db, team_id)?;
    Ok(Log { epoch, pruned_through, newest: newest.max(pruned_through) })
}

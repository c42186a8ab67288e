//! Runs as their readers see them, and what all of the ledger's endpoints share. A run is its
//! events (`run_append.rs`) and the claim on it (`claims.rs`); `runs` has a row for each run that
//! has events.
use crate::api::{Answer, Call};
use crate::auth::{Kind, Principal, Role};
use crate::domain::position::{self, Log, LogQuery};
use crate::domain::streams::{self, Format, Offer, RUNS, TOPICS};
use crate::error::{Code, Error, Result};
use crate::guard;
use crate::ids::TeamId;
use crate::json;
use crate::limits::{
    PAGE_BYTES_MAX, ROWS_EXAMINED_MAX, RUN_NAME_BYTES_MAX, SAFE_INTEGER_MAX, SEQUENCE_MAX,
};
use crate::page::{self, Keyset, PageQuery};
use crate::params;
use crate::scopes::{RUNS_READ, RUNS_WRITE};
use crate::store::{Db, Tx};
use serde::Serialize;
use serde_json::json;

/// The kind of an event after which a run's id is free again.
pub const TOMBSTONE: &str = "run_deleted";

/// Every member reads runs, and an app with the scope.
pub fn may_read(who: &Principal) -> Result<()> {
    match who.kind {
        Kind::User => Ok(()),
        Kind::App => guard::app_scope(who, RUNS_READ),
        Kind::Machine => Err(Error::forbidden("runs are read with a user's or an app's token")),
    }
}

pub fn may_write(who: &Principal) -> Result<()> {
    if who.kind == Kind::App {
        guard::app_scope(who, RUNS_WRITE)
    } else {
        guard::role(who, Role::Member)
    }
}

/// A client's own id: of a run, an event or a holder; or an event's kind.
pub fn name(field: &str, text: &str) -> Result<()> {
    if (1..=RUN_NAME_BYTES_MAX).contains(&text.len()) {
        return Ok(());
    }
    Err(Error::field(field, format!("must have 1 to {RUN_NAME_BYTES_MAX} bytes")))
}

/// The run that the path names, whether or not it has anything.
pub fn run_id<'c>(call: &'c Call) -> Result<&'c str> {
    let run_id = call.segment(0);
    name("run_id", run_id)?;
    Ok(run_id)
}

/// A body whose texts are kept as they are: one that no UTF-8 can hold is refused.
pub fn body<'a, T: serde::Deserialize<'a>>(call: &Call<'a>) -> Result<T> {
    let text = std::str::from_utf8(call.bytes()).map_err(|_| json::not_utf8())?;
    if text.trim_start().starts_with('[') {
        return Err(Error::new(Code::InvalidRequest, "the body must be an object"));
    }
    json::borrowed(text)
}

/// A run's row.
#[derive(Debug, Clone, Copy, Default)]
pub struct Head {
    pub events: i64,
    pub tombstones: i64,
    pub newest_row_id: i64,
}

impl Head {
    /// Whether there is an event that is no tombstone.
    pub fn is_live(self) -> bool {
        self.events > self.tombstones
    }
}

pub fn head(db: &Db, team_id: &TeamId, run_id: &str) -> Result<Head> {
    let head = db.query_optional(
        "SELECT events, tombstones, newest_row_id FROM runs WHERE team_id = ?1 AND run_id = ?2",
        params![team_id, run_id],
        |row| Ok(Head { events: row.get()?, tombstones: row.get()?, newest_row_id: row.get()? }),
    )?;
    Ok(head.unwrap_or_default())
}

#[derive(Serialize)]
struct Listed {
    run_id: String,
    events: i64,
    last_sequence: i64,
}

/// `GET /runs` lists the runs that have events, tombstones among them.
pub fn list(db: &Db, call: &Call) -> Result<Answer> {
    let query: PageQuery = call.query()?;
    let page = Keyset::new(call, "", &query)?;
    may_read(&call.who)?;

    let rows = db.query(
        "SELECT run_id, events, last_sequence FROM runs
          WHERE team_id = ?1 AND run_id > ?2
          ORDER BY run_id
          LIMIT ?3",
        params![&call.who.team_id, page.after(), page.limit + 1],
        |row| {
            let run_id: String = row.get()?;
            let (events, last_sequence) = (row.get()?, row.get()?);
            Ok((run_id.clone(), Listed { run_id, events, last_sequence }))
        },
    )?;

    let (items, next) = page.page(rows);
    call.list(&items, next.as_deref())
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct EventsQuery {
    after: Option<i64>,
    limit: Option<i64>,
}

/// `GET /runs/{run}/events` reads a run's events behind the sequence `after`. A run that is unknown
/// has none.
pub fn events(db: &Db, call: &Call) -> Result<Answer> {
    let run_id = run_id(call)?;
    let EventsQuery { after, limit } = call.query()?;
    if let Some(after) = after {
        guard::in_range("after", after, 0..=SAFE_INTEGER_MAX)?;
    }
    let limit = page::limit(limit)?;
    may_read(&call.who)?;

    let team_id = &call.who.team_id;
    let sizes = db.query(
        "SELECT sequence, octet_length(payload_json) FROM run_events
          WHERE team_id = ?1 AND run_id = ?2 AND sequence > ?3
          ORDER BY sequence
          LIMIT ?4",
        params![team_id, run_id, after.unwrap_or(-1), limit],
        |row| Ok((row.get::<i64>()?, row.get::<usize>()?)),
    )?;
    let mut bytes = 0;
    let fits = |(_, size): &&(i64, usize)| {
        bytes += size;
        bytes <= PAGE_BYTES_MAX
    };
    // One always does: a payload is smaller than a page.
    let Some((last, _)) = sizes.iter().take_while(fits).last() else {
        return Ok(call.log(&[], after));
    };
    let items = db.query(
        "SELECT row_id, id, sequence, kind, created_at, payload_json FROM run_events
          WHERE team_id = ?1 AND run_id = ?2 AND sequence > ?3 AND sequence <= ?4
          ORDER BY sequence
          LIMIT ?5",
        params![team_id, run_id, after.unwrap_or(-1), *last, limit],
        |row| {
            let (row_id, id): (i64, String) = (row.get()?, row.get()?);
            let (sequence, kind): (i64, String) = (row.get()?, row.get()?);
            let (created_at, payload): (i64, String) = (row.get()?, row.get()?);
            let (id, run_id, kind) = (json!(id), json!(run_id), json!(kind));
            Ok(format!(
                r#"{{"row_id":{row_id},"id":{id},"run_id":{run_id},"sequence":{sequence},"kind":{kind},"payload":{payload},"created_at":{created_at}}}"#
            ))
        },
    )?;

    Ok(call.log(&items, last))
}

/// A run that was appended to.
pub struct Moved {
    pub run_id: String,
    /// The highest that was appended.
    pub sequence: i64,
    /// The newest append's, behind which a reader goes on.
    pub row_id: i64,
}

/// `GET /run-changes` says which runs were appended to behind the position `after`, and the highest
/// sequence appended to each; by page, or as a stream of `moved`. It costs what moved, however
/// often it did.
///
/// `400 invalid_cursor` and `410 events_pruned` as [`Log::after`].
pub fn changes(db: &Db, call: &Call) -> Result<Answer> {
    let query: LogQuery = call.query()?;
    let limit = page::limit(query.limit)?;
    let format = Format::wanted(call.header("accept"), Offer::Both)?;
    may_read(&call.who)?;

    let log = log(db, &call.who.team_id)?;
    if format == Format::Stream {
        return streams::stream(call, &TOPICS[RUNS], &log, query.after.as_deref());
    }
    let after = log.after(query.after.as_deref())?;
    let moved = behind(db, &call.who.team_id, after, limit)?;

    let last = moved.last().map_or(after, |moved| moved.row_id);
    let runs: serde_json::Map<_, _> =
        moved.into_iter().map(|moved| (moved.run_id, json!(moved.sequence))).collect();
    call.one(200, &json!({ "runs": runs, "last": log.position(last) }))
}

/// Up to `limit` runs that were appended to behind `after`, in the order of their newest appends: a
/// run that moves on meanwhile comes again later, so a reader that goes on behind the last one
/// misses none.
pub fn behind(db: &Db, team_id: &TeamId, after: i64, limit: usize) -> Result<Vec<Moved>> {
    // Where the highest sequence is older than `after`, the others are looked at from there down:
    // clients append upwards.
    db.query(
        "SELECT r.run_id, r.newest_row_id,
                CASE WHEN r.last_row_id > ?2 THEN r.last_sequence
                     ELSE coalesce(
                         (SELECT max(e.sequence)
                            FROM (SELECT sequence, row_id FROM run_events
                                   WHERE team_id = r.team_id AND run_id = r.run_id
                                   ORDER BY sequence DESC
                                   LIMIT ?4) AS e
                           WHERE e.row_id > ?2),
                         r.last_sequence) END
           FROM runs AS r
          WHERE r.team_id = ?1 AND r.newest_row_id > ?2
          ORDER BY r.newest_row_id
          LIMIT ?3",
        params![team_id, after, limit, ROWS_EXAMINED_MAX],
        |row| Ok(Moved { run_id: row.get()?, row_id: row.get()?, sequence: row.get()? }),
    )
}

/// What moved, as entries of a stream: `{run_id, sequence, position}`.
pub fn entries(
    db: &Db,
    who: &Principal,
    log: &Log,
    after: i64,
    limit: usize,
) -> Result<(Vec<streams::Entry>, i64)> {
    let moved = behind(db, &who.team_id, after, limit)?;
    let last = moved.last().map_or(after, |moved| moved.row_id);
    let entry = |Moved { run_id, sequence, row_id }: Moved| {
        let json = json!({
            "run_id": run_id, "sequence": sequence, "position": log.position(row_id),
        });
        streams::Entry { sequence: row_id, name: "moved".into(), json: json.to_string() }
    };
    Ok((moved.into_iter().map(entry).collect(), last))
}

/// Where the appends of all runs stand. None is ever pruned but by a wipe, with its epoch.
pub fn log(db: &Db, team_id: &TeamId) -> Result<Log> {
    let newest = db.query_one(
        "SELECT max(coalesce((SELECT max(newest_row_id) FROM runs WHERE team_id = ?1), 0),
                    coalesce((SELECT newest_row_id FROM run_marks WHERE team_id = ?1), 0))",
        params![team_id],
        |row| row.get(),
    )?;
    Ok(Log { epoch: position::epoch(db, team_id)?, pruned_through: 0, newest })
}

/// The claim history of a run without events or claim begins to age.
pub fn settle(tx: &Tx, team_id: &TeamId, run_id: &str) -> Result<()> {
    tx.execute(
        "UPDATE run_fences SET settled_at = ?3
          WHERE team_id = ?1 AND run_id = ?2 AND settled_at IS NULL
            AND NOT EXISTS (SELECT 1 FROM runs WHERE team_id = ?1 AND run_id = ?2)
            AND NOT EXISTS (SELECT 1 FROM run_claims WHERE team_id = ?1 AND run_id = ?2)",
        params![team_id, run_id, tx.now_ms],
    )
}

pub fn sequence(field: &str, sequence: i64) -> Result<()> {
    guard::in_range(field, sequence, 0..=SEQUENCE_MAX)
}

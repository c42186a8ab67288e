//! Appending to runs: all of a request's events or none, checked against the claims of their runs
//! in the transaction that appends them. An append that is repeated finds its events there.
//!
//! Ids go into statements as hex digits and payloads as JSON strings: what a client sent is never
//! decoded in SQL.
use crate::api::{Answer, Call};
use crate::domain::claims::{self, Held};
use crate::domain::events::Stage;
use crate::domain::runs::{self, TOMBSTONE};
use crate::error::{Code, Error, Result};
use crate::guard;
use crate::ids::{TeamId, hex};
use crate::json;
use crate::limits::{APPENDED_EVENTS_MAX, BATCH_BYTES_MAX, RUN_PAYLOAD_BYTES_MAX};
use crate::params;
use crate::store::{Db, Tx};
use crate::text;
use serde_json::json;
use serde_json::value::RawValue;
use std::collections::{BTreeMap, HashMap, HashSet};

/// An event as its client sends it.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Sent<'a> {
    run_id: Option<String>,
    id: String,
    sequence: i64,
    kind: String,
    #[serde(borrow)]
    payload: &'a RawValue,
}

pub struct NewEvent<'a> {
    pub run_id: String,
    pub id: String,
    pub sequence: i64,
    pub kind: String,
    /// As sent.
    pub payload: &'a str,
}

impl NewEvent<'_> {
    pub fn validate(&self, field: &str) -> Result<()> {
        runs::name(&format!("{field}.run_id"), &self.run_id)?;
        runs::name(&format!("{field}.id"), &self.id)?;
        runs::sequence(&format!("{field}.sequence"), self.sequence)?;
        runs::name(&format!("{field}.kind"), &self.kind)?;
        let field = format!("{field}.payload");
        if self.payload == "null" {
            return Err(Error::field(field, "may be any JSON value but null"));
        }
        if self.payload.len() > RUN_PAYLOAD_BYTES_MAX {
            return Err(Error::too_large(RUN_PAYLOAD_BYTES_MAX, "a payload").with("field", field));
        }
        Ok(())
    }
}

/// Reads the events of a request, which all belong to `run_id` where there is one.
fn read<'a>(sent: &[&'a RawValue], run_id: Option<&str>) -> Result<Vec<NewEvent<'a>>> {
    guard::at_most("events", sent.len(), APPENDED_EVENTS_MAX)?;
    let read = |(index, raw): (usize, &&'a RawValue)| {
        let (raw, field) = (raw.get(), format!("events[{index}]"));
        if !raw.starts_with('{') {
            return Err(Error::field(field, "must be an object"));
        }
        let Sent { run_id: own, id, sequence, kind, payload } =
            json::borrowed(raw).map_err(|error| json::within(&field, error))?;
        let own = match (own, run_id) {
            (Some(own), Some(run_id)) if own != run_id => {
                return Err(Error::field(format!("{field}.run_id"), "is another run"));
            }
            (None, None) => return Err(Error::field(format!("{field}.run_id"), "is missing")),
            (own, run_id) => own.or_else(|| run_id.map(str::to_owned)).unwrap_or_default(),
        };
        let event = NewEvent { run_id: own, id, sequence, kind, payload: payload.get() };
        event.validate(&field)?;
        Ok(event)
    };
    sent.iter().enumerate().map(read).collect()
}

/// Whom an append lets pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum Require {
    /// Everybody.
    None,
    /// The holder, and on a run that nobody has claimed everybody whom no takeover displaced.
    UnclaimedOrMine,
    /// The holder.
    Mine,
    /// The holder under its fence.
    Fenced,
}

impl Require {
    fn lets_pass(self, standing: &Standing, claim: Option<&Held>) -> bool {
        let holder = claim.map(|claim| claim.holder.as_str());
        match (self, &standing.claim) {
            (Require::None, _) => true,
            (Require::UnclaimedOrMine, None) => !standing.is_displaced,
            (Require::Mine | Require::Fenced, None) => false,
            (Require::UnclaimedOrMine | Require::Mine, Some((held_by, _))) => {
                holder == Some(held_by)
            }
            (Require::Fenced, Some((held_by, fence))) => {
                holder == Some(held_by) && claim.and_then(|claim| claim.fence) == Some(*fence)
            }
        }
    }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Append<'a> {
    #[serde(borrow)]
    events: Vec<&'a RawValue>,
    claim: Option<Held>,
    require: Option<Require>,
}

#[derive(serde::Serialize)]
pub struct Appended {
    pub id: String,
    pub row_id: i64,
    pub duplicate: bool,
}

/// `POST /runs/{run}/events` appends events to a run.
///
/// `409 claim_held` where `require` does not let the caller pass; then `duplicate_event` for an id
/// that another event has, and `sequence_conflict` for its sequence.
pub fn append(tx: &Tx, call: &Call) -> Result<Answer> {
    let run_id = runs::run_id(call)?;
    let body: Append = runs::body(call)?;
    append_all(tx, call, &body, Some(run_id))
}

/// `POST /run-events` does the same over several runs. A claim is asked of each.
pub fn append_mixed(tx: &Tx, call: &Call) -> Result<Answer> {
    let body: Append = runs::body(call)?;
    append_all(tx, call, &body, None)
}

fn append_all(tx: &Tx, call: &Call, body: &Append, run_id: Option<&str>) -> Result<Answer> {
    let events = read(&body.events, run_id)?;
    let claim = body.claim.as_ref();
    if let Some(claim) = claim {
        claim.validate("claim.")?;
    }
    let has_fence = claim.is_some_and(|claim| claim.fence.is_some());
    let default = if has_fence { Require::Fenced } else { Require::UnclaimedOrMine };
    let require = body.require.unwrap_or(default);
    runs::may_write(&call.who)?;

    let named = events.iter().map(|event| event.run_id.as_str()).chain(run_id);
    let holder = claim.map_or("", |claim| &claim.holder);
    let standings = standings(tx, &call.who.team_id, named, holder)?;
    if let Some(refused) = standings.iter().find(|s| !require.lets_pass(s, claim)) {
        return Err(claims::held_by_another(&refused.run_id));
    }
    let appended = store(tx, call, &events, &standings)?;

    call.one(200, &json!({ "events": appended }))
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Open<'a> {
    run_id: String,
    #[serde(borrow)]
    events: Vec<&'a RawValue>,
}

/// `POST /runs` opens a run that has no events, or only tombstones, and no claim.
///
/// `409 duplicate_event` where it has other events than these, `claim_held` where it is claimed.
pub fn open(tx: &Tx, call: &Call) -> Result<Answer> {
    let body: Open = runs::body(call)?;
    runs::name("run_id", &body.run_id)?;
    let events = read(&body.events, Some(&body.run_id))?;
    if events.is_empty() {
        return Err(Error::field("events", "a run begins with an event"));
    }
    runs::may_write(&call.who)?;

    let team_id = &call.who.team_id;
    let standings = standings(tx, team_id, [body.run_id.as_str()], "")?;
    let is_live = standings.iter().any(|standing| standing.is_live);
    if is_live {
        let is_same = match known(tx, team_id, &events) {
            Ok(known) => known.len() == events.len(),
            Err(error) if error.code == Code::SequenceConflict => false,
            Err(error) => return Err(error),
        };
        if !is_same {
            let message = "the run is there already, with other events";
            return Err(Error::new(Code::DuplicateEvent, message).with("run_id", body.run_id));
        }
    }
    if !is_live && standings.iter().any(|standing| standing.claim.is_some()) {
        return Err(claims::held_by_another(&body.run_id));
    }
    let appended = store(tx, call, &events, &standings)?;

    let status = if appended.iter().all(|event| event.duplicate) { 200 } else { 201 };
    call.one(status, &json!({ "run_id": body.run_id, "events": appended }))
}

/// What decides whether a run takes an append.
pub struct Standing {
    pub run_id: String,
    is_live: bool,
    /// Its holder and fence.
    claim: Option<(String, i64)>,
    /// Whether a takeover displaced the caller.
    is_displaced: bool,
}

/// How each run stands, for a caller that names itself `holder`.
pub fn standings<'r>(
    db: &Db,
    team_id: &TeamId,
    run_ids: impl IntoIterator<Item = &'r str>,
    holder: &str,
) -> Result<Vec<Standing>> {
    let (mut seen, mut keys) = (HashSet::new(), Vec::new());
    for run_id in run_ids {
        if seen.insert(run_id) {
            keys.push(hex(run_id.as_bytes()));
        }
    }
    db.query(
        "SELECT j.run_id, coalesce(r.events > r.tombstones, 0), c.holder, c.fence,
                EXISTS (SELECT 1 FROM fenced_holders AS f
                         WHERE f.team_id = ?1 AND f.run_id = j.run_id AND f.holder = ?3)
           FROM (SELECT CAST(unhex(value) AS TEXT) AS run_id FROM json_each(?2)) AS j
           LEFT JOIN runs AS r ON r.team_id = ?1 AND r.run_id = j.run_id
           LEFT JOIN run_claims AS c ON c.team_id = ?1 AND c.run_id = j.run_id",
        params![team_id, &json!(keys).to_string(), holder],
        |row| {
            let (run_id, is_live) = (row.get()?, row.get()?);
            let claim = row.get::<Option<String>>()?.zip(row.get::<Option<i64>>()?);
            Ok(Standing { run_id, is_live, claim, is_displaced: row.get()? })
        },
    )
}

/// Those of the events that are stored exactly so, by their places: their row ids.
///
/// `409 duplicate_event` and `sequence_conflict` for what clashes with an event that is stored, or
/// that the request holds too.
fn known(db: &Db, team_id: &TeamId, events: &[NewEvent]) -> Result<BTreeMap<usize, i64>> {
    let mut known = BTreeMap::new();
    let (mut ids, mut places) = (HashSet::new(), HashSet::new());
    for (first, batch) in batches(events)? {
        let clashes = db.query(
            "WITH new AS (
                 SELECT key AS place, CAST(unhex(value ->> 0) AS TEXT) AS id,
                        CAST(unhex(value ->> 1) AS TEXT) AS run_id, value ->> 2 AS sequence,
                        CAST(unhex(value ->> 3) AS TEXT) AS kind, value ->> 4 AS payload_json
                   FROM json_each(?2))
             SELECT n.place, e.row_id,
                    e.run_id = n.run_id AND e.sequence = n.sequence AND e.kind = n.kind
                        AND e.payload_json = n.payload_json,
                    s.row_id
               FROM new AS n
               LEFT JOIN run_events AS e ON e.team_id = ?1 AND e.id = n.id
               LEFT JOIN run_events AS s
                 ON s.team_id = ?1 AND s.run_id = n.run_id AND s.sequence = n.sequence
              WHERE coalesce(e.row_id, s.row_id) IS NOT NULL",
            params![team_id, &batch],
            |row| {
                let (place, by_id): (usize, Option<i64>) = (row.get()?, row.get()?);
                Ok((first + place, (by_id, row.get::<Option<bool>>()? == Some(true))))
            },
        )?;
        known.extend(clashes);
    }
    let mut same = BTreeMap::new();
    for (index, event) in events.iter().enumerate() {
        let refuse = |code, what: &str| {
            let message = format!("another event of the team has this {what}");
            Err(Error::new(code, message).with("field", format!("events[{index}]")))
        };
        match known.get(&index) {
            Some((Some(row_id), true)) => _ = same.insert(index, *row_id),
            Some((Some(_), false)) => return refuse(Code::DuplicateEvent, "id"),
            Some((None, _)) => return refuse(Code::SequenceConflict, "run and sequence"),
            None => {}
        }
        if !ids.insert(&event.id) {
            return refuse(Code::DuplicateEvent, "id");
        }
        if !places.insert((&event.run_id, event.sequence)) {
            return refuse(Code::SequenceConflict, "run and sequence");
        }
    }
    Ok(same)
}

/// The events as the parameters of statements, each with the place of its first event.
fn batches<'e>(events: impl IntoIterator<Item = &'e NewEvent<'e>>) -> Result<Vec<(usize, String)>> {
    let mut batches: Vec<(usize, String)> = Vec::new();
    let (mut rows, mut first, mut next) = (String::new(), 0, 0);
    for event in events {
        let NewEvent { run_id, id, sequence, kind, payload } = event;
        let [id, run_id, kind] = [id, run_id, kind].map(|text| hex(text.as_bytes()));
        let row = serde_json::to_string(&(id, run_id, sequence, kind, payload));
        rows.push(if rows.is_empty() { '[' } else { ',' });
        rows.push_str(&row.map_err(|e| Error::internal(e.to_string()))?);
        next += 1;
        if rows.len() >= BATCH_BYTES_MAX {
            batches.push((first, std::mem::take(&mut rows) + "]"));
            first = next;
        }
    }
    if !rows.is_empty() {
        batches.push((first, rows + "]"));
    }
    Ok(batches)
}

/// What an append adds to a run's row.
#[derive(Default)]
pub struct Added {
    pub events: i64,
    pub tombstones: i64,
    /// The highest sequence, and its row.
    pub last: Option<(i64, i64)>,
    pub newest_row_id: i64,
}

/// Appends those events that are not stored yet.
pub fn store(
    tx: &Tx,
    call: &Call,
    events: &[NewEvent],
    standings: &[Standing],
) -> Result<Vec<Appended>> {
    let team_id = &call.who.team_id;
    let known = known(tx, team_id, events)?;
    let fresh = events.iter().enumerate().filter(|(index, _)| !known.contains_key(index));
    let fresh: Vec<&NewEvent> = fresh.map(|(_, event)| event).collect();
    let mut row_ids = HashMap::new();
    for (_, batch) in batches(fresh.iter().copied())? {
        let stored = tx.execute_returning(
            "INSERT INTO run_events
                 (team_id, id, run_id, sequence, kind, created_at, payload_json)
             SELECT ?1, CAST(unhex(value ->> 0) AS TEXT), CAST(unhex(value ->> 1) AS TEXT),
                    value ->> 2, CAST(unhex(value ->> 3) AS TEXT), CAST(?3 AS INTEGER),
                    value ->> 4
               FROM json_each(?2)
             RETURNING id, row_id",
            params![team_id, &batch, tx.now_ms],
            |row| Ok((row.get::<String>()?, row.get::<i64>()?)),
        )?;
        row_ids.extend(stored);
    }

    let mut added: BTreeMap<&str, Added> = BTreeMap::new();
    let mut refs = Vec::new();
    for event in fresh {
        let row_id = row_ids.get(&event.id).copied().unwrap_or_default();
        let run = added.entry(&event.run_id).or_default();
        run.events += 1;
        run.tombstones += i64::from(event.kind == TOMBSTONE);
        run.last = run.last.max(Some((event.sequence, row_id)));
        run.newest_row_id = run.newest_row_id.max(row_id);
        refs.extend(text::content_refs(event.payload).into_iter().map(|named| (named, row_id)));
    }
    raise(tx, team_id, &added)?;
    name_content(tx, team_id, &refs)?;
    for standing in standings.iter().filter(|standing| !standing.is_live) {
        let run = added.get(standing.run_id.as_str());
        if run.is_some_and(|run| run.events > run.tombstones) {
            let data = json!({});
            claims::record(tx, call, "run.created", &standing.run_id, data, Stage::Current)?;
        }
    }

    let appended = |(index, event): (usize, &NewEvent)| {
        let duplicate = known.get(&index).copied();
        let row_id = duplicate.or_else(|| row_ids.get(&event.id).copied()).unwrap_or_default();
        Appended { id: event.id.clone(), row_id, duplicate: duplicate.is_some() }
    };
    Ok(events.iter().enumerate().map(appended).collect())
}

pub fn raise(tx: &Tx, team_id: &TeamId, added: &BTreeMap<&str, Added>) -> Result<()> {
    if added.is_empty() {
        return Ok(());
    }
    let rows: Vec<_> = added
        .iter()
        .map(|(run_id, run)| {
            let (sequence, row_id) = run.last.unwrap_or_default();
            let run_id = hex(run_id.as_bytes());
            (run_id, run.events, run.tombstones, sequence, row_id, run.newest_row_id)
        })
        .collect();
    tx.execute(
        "INSERT INTO runs
             (team_id, run_id, events, tombstones, last_sequence, last_row_id, newest_row_id)
         SELECT ?1, CAST(unhex(value ->> 0) AS TEXT), value ->> 1, value ->> 2, value ->> 3,
                value ->> 4, value ->> 5
           FROM json_each(?2)
          WHERE true
         ON CONFLICT (team_id, run_id) DO UPDATE
            SET events = events + excluded.events, tombstones = tombstones + excluded.tombstones,
                last_row_id = iif(excluded.last_sequence > last_sequence,
                                  excluded.last_row_id, last_row_id),
                last_sequence = max(last_sequence, excluded.last_sequence),
                newest_row_id = excluded.newest_row_id",
        params![team_id, &json!(rows).to_string()],
    )
}

pub fn name_content(tx: &Tx, team_id: &TeamId, refs: &[(String, i64)]) -> Result<()> {
    // A ref has at most 76 bytes, with its row some 100: a batch fits one value.
    for batch in refs.chunks(BATCH_BYTES_MAX / 100) {
        tx.execute(
            "INSERT INTO content_refs (team_id, ref, event_row_id)
             SELECT ?1, value ->> 0, value ->> 1 FROM json_each(?2)",
            params![team_id, &json!(batch).to_string()],
        )?;
    }
    Ok(())
}

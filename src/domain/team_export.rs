//! The team as JSON Lines, page by page: a first line that says of what and when, a line for each
//! row (`transfer.rs`), a last line with the cursor of the next page.
//!
//! Others go on writing meanwhile. A session that is not read in one go is read as of its revision
//! when it was begun, and what that needs is pinned until the export's time is over.
use crate::api::{Answer, Body, Call, Chunks};
use crate::auth::{self, Principal, Role};
use crate::domain::transfer::{Kind, SECTIONS, Section, Table};
use crate::domain::{event_log, journal, teams};
use crate::error::{Code, Error, Result};
use crate::guard;
use crate::ids::{CursorId, Id, hex};
use crate::limits::{
    EXPORT_AGE_MS, EXPORT_CHUNK_BYTES, EXPORT_END_BYTES, SAFE_INTEGER_MAX, SNAPSHOT_PAIRS_MAX,
    TRANSFER_BYTES_MAX, UNTIL_OPEN,
};
use crate::page::{Keyset, PageQuery, invalid_cursor};
use crate::params;
use crate::store::migrate::SCHEMA_VERSION;
use crate::store::{Cell, Db, Tx, Value};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value as Json, json};
use sha2::{Digest, Sha256};

/// Where an export goes on.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
struct Position {
    /// The section's table.
    table: String,
    /// The last row's key.
    key: Vec<Json>,
    unit: Option<Unit>,
    begun_at: i64,
}

/// A row whose children are being read.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
struct Unit {
    revision: i64,
    child: usize,
    key: Vec<Json>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Query {
    cursor: Option<String>,
}

/// `GET /export` streams a page of the team, of at most 16 MiB.
///
/// `403` unless the caller is an admin; `410 expired` when the export has taken longer than what
/// it reads is kept. The body breaks off where the caller may not go on.
pub fn get(db: &Db, call: &Call) -> Result<Answer> {
    let Query { cursor } = call.query()?;
    let first = cursor.is_none();
    let page = Keyset::new(call, "", &PageQuery { limit: None, cursor })?;
    let at = match &page.after {
        None => Position::first(db.now_ms),
        Some(token) => Position::parse(token)?,
    };
    guard::role(&call.who, Role::Admin)?;
    if at.begun_at + EXPORT_AGE_MS <= db.now_ms {
        let message = "the export has taken too long; begin a new one";
        return Err(Error::new(Code::Expired, message));
    }
    if first {
        db.transaction(|tx| journal::write(tx, call, "team.exported", call.who.team_id.as_str()))?;
    }

    let mut export = Export { who: call.who.clone(), page, at, bytes: 0, state: State::Begins };
    let chunks: Chunks = Box::new(move |db| export.chunk(db));
    let answer = Answer { body: Body::Chunks(chunks), ..Answer::default() };
    Ok(answer
        .with("Content-Type", "application/jsonl; charset=utf-8")
        .with("Content-Disposition", "attachment"))
}

enum State {
    Begins,
    Goes,
    Ended,
}

struct Export {
    who: Principal,
    page: Keyset,
    at: Position,
    bytes: usize,
    state: State,
}

enum Step {
    /// A row was written, or a table passed.
    More,
    PageIsFull,
    Done,
}

impl Export {
    fn chunk(&mut self, db: &Db) -> Result<Option<Vec<u8>>> {
        if matches!(self.state, State::Ended) {
            return Ok(None);
        }
        self.who = auth::again(db, &self.who)?;
        guard::role(&self.who, Role::Admin)?;
        let mut out = Vec::new();
        if matches!(self.state, State::Begins) {
            out.extend(self.first_line(db)?);
            self.state = State::Goes;
        }
        self.give_up_deleted(db, &mut out)?;
        loop {
            let next_cursor = match self.step(db, &mut out)? {
                Step::More if out.len() < EXPORT_CHUNK_BYTES => continue,
                Step::More => break,
                Step::PageIsFull => {
                    let at = serde_json::to_string(&self.at);
                    let at = at.map_err(|e| Error::internal(e.to_string()))?;
                    Some(self.page.token(&at))
                }
                Step::Done => None,
            };
            let log = event_log::log(db, &self.who.team_id)?;
            let line = json!({
                "next_cursor": next_cursor, "epoch": log.epoch, "sequence": log.newest,
            });
            out.extend(format!("{line}\n").into_bytes());
            self.state = State::Ended;
            break;
        }
        if self.is_in_session() {
            db.transaction(|tx| self.pin(tx))?;
        }
        self.bytes += out.len();
        Ok(Some(out))
    }

    fn is_in_session(&self) -> bool {
        self.at.unit.is_some() && self.at.table == "sessions"
    }

    /// Takes a session back that was deleted while it was being read.
    fn give_up_deleted(&mut self, db: &Db, out: &mut Vec<u8>) -> Result<()> {
        if !self.is_in_session() {
            return Ok(());
        }
        let there = db.query_optional(
            "SELECT 1 FROM sessions WHERE team_id = ?1 AND id = ?2 AND deleted_at IS NULL",
            params![&self.who.team_id, self.at.key[0].as_str()],
            |row| row.get::<i64>(),
        )?;
        if there.is_none() {
            out.extend(format!("{}\n", json!({ "deleted": self.at.key[0] })).into_bytes());
            self.at.unit = None;
        }
        Ok(())
    }

    fn first_line(&self, db: &Db) -> Result<Vec<u8>> {
        let team = teams::load(db, &self.who.team_id)?;
        let log = event_log::log(db, &self.who.team_id)?;
        let line = json!({
            "export": 1, "schema": SCHEMA_VERSION, "team_id": team.id, "name": team.name,
            "retention": team.retention, "begun_at": self.at.begun_at,
            "epoch": log.epoch, "sequence": log.newest,
        });
        Ok(format!("{line}\n").into_bytes())
    }

    /// Reads some rows of one table, and writes those that the page has room for.
    fn step(&mut self, db: &Db, out: &mut Vec<u8>) -> Result<Step> {
        let Some(index) = SECTIONS.iter().position(|s| s.table.name == self.at.table) else {
            return Err(invalid_cursor());
        };
        let section: &Section = &SECTIONS[index];
        let (table, key) = match &self.at.unit {
            None => (&section.table, &self.at.key),
            Some(unit) => (&section.children[unit.child], &unit.key),
        };
        let rows = read(db, &self.who, table, key)?;
        let count = rows.len();
        for mut row in rows {
            if self.as_begun(&mut row) {
                let line = line(table, &row);
                if !self.has_room(out, line.len()) {
                    return Ok(Step::PageIsFull);
                }
                out.extend(line);
            }
            self.passed(section, table, &row);
            if table.name == "session_artifacts" {
                // Until their uploads have been read.
                db.transaction(|tx| self.pin(tx))?;
            }
        }
        Ok(if count == table.at_once { Step::More } else { self.end_table(index) })
    }

    fn has_room(&self, out: &[u8], bytes: usize) -> bool {
        self.bytes + out.len() + bytes + EXPORT_END_BYTES <= TRANSFER_BYTES_MAX
    }

    /// Makes a row of a session what it was at the revision at which the session was begun;
    /// whether it was there.
    fn as_begun(&self, row: &mut Map<String, Json>) -> bool {
        let Some(unit) = &self.at.unit else { return true };
        let of = |row: &Map<String, Json>, name: &str| row.get(name).and_then(Json::as_i64);
        if of(row, "until_revision").is_some_and(|until| until > unit.revision) {
            row.insert("until_revision".into(), UNTIL_OPEN.into());
        }
        of(row, "revision").is_none_or(|revision| revision <= unit.revision)
    }

    /// Moves behind a row.
    fn passed(&mut self, section: &Section, table: &Table, row: &Map<String, Json>) {
        let key = table.columns[..table.key_count].iter();
        let key: Vec<Json> = key.map(|column| row[column.name].clone()).collect();
        if let Some(unit) = &mut self.at.unit {
            unit.key = key;
            return;
        }
        self.at.unit = section.children.first().map(|child| Unit {
            revision: row.get("revision").and_then(Json::as_i64).unwrap_or(UNTIL_OPEN),
            child: 0,
            key: child.first_key(key.first()),
        });
        self.at.key = key;
    }

    /// Goes on with the next table.
    fn end_table(&mut self, index: usize) -> Step {
        let section = &SECTIONS[index];
        if let Some(unit) = &mut self.at.unit {
            unit.child += 1;
            match section.children.get(unit.child) {
                Some(child) => unit.key = child.first_key(self.at.key.first()),
                None => self.at.unit = None,
            }
            return Step::More;
        }
        let Some(next) = SECTIONS.get(index + 1) else { return Step::Done };
        self.at.table = next.table.name.into();
        self.at.key = next.table.first_key(None);
        Step::More
    }

    /// Keeps the session's versions, and so what they hold, until the export's time is over.
    fn pin(&self, tx: &Tx) -> Result<()> {
        let (Some(unit), Some(session_id)) =
            (&self.at.unit, self.at.key.first().and_then(Json::as_str))
        else {
            return Ok(());
        };
        let Principal { team_id, principal_id, .. } = &self.who;
        let begun_at = self.at.begun_at;
        let name = format!("export {principal_id} {session_id} {begun_at}");
        let cursor_id = CursorId::from_hex(&hex(&Sha256::digest(name)[..16]));
        tx.execute(
            "INSERT INTO cursors
                 (id, team_id, principal_id, kind, filters_hash, snapshot_json, expires_at)
             SELECT ?1, ?2, ?3, 'list', 'export',
                    (SELECT json_group_array(json_array(session_id, revision))
                       FROM (SELECT session_id, revision
                               FROM session_versions
                              WHERE team_id = ?2 AND session_id = ?4 AND revision <= ?5
                              ORDER BY revision DESC
                              LIMIT ?6)),
                    ?7
              WHERE true
             ON CONFLICT (id) DO NOTHING",
            params![
                &cursor_id,
                team_id,
                principal_id,
                session_id,
                unit.revision,
                SNAPSHOT_PAIRS_MAX,
                begun_at + EXPORT_AGE_MS
            ],
        )
    }
}

impl Position {
    fn first(now_ms: i64) -> Position {
        let Section { table, .. } = &SECTIONS[0];
        Position {
            table: table.name.into(),
            key: table.first_key(None),
            unit: None,
            begun_at: now_ms,
        }
    }

    /// From a cursor, which a client may have made up.
    fn parse(token: &str) -> Result<Position> {
        let at: Position = serde_json::from_str(token).map_err(|_| invalid_cursor())?;
        let section = SECTIONS.iter().find(|section| section.table.name == at.table);
        let section = section.ok_or_else(invalid_cursor)?;
        let fits = |table: &Table, key: &[Json]| {
            key.len() == table.key_count
                && key.iter().zip(table.columns).all(|(value, column)| match column.kind {
                    Kind::Int => value.as_i64().is_some_and(|n| n.abs() <= SAFE_INTEGER_MAX),
                    Kind::Plain | Kind::Who | Kind::Own | Kind::Blob => value.is_string(),
                })
        };
        let unit_fits = at.unit.as_ref().is_none_or(|unit| {
            let child = section.children.get(unit.child);
            let revision = (0..=SAFE_INTEGER_MAX).contains(&unit.revision);
            revision && child.is_some_and(|child| fits(child, &unit.key))
        });
        let time_fits = (0..=SAFE_INTEGER_MAX / 2).contains(&at.begun_at);
        let good = time_fits && unit_fits && fits(&section.table, &at.key);
        if good { Ok(at) } else { Err(invalid_cursor()) }
    }
}

fn read(db: &Db, who: &Principal, table: &Table, key: &[Json]) -> Result<Vec<Map<String, Json>>> {
    let mut binds = vec![Value::from(&who.team_id)];
    for value in key {
        binds.push(match value {
            Json::String(text) => Value::from(text),
            other => Value::from(other.as_i64().unwrap_or_default()),
        });
    }
    binds.push(Value::from(table.at_once));
    db.query(table.read, &binds, |row| {
        let cells = table.columns.iter().map(|column| {
            let value = match row.get::<Cell>()? {
                Cell::Null => Json::Null,
                Cell::Int(n) => n.into(),
                Cell::Real(x) => x.into(),
                Cell::Text(text) => text.into(),
                Cell::Blob(bytes) => STANDARD.encode(bytes).into(),
            };
            Ok((column.name.to_owned(), value))
        });
        cells.collect()
    })
}

fn line(table: &Table, row: &Map<String, Json>) -> Vec<u8> {
    // In this order, so that a reader knows the table before the row.
    let row = Json::Object(row.clone());
    format!("{{\"table\":\"{}\",\"row\":{row}}}\n", table.name).into_bytes()
}

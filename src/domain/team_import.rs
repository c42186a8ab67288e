//! Taking an export's pages in, one after the other, in bounded transactions. A row that is there
//! stays, so a page may come twice; `teams.import_json` says how far the import has come, and until
//! its end nothing else makes anything in the team.
use crate::api::{Answer, Call, Config, Envelope, Job};
use crate::auth::{self, Principal, Role};
use crate::domain::transfer::{MUST_BE_EMPTY, table};
use crate::domain::transfer_rows::{self, Into, Row};
use crate::domain::{authority, journal, sessions, teams};
use crate::error::{Error, Result};
use crate::guard;
use crate::ids::{Id, SessionId, TeamId, hex};
use crate::json;
use crate::limits::{CURSOR_CHARS_MAX, IMPORT_SLICE_BYTES, IMPORT_SLICE_ROWS, RETENTION_DAYS_MAX};
use crate::page::invalid_cursor;
use crate::params;
use crate::store::migrate::SCHEMA_VERSION;
use crate::store::{Db, Tx};
use serde_json::{Map, Value as Json, json as object};
use sha2::{Digest, Sha256};

/// The line that a page begins with, as far as an import asks.
#[derive(serde::Deserialize)]
struct First {
    export: i64,
    schema: i64,
    team_id: TeamId,
    retention: teams::Retention,
    begun_at: i64,
}

#[derive(serde::Deserialize)]
struct Last {
    next_cursor: Option<String>,
}

#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Line {
    Row { table: String, row: Map<String, Json> },
    Deleted { deleted: SessionId },
}

/// `teams.import_json`.
#[derive(Clone, PartialEq, serde::Serialize, serde::Deserialize)]
struct State {
    from: TeamId,
    begun_at: i64,
    renames: bool,
    is_open: bool,
    /// The cursor and the digest of the last page that went in whole.
    page: Option<String>,
    digest: Option<String>,
    /// The cursor of the page that is to come.
    next: Option<String>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Query {
    cursor: Option<String>,
}

/// `POST /import` takes a page of `GET /export`, with the cursor that led to that page; the
/// first without one. The last page begins a new epoch.
///
/// `400` for a page that is none or is not the next one; `403` unless the caller is an owner; `409
/// conflict` for a team that has sessions, runs or contexts, and while it is wiped.
pub fn post(_db: &Db, call: &Call) -> Result<Job> {
    let Query { cursor } = call.query()?;
    if cursor.as_ref().is_some_and(|cursor| cursor.len() > CURSOR_CHARS_MAX) {
        return Err(invalid_cursor());
    }
    let page = Page::read(call)?;
    guard::role(&call.who, Role::Owner)?;

    let mut import = Import {
        who: call.who.clone(),
        config: call.config.clone(),
        envelope: call.envelope(),
        request_id: call.request_id.to_owned(),
        cursor,
        page,
        state: None,
        at: None,
    };
    Ok(Box::new(move |db| import.slice(db)))
}

/// A page: its lines' ends in its text.
struct Page {
    text: String,
    first: First,
    next: Option<String>,
    digest: String,
    /// Where the lines between the first and the last begin and end.
    begin: usize,
    end: usize,
}

impl Page {
    fn read(call: &Call) -> Result<Page> {
        let text = std::str::from_utf8(call.bytes()).map_err(|_| json::not_utf8())?;
        let body = text.trim_end_matches('\n');
        let (Some(begin), Some(end)) = (body.find('\n'), body.rfind('\n')) else {
            return Err(Error::field("body", "must be a page of an export, whole"));
        };
        let first: First = json::borrowed(&body[..begin])?;
        let last: Last = json::borrowed(&body[end + 1..])?;
        if first.export != 1 || !(1..=SCHEMA_VERSION).contains(&first.schema) {
            return Err(Error::field("schema", "is newer than this server; bring it up to date"));
        }
        let days = [
            first.retention.events_days,
            first.retention.deliveries_days,
            first.retention.journal_days,
            first.retention.sessions_days.unwrap_or(1),
        ];
        if days.iter().any(|days| !(1..=RETENTION_DAYS_MAX).contains(days)) {
            return Err(Error::field("retention", "has days out of range"));
        }
        Ok(Page {
            text: body.to_owned(),
            digest: hex(&Sha256::digest(body)[..16]),
            next: last.next_cursor,
            first,
            begin: begin + 1,
            end: end + 1,
        })
    }

    /// The line that begins at `at`, and where the next one does.
    fn line(&self, at: usize) -> Option<(&str, usize)> {
        let rest = self.text.get(at..self.end).filter(|rest| !rest.is_empty())?;
        let length = rest.find('\n').unwrap_or(rest.len());
        Some((&rest[..length], at + length + 1))
    }
}

struct Import {
    who: Principal,
    config: Config,
    envelope: Envelope,
    request_id: String,
    cursor: Option<String>,
    page: Page,
    /// None: the page went in before.
    state: Option<State>,
    /// The next line; none before the first slice, in whose transaction the import is opened.
    at: Option<usize>,
}

impl Import {
    /// Opens the import with its first page, or finds where it stands.
    fn begin(&mut self, tx: &Tx) -> Result<()> {
        let team_id = &self.who.team_id;
        let (wiped, stored) = stored(tx, team_id)?;
        if wiped {
            return Err(Error::conflict("the team is being wiped; import when it is empty"));
        }
        let Page { first, digest, .. } = &self.page;
        if let Some(state) = stored {
            let same = state.from == first.team_id && state.begun_at == first.begun_at;
            if same && state.page == self.cursor && state.digest.as_ref() == Some(digest) {
                return Ok(());
            }
            if state.is_open {
                let again = state.digest.is_some() && state.page == self.cursor;
                let fits = again || state.next == self.cursor;
                if !same {
                    let message = "another export is being imported; finish it, or wipe the team";
                    return Err(Error::conflict(message));
                }
                if !fits {
                    return Err(invalid_cursor().with("next_cursor", object!(state.next)));
                }
                self.state = Some(state);
                return Ok(());
            }
        }
        for (what, rows) in MUST_BE_EMPTY {
            let found = tx.query_optional(rows, params![team_id], |row| row.get::<i64>())?;
            if found.is_some() {
                return Err(Error::conflict(format!("the team has {what}; wipe it first")));
            }
        }
        if self.cursor.is_some() {
            return Err(Error::conflict("begin with the export's first page, without a cursor"));
        }
        let state = State {
            from: first.team_id.clone(),
            begun_at: first.begun_at,
            renames: self.collides(tx)?,
            is_open: true,
            page: None,
            digest: None,
            next: None,
        };
        keep(tx, team_id, &state)?;
        let retention = json::to_string(&first.retention)?;
        tx.execute(
            "UPDATE teams SET retention_json = ?2 WHERE id = ?1",
            params![team_id, &retention],
        )?;
        self.state = Some(state);
        Ok(())
    }

    /// Whether principals of the page belong to other teams of this object. They come first.
    fn collides(&self, tx: &Tx) -> Result<bool> {
        let (mut ids, mut at) = (Vec::new(), self.page.begin);
        while let Some((line, next)) = self.page.line(at) {
            let Line::Row { table, row } = read(line)? else { break };
            if table != "memberships" && table != "apps" {
                break;
            }
            ids.extend(row.get("principal_id").and_then(Json::as_str).map(str::to_owned));
            at = next;
        }
        tx.query_one(
            "SELECT EXISTS (
                    SELECT 1
                      FROM json_each(?2) AS j
                     CROSS JOIN principals AS p ON p.id = j.value
                     WHERE NOT EXISTS (SELECT 1 FROM memberships AS m
                                        WHERE m.team_id = ?1 AND m.principal_id = p.id)
                       AND NOT EXISTS (SELECT 1 FROM apps AS a
                                        WHERE a.team_id = ?1 AND a.principal_id = p.id))",
            params![&self.who.team_id, &json::to_string(&ids)?],
            |row| row.get(),
        )
    }

    fn slice(&mut self, db: &Db) -> Result<Option<Answer>> {
        self.who = auth::again(db, &self.who)?;
        guard::role(&self.who, Role::Owner)?;
        crate::api::room(db, &self.config)?;
        let done = db.transaction(|tx| {
            let opens = self.at.is_none();
            if opens {
                self.begin(tx)?;
            }
            let Some(state) = self.state.clone() else { return Ok(true) };
            if !opens {
                // A wipe, or another request with this page, may have come in between.
                let (removed, now) = stored(tx, &self.who.team_id)?;
                let now = now.filter(|now| !removed && now.begun_at == state.begun_at);
                let given_up = || Error::conflict("the import was given up meanwhile");
                if now.ok_or_else(given_up)? != state {
                    return Ok(true);
                }
            }
            if self.write(tx, &state)? {
                return Ok(false);
            }
            self.finish(tx, &state)?;
            Ok(true)
        })?;
        if done { self.answer().map(Some) } else { Ok(None) }
    }

    /// Writes some lines, and says whether there are more.
    fn write(&mut self, tx: &Tx, state: &State) -> Result<bool> {
        let team_id = &self.who.team_id;
        let into = Into { team_id, from: state.from.as_str(), renames: state.renames };
        let began = self.at.unwrap_or(self.page.begin);
        let (mut at, mut count) = (began, 0);
        while let Some((line, next)) = self.page.line(at) {
            match read(line)? {
                Line::Row { table: name, row } => put(tx, &into, &name, &row)?,
                Line::Deleted { deleted } => sessions::mark_deleted(tx, team_id, &deleted)?,
            }
            (at, count) = (next, count + 1);
            if count == IMPORT_SLICE_ROWS || at - began >= IMPORT_SLICE_BYTES {
                break;
            }
        }
        self.at = Some(at);
        Ok(self.page.line(at).is_some())
    }

    fn finish(&self, tx: &Tx, state: &State) -> Result<()> {
        let team_id = &self.who.team_id;
        let Page { next, digest, .. } = &self.page;
        let state = State {
            is_open: next.is_some(),
            page: self.cursor.clone(),
            digest: Some(digest.clone()),
            next: next.clone(),
            ..state.clone()
        };
        keep(tx, team_id, &state)?;
        if state.is_open {
            return Ok(());
        }
        tx.execute(
            "UPDATE teams SET epoch = ?2, revision = revision + 1 WHERE id = ?1",
            params![team_id, &hex(&tx.random::<4>())],
        )?;
        let who = &self.who.principal_id;
        teams::announce(tx, &teams::load(tx, team_id)?, who)?;
        authority::changed_by(tx, &self.who)?;
        let target = team_id.as_str();
        journal::write_as(tx, team_id, who, "team.imported", target, &self.request_id)
    }

    fn answer(&self) -> Result<Answer> {
        self.envelope.one(200, &object!({ "next_cursor": self.page.next }))
    }
}

fn put(tx: &Tx, into: &Into, name: &str, row: &Map<String, Json>) -> Result<()> {
    let unknown = || Error::field("table", format!("no table is named {name}"));
    let table = table(name).ok_or_else(unknown)?;
    let cells = into.cells(table, row).map_err(|error| json::within(name, error))?;
    transfer_rows::put(tx, into, &Row { table, cells: &cells })
}

fn read(line: &str) -> Result<Line> {
    serde_json::from_str(line).map_err(|error| {
        if error.is_data() {
            Error::field("body", "has a line that is no row")
        } else {
            json::malformed(&error)
        }
    })
}

/// Whether the team is being removed, and the import's state.
fn stored(db: &Db, team_id: &TeamId) -> Result<(bool, Option<State>)> {
    let (removed, json) = db.query_one(
        "SELECT removing IS NOT NULL, import_json FROM teams WHERE id = ?1",
        params![team_id],
        |row| Ok((row.get::<bool>()?, row.get::<Option<String>>()?)),
    )?;
    let state = json.map(|json| serde_json::from_str(&json)).transpose();
    Ok((removed, state.map_err(|e| Error::internal(format!("import_json: {e}")))?))
}

fn keep(tx: &Tx, team_id: &TeamId, state: &State) -> Result<()> {
    tx.execute(
        "UPDATE teams SET import_json = ?2 WHERE id = ?1",
        params![team_id, &json::to_string(state)?],
    )
}

//! How an import puts a row in: checked as far as what reads it later relies on, and only if
//! it is not there, so that a page may come twice.
use crate::domain::capture_parts::{Message, digest};
use crate::domain::transfer::{Column, Kind, Table};
use crate::domain::visibility::Origins;
use crate::domain::{captures, roots, rules, search, search_scope};
use crate::error::{Code, Error, Result};
use crate::guard;
use crate::ids::{HEX_DIGITS, Id, PrincipalId, SessionId, TeamId, hex, is_hex};
use crate::limits::{MESSAGE_BYTES_MAX, NAME_CHARS_MAX, SAFE_INTEGER_MAX, UNTIL_OPEN};
use crate::params;
use crate::store::{Cell, Db, FromCell, Tx, Value};
use crate::text;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value as Json};
use sha2::{Digest, Sha256};

pub type Put = fn(&Tx, &Into, &Row) -> Result<()>;

/// Where rows go.
pub struct Into<'a> {
    pub team_id: &'a TeamId,
    /// The team that was exported.
    pub from: &'a str,
    /// Principals of this object's other teams have the exported ids, so new ones are derived.
    pub renames: bool,
}

/// A row's values, in the order of its table's columns.
pub struct Row<'a> {
    pub table: &'static Table,
    pub cells: &'a [Cell],
}

impl Into<'_> {
    /// A text with the ids in it that have to change.
    fn renamed(&self, text: &str) -> String {
        let text = text.replace(self.from, self.team_id.as_str());
        if !self.renames {
            return text;
        }
        let mut pieces = text.split(PrincipalId::PREFIX);
        let mut out = pieces.next().unwrap_or_default().to_owned();
        for piece in pieces {
            out.push_str(PrincipalId::PREFIX);
            match piece.split_at_checked(HEX_DIGITS) {
                Some((digits, rest)) if is_hex(digits, HEX_DIGITS) => {
                    let name = format!("{} {digits}", self.team_id);
                    out.push_str(&hex(&Sha256::digest(name)[..HEX_DIGITS / 2]));
                    out.push_str(rest);
                }
                _ => out.push_str(piece),
            }
        }
        out
    }

    /// A line's row as the values to store.
    pub fn cells(&self, table: &Table, row: &Map<String, Json>) -> Result<Vec<Cell>> {
        let known = |name: &String| table.columns.iter().any(|column| column.name == name);
        if let Some(name) = row.keys().find(|name| !known(name)) {
            return Err(Error::field(name, "the table has no such column"));
        }
        let cells = table.columns.iter().map(|column| {
            let value = row.get(column.name).unwrap_or(&Json::Null);
            let cell = self.cell(column, value)?;
            check(table, column, &cell)?;
            Ok(cell)
        });
        cells.collect()
    }

    fn cell(&self, column: &Column, value: &Json) -> Result<Cell> {
        let misfit = || Error::field(column.name, "is no value that an export holds there");
        match (value, column.kind) {
            (Json::Null, _) => Ok(Cell::Null),
            (Json::String(text), Kind::Blob) => {
                STANDARD.decode(text).map(Cell::Blob).map_err(|_| misfit())
            }
            (Json::String(text), Kind::Who) => Ok(Cell::Text(self.renamed(text))),
            (Json::String(text), Kind::Own) => Ok(Cell::Text(text.clone())),
            (Json::String(text), Kind::Plain) if !text.contains('\0') => {
                Ok(Cell::Text(text.clone()))
            }
            (Json::Number(number), Kind::Plain | Kind::Int) => {
                let number = number.as_i64().filter(|n| n.abs() <= SAFE_INTEGER_MAX);
                number.map(Cell::Int).ok_or_else(misfit)
            }
            _ => Err(misfit()),
        }
    }
}

/// Refuses JSON that its readers could not read.
fn check(table: &Table, column: &Column, cell: &Cell) -> Result<()> {
    fn is<'a, T: serde::Deserialize<'a>>(text: &'a str) -> bool {
        serde_json::from_str::<T>(text).is_ok()
    }
    let (true, Cell::Text(text)) = (column.name.ends_with("_json"), cell) else { return Ok(()) };
    let good = match (table.name, column.name) {
        ("captures", "begin_json") => is::<captures::Begin>(text),
        ("sync_rules", _) => is::<rules::What>(text),
        ("machine_roots", _) => is::<roots::Root>(text),
        ("sessions", "origins_json") => is::<Vec<(String, String, String)>>(text),
        ("continuations", "value_json") => is::<crate::domain::continuations::Value>(text),
        (_, "upload_ids_json" | "webhook_events_json" | "scopes_json" | "principal_ids_json") => {
            is::<Vec<String>>(text)
        }
        _ => is::<serde::de::IgnoredAny>(text),
    };
    if good { Ok(()) } else { Err(Error::field(column.name, "is no JSON of its column")) }
}

fn bound(cell: &Cell) -> Value<'_> {
    match cell {
        Cell::Int(n) => Value::Int(*n),
        Cell::Text(text) => Value::Text(text),
        Cell::Blob(bytes) => Value::Blob(bytes),
        Cell::Null | Cell::Real(_) => Value::Null,
    }
}

/// Puts a row in, unless it is there.
pub fn put(tx: &Tx, into: &Into, row: &Row) -> Result<()> {
    let outcome = match row.table.put {
        Some(put) => put(tx, into, row),
        None => row.insert(tx, into).map(drop),
    };
    // The schema says what else a value must be, and a client wrote this one.
    outcome.map_err(|error| {
        let signs = ["constraint failed", "cannot store", "malformed JSON", "datatype mismatch"];
        if error.code == Code::Internal && signs.iter().any(|sign| error.message.contains(sign)) {
            return Error::field(row.table.name, "a row does not fit its table");
        }
        error
    })
}

impl Row<'_> {
    pub(super) fn insert(&self, tx: &Tx, into: &Into) -> Result<u64> {
        let mut binds = vec![Value::from(into.team_id)];
        binds.extend(self.cells.iter().map(bound));
        tx.execute_counted(self.table.insert, &binds)
    }

    pub(super) fn get<T: FromCell>(&self, name: &str) -> Result<T> {
        let at = self.table.columns.iter().position(|column| column.name == name);
        let cell = at.and_then(|at| self.cells.get(at)).cloned().unwrap_or(Cell::Null);
        T::from_cell(cell).map_err(|_| Error::field(name, "has the wrong type"))
    }

    /// The row with another value in a column.
    pub(super) fn with(&self, name: &str, cell: Cell) -> Vec<Cell> {
        let columns = self.table.columns.iter().zip(self.cells);
        let other = |(column, old): (&Column, &Cell)| {
            if column.name == name { cell.clone() } else { old.clone() }
        };
        columns.map(other).collect()
    }
}

/// Makes the principal, which belongs to this team alone.
fn principal(tx: &Tx, row: &Row, kind: &str, id: &str) -> Result<()> {
    if PrincipalId::parse(id).is_none() {
        return Err(Error::field("principal_id", "is no principal's id"));
    }
    let made = tx.execute_counted(
        "INSERT INTO principals (id, kind, name, email, created_at) VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT (id) DO NOTHING",
        params![
            id,
            kind,
            &row.get::<String>("name")?,
            row.get::<Option<String>>("email")?.as_ref(),
            row.get::<i64>("principal_created_at")?
        ],
    )?;
    guard::changed_one(made, Error::conflict(format!("{id} belongs to another team")))
}

pub fn member(tx: &Tx, into: &Into, row: &Row) -> Result<()> {
    let id: String = row.get("principal_id")?;
    let (role, active): (String, i64) = (row.get("role")?, row.get("active")?);
    let added = tx.execute_counted(
        "INSERT INTO memberships (team_id, principal_id, role, active, revision, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT DO NOTHING",
        params![
            into.team_id,
            &id,
            &role,
            active != 0,
            row.get::<i64>("revision")?,
            row.get::<i64>("created_at")?
        ],
    )?;
    if added == 0 { Ok(()) } else { principal(tx, row, "user", &id) }
}

/// An app comes without its secrets, and with its webhook switched off until somebody has looked
/// at it: the old team's still sends.
pub fn app(tx: &Tx, into: &Into, row: &Row) -> Result<()> {
    let id: String = row.get("principal_id")?;
    let url: Option<String> = row.get("webhook_url")?;
    let disabled_at: Option<i64> = row.get("disabled_at")?;
    let disabled_at = disabled_at.or(url.as_ref().map(|_| tx.now_ms));
    let added = tx.execute_counted(
        "INSERT INTO apps
             (team_id, id, name, principal_id, webhook_url, webhook_events_json, scopes_json,
              secret_version, disabled_at, revision, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
         ON CONFLICT DO NOTHING",
        params![
            into.team_id,
            &row.get::<String>("id")?,
            &row.get::<String>("name")?,
            &id,
            url.as_ref(),
            &row.get::<String>("webhook_events_json")?,
            &row.get::<String>("scopes_json")?,
            row.get::<i64>("secret_version")?,
            disabled_at,
            row.get::<i64>("revision")?,
            row.get::<i64>("created_at")?
        ],
    )?;
    if added == 0 { Ok(()) } else { principal(tx, row, "app", &id) }
}

pub fn group(tx: &Tx, into: &Into, row: &Row) -> Result<()> {
    let id: String = row.get("id")?;
    let added = tx.execute_counted(
        "INSERT INTO groups_table (team_id, id, name, revision, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT DO NOTHING",
        params![
            into.team_id,
            &id,
            &row.get::<String>("name")?,
            row.get::<i64>("revision")?,
            row.get::<i64>("created_at")?
        ],
    )?;
    if added == 0 {
        return Ok(());
    }
    tx.execute(
        "INSERT INTO group_members (team_id, group_id, principal_id)
         SELECT ?1, ?2, value FROM json_each(?3) WHERE true
         ON CONFLICT DO NOTHING",
        params![into.team_id, &id, &row.get::<String>("principal_ids_json")?],
    )
}

/// A name that something else has here gets the row's own id behind it.
fn free_name(db: &Db, into: &Into, row: &Row, sql: &'static str) -> Result<Vec<Cell>> {
    let (id, name): (String, String) = (row.get("id")?, row.get("name")?);
    let taken =
        db.query_optional(sql, params![into.team_id, &name, &id], |row| row.get::<i64>())?;
    if taken.is_none() {
        return Ok(row.cells.to_vec());
    }
    let tail = id.get(id.len().saturating_sub(8)..).unwrap_or_default();
    let head = text::cut(&name, NAME_CHARS_MAX - tail.len() - 1);
    Ok(row.with("name", Cell::Text(format!("{head} {tail}"))))
}

pub fn machine(tx: &Tx, into: &Into, row: &Row) -> Result<()> {
    let sql = "SELECT 1 FROM machines WHERE team_id = ?1 AND name = ?2 AND id <> ?3";
    let cells = free_name(tx, into, row, sql)?;
    Row { table: row.table, cells: &cells }.insert(tx, into).map(drop)
}

pub fn source(tx: &Tx, into: &Into, row: &Row) -> Result<()> {
    let sql = "SELECT 1 FROM sources WHERE team_id = ?1 AND name = ?2 AND id <> ?3";
    let cells = free_name(tx, into, row, sql)?;
    Row { table: row.table, cells: &cells }.insert(tx, into).map(drop)
}

/// A session with its origins and its title's place in the search.
pub fn session(tx: &Tx, into: &Into, row: &Row) -> Result<()> {
    if row.insert(tx, into)? == 0 {
        return Ok(());
    }
    let id: String = row.get("id")?;
    tx.execute(
        "INSERT INTO origins (team_id, source_id, harness, native_id, session_id)
         SELECT ?1, value ->> 0, value ->> 1, value ->> 2, ?2 FROM json_each(?3) WHERE true
         ON CONFLICT DO NOTHING",
        params![into.team_id, &id, &row.get::<String>("origins_json")?],
    )?;
    let title: Option<String> = row.get("title")?;
    if title.is_none() {
        return Ok(());
    }
    let row_id = tx.query_one(
        "SELECT rowid FROM sessions WHERE team_id = ?1 AND id = ?2",
        params![into.team_id, &id],
        |row| row.get::<i64>(),
    )?;
    search::put_title(tx, row_id, title.as_deref(), &scope(tx, into, &id)?)
}

/// What a session's rows in the search carry; `400` for one that did not come before its rows.
fn scope(db: &Db, into: &Into, session_id: &str) -> Result<String> {
    let origins = db.query_optional(
        "SELECT origins_json FROM sessions WHERE team_id = ?1 AND id = ?2",
        params![into.team_id, session_id],
        |row| row.get::<Origins>(),
    )?;
    let found = origins.zip(SessionId::parse(session_id));
    let (Origins(origins), id) =
        found.ok_or_else(|| Error::field("session_id", "the session does not come before"))?;
    let sources = origins.iter().map(|(source, ..)| source.as_str());
    Ok(search_scope::of_session(into.team_id, &id, sources))
}

/// A message, and where its session's version is the current one its place in the search.
pub fn message(tx: &Tx, into: &Into, row: &Row) -> Result<()> {
    let sent: String = row.get("value_json")?;
    if sent.len() > MESSAGE_BYTES_MAX {
        return Err(Error::field("value_json", "is longer than a message may be"));
    }
    let message = Message::read(&sent).map_err(|error| error.with("field", "value_json"))?;
    if message.ordinal != row.get::<i64>("ordinal")?
        || digest(&sent) != row.get::<String>("digest")?
    {
        return Err(Error::field("value_json", "is not the message of this row"));
    }
    if row.insert(tx, into)? == 0 || row.get::<i64>("until_revision")? != UNTIL_OPEN {
        return Ok(());
    }
    let session_id: String = row.get("session_id")?;
    tx.execute(
        "INSERT INTO message_search (rowid, text, scope)
         SELECT id, ?5, ?6 FROM messages
          WHERE team_id = ?1 AND session_id = ?2 AND ordinal = ?3 AND revision = ?4",
        params![
            into.team_id,
            &session_id,
            message.ordinal,
            row.get::<i64>("revision")?,
            &message.searched_text(&sent),
            &scope(tx, into, &session_id)?
        ],
    )
}

/// A version; its artifacts are there already, and retention looks at it anew.
pub fn version(tx: &Tx, into: &Into, row: &Row) -> Result<()> {
    if row.insert(tx, into)? == 0 {
        return Ok(());
    }
    let (session_id, source_id): (String, String) = (row.get("session_id")?, row.get("source_id")?);
    tx.execute(
        "INSERT INTO captured_versions (team_id, session_id, source_id, revision)
         SELECT ?1, ?2, ?3, CAST(?4 AS INTEGER)
          WHERE EXISTS (SELECT 1 FROM session_artifacts
                         WHERE team_id = ?1 AND session_id = ?2 AND revision = ?4
                           AND provenance = 'capture')
         ON CONFLICT DO NOTHING",
        params![into.team_id, &session_id, &source_id, row.get::<i64>("revision")?],
    )?;
    tx.execute(
        "UPDATE version_prune_queue SET after_revision = 0
          WHERE team_id = ?1 AND session_id = ?2 AND source_id = ?3",
        params![into.team_id, &session_id, &source_id],
    )
}

/// A tombstone, or the origin of a session that came before.
pub fn origin(tx: &Tx, into: &Into, row: &Row) -> Result<()> {
    tx.execute(
        "INSERT INTO origins (team_id, source_id, harness, native_id, session_id)
         SELECT ?1, ?2, ?3, ?4, ?5
          WHERE ?5 IS NULL OR EXISTS (SELECT 1 FROM sessions WHERE team_id = ?1 AND id = ?5)
         ON CONFLICT DO NOTHING",
        params![
            into.team_id,
            &row.get::<String>("source_id")?,
            &row.get::<String>("harness")?,
            &row.get::<String>("native_id")?,
            row.get::<Option<String>>("session_id")?.as_ref()
        ],
    )
}

/// Bytes that an upload's chunk names, if they are what their digest says.
pub fn blob(tx: &Tx, into: &Into, row: &Row) -> Result<()> {
    let (sha256, bytes): (String, Vec<u8>) = (row.get("sha256")?, row.get("bytes")?);
    let length = usize::try_from(row.get::<i64>("size")?);
    if hex(&Sha256::digest(&bytes)) != sha256 || length != Ok(bytes.len()) {
        return Err(Error::field("bytes", "are not those of the digest"));
    }
    let named = tx.query_optional(
        "SELECT 1 FROM artifact_chunk_refs WHERE team_id = ?1 AND sha256 = ?2 LIMIT 1",
        params![into.team_id, &sha256],
        |row| row.get::<i64>(),
    )?;
    if named.is_none() { Ok(()) } else { row.insert(tx, into).map(drop) }
}

/// A resource's current event, at the end of this team's log.
pub fn event(tx: &Tx, into: &Into, row: &Row) -> Result<()> {
    let (source_id, kind, id): (String, String, String) =
        (row.get("source_id")?, row.get("resource_kind")?, row.get("resource_id")?);
    let known = tx.query_optional(
        "SELECT 1 FROM event_resources
          WHERE team_id = ?1 AND source_id = ?2 AND resource_kind = ?3 AND resource_id = ?4",
        params![into.team_id, &source_id, &kind, &id],
        |row| row.get::<i64>(),
    )?;
    if known.is_some() {
        return Ok(());
    }
    let sequences = tx.execute_returning(
        "INSERT INTO org_events
             (team_id, source_id, resource_kind, resource_id, type, principal_id, value_json,
              created_at)
         VALUES (?1, nullif(?2, ''), ?3, ?4, ?5, ?6, ?7, ?8)
         RETURNING sequence",
        params![
            into.team_id,
            &source_id,
            &kind,
            &id,
            &row.get::<String>("type")?,
            row.get::<Option<String>>("principal_id")?.as_ref(),
            &row.get::<String>("value_json")?,
            row.get::<i64>("created_at")?
        ],
        |row| row.get::<i64>(),
    )?;
    tx.execute(
        "INSERT INTO event_resources (team_id, source_id, resource_kind, resource_id, sequence)
         VALUES (?1, ?2, ?3, ?4, ?5)",
        params![into.team_id, &source_id, &kind, &id, sequences.first().copied()],
    )
}

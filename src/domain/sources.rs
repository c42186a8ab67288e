//! Sources: what publishes sessions. A source shows its sessions to the whole team, or to its
//! custodian alone.
use crate::api::{Answer, Call};
use crate::auth::{Kind, Principal, Role};
use crate::domain::events::{self, Event, Stage};
use crate::domain::{authority, journal};
use crate::error::{Error, Result};
use crate::guard;
use crate::ids::{Id, MachineId, PrincipalId, SourceId, TeamId};
use crate::json;
use crate::limits::{NAME_CHARS_MAX, ROWS_EXAMINED_MAX, SOURCES_MAX};
use crate::page::{Keyset, PageQuery};
use crate::params;
use crate::scopes;
use crate::store::{Db, Row, Tx};

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Visibility {
    /// The custodian alone sees it.
    Restricted,
    Team,
}

impl Visibility {
    pub fn text(self) -> &'static str {
        match self {
            Visibility::Restricted => "restricted",
            Visibility::Team => "team",
        }
    }
}

#[derive(Debug, serde::Serialize)]
pub struct Source {
    pub id: SourceId,
    pub name: String,
    pub kind: String,
    pub machine_id: Option<MachineId>,
    pub custodian_id: PrincipalId,
    pub visibility: String,
    pub state: String,
    pub last_received_at: Option<i64>,
    pub revision: i64,
    pub created_at: i64,
}

/// What a source is made from.
pub struct NewSource<'a> {
    pub name: &'a str,
    pub kind: &'static str,
    pub machine_id: Option<&'a MachineId>,
    pub visibility: Visibility,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct CreateSource {
    name: String,
    kind: CreatedKind,
    visibility: Visibility,
}

/// A connector's source is made by enrolling its machine.
#[derive(serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum CreatedKind {
    App,
    Import,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeSource {
    #[serde(default, deserialize_with = "json::not_null")]
    name: Option<String>,
    #[serde(default, deserialize_with = "json::not_null")]
    visibility: Option<Visibility>,
    #[serde(default, deserialize_with = "json::not_null")]
    state: Option<ChangedState>,
}

/// Only revoking its machine revokes a source, and only enrolling it again revives one.
#[derive(Clone, Copy, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum ChangedState {
    Active,
    Paused,
}

/// `GET /sources` lists the sources that the caller sees, by id.
pub fn list(db: &Db, call: &Call) -> Result<Answer> {
    let query: PageQuery = call.query()?;
    let page = Keyset::new(call, "", &query)?;
    reads(&call.who)?;

    let (team_id, own) = (&call.who.team_id, &call.who.principal_id);
    let sources = db.query(
        "SELECT s.id, s.name, s.kind, s.machine_id, s.custodian_id, s.visibility, s.state,
                s.last_received_at, s.revision, s.created_at
           FROM (SELECT id FROM sources
                  WHERE team_id = ?1 AND id > ?2
                  ORDER BY id
                  LIMIT ?3) examined
          CROSS JOIN sources s ON s.team_id = ?1 AND s.id = examined.id
          WHERE s.visibility = 'team' OR s.custodian_id = ?4 OR ?5 = 1
          ORDER BY examined.id
          LIMIT ?6",
        params![team_id, page.after(), ROWS_EXAMINED_MAX, own, sees_all(&call.who), page.limit + 1],
        |row| read(row).map(|source| (source.id.to_string(), source)),
    )?;
    let (items, next) = page.page_of_examined(sources, || {
        db.query_optional(
            "SELECT id FROM sources WHERE team_id = ?1 AND id > ?2 ORDER BY id LIMIT 1 OFFSET ?3",
            params![team_id, page.after(), ROWS_EXAMINED_MAX - 1],
            |row| row.get(),
        )
    })?;

    call.list(&items, next.as_deref())
}

/// `POST /sources` makes a source for an app or an import; the caller is its custodian.
///
/// `403` unless the caller is a member or an app that writes captures; `409 conflict` for a name
/// that is taken, or when the team has as many sources as it may.
pub fn create(tx: &Tx, call: &Call) -> Result<Answer> {
    let body: CreateSource = call.json()?;
    guard::name("name", &body.name, NAME_CHARS_MAX)?;
    match call.who.kind {
        Kind::App => guard::app_scope(&call.who, scopes::CAPTURES_WRITE)?,
        Kind::User | Kind::Machine => guard::role(&call.who, Role::Member)?,
    }

    let new = NewSource {
        name: &body.name,
        kind: match body.kind {
            CreatedKind::App => "app",
            CreatedKind::Import => "import",
        },
        machine_id: None,
        visibility: body.visibility,
    };
    let source_id = insert(tx, call, &new)?.ok_or_else(name_taken)?;
    let source = load(tx, &call.who.team_id, &source_id)?;
    announce(tx, call, &source)?;
    journal::write(tx, call, "source.created", source_id.as_str())?;

    call.versioned(201, &source, source.revision)
}

/// `GET /sources/{source}` is a source that the caller sees.
pub fn get(db: &Db, call: &Call) -> Result<Answer> {
    reads(&call.who)?;

    let source = load(db, &call.who.team_id, &call.id(0)?)?;
    sees(&call.who, &source)?;

    call.versioned(200, &source, source.revision)
}

/// `PATCH /sources/{source}` renames, shows, hides, pauses or resumes a source.
///
/// `403` unless the caller is its custodian and a member, or an admin; `409 conflict` for a name
/// that is taken and for the state of a revoked source.
pub fn change(tx: &Tx, call: &Call) -> Result<Answer> {
    let body: ChangeSource = call.json()?;
    if let Some(name) = &body.name {
        guard::name("name", name, NAME_CHARS_MAX)?;
    }
    guard::role(&call.who, Role::Member)?;

    let before = load(tx, &call.who.team_id, &call.id(0)?)?;
    sees(&call.who, &before)?;
    if before.custodian_id != call.who.principal_id {
        guard::role(&call.who, Role::Admin)?;
    }
    call.if_match(before.revision)?;
    let name = body.name.as_ref().unwrap_or(&before.name);
    let visibility = match body.visibility {
        Some(visibility) => visibility.text(),
        None => &before.visibility,
    };
    let state = match body.state {
        Some(_) if before.state == "revoked" => {
            return Err(Error::conflict("the source is revoked; enrol its machine again"));
        }
        Some(ChangedState::Active) => "active",
        Some(ChangedState::Paused) => "paused",
        None => &before.state,
    };
    if (name, visibility, state) == (&before.name, &*before.visibility, &*before.state) {
        return call.versioned(200, &before, before.revision);
    }
    let changed = tx.execute_counted(
        "UPDATE sources SET name = ?3, visibility = ?4, state = ?5, revision = revision + 1
          WHERE team_id = ?1 AND id = ?2
            AND NOT EXISTS (SELECT 1 FROM sources other
                             WHERE other.team_id = ?1 AND other.name = ?3 AND other.id <> ?2)",
        params![&call.who.team_id, &before.id, name, visibility, state],
    )?;
    guard::changed_one(changed, name_taken())?;
    let source = load(tx, &call.who.team_id, &before.id)?;
    announce(tx, call, &source)?;
    journal::write(tx, call, "source.changed", source.id.as_str())?;
    if source.visibility != before.visibility {
        authority::changed(tx, call)?;
    }

    call.versioned(200, &source, source.revision)
}

/// Makes a source of the caller's, or nothing where its name is taken.
pub fn insert(tx: &Tx, call: &Call, new: &NewSource) -> Result<Option<SourceId>> {
    let Principal { team_id, principal_id, .. } = &call.who;
    let count = tx.query_one(
        "SELECT count(*) FROM (SELECT 1 FROM sources
                                WHERE team_id = ?1 AND state <> 'revoked'
                                LIMIT ?2)",
        params![team_id, SOURCES_MAX],
        |row| row.get::<i64>(),
    )?;
    guard::room("sources of a team", count, SOURCES_MAX)?;
    let id: SourceId = tx.new_id();
    let inserted = tx.execute_counted(
        "INSERT INTO sources
             (team_id, id, name, kind, machine_id, custodian_id, visibility, state, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 'active', ?8)
         ON CONFLICT (team_id, name) DO NOTHING",
        params![
            team_id,
            &id,
            new.name,
            new.kind,
            new.machine_id,
            principal_id,
            new.visibility.text(),
            tx.now_ms
        ],
    )?;
    Ok((inserted == 1).then_some(id))
}

pub fn load(db: &Db, team_id: &TeamId, source_id: &SourceId) -> Result<Source> {
    db.query_optional(
        "SELECT id, name, kind, machine_id, custodian_id, visibility, state, last_received_at,
                revision, created_at
           FROM sources
          WHERE team_id = ?1 AND id = ?2",
        params![team_id, source_id],
        read,
    )?
    .ok_or_else(Error::not_found)
}

/// The source that a machine publishes as.
pub fn load_of_machine(db: &Db, team_id: &TeamId, machine_id: &MachineId) -> Result<Source> {
    db.query_one(
        "SELECT id, name, kind, machine_id, custodian_id, visibility, state, last_received_at,
                revision, created_at
           FROM sources
          WHERE team_id = ?1 AND machine_id = ?2
          LIMIT 1",
        params![team_id, machine_id],
        read,
    )
}

/// Brings a machine's source back with its machine, as visible as asked.
pub fn revive(
    tx: &Tx,
    call: &Call,
    machine_id: &MachineId,
    visibility: Option<Visibility>,
) -> Result<()> {
    let team_id = &call.who.team_id;
    let changed = tx.execute_counted(
        "UPDATE sources
            SET state = CASE state WHEN 'revoked' THEN 'active' ELSE state END,
                visibility = coalesce(?3, visibility), revision = revision + 1
          WHERE team_id = ?1 AND machine_id = ?2
            AND (state = 'revoked' OR visibility <> coalesce(?3, visibility))",
        params![team_id, machine_id, visibility.map(Visibility::text)],
    )?;
    if changed == 0 {
        return Ok(());
    }
    announce(tx, call, &load_of_machine(tx, team_id, machine_id)?)
}

/// Revokes a machine's source; its sessions stay as visible as they were.
pub fn revoke(tx: &Tx, call: &Call, machine_id: &MachineId) -> Result<Source> {
    let team_id = &call.who.team_id;
    let changed = tx.execute_counted(
        "UPDATE sources SET state = 'revoked', revision = revision + 1
          WHERE team_id = ?1 AND machine_id = ?2 AND state <> 'revoked'",
        params![team_id, machine_id],
    )?;
    let source = load_of_machine(tx, team_id, machine_id)?;
    if changed > 0 {
        announce(tx, call, &source)?;
    }
    Ok(source)
}

fn read(row: &mut Row) -> Result<Source> {
    Ok(Source {
        id: row.get()?,
        name: row.get()?,
        kind: row.get()?,
        machine_id: row.get()?,
        custodian_id: row.get()?,
        visibility: row.get()?,
        state: row.get()?,
        last_received_at: row.get()?,
        revision: row.get()?,
        created_at: row.get()?,
    })
}

/// Whoever reads sessions may list their sources, and an app those that it publishes to.
fn reads(who: &Principal) -> Result<()> {
    guard::app_scope(who, scopes::CAPTURES_WRITE)
        .or_else(|_| guard::reads(who, scopes::SESSIONS_READ))
}

/// Admins see every source, because they may change it; its sessions stay hidden from them.
fn sees_all(who: &Principal) -> bool {
    who.role >= Some(Role::Admin)
}

/// Refuses a source that the caller may not know of.
pub fn sees(who: &Principal, source: &Source) -> Result<()> {
    let seen =
        source.visibility == "team" || source.custodian_id == who.principal_id || sees_all(who);
    if seen { Ok(()) } else { Err(Error::not_found()) }
}

fn name_taken() -> Error {
    Error::conflict("another source has this name").with("field", "name")
}

/// The source's event, for those who see it.
pub fn announce(tx: &Tx, call: &Call, source: &Source) -> Result<()> {
    let Source { id, name, visibility, state, revision, .. } = source;
    let event = Event {
        name: "source.changed",
        resource_kind: "source",
        resource_id: id.as_str(),
        source_id: Some(id),
        principal_id: Some(&call.who.principal_id),
        data: serde_json::json!({
            "id": id, "name": name, "visibility": visibility, "state": state,
            "revision": revision,
        }),
        stage: Stage::Current,
    };
    events::record(tx, &call.who.team_id, &event).map(drop)
}

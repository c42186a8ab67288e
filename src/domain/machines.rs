//! Machines: enrolled computers. Each has a source that its connector publishes as, and a token.
use crate::api::{Answer, Call};
use crate::auth::{Kind, Principal, Role};
use crate::domain::credentials::{self, Credential, Holder};
use crate::domain::events::{self, Event, Stage};
use crate::domain::sources::{self, NewSource, Source, Visibility};
use crate::domain::{attachments, authority, journal, operations, presence, rules};
use crate::error::{Error, Result};
use crate::guard;
use crate::ids::{Id, MachineId, PrincipalId, TeamId};
use crate::limits::{
    ENROLLMENT_KEY_CHARS_MAX, LINK_GRACE_MS, MACHINE_TOKEN_AGE_MS, MACHINES_MAX,
    MACHINES_PER_PRINCIPAL_MAX, NAME_CHARS_MAX, ROWS_EXAMINED_MAX,
};
use crate::page::{Keyset, PageQuery};
use crate::params;
use crate::scopes;
use crate::store::{Db, Row, Tx};
use crate::text;

const REVOKED: &str = "revoked";
/// Ends the name of a machine's source.
const SUFFIX: &str = " connector";

#[derive(Debug, serde::Serialize)]
pub struct Machine {
    pub id: MachineId,
    pub name: String,
    pub custodian_id: PrincipalId,
    pub enrollment: &'static str,
    pub connection: &'static str,
    pub last_seen_at: Option<i64>,
    pub incarnation_id: Option<String>,
    pub host_key_id: Option<String>,
    pub revision: i64,
    pub created_at: i64,
}

impl Machine {
    pub fn is_active(&self) -> bool {
        self.enrollment != REVOKED
    }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Enroll {
    name: String,
    enrollment_key: String,
    #[serde(default)]
    visibility: Option<Visibility>,
}

#[derive(serde::Serialize)]
struct Enrolled {
    machine: Machine,
    source: Source,
    credential: Credential,
}

/// `GET /machines` lists the machines, by id; revoked ones only to their custodian and admins.
pub fn list(db: &Db, call: &Call) -> Result<Answer> {
    let query: PageQuery = call.query()?;
    let page = Keyset::new(call, "", &query)?;
    guard::reads(&call.who, scopes::SESSIONS_READ)?;

    let (team_id, own) = (&call.who.team_id, &call.who.principal_id);
    let machines = db.query(
        "SELECT m.id, m.name, m.custodian_id, m.revoked_at, m.last_seen_at, p.linked,
                m.incarnation_id, m.host_key_id, m.revision, m.created_at
           FROM (SELECT id FROM machines
                  WHERE team_id = ?1 AND id > ?2
                  ORDER BY id
                  LIMIT ?3) examined
          CROSS JOIN machines m ON m.team_id = ?1 AND m.id = examined.id
           LEFT JOIN machine_presence p ON p.team_id = ?1 AND p.machine_id = m.id
          WHERE m.revoked_at IS NULL OR m.custodian_id = ?4 OR ?5 = 1
          ORDER BY examined.id
          LIMIT ?6",
        params![
            team_id,
            page.after(),
            ROWS_EXAMINED_MAX,
            own,
            sees_revoked(&call.who),
            page.limit + 1
        ],
        |row| read(db, row).map(|machine| (machine.id.to_string(), machine)),
    )?;
    let (items, next) = page.page_of_examined(machines, || {
        db.query_optional(
            "SELECT id FROM machines WHERE team_id = ?1 AND id > ?2 ORDER BY id LIMIT 1 OFFSET ?3",
            params![team_id, page.after(), ROWS_EXAMINED_MAX - 1],
            |row| row.get(),
        )
    })?;

    call.list(&items, next.as_deref())
}

/// `POST /machines` enrols a computer: its machine, the source that it publishes as, its token.
///
/// The same custodian with the same key, or the same name, gets the same machine again (`200`),
/// under the name and key that it now has, revived if it was revoked, with a fresh token; its old
/// tokens end at once. `409 conflict` for a name that another machine has, and at the limits.
pub fn enroll(tx: &Tx, call: &Call) -> Result<Answer> {
    let body: Enroll = call.json()?;
    guard::name("name", &body.name, NAME_CHARS_MAX)?;
    guard::line("enrollment_key", &body.enrollment_key, ENROLLMENT_KEY_CHARS_MAX)?;
    guard::role(&call.who, Role::Member)?;

    let (status, machine_id) = if let Some(machine_id) = known(tx, call, &body)? {
        enroll_again(tx, call, &machine_id, &body)?;
        (200, machine_id)
    } else {
        (201, enroll_new(tx, call, &body)?)
    };
    let Principal { team_id, principal_id, .. } = &call.who;
    let source = sources::load_of_machine(tx, team_id, &machine_id)?;
    let holder = Holder {
        kind: Kind::Machine,
        team_id,
        principal_id,
        source_id: Some(&source.id),
        machine_id: Some(&machine_id),
        app_id: None,
    };
    let credential = credentials::issue(tx, &holder, MACHINE_TOKEN_AGE_MS)?;
    let machine = load(tx, team_id, &machine_id)?;
    announce(tx, call, "machine.enrolled", &machine, Stage::Current)?;
    journal::write(tx, call, "machine.enrolled", machine_id.as_str())?;

    Ok(call.one(status, &Enrolled { machine, source, credential })?.secret())
}

/// `GET /machines/{machine}` is a machine; a revoked one only to its custodian and admins.
pub fn get(db: &Db, call: &Call) -> Result<Answer> {
    guard::reads(&call.who, scopes::SESSIONS_READ)?;

    let machine = load_seen(db, call)?;

    call.versioned(200, &machine, machine.revision)
}

/// `DELETE /machines/{machine}` revokes a machine, with all that it could do; see [`revoke`].
///
/// `403` unless the caller is its custodian or an admin; `428` without `If-Match`.
pub fn remove(tx: &Tx, call: &Call) -> Result<Answer> {
    guard::role(&call.who, Role::Viewer)?;
    let machine = load_governed(tx, call)?;

    call.must_match(machine.revision)?;
    if machine.is_active() {
        revoke(tx, call, &machine.id)?;
        authority::changed(tx, call)?;
    }

    Ok(Answer::no_content())
}

/// The caller's machine with this key or this name.
fn known(tx: &Tx, call: &Call, body: &Enroll) -> Result<Option<MachineId>> {
    let Principal { team_id, principal_id, .. } = &call.who;
    let by_key = tx.query_optional(
        "SELECT id FROM machines
          WHERE team_id = ?1 AND custodian_id = ?2 AND enrollment_key = ?3",
        params![team_id, principal_id, &body.enrollment_key],
        |row| row.get::<MachineId>(),
    )?;
    let by_name = tx.query_optional(
        "SELECT id, custodian_id FROM machines WHERE team_id = ?1 AND name = ?2",
        params![team_id, &body.name],
        |row| Ok((row.get::<MachineId>()?, row.get::<PrincipalId>()?)),
    )?;
    match (by_key, by_name) {
        (_, Some((_, custodian_id))) if custodian_id != *principal_id => {
            Err(name_taken("another member's machine has this name"))
        }
        (Some(key_id), Some((name_id, _))) if key_id != name_id => {
            Err(name_taken("another of your machines has this name; this key belongs to one too"))
        }
        (by_key, by_name) => Ok(by_key.or(by_name.map(|(id, _)| id))),
    }
}

fn enroll_new(tx: &Tx, call: &Call, body: &Enroll) -> Result<MachineId> {
    has_room(tx, &call.who)?;
    let Principal { team_id, principal_id, .. } = &call.who;
    let id: MachineId = tx.new_id();
    tx.execute(
        "INSERT INTO machines (team_id, id, name, custodian_id, enrollment_key, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        params![team_id, &id, &body.name, principal_id, &body.enrollment_key, tx.now_ms],
    )?;

    // A source that has this name already may be one that the caller cannot see: the machine's id
    // sets them apart, rather than a refusal that nobody could explain.
    let digits = &id.hex_digits()[..8];
    let room = NAME_CHARS_MAX - SUFFIX.len() - 1 - digits.len();
    let name = [text::cut(&body.name, NAME_CHARS_MAX - SUFFIX.len()), SUFFIX].concat();
    let other_name = format!("{}{SUFFIX} {digits}", text::cut(&body.name, room));
    let visibility = body.visibility.unwrap_or(Visibility::Restricted);
    let new = |name| NewSource { name, kind: "connector", machine_id: Some(&id), visibility };
    let source_id = match sources::insert(tx, call, &new(&name))? {
        Some(source_id) => source_id,
        None => sources::insert(tx, call, &new(&other_name))?
            .ok_or_else(|| Error::internal("a source has a new machine's id in its name"))?,
    };
    let source = sources::load(tx, team_id, &source_id)?;
    sources::announce(tx, call, &source)?;
    Ok(id)
}

fn enroll_again(tx: &Tx, call: &Call, machine_id: &MachineId, body: &Enroll) -> Result<()> {
    let team_id = &call.who.team_id;
    if !load(tx, team_id, machine_id)?.is_active() {
        has_room(tx, &call.who)?;
    }
    tx.execute(
        "UPDATE machines
            SET name = ?3, enrollment_key = ?4, revoked_at = NULL, revision = revision + 1
          WHERE team_id = ?1 AND id = ?2",
        params![team_id, machine_id, &body.name, &body.enrollment_key],
    )?;
    credentials::revoke_all_of_machine(tx, team_id, machine_id)?;
    authority::changed(tx, call)?;
    sources::revive(tx, call, machine_id, body.visibility)
}

/// Revokes the machines of a member who leaves.
pub fn revoke_all_of(tx: &Tx, call: &Call, custodian_id: &PrincipalId) -> Result<()> {
    let machine_ids = tx.query(
        "SELECT id FROM machines
          WHERE team_id = ?1 AND custodian_id = ?2 AND revoked_at IS NULL
          LIMIT ?3",
        params![&call.who.team_id, custodian_id, MACHINES_PER_PRINCIPAL_MAX],
        |row| row.get::<MachineId>(),
    )?;
    machine_ids.iter().try_for_each(|machine_id| revoke(tx, call, machine_id))
}

/// Ends a machine: from here on its tokens are refused, it publishes nothing, and what it was
/// asked to do is `unknown`. The caller of this raises the team's authority.
pub fn revoke(tx: &Tx, call: &Call, machine_id: &MachineId) -> Result<()> {
    let team_id = &call.who.team_id;
    let revoked = tx.execute_counted(
        "UPDATE machines SET revoked_at = ?3, revision = revision + 1
          WHERE team_id = ?1 AND id = ?2 AND revoked_at IS NULL",
        params![team_id, machine_id, tx.now_ms],
    )?;
    if revoked == 0 {
        return Ok(());
    }
    credentials::revoke_all_of_machine(tx, team_id, machine_id)?;
    let source = sources::revoke(tx, call, machine_id)?;
    rules::remove_all_of(tx, team_id, machine_id)?;
    attachments::revoke_all_of_machine(tx, team_id, machine_id)?;
    operations::lose_effects_of(tx, &call.who, machine_id, Some(&source.id), tx.now_ms)?;
    presence::end(tx, team_id, machine_id)?;
    let machine = load(tx, team_id, machine_id)?;
    announce(tx, call, "machine.revoked", &machine, Stage::Last)?;
    journal::write(tx, call, "machine.revoked", machine_id.as_str())
}

pub fn load(db: &Db, team_id: &TeamId, machine_id: &MachineId) -> Result<Machine> {
    db.query_optional(
        "SELECT m.id, m.name, m.custodian_id, m.revoked_at, m.last_seen_at, p.linked,
                m.incarnation_id, m.host_key_id, m.revision, m.created_at
           FROM machines m
           LEFT JOIN machine_presence p ON p.team_id = m.team_id AND p.machine_id = m.id
          WHERE m.team_id = ?1 AND m.id = ?2",
        params![team_id, machine_id],
        |row| read(db, row),
    )?
    .ok_or_else(Error::not_found)
}

/// Refuses a machine that is unknown or revoked.
pub fn must_be_active(db: &Db, team_id: &TeamId, machine_id: &MachineId) -> Result<Machine> {
    let machine = load(db, team_id, machine_id)?;
    if machine.is_active() { Ok(machine) } else { Err(Error::not_found()) }
}

/// The machine that the path begins with, for its custodian and for admins.
pub fn load_governed(db: &Db, call: &Call) -> Result<Machine> {
    guard::reads(&call.who, scopes::SESSIONS_READ)?;
    let machine = load_seen(db, call)?;
    if machine.custodian_id == call.who.principal_id || call.who.role >= Some(Role::Admin) {
        return Ok(machine);
    }
    Err(Error::forbidden("this needs the machine's custodian, or an admin"))
}

/// The machine that the path begins with, as far as the caller may know of it.
fn load_seen(db: &Db, call: &Call) -> Result<Machine> {
    let machine = load(db, &call.who.team_id, &call.id(0)?)?;
    let seen = machine.is_active()
        || machine.custodian_id == call.who.principal_id
        || sees_revoked(&call.who);
    if seen { Ok(machine) } else { Err(Error::not_found()) }
}

fn read(db: &Db, row: &mut Row) -> Result<Machine> {
    let (id, name, custodian_id) = (row.get()?, row.get()?, row.get()?);
    let revoked = row.get::<Option<i64>>()?.is_some();
    let last_seen_at = row.get::<Option<i64>>()?;
    let linked = row.get::<Option<bool>>()?.unwrap_or(false);
    let seen = last_seen_at.is_some_and(|at| db.now_ms - at <= LINK_GRACE_MS);
    Ok(Machine {
        id,
        name,
        custodian_id,
        enrollment: if revoked { REVOKED } else { "active" },
        connection: match (seen && !revoked, linked) {
            (true, true) => "online",
            (true, false) => "unlinked",
            (false, _) => "offline",
        },
        last_seen_at,
        incarnation_id: row.get()?,
        host_key_id: row.get()?,
        revision: row.get()?,
        created_at: row.get()?,
    })
}

fn sees_revoked(who: &Principal) -> bool {
    who.role >= Some(Role::Admin)
}

fn has_room(tx: &Tx, who: &Principal) -> Result<()> {
    let own = tx.query_one(
        "SELECT count(*) FROM (SELECT 1 FROM machines
                                WHERE team_id = ?1 AND custodian_id = ?2 AND revoked_at IS NULL
                                LIMIT ?3)",
        params![&who.team_id, &who.principal_id, MACHINES_PER_PRINCIPAL_MAX],
        |row| row.get::<i64>(),
    )?;
    guard::room("machines of one member", own, MACHINES_PER_PRINCIPAL_MAX)?;
    let all = tx.query_one(
        "SELECT count(*) FROM (SELECT 1 FROM machines
                                WHERE team_id = ?1 AND revoked_at IS NULL
                                LIMIT ?2)",
        params![&who.team_id, MACHINES_MAX],
        |row| row.get::<i64>(),
    )?;
    guard::room("machines of a team", all, MACHINES_MAX)
}

fn name_taken(message: &str) -> Error {
    Error::conflict(message).with("field", "name")
}

fn announce(
    tx: &Tx,
    call: &Call,
    name: &'static str,
    machine: &Machine,
    stage: Stage,
) -> Result<()> {
    let Machine { id, name: known_as, custodian_id, enrollment, revision, .. } = machine;
    let event = Event {
        name,
        resource_kind: "machine",
        resource_id: id.as_str(),
        source_id: None,
        principal_id: Some(&call.who.principal_id),
        data: serde_json::json!({
            "id": id, "name": known_as, "custodian_id": custodian_id, "enrollment": enrollment,
            "revision": revision,
        }),
        stage,
    };
    events::record(tx, &call.who.team_id, &event).map(drop)
}

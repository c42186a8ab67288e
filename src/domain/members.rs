//! Members: the people of a team and their roles. The last owner cannot leave.
use crate::api::{Answer, Call};
use crate::auth::{Kind, Role};
use crate::domain::credentials::{self, Credential, Holder};
use crate::domain::events::{self, Event, Stage};
use crate::domain::grants::SubjectKind;
use crate::domain::{attachments, authority, grants, groups, journal, machines};
use crate::error::{Error, Result};
use crate::guard;
use crate::ids::{Id, PrincipalId, TeamId};
use crate::json;
use crate::limits::{EMAIL_CHARS_MAX, MEMBERS_MAX, NAME_CHARS_MAX};
use crate::page::{Keyset, PageQuery};
use crate::params;
use crate::scopes;
use crate::store::{Db, Row, Tx};

#[derive(Debug, serde::Serialize)]
pub struct Member {
    pub principal_id: PrincipalId,
    pub name: String,
    pub email: Option<String>,
    pub role: Role,
    pub active: bool,
    pub revision: i64,
    pub created_at: i64,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct AddMember {
    name: String,
    #[serde(default)]
    email: Option<String>,
    role: Role,
    #[serde(default)]
    expires_in_ms: Option<i64>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeMember {
    #[serde(default, deserialize_with = "json::not_null")]
    role: Option<Role>,
    #[serde(default, deserialize_with = "json::not_null")]
    active: Option<bool>,
}

#[derive(serde::Serialize)]
struct Added {
    member: Member,
    credential: Credential,
}

/// `GET /members` lists the members, the inactive ones too, by id.
pub fn list(db: &Db, call: &Call) -> Result<Answer> {
    let query: PageQuery = call.query()?;
    let page = Keyset::new(call, "", &query)?;
    guard::reads(&call.who, scopes::SESSIONS_READ)?;

    let members = db.query(
        "SELECT m.principal_id, p.name, p.email, m.role, m.active, m.revision, m.created_at
           FROM memberships m CROSS JOIN principals p ON p.id = m.principal_id
          WHERE m.team_id = ?1 AND m.principal_id > ?2
          ORDER BY m.principal_id
          LIMIT ?3",
        params![&call.who.team_id, page.after(), page.limit + 1],
        |row| read(row).map(|member| (member.principal_id.to_string(), member)),
    )?;

    let (items, next) = page.page(members);
    call.list(&items, next.as_deref())
}

/// `POST /members` adds a person, with their first token.
///
/// `403` unless the caller is an admin, for a new owner an owner; `409 conflict` when the team is
/// full.
pub fn add(tx: &Tx, call: &Call) -> Result<Answer> {
    let body: AddMember = call.json()?;
    guard::name("name", &body.name, NAME_CHARS_MAX)?;
    if let Some(email) = &body.email {
        guard::line("email", email, EMAIL_CHARS_MAX)?;
    }
    let age_ms = credentials::user_token_age(body.expires_in_ms)?;
    guard::role(&call.who, Role::Admin.max(body.role))?;

    let team_id = &call.who.team_id;
    has_room(tx, team_id)?;
    let principal_id = insert(tx, team_id, &body.name, body.email.as_deref(), body.role)?;
    let member = load(tx, team_id, &principal_id)?;
    announce(tx, call, "member.added", &member, Stage::Current)?;
    let holder = Holder {
        kind: Kind::User,
        team_id,
        principal_id: &principal_id,
        source_id: None,
        machine_id: None,
        app_id: None,
    };
    let credential = credentials::issue(tx, &holder, age_ms)?;

    Ok(call.one(201, &Added { member, credential })?.secret())
}

/// `PATCH /members/{principal}` changes a member's role and whether they are active. An inactive
/// member's tokens are refused until they are active again.
///
/// `403` unless the caller is an admin, for making, unmaking or stopping an owner an owner;
/// `409 conflict` for the last active owner.
pub fn change(tx: &Tx, call: &Call) -> Result<Answer> {
    let body: ChangeMember = call.json()?;
    guard::role(&call.who, Role::Admin.max(body.role.unwrap_or(Role::Viewer)))?;

    let team_id = &call.who.team_id;
    let before = load(tx, team_id, &call.id(0)?)?;
    guard::role(&call.who, Role::Admin.max(before.role))?;
    call.if_match(before.revision)?;
    let role = body.role.unwrap_or(before.role);
    let active = body.active.unwrap_or(before.active);
    if (role, active) == (before.role, before.active) {
        return call.versioned(200, &before, before.revision);
    }
    let changed = tx.execute_counted(
        "UPDATE memberships SET role = ?3, active = ?4, revision = revision + 1
          WHERE team_id = ?1 AND principal_id = ?2
            AND ((?3 = 'owner' AND ?4 = 1) OR role <> 'owner' OR active = 0 OR EXISTS (
                SELECT 1 FROM memberships other
                 WHERE other.team_id = ?1 AND other.principal_id <> ?2
                   AND other.role = 'owner' AND other.active = 1))",
        params![team_id, &before.principal_id, role.text(), active],
    )?;
    guard::changed_one(changed, last_owner())?;
    let member = load(tx, team_id, &before.principal_id)?;
    announce(tx, call, "member.changed", &member, Stage::Current)?;

    call.versioned(200, &member, member.revision)
}

/// `DELETE /members/{principal}` removes a member, or lets one leave, and with them what they
/// could reach the team by: their credentials, machines, grants and attachments.
///
/// `403` unless it is oneself or the caller is an admin, for an owner an owner; `409 conflict` for
/// the last active owner.
pub fn remove(tx: &Tx, call: &Call) -> Result<Answer> {
    let leaves = call.segment(0) == call.who.principal_id.as_str();
    let role = if leaves { Role::Viewer } else { Role::Admin };
    guard::role(&call.who, role)?;

    let team_id = &call.who.team_id;
    let member = load(tx, team_id, &call.id(0)?)?;
    let principal_id = &member.principal_id;
    guard::role(&call.who, role.max(member.role))?;
    call.if_match(member.revision)?;
    let removed = tx.execute_counted(
        "DELETE FROM memberships
          WHERE team_id = ?1 AND principal_id = ?2
            AND (role <> 'owner' OR active = 0 OR EXISTS (
                SELECT 1 FROM memberships other
                 WHERE other.team_id = ?1 AND other.principal_id <> ?2
                   AND other.role = 'owner' AND other.active = 1))",
        params![team_id, principal_id],
    )?;
    guard::changed_one(removed, last_owner())?;
    // What else names the person keeps the id; only the membership leads here.
    tx.execute("DELETE FROM principals WHERE id = ?1", params![principal_id])?;
    credentials::revoke_all_of(tx, team_id, principal_id)?;
    machines::revoke_all_of(tx, call, principal_id)?;
    attachments::revoke_all_of(tx, team_id, principal_id)?;
    grants::remove_all_of(tx, team_id, SubjectKind::Principal, principal_id.as_str())?;
    groups::remove_member_everywhere(tx, call, principal_id)?;
    announce(tx, call, "member.removed", &member, Stage::Last)?;

    Ok(Answer::no_content())
}

/// Makes a person and their membership.
pub fn insert(
    tx: &Tx,
    team_id: &TeamId,
    name: &str,
    email: Option<&str>,
    role: Role,
) -> Result<PrincipalId> {
    let principal_id: PrincipalId = tx.new_id();
    tx.execute(
        "INSERT INTO principals (id, kind, name, email, created_at)
         VALUES (?1, 'user', ?2, ?3, ?4)",
        params![&principal_id, name, email, tx.now_ms],
    )?;
    tx.execute(
        "INSERT INTO memberships (team_id, principal_id, role, created_at)
         VALUES (?1, ?2, ?3, ?4)",
        params![team_id, &principal_id, role.text(), tx.now_ms],
    )?;
    Ok(principal_id)
}

pub fn load(db: &Db, team_id: &TeamId, principal_id: &PrincipalId) -> Result<Member> {
    db.query_optional(
        "SELECT m.principal_id, p.name, p.email, m.role, m.active, m.revision, m.created_at
           FROM memberships m CROSS JOIN principals p ON p.id = m.principal_id
          WHERE m.team_id = ?1 AND m.principal_id = ?2",
        params![team_id, principal_id],
        read,
    )?
    .ok_or_else(Error::not_found)
}

fn read(row: &mut Row) -> Result<Member> {
    Ok(Member {
        principal_id: row.get()?,
        name: row.get()?,
        email: row.get()?,
        role: Role::parse(&row.get::<String>()?)
            .ok_or_else(|| Error::internal("a membership's role"))?,
        active: row.get()?,
        revision: row.get()?,
        created_at: row.get()?,
    })
}

fn has_room(tx: &Tx, team_id: &TeamId) -> Result<()> {
    let count = tx.query_one(
        "SELECT count(*) FROM (SELECT 1 FROM memberships WHERE team_id = ?1 LIMIT ?2)",
        params![team_id, MEMBERS_MAX],
        |row| row.get::<i64>(),
    )?;
    guard::room("members", count, MEMBERS_MAX)
}

fn last_owner() -> Error {
    Error::conflict("this is the last active owner; make another one first")
}

/// The change's event, journal line and new authority.
fn announce(tx: &Tx, call: &Call, name: &'static str, member: &Member, stage: Stage) -> Result<()> {
    let Member { principal_id, name: known_as, role, active, revision, .. } = member;
    let event = Event {
        name,
        resource_kind: "member",
        resource_id: principal_id.as_str(),
        source_id: None,
        principal_id: Some(&call.who.principal_id),
        data: serde_json::json!({
            "principal_id": principal_id, "name": known_as, "role": role, "active": active,
            "revision": revision,
        }),
        stage,
    };
    events::record(tx, &call.who.team_id, &event)?;
    journal::write(tx, call, name, principal_id.as_str())?;
    authority::changed(tx, call)
}

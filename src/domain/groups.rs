//! Groups: members who are granted sessions together.
use crate::api::{Answer, Call};
use crate::auth::Role;
use crate::domain::events::{self, Event, Stage};
use crate::domain::grants::{self, SubjectKind};
use crate::domain::{authority, journal, members};
use crate::error::{Error, Result};
use crate::guard;
use crate::ids::{GroupId, Id, PrincipalId, TeamId};
use crate::limits::{GROUPS_MAX, MEMBERS_MAX, NAME_CHARS_MAX, ROWS_EXAMINED_MAX};
use crate::page::{Keyset, PageQuery};
use crate::params;
use crate::scopes;
use crate::store::{Db, Row, Tx};
use serde_json::json;

#[derive(Debug, serde::Serialize)]
pub struct Group {
    pub id: GroupId,
    pub name: String,
    pub principal_ids: Vec<PrincipalId>,
    pub revision: i64,
    pub created_at: i64,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct CreateGroup {
    name: String,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeGroup {
    #[serde(default, deserialize_with = "crate::json::not_null")]
    name: Option<String>,
}

/// `GET /groups` lists the groups with their members, by id.
pub fn list(db: &Db, call: &Call) -> Result<Answer> {
    let query: PageQuery = call.query()?;
    let page = Keyset::new(call, "", &query)?;
    guard::reads(&call.who, scopes::SESSIONS_READ)?;

    let team_id = &call.who.team_id;
    let mut groups = db.query(
        "SELECT id, name, revision, created_at
           FROM groups_table
          WHERE team_id = ?1 AND id > ?2
          ORDER BY id
          LIMIT ?3",
        params![team_id, page.after(), page.limit + 1],
        |row| read(row).map(|group| (group.id.to_string(), group)),
    )?;
    // One group more than the page holds tells that it goes on, so its members are not read.
    let (mut shown, mut examined) = (0, 0);
    while shown < groups.len().min(page.limit) && (shown == 0 || examined < ROWS_EXAMINED_MAX) {
        let group = &mut groups[shown].1;
        group.principal_ids = principal_ids(db, team_id, &group.id)?;
        examined += group.principal_ids.len();
        shown += 1;
    }
    let cut = (shown < groups.len()).then(|| page.token(&groups[shown - 1].0));
    let items: Vec<Group> = groups.into_iter().take(shown).map(|(_, group)| group).collect();

    call.list(&items, cut.as_deref())
}

/// `POST /groups` makes a group without members.
///
/// `403` unless the caller is an admin; `409 conflict` when the team has as many as it may.
pub fn create(tx: &Tx, call: &Call) -> Result<Answer> {
    let body: CreateGroup = call.json()?;
    guard::name("name", &body.name, NAME_CHARS_MAX)?;
    guard::role(&call.who, Role::Admin)?;

    let team_id = &call.who.team_id;
    let count = tx.query_one(
        "SELECT count(*) FROM (SELECT 1 FROM groups_table WHERE team_id = ?1 LIMIT ?2)",
        params![team_id, GROUPS_MAX],
        |row| row.get::<i64>(),
    )?;
    guard::room("groups", count, GROUPS_MAX)?;
    let id: GroupId = tx.new_id();
    tx.execute(
        "INSERT INTO groups_table (team_id, id, name, created_at) VALUES (?1, ?2, ?3, ?4)",
        params![team_id, &id, &body.name, tx.now_ms],
    )?;
    let group = load(tx, team_id, &id)?;
    announce(tx, call, &group, Stage::Current)?;
    journal::write(tx, call, "group.created", id.as_str())?;

    call.versioned(201, &group, group.revision)
}

/// `GET /groups/{group}` is a group with its members.
pub fn get(db: &Db, call: &Call) -> Result<Answer> {
    guard::reads(&call.who, scopes::SESSIONS_READ)?;

    let group = load(db, &call.who.team_id, &call.id(0)?)?;

    call.versioned(200, &group, group.revision)
}

/// `PATCH /groups/{group}` renames a group.
///
/// `403` unless the caller is an admin.
pub fn change(tx: &Tx, call: &Call) -> Result<Answer> {
    let body: ChangeGroup = call.json()?;
    if let Some(name) = &body.name {
        guard::name("name", name, NAME_CHARS_MAX)?;
    }
    guard::role(&call.who, Role::Admin)?;

    let before = load(tx, &call.who.team_id, &call.id(0)?)?;
    call.if_match(before.revision)?;
    let Some(name) = body.name.filter(|name| *name != before.name) else {
        return call.versioned(200, &before, before.revision);
    };
    tx.execute(
        "UPDATE groups_table SET name = ?3, revision = revision + 1
          WHERE team_id = ?1 AND id = ?2",
        params![&call.who.team_id, &before.id, &name],
    )?;
    let group = load(tx, &call.who.team_id, &before.id)?;
    announce(tx, call, &group, Stage::Current)?;
    journal::write(tx, call, "group.changed", group.id.as_str())?;

    call.versioned(200, &group, group.revision)
}

/// `DELETE /groups/{group}` ends a group and what was granted to it.
///
/// `403` unless the caller is an admin; `428` without `If-Match`.
pub fn delete(tx: &Tx, call: &Call) -> Result<Answer> {
    guard::role(&call.who, Role::Admin)?;

    let team_id = &call.who.team_id;
    let group = load(tx, team_id, &call.id(0)?)?;
    call.must_match(group.revision)?;
    tx.execute(
        "DELETE FROM group_members WHERE team_id = ?1 AND group_id = ?2",
        params![team_id, &group.id],
    )?;
    tx.execute(
        "DELETE FROM groups_table WHERE team_id = ?1 AND id = ?2",
        params![team_id, &group.id],
    )?;
    grants::remove_all_of(tx, team_id, SubjectKind::Group, group.id.as_str())?;
    announce(tx, call, &group, Stage::Last)?;
    journal::write(tx, call, "group.deleted", group.id.as_str())?;
    authority::changed(tx, call)?;

    Ok(Answer::no_content())
}

/// `PUT /groups/{group}/members/{principal}` takes a member of the team in.
///
/// `403` unless the caller is an admin.
pub fn add_member(tx: &Tx, call: &Call) -> Result<Answer> {
    guard::role(&call.who, Role::Admin)?;

    let team_id = &call.who.team_id;
    let before = load(tx, team_id, &call.id(0)?)?;
    let member = members::load(tx, team_id, &call.id(1)?)?;
    call.if_match(before.revision)?;
    let added = tx.execute_counted(
        "INSERT INTO group_members (team_id, group_id, principal_id) VALUES (?1, ?2, ?3)
         ON CONFLICT (team_id, group_id, principal_id) DO NOTHING",
        params![team_id, &before.id, &member.principal_id],
    )?;
    let group = if added == 0 { before } else { members_changed(tx, call, &before.id)? };

    call.versioned(200, &group, group.revision)
}

/// `DELETE /groups/{group}/members/{principal}` lets one go; whoever is not in it stays out.
///
/// `403` unless the caller is an admin.
pub fn remove_member(tx: &Tx, call: &Call) -> Result<Answer> {
    guard::role(&call.who, Role::Admin)?;

    let team_id = &call.who.team_id;
    let group = load(tx, team_id, &call.id(0)?)?;
    let principal_id: PrincipalId = call.id(1)?;
    call.if_match(group.revision)?;
    let removed = tx.execute_counted(
        "DELETE FROM group_members
          WHERE team_id = ?1 AND group_id = ?2 AND principal_id = ?3",
        params![team_id, &group.id, &principal_id],
    )?;
    if removed > 0 {
        members_changed(tx, call, &group.id)?;
    }

    Ok(Answer::no_content())
}

/// Takes a member who leaves the team out of every group.
pub fn remove_member_everywhere(tx: &Tx, call: &Call, principal_id: &PrincipalId) -> Result<()> {
    let groups = tx.execute_returning(
        "UPDATE groups_table SET revision = revision + 1
          WHERE team_id = ?1 AND id IN (
                SELECT group_id FROM group_members WHERE team_id = ?1 AND principal_id = ?2)
      RETURNING id, name, revision, created_at",
        params![&call.who.team_id, principal_id],
        read,
    )?;
    tx.execute(
        "DELETE FROM group_members WHERE team_id = ?1 AND principal_id = ?2",
        params![&call.who.team_id, principal_id],
    )?;
    groups.iter().try_for_each(|group| announce(tx, call, group, Stage::Current))
}

/// Refuses a group that the team does not have.
pub fn must_exist(db: &Db, team_id: &TeamId, group_id: &GroupId) -> Result<()> {
    let found = db.query_optional(
        "SELECT 1 FROM groups_table WHERE team_id = ?1 AND id = ?2",
        params![team_id, group_id],
        |row| row.get::<i64>(),
    )?;
    found.map(drop).ok_or_else(Error::not_found)
}

fn load(db: &Db, team_id: &TeamId, group_id: &GroupId) -> Result<Group> {
    let group = db.query_optional(
        "SELECT id, name, revision, created_at
           FROM groups_table
          WHERE team_id = ?1 AND id = ?2",
        params![team_id, group_id],
        read,
    )?;
    let group = group.ok_or_else(Error::not_found)?;
    Ok(Group { principal_ids: principal_ids(db, team_id, group_id)?, ..group })
}

/// A group without its members, which are read on their own.
fn read(row: &mut Row) -> Result<Group> {
    Ok(Group {
        id: row.get()?,
        name: row.get()?,
        principal_ids: Vec::new(),
        revision: row.get()?,
        created_at: row.get()?,
    })
}

fn principal_ids(db: &Db, team_id: &TeamId, group_id: &GroupId) -> Result<Vec<PrincipalId>> {
    db.query(
        "SELECT principal_id
           FROM group_members
          WHERE team_id = ?1 AND group_id = ?2
          ORDER BY principal_id
          LIMIT ?3",
        params![team_id, group_id, MEMBERS_MAX],
        |row| row.get(),
    )
}

fn members_changed(tx: &Tx, call: &Call, group_id: &GroupId) -> Result<Group> {
    tx.execute(
        "UPDATE groups_table SET revision = revision + 1 WHERE team_id = ?1 AND id = ?2",
        params![&call.who.team_id, group_id],
    )?;
    let group = load(tx, &call.who.team_id, group_id)?;
    announce(tx, call, &group, Stage::Current)?;
    journal::write(tx, call, "group.changed", group_id.as_str())?;
    authority::changed(tx, call)?;
    Ok(group)
}

fn announce(tx: &Tx, call: &Call, group: &Group, stage: Stage) -> Result<()> {
    let Group { id, name, revision, .. } = group;
    let deleted = stage == Stage::Last;
    let event = Event {
        name: "group.changed",
        resource_kind: "group",
        resource_id: id.as_str(),
        source_id: None,
        principal_id: Some(&call.who.principal_id),
        data: json!({ "id": id, "name": name, "revision": revision, "deleted": deleted }),
        stage,
    };
    events::record(tx, &call.who.team_id, &event).map(drop)
}

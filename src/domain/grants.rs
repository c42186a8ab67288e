//! Grants: access to one session for a principal or a group, beyond who sees its sources.
use crate::api::{Answer, Call};
use crate::auth::Role;
use crate::domain::events::{self, Event, Stage};
use crate::domain::sessions::{self, Stored};
use crate::domain::{authority, groups, journal, visibility};
use crate::error::{Error, Result};
use crate::guard;
use crate::ids::{GroupId, Id, PrincipalId, SourceId, TeamId};
use crate::limits::GRANTS_PER_SUBJECT_MAX;
use crate::page::{Keyset, PageQuery};
use crate::params;
use crate::store::{Db, Row, Tx};
use serde_json::json;

/// Who holds a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubjectKind {
    Principal,
    Group,
}

impl SubjectKind {
    pub fn text(self) -> &'static str {
        match self {
            SubjectKind::Principal => "principal",
            SubjectKind::Group => "group",
        }
    }
}

#[derive(Debug, serde::Serialize)]
struct Grant {
    subject_kind: String,
    subject_id: String,
    access: String,
    created_at: i64,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct PutGrant {
    access: Access,
}

#[derive(Clone, Copy, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum Access {
    Read,
    Continue,
}

/// `GET /sessions/{session}/grants` lists who was granted what, for whoever sees the session.
pub fn list(db: &Db, call: &Call) -> Result<Answer> {
    let query: PageQuery = call.query()?;
    let page = Keyset::new(call, call.segment(0), &query)?;
    let session = sessions::seen(db, &call.who, &call.id(0)?)?;

    let (kind, id) = page.after().split_once('.').unwrap_or_default();
    let grants = db.query(
        "SELECT subject_kind, subject_id, access, created_at
           FROM session_grants
          WHERE team_id = ?1 AND session_id = ?2 AND (subject_kind, subject_id) > (?3, ?4)
          ORDER BY subject_kind, subject_id
          LIMIT ?5",
        params![&call.who.team_id, &session.session_id, kind, id, page.limit + 1],
        |row| {
            let grant = read(row)?;
            Ok((format!("{}.{}", grant.subject_kind, grant.subject_id), grant))
        },
    )?;

    let (items, next) = page.page(grants);
    call.list(&items, next.as_deref())
}

/// `GET /sessions/{session}/grants/{kind}/{subject}` is one of them.
pub fn get(db: &Db, call: &Call) -> Result<Answer> {
    let session = sessions::seen(db, &call.who, &call.id(0)?)?;

    let grant = load(db, call, &session)?.ok_or_else(Error::not_found)?;

    call.one(200, &grant)
}

/// `PUT /sessions/{session}/grants/{kind}/{subject}` grants a member, an app or a group access, or
/// changes it.
///
/// `403` unless the caller is a member and the custodian of one of the session's sources, or an
/// admin who sees it; `409 conflict` when the subject has as many grants as it may.
pub fn put(tx: &Tx, call: &Call) -> Result<Answer> {
    let body: PutGrant = call.json()?;
    guard::role(&call.who, Role::Member)?;
    let session = sessions::seen(tx, &call.who, &call.id(0)?)?;
    visibility::must_govern(tx, &call.who, &session.session_id)?;

    let kind = must_exist(tx, call)?;
    if load(tx, call, &session)?.is_none() {
        has_room(tx, call, kind)?;
    }
    let access = match body.access {
        Access::Read => "read",
        Access::Continue => "continue",
    };
    let changed = tx.execute_counted(
        "INSERT INTO session_grants
             (team_id, session_id, subject_kind, subject_id, access, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT (team_id, session_id, subject_kind, subject_id)
         DO UPDATE SET access = excluded.access WHERE access <> excluded.access",
        params![
            &call.who.team_id,
            &session.session_id,
            kind.text(),
            call.segment(2),
            access,
            tx.now_ms
        ],
    )?;
    if changed > 0 {
        announce(tx, call, &session, Some(access))?;
    }
    let grant = load(tx, call, &session)?;

    call.one(200, &grant)
}

/// `DELETE /sessions/{session}/grants/{kind}/{subject}` takes a grant back, if there is one.
///
/// `403` as for granting.
pub fn remove(tx: &Tx, call: &Call) -> Result<Answer> {
    guard::role(&call.who, Role::Member)?;
    let session = sessions::seen(tx, &call.who, &call.id(0)?)?;
    visibility::must_govern(tx, &call.who, &session.session_id)?;
    subject(call)?;

    let removed = tx.execute_counted(
        "DELETE FROM session_grants
          WHERE team_id = ?1 AND session_id = ?2 AND subject_kind = ?3 AND subject_id = ?4",
        params![&call.who.team_id, &session.session_id, call.segment(1), call.segment(2)],
    )?;
    if removed > 0 {
        announce(tx, call, &session, None)?;
    }

    Ok(Answer::no_content())
}

/// By session_grants_by_subject.
fn has_room(db: &Db, call: &Call, kind: SubjectKind) -> Result<()> {
    let count = db.query_one(
        "SELECT count(*) FROM (SELECT 1 FROM session_grants
                                WHERE team_id = ?1 AND subject_kind = ?2 AND subject_id = ?3
                                LIMIT ?4)",
        params![&call.who.team_id, kind.text(), call.segment(2), GRANTS_PER_SUBJECT_MAX],
        |row| row.get::<i64>(),
    )?;
    guard::room("sessions granted to one principal or group", count, GRANTS_PER_SUBJECT_MAX)
}

/// Takes back every grant of a principal or group that has gone.
pub fn remove_all_of(tx: &Tx, team_id: &TeamId, kind: SubjectKind, id: &str) -> Result<()> {
    tx.execute(
        "DELETE FROM session_grants
          WHERE team_id = ?1 AND subject_kind = ?2 AND subject_id = ?3",
        params![team_id, kind.text(), id],
    )
}

fn load(db: &Db, call: &Call, session: &Stored) -> Result<Option<Grant>> {
    db.query_optional(
        "SELECT subject_kind, subject_id, access, created_at
           FROM session_grants
          WHERE team_id = ?1 AND session_id = ?2 AND subject_kind = ?3 AND subject_id = ?4",
        params![&call.who.team_id, &session.session_id, call.segment(1), call.segment(2)],
        read,
    )
}

fn read(row: &mut Row) -> Result<Grant> {
    Ok(Grant {
        subject_kind: row.get()?,
        subject_id: row.get()?,
        access: row.get()?,
        created_at: row.get()?,
    })
}

enum Subject {
    Group(GroupId),
    Principal(PrincipalId),
}

/// The subject that the address names, whether or not it is there.
fn subject(call: &Call) -> Result<Subject> {
    match call.segment(1) {
        kind if kind == SubjectKind::Group.text() => Ok(Subject::Group(call.id(2)?)),
        kind if kind == SubjectKind::Principal.text() => Ok(Subject::Principal(call.id(2)?)),
        _ => Err(Error::not_found()),
    }
}

/// Refuses a subject that the team does not have: a member, an app's principal or a group.
fn must_exist(db: &Db, call: &Call) -> Result<SubjectKind> {
    let team_id = &call.who.team_id;
    let principal_id = match subject(call)? {
        Subject::Group(group_id) => {
            groups::must_exist(db, team_id, &group_id)?;
            return Ok(SubjectKind::Group);
        }
        Subject::Principal(principal_id) => principal_id,
    };
    let there = db.query_one(
        "SELECT EXISTS (SELECT 1 FROM memberships WHERE team_id = ?1 AND principal_id = ?2)
             OR EXISTS (SELECT 1 FROM apps WHERE team_id = ?1 AND principal_id = ?2)",
        params![team_id, &principal_id],
        |row| row.get::<bool>(),
    )?;
    if there { Ok(SubjectKind::Principal) } else { Err(Error::not_found()) }
}

/// The grant's event, journal line and new authority; no access: it was taken back.
fn announce(tx: &Tx, call: &Call, session: &Stored, access: Option<&str>) -> Result<()> {
    let session_id = &session.session_id;
    let source_id = session.source_ids().first().and_then(|id| SourceId::parse(id));
    let event = Event {
        name: "session.granted",
        resource_kind: "session",
        resource_id: session_id.as_str(),
        source_id: source_id.as_ref(),
        principal_id: Some(&call.who.principal_id),
        data: json!({
            "session_id": session_id, "revision": session.revision,
            "subject_kind": call.segment(1), "subject_id": call.segment(2), "access": access,
        }),
        stage: Stage::Current,
    };
    events::record(tx, &call.who.team_id, &event)?;
    journal::write(tx, call, "session.granted", session_id.as_str())?;
    authority::changed(tx, call)
}

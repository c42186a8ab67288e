//! Sessions: what captures make of an agent's work, as the team reads it.
use crate::api::{Answer, Call};
use crate::auth::{Principal, Role};
use crate::domain::events::{self, Event, Stage};
use crate::domain::visibility::{self, Origins};
use crate::domain::{journal, search, search_scope};
use crate::error::{Error, Result};
use crate::guard;
use crate::ids::{Id, PrincipalId, SessionId, SourceId, TeamId};
use crate::json::Patch;
use crate::limits::{SESSION_ORIGINS_MAX, TITLE_CHARS_MAX};
use crate::params;
use crate::store::{Db, Row, Tx};
use serde_json::json;
use std::collections::HashMap;

#[derive(Debug, serde::Serialize)]
pub struct Session {
    pub id: SessionId,
    pub revision: i64,
    pub harness: String,
    pub title: Option<String>,
    pub message_count: i64,
    pub source_ids: Vec<String>,
    pub created_at: i64,
    pub updated_at: i64,
    pub activity: Option<Activity>,
    pub hit: Option<search::Hit>,
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Activity {
    pub turn: String,
    pub since: Option<i64>,
}

/// A session's row, deleted or not.
pub struct Stored {
    pub session_id: SessionId,
    pub revision: i64,
    pub edits: i64,
    pub harness: String,
    pub title: Option<String>,
    pub title_by: Option<String>,
    pub message_count: i64,
    pub created_at: i64,
    pub updated_at: i64,
    pub deleted_at: Option<i64>,
    pub origins: Vec<(String, String, String)>,
}

impl Stored {
    /// From the columns id, revision, edits, harness, title, title_by, message_count, created_at,
    /// updated_at, deleted_at, origins_json.
    pub fn read(row: &mut Row) -> Result<Stored> {
        Ok(Stored {
            session_id: row.get()?,
            revision: row.get()?,
            edits: row.get()?,
            harness: row.get()?,
            title: row.get()?,
            title_by: row.get()?,
            message_count: row.get()?,
            created_at: row.get()?,
            updated_at: row.get()?,
            deleted_at: row.get()?,
            origins: row.get::<Origins>()?.0,
        })
    }

    pub fn source_ids(&self) -> Vec<String> {
        let mut ids: Vec<String> =
            self.origins.iter().map(|(source, _, _)| source.clone()).collect();
        ids.dedup();
        ids
    }

    fn tag(&self) -> String {
        format!("\"{}-{}\"", self.revision, self.edits)
    }
}

fn load(db: &Db, who: &Principal, session_id: &SessionId) -> Result<Stored> {
    db.query_optional(
        "SELECT id, revision, edits, harness, title, title_by, message_count, created_at,
                updated_at, deleted_at, origins_json
           FROM sessions WHERE team_id = ?1 AND id = ?2 AND deleted_at IS NULL",
        params![&who.team_id, session_id],
        Stored::read,
    )?
    .ok_or_else(Error::not_found)
}

/// The session, for a caller who may see it; deleted ones are gone for everybody.
pub fn seen(db: &Db, who: &Principal, session_id: &SessionId) -> Result<Stored> {
    visibility::must_see(db, who, session_id)?;
    load(db, who, session_id)
}

/// Refuses a session that is not there, or was deleted.
pub fn must_exist(db: &Db, who: &Principal, session_id: &SessionId) -> Result<()> {
    load(db, who, session_id).map(drop)
}

/// Ends a resource of the session: it has no current event any more under any of its sources.
pub fn end_events(
    tx: &Tx,
    team_id: &TeamId,
    session_id: &SessionId,
    resource_kind: &str,
    resource_id: &str,
) -> Result<()> {
    tx.execute(
        "DELETE FROM event_resources
          WHERE (team_id, source_id, resource_kind, resource_id) IN (
                SELECT o.team_id, o.source_id, ?3, ?4
                  FROM origins o
                 WHERE o.team_id = ?1 AND o.session_id = ?2
                 LIMIT ?5)",
        params![team_id, session_id, resource_kind, resource_id, SESSION_ORIGINS_MAX],
    )
}

/// `GET /sessions/{session}`.
pub fn get(db: &Db, call: &Call) -> Result<Answer> {
    let stored = seen(db, &call.who, &call.id(0)?)?;
    answer(db, call, stored)
}

fn answer(db: &Db, call: &Call, stored: Stored) -> Result<Answer> {
    let tag = stored.tag();
    let origins: Vec<_> = stored
        .origins
        .iter()
        .map(|(source, harness, native_id)| (&stored.session_id, source, harness, native_id))
        .collect();
    let origins = json!(origins).to_string();
    let activity = activities(db, &call.who.team_id, &origins)?.into_values().next();
    let session = Session {
        source_ids: stored.source_ids(),
        id: stored.session_id,
        revision: stored.revision,
        harness: stored.harness,
        title: stored.title,
        message_count: stored.message_count,
        created_at: stored.created_at,
        updated_at: stored.updated_at,
        activity,
        hit: None,
    };
    Ok(call.one(200, &session)?.with("ETag", tag))
}

/// What is going on in the sessions of the origins `[[session_id, source, harness, native id]]`: of
/// several of one session, the one that changed last.
pub fn activities(
    db: &Db,
    team_id: &TeamId,
    origins_json: &str,
) -> Result<HashMap<String, Activity>> {
    let found = db.query(
        "SELECT j.value ->> 0, a.turn, a.since
           FROM json_each(?2) j CROSS JOIN session_activity a
             ON a.team_id = ?1 AND a.source_id = j.value ->> 1
            AND a.harness = j.value ->> 2 AND a.native_id = j.value ->> 3
          ORDER BY a.observed_at",
        params![team_id, origins_json],
        |row| {
            let session_id: String = row.get()?;
            Ok((session_id, Activity { turn: row.get()?, since: row.get()? }))
        },
    )?;
    Ok(found.into_iter().collect())
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    #[serde(default)]
    title: Patch<String>,
}

/// `PATCH /sessions/{session}` sets the title: a member's stays over those of captures, and null
/// returns to the captured one.
pub fn change(tx: &Tx, call: &Call) -> Result<Answer> {
    let Change { title } = call.json()?;
    if let Patch::Set(title) = &title {
        guard::name("title", title, TITLE_CHARS_MAX)?;
    }
    guard::role(&call.who, Role::Member)?;
    let stored = seen(tx, &call.who, &call.id(0)?)?;
    must_match(call, &stored)?;

    let (title, title_by) = match title {
        Patch::Keep => return answer(tx, call, stored),
        Patch::Clear => (captured_title(tx, call, &stored)?, None),
        Patch::Set(title) => (Some(title), Some(call.who.principal_id.as_str())),
    };
    if stored.title == title && stored.title_by.is_some() == title_by.is_some() {
        return answer(tx, call, stored);
    }
    let row_ids = tx.execute_returning(
        "UPDATE sessions SET title = ?3, title_by = ?4, edits = edits + 1, updated_at = ?5
          WHERE team_id = ?1 AND id = ?2
      RETURNING rowid",
        params![&call.who.team_id, &stored.session_id, title.as_deref(), title_by, tx.now_ms],
        |row| row.get::<i64>(),
    )?;
    for row_id in row_ids {
        let sources = stored.source_ids();
        let sources = sources.iter().map(String::as_str);
        let scope = search_scope::of_session(&call.who.team_id, &stored.session_id, sources);
        search::put_title(tx, row_id, title.as_deref(), &scope)?;
    }
    let source_id = source_of(tx, &call.who.team_id, &stored.session_id)?;
    let event = Event {
        data: json!({ "session_id": stored.session_id, "revision": stored.revision, "title": title }),
        ..event(call, &stored, source_id.as_ref())
    };
    events::record(tx, &call.who.team_id, &event)?;

    answer(tx, call, load(tx, &call.who, &stored.session_id)?)
}

fn must_match(call: &Call, stored: &Stored) -> Result<()> {
    let tag = stored.tag();
    if call.names_tag("if-match", &tag).unwrap_or(true) {
        return Ok(());
    }
    Err(Error::revision_mismatch(stored.revision).with("etag", tag))
}

fn captured_title(db: &Db, call: &Call, stored: &Stored) -> Result<Option<String>> {
    let title = db.query_optional(
        "SELECT title FROM session_versions
          WHERE team_id = ?1 AND session_id = ?2 AND revision = ?3",
        params![&call.who.team_id, &stored.session_id, stored.revision],
        |row| row.get::<Option<String>>(),
    )?;
    Ok(title.flatten())
}

/// The source of a session's current version, which its events name.
pub fn source_of(db: &Db, team_id: &TeamId, session_id: &SessionId) -> Result<Option<SourceId>> {
    db.query_optional(
        "SELECT v.source_id
           FROM sessions s CROSS JOIN session_versions v
             ON v.team_id = s.team_id AND v.session_id = s.id AND v.revision = s.revision
          WHERE s.team_id = ?1 AND s.id = ?2",
        params![team_id, session_id],
        |row| row.get(),
    )
}

fn event<'a>(call: &'a Call, stored: &'a Stored, source_id: Option<&'a SourceId>) -> Event<'a> {
    Event {
        name: "session.updated",
        resource_kind: "session",
        resource_id: stored.session_id.as_str(),
        source_id,
        principal_id: Some(&call.who.principal_id),
        data: serde_json::Value::Null,
        stage: Stage::Current,
    }
}

/// `DELETE /sessions/{session}`, by the custodian of one of its sources or an admin: 404
/// everywhere from then on, in pages under way too. What it holds is removed later.
pub fn delete(tx: &Tx, call: &Call) -> Result<Answer> {
    guard::role(&call.who, Role::Viewer)?;
    let stored = seen(tx, &call.who, &call.id(0)?)?;
    visibility::must_govern(tx, &call.who, &stored.session_id)?;
    must_match(call, &stored)?;

    end(tx, &call.who.team_id, &stored.session_id, Some(&call.who.principal_id))?;
    journal::write(tx, call, "session.deleted", stored.session_id.as_str())?;

    Ok(Answer::no_content())
}

/// Deletes a session for everybody, by a principal or by age, and says so in the event log.
pub fn end(
    tx: &Tx,
    team_id: &TeamId,
    session_id: &SessionId,
    principal_id: Option<&PrincipalId>,
) -> Result<()> {
    let (Origins(origins), source_id) = tx.query_one(
        "SELECT s.origins_json,
                (SELECT v.source_id
                   FROM session_versions AS v
                  WHERE v.team_id = s.team_id AND v.session_id = s.id AND v.revision = s.revision)
           FROM sessions AS s
          WHERE s.team_id = ?1 AND s.id = ?2",
        params![team_id, session_id],
        |row| Ok((row.get()?, row.get::<Option<SourceId>>()?)),
    )?;
    mark_deleted(tx, team_id, session_id)?;
    for (source_id, ..) in &origins {
        let source_id = SourceId::parse(source_id);
        events::end(tx, team_id, source_id.as_ref(), "session", session_id.as_str())?;
    }
    let event = Event {
        name: "session.deleted",
        resource_kind: "session",
        resource_id: session_id.as_str(),
        source_id: source_id.as_ref(),
        principal_id,
        data: json!({ "session_id": session_id }),
        stage: Stage::Last,
    };
    events::record(tx, team_id, &event).map(drop)
}

/// Hides a session from everybody; retention removes what it holds.
pub fn mark_deleted(tx: &Tx, team_id: &TeamId, session_id: &SessionId) -> Result<()> {
    tx.execute(
        "UPDATE sessions SET deleted_at = ?3
          WHERE team_id = ?1 AND id = ?2 AND deleted_at IS NULL",
        params![team_id, session_id, tx.now_ms],
    )
}

/// What a commit says of the session.
pub struct NewVersion<'a> {
    pub session_id: &'a SessionId,
    pub revision: i64,
    pub harness: &'a str,
    pub title: Option<&'a str>,
    pub message_count: i64,
    /// What the title carries in the search index.
    pub scope: &'a str,
    pub scope_changed: bool,
    pub is_new: bool,
}

/// Makes the session's row, or moves it to its new version. A member's title stays.
pub fn put_version(tx: &Tx, team_id: &TeamId, new: &NewVersion) -> Result<()> {
    let NewVersion { session_id, revision, harness, title, message_count, scope, .. } = new;
    let NewVersion { scope_changed, is_new, .. } = new;
    if *is_new {
        let row_ids = tx.execute_returning(
            "INSERT INTO sessions
                 (team_id, id, revision, harness, title, message_count, created_at, updated_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7)
             RETURNING rowid",
            params![team_id, *session_id, *revision, *harness, *title, *message_count, tx.now_ms],
            |row| row.get::<i64>(),
        )?;
        return match (row_ids.first(), title) {
            (Some(row_id), Some(title)) => search::put_title(tx, *row_id, Some(title), scope),
            _ => Ok(()),
        };
    }
    let (row_id, stored, title_by) = tx.query_one(
        "SELECT rowid, title, title_by FROM sessions WHERE team_id = ?1 AND id = ?2",
        params![team_id, *session_id],
        |row| Ok((row.get::<i64>()?, row.get::<Option<String>>()?, row.get::<Option<String>>()?)),
    )?;
    let title = if title_by.is_some() { stored.as_deref() } else { *title };
    tx.execute(
        "UPDATE sessions SET revision = ?2, title = ?3, message_count = ?4, updated_at = ?5
          WHERE rowid = ?1",
        params![row_id, *revision, title, *message_count, tx.now_ms],
    )?;
    if title == stored.as_deref() && !scope_changed {
        return Ok(());
    }
    search::put_title(tx, row_id, title, scope)
}

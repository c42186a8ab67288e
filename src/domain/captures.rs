//! Captures: one publication of a session, from begin through parts (`capture_parts.rs`) to
//! commit (`capture_commit.rs`). A capture is `staging` until it commits, is aborted or expires.
use crate::api::{Answer, Call};
use crate::auth::{Principal, Role};
use crate::domain::{continuations, publishing, visibility};
use crate::error::{Code, Error, Result};
use crate::guard;
use crate::ids::{CaptureId, ContinuationId, Id, SessionId, SourceId, UploadId};
use crate::limits::{
    CAPTURE_AGE_MS, CAPTURE_ARTIFACTS_MAX, HARNESS_CHARS_MAX, NAME_CHARS_MAX, NAMED_UPLOADS_MAX,
    NATIVE_ID_CHARS_MAX, PROJECTION_BYTES_MAX, SAFE_INTEGER_MAX,
};
use crate::params;
use crate::store::{Db, Row, Tx};
use crate::text;
use serde_json::value::RawValue;
use std::collections::HashSet;

/// What a capture is begun with; kept until its commit.
#[derive(Debug, serde::Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields)]
pub struct Begin {
    pub harness: String,
    pub native_id: String,
    #[serde(default)]
    pub source_id: Option<SourceId>,
    #[serde(default)]
    pub title: Option<String>,
    #[serde(default)]
    pub projection: Option<Box<RawValue>>,
    #[serde(default)]
    pub artifacts: Vec<Artifact>,
    #[serde(default)]
    pub base: Option<Base>,
    #[serde(default)]
    pub session_id: Option<SessionId>,
    #[serde(default)]
    pub continuation_id: Option<ContinuationId>,
    #[serde(default)]
    pub restore: bool,
}

#[derive(Debug, Clone, PartialEq, serde::Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields)]
pub struct Artifact {
    pub bundle_id: String,
    pub upload_id: UploadId,
    pub name: String,
}

/// The revision whose first `keep` messages the new version carries.
#[derive(Debug, Clone, Copy, serde::Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields)]
pub struct Base {
    pub revision: i64,
    pub keep: i64,
}

impl Begin {
    fn validate(&self) -> Result<()> {
        guard::name("harness", &self.harness, HARNESS_CHARS_MAX)?;
        guard::name("native_id", &self.native_id, NATIVE_ID_CHARS_MAX)?;
        if let Some(projection) = self.projection.as_ref().map(|raw| raw.get()) {
            if !projection.starts_with('{') {
                return Err(Error::field("projection", "must be an object"));
            }
            if projection.len() > PROJECTION_BYTES_MAX {
                return Err(Error::too_large(PROJECTION_BYTES_MAX, "projection")
                    .with("field", "projection"));
            }
        }
        guard::at_most("artifacts", self.artifacts.len(), CAPTURE_ARTIFACTS_MAX)?;
        let mut bundles = HashSet::new();
        for (index, artifact) in self.artifacts.iter().enumerate() {
            let field = |name| format!("artifacts[{index}].{name}");
            guard::name(&field("bundle_id"), &artifact.bundle_id, NAME_CHARS_MAX)?;
            guard::name(&field("name"), &artifact.name, NAME_CHARS_MAX)?;
            if !bundles.insert(&artifact.bundle_id) {
                return Err(Error::field(field("bundle_id"), "is there twice"));
            }
        }
        if let Some(base) = self.base {
            guard::in_range("base.revision", base.revision, 1..=SAFE_INTEGER_MAX)?;
            guard::in_range("base.keep", base.keep, 0..=SAFE_INTEGER_MAX)?;
        }
        if self.session_id.is_some() && self.continuation_id.is_some() {
            let message = "name a session or a continuation, not both";
            return Err(Error::field("continuation_id", message));
        }
        Ok(())
    }
}

#[derive(Debug, serde::Serialize)]
struct Capture {
    id: CaptureId,
    source_id: SourceId,
    harness: String,
    native_id: String,
    state: String,
    session_id: Option<SessionId>,
    revision: Option<i64>,
    parts: Vec<i64>,
    created_at: i64,
    expires_at: i64,
}

/// A capture's row.
pub struct Held {
    pub capture_id: CaptureId,
    pub source_id: SourceId,
    pub principal_id: String,
    pub state: String,
    pub begin: Begin,
    pub session_id: Option<SessionId>,
    pub revision: Option<i64>,
    pub created_at: i64,
    pub result_json: Option<String>,
    pub part_count: i64,
    pub message_count: i64,
    pub bytes: i64,
}

/// `POST /captures` begins a capture; its parts and its commit must follow within a day.
///
/// `404` for a source, session, continuation or upload that the caller may not know of; `409
/// conflict` when the source is paused or the origin is bound to another session; `409
/// revision_mismatch` when `base` is not the current revision; `410 session_deleted` for the
/// origin of a deleted session, unless `restore` begins it anew.
pub fn begin(tx: &Tx, call: &Call) -> Result<Answer> {
    let begin: Begin = call.json()?;
    begin.validate()?;
    let upload_ids = text::upload_ids(&crate::json::text(call.bytes())?);
    guard::at_most("upload ids", upload_ids.len(), NAMED_UPLOADS_MAX)?;
    let source_id = publishing::source(tx, &call.who, begin.source_id.as_ref())?;

    for artifact in &begin.artifacts {
        must_know_upload(tx, &call.who, &source_id, &artifact.upload_id)?;
    }
    let target = target(tx, &call.who, &source_id, &begin)?;
    if let Some(base) = begin.base {
        check_base(tx, &call.who, target.session_id(), base)?;
    }
    let capture_id: CaptureId = tx.new_id();
    let begin_json = crate::json::to_string(&begin)?;
    tx.execute(
        "INSERT INTO captures
             (team_id, id, source_id, state, begin_json, upload_ids_json, created_at, principal_id)
         VALUES (?1, ?2, ?3, 'staging', ?4, ?5, ?6, ?7)",
        params![
            &call.who.team_id,
            &capture_id,
            &source_id,
            &begin_json,
            &serde_json::json!(upload_ids).to_string(),
            tx.now_ms,
            &call.who.principal_id
        ],
    )?;

    call.one(201, &shape(tx, call, &load(tx, &call.who, &capture_id, |_| true)?)?)
}

/// `GET /captures/{capture}` says which parts are held, so that its maker can go on.
///
/// `410 expired` once it ran out uncommitted.
pub fn get(db: &Db, call: &Call) -> Result<Answer> {
    let held = mine_or_admins(db, &call.who, &call.id(0)?)?;
    call.one(200, &shape(db, call, &held)?)
}

/// `DELETE /captures/{capture}` aborts it; aborting again changes nothing.
///
/// `409 conflict` once it is committed.
pub fn abort(tx: &Tx, call: &Call) -> Result<Answer> {
    let held = mine_or_admins(tx, &call.who, &call.id(0)?)?;
    if held.state == "committed" {
        return Err(Error::conflict("the capture is committed already"));
    }
    tx.execute(
        "UPDATE captures SET state = 'aborted', settled_at = ?3
          WHERE team_id = ?1 AND id = ?2 AND state = 'staging'",
        params![&call.who.team_id, &held.capture_id, tx.now_ms],
    )?;
    Ok(Answer::no_content())
}

/// Where a capture goes, as its origin stands now.
pub enum Target {
    /// The origin is new, and so will the session be.
    NewSession,
    /// The origin is new and will be bound to this session.
    Bind(SessionId),
    /// The origin's session.
    Known(SessionId),
}

impl Target {
    pub fn session_id(&self) -> Option<&SessionId> {
        match self {
            Target::NewSession => None,
            Target::Bind(session_id) | Target::Known(session_id) => Some(session_id),
        }
    }
}

/// Finds the session by its origin, or by what the capture asks to bind a new origin to.
pub fn target(db: &Db, who: &Principal, source_id: &SourceId, begin: &Begin) -> Result<Target> {
    let origin = db.query_optional(
        "SELECT o.session_id, s.deleted_at IS NOT NULL
           FROM origins o LEFT JOIN sessions s
             ON s.team_id = o.team_id AND s.id = o.session_id
          WHERE o.team_id = ?1 AND o.source_id = ?2 AND o.harness = ?3 AND o.native_id = ?4",
        params![&who.team_id, source_id, &begin.harness, &begin.native_id],
        |row| Ok((row.get::<Option<SessionId>>()?, row.get::<bool>()?)),
    )?;
    // A machine that was given a continuation may carry its session on, whatever else it sees.
    let mut given = false;
    let asked = match (&begin.session_id, &begin.continuation_id) {
        (Some(session_id), _) => Some(session_id.clone()),
        (None, Some(id)) => match continuations::session_given(db, who, id)? {
            Some(session_id) => {
                given = true;
                Some(session_id)
            }
            None => Some(continuations::session_of(db, who, id)?),
        },
        (None, None) => None,
    };
    match (origin, asked) {
        (Some((Some(session_id), false)), asked) => {
            if asked.is_some_and(|asked| asked != session_id) {
                return Err(Error::conflict("the origin belongs to another session"));
            }
            Ok(Target::Known(session_id))
        }
        (Some(_), _) if !begin.restore => {
            let message = "the session was deleted; send \"restore\": true to begin it anew";
            Err(Error::new(Code::SessionDeleted, message))
        }
        (_, Some(asked)) => {
            if !given {
                visibility::must_continue(db, who, &asked)?;
            }
            let alive = db.query_optional(
                "SELECT 1 FROM sessions WHERE team_id = ?1 AND id = ?2 AND deleted_at IS NULL",
                params![&who.team_id, &asked],
                |row| row.get::<i64>(),
            )?;
            alive.map(|_| Target::Bind(asked)).ok_or_else(Error::not_found)
        }
        (_, None) => Ok(Target::NewSession),
    }
}

/// `base` must name the current revision, and keep no more than it has.
pub fn check_base(
    db: &Db,
    who: &Principal,
    session_id: Option<&SessionId>,
    base: Base,
) -> Result<()> {
    let current = match session_id {
        None => None,
        Some(session_id) => db.query_optional(
            "SELECT revision, message_count FROM sessions WHERE team_id = ?1 AND id = ?2",
            params![&who.team_id, session_id],
            |row| Ok((row.get::<i64>()?, row.get::<i64>()?)),
        )?,
    };
    let (revision, message_count) = current.unwrap_or_default();
    if revision != base.revision {
        return Err(Error::revision_mismatch(revision));
    }
    guard::in_range("base.keep", base.keep, 0..=message_count)
}

/// An artifact's upload: of the same source, and not being removed.
fn must_know_upload(
    db: &Db,
    who: &Principal,
    source_id: &SourceId,
    upload_id: &UploadId,
) -> Result<()> {
    let known = db.query_optional(
        "SELECT 1 FROM uploads
          WHERE team_id = ?1 AND id = ?2 AND source_id = ?3 AND state <> 'removing'",
        params![&who.team_id, upload_id, source_id],
        |row| row.get::<i64>(),
    )?;
    known.map(drop).ok_or_else(|| {
        let message = format!("the source has no upload {upload_id}");
        Error::new(Code::NotFound, message).with("field", "artifacts")
    })
}

/// The capture, for its maker; others may not know of it.
pub fn mine(db: &Db, who: &Principal, capture_id: &CaptureId) -> Result<Held> {
    publishing::role(who)?;
    load(db, who, capture_id, |held| made_by(held, who))
}

fn mine_or_admins(db: &Db, who: &Principal, capture_id: &CaptureId) -> Result<Held> {
    publishing::role(who)?;
    let admin = guard::role(who, Role::Admin).is_ok();
    load(db, who, capture_id, |held| admin || made_by(held, who))
}

fn made_by(held: &Held, who: &Principal) -> bool {
    match &who.source_id {
        Some(source_id) => *source_id == held.source_id,
        None => who.principal_id.as_str() == held.principal_id,
    }
}

/// The capture, for those who may know of it; `410 expired` when it ran out in staging, whether or
/// not it is removed by now.
fn load(
    db: &Db,
    who: &Principal,
    capture_id: &CaptureId,
    may_know: impl Fn(&Held) -> bool,
) -> Result<Held> {
    let held = db.query_optional(
        "SELECT source_id, principal_id, state, begin_json, session_id, revision, created_at,
                result_json, part_count, message_count, bytes
           FROM captures WHERE team_id = ?1 AND id = ?2",
        params![&who.team_id, capture_id],
        |row| read(capture_id, row),
    )?;
    let expired = || {
        let message = "the capture ran out a day after it began; begin a new one";
        Error::new(Code::Expired, message)
    };
    match held {
        Some(held) if !may_know(&held) => Err(Error::not_found()),
        Some(held) if held.state == "committed" => Ok(held),
        Some(held) if held.created_at + CAPTURE_AGE_MS <= db.now_ms => Err(expired()),
        Some(held) => Ok(held),
        None if expired_uncommitted(db, who, capture_id.as_str())? => Err(expired()),
        None => Err(Error::not_found()),
    }
}

fn read(capture_id: &CaptureId, row: &mut Row) -> Result<Held> {
    Ok(Held {
        capture_id: capture_id.clone(),
        source_id: row.get()?,
        principal_id: row.get()?,
        state: row.get()?,
        begin: serde_json::from_str(&row.get::<String>()?)
            .map_err(|e| Error::internal(format!("begin_json: {e}")))?,
        session_id: row.get()?,
        revision: row.get()?,
        created_at: row.get()?,
        result_json: row.get()?,
        part_count: row.get()?,
        message_count: row.get()?,
        bytes: row.get()?,
    })
}

/// Whether a capture or upload of the caller's sources is on record as expired.
pub fn expired_uncommitted(db: &Db, who: &Principal, id: &str) -> Result<bool> {
    db.query_one(
        "SELECT EXISTS (
                    SELECT 1
                      FROM sources s CROSS JOIN capture_expiries e
                        ON e.team_id = s.team_id AND e.source_id = s.id AND e.id = ?3
                     WHERE s.team_id = ?1 AND s.custodian_id = ?2)",
        params![&who.team_id, &who.principal_id, id],
        |row| row.get(),
    )
}

fn shape(db: &Db, call: &Call, held: &Held) -> Result<Capture> {
    let parts = db.query(
        "SELECT part_index FROM capture_parts
          WHERE team_id = ?1 AND capture_id = ?2
          ORDER BY part_index
          LIMIT ?3",
        params![&call.who.team_id, &held.capture_id, crate::limits::CAPTURE_PARTS_MAX],
        |row| row.get(),
    )?;
    Ok(Capture {
        id: held.capture_id.clone(),
        source_id: held.source_id.clone(),
        harness: held.begin.harness.clone(),
        native_id: held.begin.native_id.clone(),
        state: held.state.clone(),
        session_id: held.session_id.clone(),
        revision: held.revision,
        parts,
        created_at: held.created_at,
        expires_at: held.created_at + CAPTURE_AGE_MS,
    })
}

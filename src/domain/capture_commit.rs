//! A commit makes a version of a session from a capture, in one transaction. Messages are carried,
//! not copied (`capture_messages.rs`).
use crate::api::{Answer, Call};
use crate::domain::capture_messages;
use crate::domain::captures::{self, Artifact, Begin, Held, Target};
use crate::domain::events::{self, Event, Stage};
use crate::domain::visibility::Origins;
use crate::domain::{heartbeat, publishing, search_scope, sessions};
use crate::error::{Code, Error, Result};
use crate::guard;
use crate::ids::{Id, SessionId};
use crate::limits::{CAPTURE_PARTS_MAX, SESSION_ORIGINS_MAX};
use crate::params;
use crate::store::Tx;
use crate::text;
use serde_json::json;
use std::collections::{BTreeSet, HashSet};

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Commit {
    parts: i64,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Outcome {
    session_id: SessionId,
    revision: i64,
    message_count: i64,
    unchanged: bool,
}

/// The version that a commit builds upon; revision 0 holds nothing.
#[derive(Default)]
pub struct Current {
    pub revision: i64,
    pub message_count: i64,
    source_id: String,
    title: Option<String>,
    projection: Option<String>,
    origins: Vec<(String, String, String)>,
}

/// `POST /captures/{capture}/commit` makes the version; again, it answers the same.
///
/// `409 capture_incomplete` names parts that are missing and ordinals that leave a gap; `409
/// upload_incomplete` names uploads that are not committed; `409 revision_mismatch` when `base` is
/// no longer current; `410 session_deleted` when the session was deleted meanwhile.
pub fn commit(tx: &Tx, call: &Call) -> Result<Answer> {
    let Commit { parts } = call.json()?;
    guard::in_range("parts", parts, 0..=CAPTURE_PARTS_MAX)?;
    let held = captures::mine(tx, &call.who, &call.id(0)?)?;

    if let Some(result) = &held.result_json {
        let outcome: Outcome =
            serde_json::from_str(result).map_err(|e| Error::internal(e.to_string()))?;
        return call.one(200, &outcome);
    }
    if held.state != "staging" {
        return Err(Error::conflict(format!("the capture is {}", held.state)));
    }
    publishing::source(tx, &call.who, Some(&held.source_id))?;
    let target = captures::target(tx, &call.who, &held.source_id, &held.begin)?;
    if let Some(base) = held.begin.base {
        captures::check_base(tx, &call.who, target.session_id(), base)?;
    }
    must_be_complete(tx, call, &held, parts)?;
    must_have_uploads(tx, call, &held.begin.artifacts)?;

    let outcome = make_version(tx, call, &held, &target)?;
    let result = serde_json::to_string(&outcome).map_err(|e| Error::internal(e.to_string()))?;
    tx.execute(
        "UPDATE captures
            SET state = 'committed', settled_at = ?3, session_id = ?4, revision = ?5,
                result_json = ?6
          WHERE team_id = ?1 AND id = ?2",
        params![
            &call.who.team_id,
            &held.capture_id,
            tx.now_ms,
            &outcome.session_id,
            outcome.revision,
            &result
        ],
    )?;
    tx.execute(
        "UPDATE sources SET last_received_at = ?3 WHERE team_id = ?1 AND id = ?2",
        params![&call.who.team_id, &held.source_id, tx.now_ms],
    )?;
    call.one(200, &outcome)
}

/// All parts are there, and their ordinals are keep…n−1, each once.
fn must_be_complete(tx: &Tx, call: &Call, held: &Held, parts: i64) -> Result<()> {
    let incomplete = |message: String| Error::new(Code::CaptureIncomplete, message);
    let indexes = tx.query(
        "SELECT part_index FROM capture_parts
          WHERE team_id = ?1 AND capture_id = ?2
          ORDER BY part_index
          LIMIT ?3",
        params![&call.who.team_id, &held.capture_id, CAPTURE_PARTS_MAX],
        |row| row.get::<i64>(),
    )?;
    let stored: HashSet<i64> = indexes.iter().copied().collect();
    let missing: Vec<i64> = (0..parts).filter(|index| !stored.contains(index)).collect();
    if !missing.is_empty() {
        let error = incomplete(format!("{} of {parts} parts are missing", missing.len()));
        return Err(error.with("missing", missing));
    }
    if let Some(beyond) = indexes.iter().find(|index| **index >= parts) {
        let message = format!("part {beyond} is there, but the commit names only {parts} parts");
        return Err(incomplete(message));
    }
    let keep = held.begin.base.map_or(0, |base| base.keep);
    let (count, distinct, first, last) = tx.query_one(
        "SELECT count(*), count(DISTINCT CAST(d.key AS INTEGER)),
                min(CAST(d.key AS INTEGER)), max(CAST(d.key AS INTEGER))
           FROM capture_parts p CROSS JOIN json_each(p.digests_json) d
          WHERE p.team_id = ?1 AND p.capture_id = ?2",
        params![&call.who.team_id, &held.capture_id],
        |row| {
            let (count, distinct) = (row.get::<i64>()?, row.get::<i64>()?);
            Ok((count, distinct, row.get::<Option<i64>>()?, row.get::<Option<i64>>()?))
        },
    )?;
    let expected = (count > 0).then_some((keep, keep + count - 1));
    if count != distinct || first.zip(last) != expected {
        let last_expected = keep + count - 1;
        return Err(incomplete(format!(
            "the ordinals must be {keep} to {last_expected}, each once"
        ))
        .with("first", keep)
        .with("count", count));
    }
    Ok(())
}

fn must_have_uploads(tx: &Tx, call: &Call, artifacts: &[Artifact]) -> Result<()> {
    let mut missing = Vec::new();
    for Artifact { upload_id, .. } in artifacts {
        let committed = tx.query_optional(
            "SELECT 1 FROM uploads WHERE team_id = ?1 AND id = ?2 AND state = 'committed'",
            params![&call.who.team_id, upload_id],
            |row| row.get::<i64>(),
        )?;
        if committed.is_none() {
            missing.push(upload_id.as_str());
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let message = "commit the uploads that the artifacts name first";
    Err(Error::new(Code::UploadIncomplete, message).with("uploads", missing))
}

fn make_version(tx: &Tx, call: &Call, held: &Held, target: &Target) -> Result<Outcome> {
    let team_id = &call.who.team_id;
    let session_id = target.session_id().cloned().unwrap_or_else(|| tx.new_id());
    let current = match target {
        Target::NewSession => Current::default(),
        Target::Bind(id) | Target::Known(id) => current(tx, call, id)?,
    };
    let sources = current.origins.iter().map(|(source_id, _, _)| source_id.as_str());
    let sources = sources.chain([held.source_id.as_str()]);
    let new = Version {
        scope: search_scope::of_session(team_id, &session_id, sources.collect::<BTreeSet<_>>()),
        binds: !matches!(target, Target::Known(_)),
        session_id: &session_id,
        revision: current.revision + 1,
        keep: held.begin.base.map_or(0, |base| base.keep),
        message_count: held.begin.base.map_or(0, |base| base.keep) + held.message_count,
        title: held.begin.title.as_deref().and_then(text::title).or(current.title.clone()),
        projection: held.begin.projection.as_ref().map_or_else(
            || current.projection.clone(),
            |projection| Some(projection.get().to_owned()),
        ),
    };
    if new.binds && current.revision > 0 {
        bind_origin(tx, call, held, &session_id)?;
    }
    let messages_changed = capture_messages::change(tx, call, held, &current, &new)?;
    let joins = current.origins.iter().all(|(source_id, ..)| source_id != held.source_id.as_str());
    if joins && current.revision > 0 {
        capture_messages::widen_scope(tx, call, &new)?;
    }
    let unchanged = current.revision > 0
        && !messages_changed
        && current.source_id == held.source_id.as_str()
        && current.title == new.title
        && current.projection == new.projection
        && same_artifacts(tx, call, &session_id, current.revision, &held.begin.artifacts)?;
    if unchanged {
        let (revision, message_count) = (current.revision, current.message_count);
        return Ok(Outcome { session_id, revision, message_count, unchanged });
    }
    write_version(tx, call, held, &new)?;
    sessions::put_version(tx, team_id, &new.as_session(&held.begin, current.revision == 0))?;
    if current.revision == 0 {
        bind_origin(tx, call, held, &session_id)?;
    }
    let event = Event {
        name: if current.revision == 0 { "session.created" } else { "session.updated" },
        resource_kind: "session",
        resource_id: session_id.as_str(),
        source_id: Some(&held.source_id),
        principal_id: Some(&call.who.principal_id),
        data: json!({
            "session_id": session_id,
            "revision": new.revision,
            "message_count": new.message_count,
        }),
        stage: Stage::Current,
    };
    events::record(tx, team_id, &event)?;
    let (revision, message_count) = (new.revision, new.message_count);
    Ok(Outcome { session_id, revision, message_count, unchanged })
}

/// What a commit makes.
pub struct Version<'a> {
    pub session_id: &'a SessionId,
    pub revision: i64,
    pub keep: i64,
    pub message_count: i64,
    /// What its rows carry in the search index.
    pub scope: String,
    /// Whether a new origin is bound to the session.
    binds: bool,
    title: Option<String>,
    projection: Option<String>,
}

impl Version<'_> {
    fn as_session<'a>(&'a self, begin: &'a Begin, is_new: bool) -> sessions::NewVersion<'a> {
        sessions::NewVersion {
            session_id: self.session_id,
            revision: self.revision,
            harness: &begin.harness,
            title: self.title.as_deref(),
            message_count: self.message_count,
            scope: &self.scope,
            scope_changed: self.binds,
            is_new,
        }
    }
}

fn current(tx: &Tx, call: &Call, session_id: &SessionId) -> Result<Current> {
    tx.query_one(
        "SELECT s.revision, s.message_count, v.source_id, v.title, v.source_projection_json,
                s.origins_json
           FROM sessions s CROSS JOIN session_versions v
             ON v.team_id = s.team_id AND v.session_id = s.id AND v.revision = s.revision
          WHERE s.team_id = ?1 AND s.id = ?2",
        params![&call.who.team_id, session_id],
        |row| {
            Ok(Current {
                revision: row.get()?,
                message_count: row.get()?,
                source_id: row.get()?,
                title: row.get()?,
                projection: row.get()?,
                origins: row.get::<Origins>()?.0,
            })
        },
    )
}

fn same_artifacts(
    tx: &Tx,
    call: &Call,
    session_id: &SessionId,
    revision: i64,
    artifacts: &[Artifact],
) -> Result<bool> {
    let mut stored = tx.query(
        "SELECT bundle_id, upload_id, name FROM session_artifacts
          WHERE team_id = ?1 AND session_id = ?2 AND revision = ?3 AND provenance = 'capture'
          ORDER BY bundle_id
          LIMIT ?4",
        params![&call.who.team_id, session_id, revision, artifacts.len() + 1],
        |row| Ok(Artifact { bundle_id: row.get()?, upload_id: row.get()?, name: row.get()? }),
    )?;
    let mut captured = artifacts.to_vec();
    captured.sort_by(|a, b| a.bundle_id.cmp(&b.bundle_id));
    stored.sort_by(|a, b| a.bundle_id.cmp(&b.bundle_id));
    Ok(stored == captured)
}

fn write_version(tx: &Tx, call: &Call, held: &Held, new: &Version) -> Result<()> {
    tx.execute(
        "INSERT INTO session_versions
             (team_id, session_id, revision, source_id, title, source_projection_json, capture_id,
              message_count, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        params![
            &call.who.team_id,
            new.session_id,
            new.revision,
            &held.source_id,
            new.title.as_deref(),
            new.projection.as_deref(),
            &held.capture_id,
            new.message_count,
            tx.now_ms
        ],
    )?;
    if held.begin.artifacts.is_empty() {
        return Ok(());
    }
    let artifacts =
        serde_json::to_string(&held.begin.artifacts).map_err(|e| Error::internal(e.to_string()))?;
    tx.execute(
        "INSERT INTO session_artifacts
             (team_id, session_id, revision, bundle_id, upload_id, name, provenance)
         SELECT ?1, ?2, ?3, j.value ->> 'bundle_id', j.value ->> 'upload_id', j.value ->> 'name',
                'capture'
           FROM json_each(?4) j",
        params![&call.who.team_id, new.session_id, new.revision, &artifacts],
    )
}

/// Binds the capture's origin to the session, and mirrors the session's origins in its row.
fn bind_origin(tx: &Tx, call: &Call, held: &Held, session_id: &SessionId) -> Result<()> {
    let (team_id, begin) = (&call.who.team_id, &held.begin);
    tx.execute(
        "INSERT INTO origins (team_id, source_id, harness, native_id, session_id)
         VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT (team_id, source_id, harness, native_id)
         DO UPDATE SET session_id = excluded.session_id",
        params![team_id, &held.source_id, &begin.harness, &begin.native_id, session_id],
    )?;
    let origins = tx.query(
        "SELECT source_id, harness, native_id FROM origins
          WHERE team_id = ?1 AND session_id = ?2
          ORDER BY source_id, harness, native_id
          LIMIT ?3",
        params![team_id, session_id, SESSION_ORIGINS_MAX + 1],
        |row| Ok((row.get::<String>()?, row.get::<String>()?, row.get::<String>()?)),
    )?;
    if origins.len() > SESSION_ORIGINS_MAX {
        let message = format!("a session may have at most {SESSION_ORIGINS_MAX} origins");
        return Err(Error::conflict(message));
    }
    let origins = serde_json::to_string(&origins).map_err(|e| Error::internal(e.to_string()))?;
    tx.execute(
        "UPDATE sessions SET origins_json = ?3 WHERE team_id = ?1 AND id = ?2",
        params![team_id, session_id, &origins],
    )?;
    heartbeat::forget_bindings(tx, team_id, &held.source_id)
}

//! Continuations: requests to carry a session on elsewhere.
//!
//! pending → accepted → completed or failed, by one machine; what nobody settles for a day expires.
use crate::api::{Answer, Call};
use crate::auth::{Kind, Principal, Role};
use crate::domain::events::{self, Event, Stage};
use crate::domain::{machines, publishing, sessions, uploads, visibility};
use crate::error::{Error, Result};
use crate::guard;
use crate::ids::{ContinuationId, Id, MachineId, SessionId, UploadId};
use crate::json;
use crate::limits::{
    CONTINUATIONS_OPEN_MAX, HARNESS_CHARS_MAX, NAMED_UPLOADS_MAX, OVERDUE_AGE_MS, PROMPT_CHARS_MAX,
    RECEIPT_BYTES_MAX,
};
use crate::params;
use crate::store::{Db, Tx};
use crate::text;
use serde_json::json;
use serde_json::value::RawValue;
use std::collections::BTreeSet;

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Create {
    #[serde(default)]
    machine_id: Option<MachineId>,
    #[serde(default)]
    harness: Option<String>,
    #[serde(default)]
    prompt: Option<String>,
    #[serde(default)]
    uploads: Vec<UploadId>,
}

/// What the request says, and later what became of it.
#[derive(serde::Serialize, serde::Deserialize)]
pub struct Value {
    harness: Option<String>,
    prompt: Option<String>,
    uploads: Vec<UploadId>,
    /// The session that carries it on.
    session_id: Option<SessionId>,
    /// The connector's own, kept as sent.
    receipt: Option<Box<RawValue>>,
}

#[derive(serde::Serialize)]
pub struct Continuation {
    pub id: ContinuationId,
    pub session_id: SessionId,
    pub machine_id: Option<MachineId>,
    pub state: String,
    value: Box<RawValue>,
    upload_ids: Box<RawValue>,
    created_at: i64,
    updated_at: i64,
    settled_at: Option<i64>,
    principal_id: String,
    revision: i64,
}

impl Continuation {
    /// Whether it still waits for its machine, at `now_ms`.
    fn is_open(&self, now_ms: i64) -> bool {
        self.settled_at.is_none() && self.updated_at + OVERDUE_AGE_MS > now_ms
    }

    /// Its machine's, or of nobody yet.
    fn is_for(&self, who: &Principal) -> bool {
        who.machine_id.is_some() && self.machine_id == who.machine_id
    }

    fn value(&self) -> Result<Value> {
        serde_json::from_str(self.value.get())
            .map_err(|e| Error::internal(format!("a continuation's value_json: {e}")))
    }
}

/// `POST /sessions/{session}/continuations` asks to carry the session on, on one machine or on
/// whichever takes it.
///
/// `403` unless the caller may publish and carry the session on; `404` for an unknown machine or
/// upload; `409 conflict` when the session has too many open ones.
pub fn create(tx: &Tx, call: &Call) -> Result<Answer> {
    let body: Create = call.json()?;
    if let Some(harness) = &body.harness {
        guard::name("harness", harness, HARNESS_CHARS_MAX)?;
    }
    if body.prompt.as_ref().is_some_and(|prompt| prompt.chars().count() > PROMPT_CHARS_MAX) {
        let message = format!("may have at most {PROMPT_CHARS_MAX} characters");
        return Err(Error::field("prompt", message));
    }
    let upload_ids = text::upload_ids(&crate::json::text(call.bytes())?);
    guard::at_most("uploads", upload_ids.len(), NAMED_UPLOADS_MAX)?;
    publishing::role(&call.who)?;
    let session_id: SessionId = call.id(0)?;
    visibility::must_continue(tx, &call.who, &session_id)?;
    sessions::must_exist(tx, &call.who, &session_id)?;
    if let Some(machine_id) = &body.machine_id {
        machines::must_be_active(tx, &call.who.team_id, machine_id)
            .map_err(|error| error.with("field", "machine_id"))?;
    }
    for upload_id in &body.uploads {
        uploads::load(tx, &call.who, upload_id).map_err(|error| error.with("field", "uploads"))?;
    }

    has_room(tx, &call.who, &session_id)?;
    let id: ContinuationId = tx.new_id();
    let value = Value {
        harness: body.harness,
        prompt: body.prompt,
        uploads: body.uploads,
        session_id: None,
        receipt: None,
    };
    tx.execute(
        "INSERT INTO continuations
             (team_id, id, session_id, machine_id, state, value_json, upload_ids_json, created_at,
              updated_at, principal_id)
         VALUES (?1, ?2, ?3, ?4, 'pending', ?5, ?6, ?7, ?7, ?8)",
        params![
            &call.who.team_id,
            &id,
            &session_id,
            body.machine_id.as_ref(),
            &json::to_string(&value)?,
            &json!(upload_ids).to_string(),
            tx.now_ms,
            &call.who.principal_id
        ],
    )?;
    let made = load(tx, &call.who, &id)?;
    announce(tx, call, &made)?;

    call.versioned(201, &made, made.revision)
}

/// `GET /continuations/{continuation}`, for whoever may see it.
pub fn get(db: &Db, call: &Call) -> Result<Answer> {
    guard::reads(&call.who, visibility::READ_SCOPE)?;

    let found = seen(db, &call.who, &call.id(0)?)?;

    call.versioned(200, &found, found.revision)
}

/// `POST /continuations/{continuation}/accept` takes it for the calling machine: the one that it
/// names, or any whose custodian may carry the session on. Again: the same answer.
///
/// `403` unless a machine calls that may take it; `409 conflict` once another has, or it is settled.
pub fn accept(tx: &Tx, call: &Call) -> Result<Answer> {
    call.no_fields()?;
    let machine_id = calling_machine(&call.who)?;
    let before = seen(tx, &call.who, &call.id(0)?)?;
    if before.state == "accepted" && before.is_for(&call.who) {
        return call.versioned(200, &before, before.revision);
    }
    if before.state == "pending" && !before.is_for(&call.who) {
        if before.machine_id.is_some() {
            return Err(Error::forbidden("this continuation is for another machine"));
        }
        visibility::must_continue(tx, &call.who, &before.session_id)?;
    }

    let changed = tx.execute_counted(
        "UPDATE continuations
            SET state = 'accepted', machine_id = ?3, updated_at = ?4, revision = revision + 1
          WHERE team_id = ?1 AND id = ?2 AND state = 'pending' AND updated_at > ?5
            AND (machine_id IS NULL OR machine_id = ?3)",
        params![&call.who.team_id, &before.id, machine_id, tx.now_ms, tx.now_ms - OVERDUE_AGE_MS],
    )?;
    guard::changed_one(changed, not_open(&before))?;
    let accepted = load(tx, &call.who, &before.id)?;
    announce(tx, call, &accepted)?;

    call.versioned(200, &accepted, accepted.revision)
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Complete {
    #[serde(default)]
    session_id: Option<SessionId>,
    state: Completed,
    #[serde(default)]
    receipt: Option<Box<RawValue>>,
}

#[derive(Clone, Copy, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum Completed {
    Completed,
    Failed,
}

/// `POST /continuations/{continuation}/complete` says what became of it, by the machine that
/// accepted it. The same again is answered alike.
///
/// `404` on `session_id` for a session that the machine may not know of; `409 conflict` before it
/// is accepted and once it is settled otherwise.
pub fn complete(tx: &Tx, call: &Call) -> Result<Answer> {
    let body: Complete = call.json()?;
    if body.receipt.as_ref().is_some_and(|receipt| receipt.get().len() > RECEIPT_BYTES_MAX) {
        let error = Error::too_large(RECEIPT_BYTES_MAX, "receipt");
        return Err(error.with("field", "receipt"));
    }
    calling_machine(&call.who)?;
    let before = seen(tx, &call.who, &call.id(0)?)?;
    if !before.is_for(&call.who) {
        return Err(Error::forbidden("this needs the machine that accepted the continuation"));
    }
    if let Some(session_id) = &body.session_id {
        sessions::seen(tx, &call.who, session_id)
            .map_err(|error| error.with("field", "session_id"))?;
    }

    let state = match body.state {
        Completed::Completed => "completed",
        Completed::Failed => "failed",
    };
    let value = Value { session_id: body.session_id, receipt: body.receipt, ..before.value()? };
    let value = json::to_string(&value)?;
    if before.state == state && before.value.get() == value {
        return call.versioned(200, &before, before.revision);
    }
    let changed = tx.execute_counted(
        "UPDATE continuations
            SET state = ?3, value_json = ?4, updated_at = ?5, settled_at = ?5,
                revision = revision + 1
          WHERE team_id = ?1 AND id = ?2 AND state = 'accepted' AND updated_at > ?6",
        params![
            &call.who.team_id,
            &before.id,
            state,
            &value,
            tx.now_ms,
            tx.now_ms - OVERDUE_AGE_MS
        ],
    )?;
    guard::changed_one(changed, not_open(&before))?;
    let settled = load(tx, &call.who, &before.id)?;
    announce(tx, call, &settled)?;

    call.versioned(200, &settled, settled.revision)
}

/// The session of a continuation that the calling machine was given or took, and that is open:
/// such a machine may carry it on, whatever else it may see.
pub fn session_given(db: &Db, who: &Principal, id: &ContinuationId) -> Result<Option<SessionId>> {
    let found = load(db, who, id)?;
    let given = found.is_for(who) && found.is_open(db.now_ms);
    Ok(given.then_some(found.session_id))
}

/// The session of a continuation that the caller may know of.
pub fn session_of(db: &Db, who: &Principal, id: &ContinuationId) -> Result<SessionId> {
    seen(db, who, id).map(|found| found.session_id)
}

/// Whether a continuation that the calling machine was given hands this upload on to it.
pub fn hands_on(db: &Db, who: &Principal, upload_id: &UploadId) -> Result<bool> {
    let Some(machine_id) = &who.machine_id else { return Ok(false) };
    // Who asked could read what its list names; what else its texts name, perhaps not.
    let values = db.query(
        "SELECT c.value_json
           FROM upload_refs r
          CROSS JOIN continuations c ON c.team_id = r.team_id AND c.id = substr(r.holder, 3)
          WHERE r.team_id = ?1 AND r.upload_id = ?2 AND r.holder >= 'c:' AND r.holder < 'c;'
            AND c.machine_id = ?3 AND c.settled_at IS NULL
          LIMIT ?4",
        params![&who.team_id, upload_id, machine_id, CONTINUATIONS_OPEN_MAX],
        |row| row.get::<String>(),
    )?;
    let names = |value: &String| {
        serde_json::from_str::<Value>(value).is_ok_and(|value| value.uploads.contains(upload_id))
    };
    Ok(values.iter().any(names))
}

fn calling_machine(who: &Principal) -> Result<&MachineId> {
    match &who.machine_id {
        Some(machine_id) if who.kind == Kind::Machine && who.role >= Some(Role::Member) => {
            Ok(machine_id)
        }
        _ => Err(Error::forbidden("this needs a machine's token, of a member")),
    }
}

fn not_open(found: &Continuation) -> Error {
    let state = &found.state;
    if matches!(&**state, "pending" | "accepted") {
        return Error::conflict(format!("the continuation is {state}, or ran out after a day"));
    }
    Error::conflict(format!("the continuation is {state} already"))
}

fn has_room(tx: &Tx, who: &Principal, session_id: &SessionId) -> Result<()> {
    let open = tx.query_one(
        "SELECT count(*) FROM (SELECT 1 FROM continuations
                                WHERE team_id = ?1 AND session_id = ?2 AND settled_at IS NULL
                                LIMIT ?3)",
        params![&who.team_id, session_id, CONTINUATIONS_OPEN_MAX],
        |row| row.get::<i64>(),
    )?;
    guard::room("open continuations of a session", open, CONTINUATIONS_OPEN_MAX)
}

pub fn load(db: &Db, who: &Principal, id: &ContinuationId) -> Result<Continuation> {
    let raw = |text: String| {
        RawValue::from_string(text).map_err(|e| Error::internal(format!("a continuation: {e}")))
    };
    db.query_optional(
        "SELECT id, session_id, machine_id, state, value_json, upload_ids_json, created_at,
                updated_at, settled_at, principal_id, revision
           FROM continuations
          WHERE team_id = ?1 AND id = ?2",
        params![&who.team_id, id],
        |row| {
            Ok(Continuation {
                id: row.get()?,
                session_id: row.get()?,
                machine_id: row.get()?,
                state: row.get()?,
                value: raw(row.get()?)?,
                upload_ids: raw(row.get()?)?,
                created_at: row.get()?,
                updated_at: row.get()?,
                settled_at: row.get()?,
                principal_id: row.get()?,
                revision: row.get()?,
            })
        },
    )?
    .ok_or_else(Error::not_found)
}

fn seen(db: &Db, who: &Principal, id: &ContinuationId) -> Result<Continuation> {
    let found = load(db, who, id)?;
    if found.principal_id == who.principal_id.as_str() || found.is_for(who) {
        return Ok(found);
    }
    let sessions = BTreeSet::from([found.session_id.to_string()]);
    let seen = visibility::sessions_seen(db, who, &sessions)?;
    if seen.is_empty() { Err(Error::not_found()) } else { Ok(found) }
}

fn announce(tx: &Tx, call: &Call, one: &Continuation) -> Result<()> {
    let team_id = &call.who.team_id;
    let Continuation { id, session_id, machine_id, state, revision, .. } = one;
    let source_id = sessions::source_of(tx, team_id, session_id)?;
    let stage = if one.settled_at.is_some() { Stage::Last } else { Stage::Current };
    // The session may have had another source when the event before was recorded.
    sessions::end_events(tx, team_id, session_id, "continuation", id.as_str())?;
    let event = Event {
        name: "continuation.changed",
        resource_kind: "continuation",
        resource_id: id.as_str(),
        source_id: source_id.as_ref(),
        principal_id: Some(&call.who.principal_id),
        data: json!({
            "id": id, "session_id": session_id, "machine_id": machine_id, "state": state,
            "revision": revision,
        }),
        stage,
    };
    events::record(tx, team_id, &event).map(drop)
}

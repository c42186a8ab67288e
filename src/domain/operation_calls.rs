//! Asking agents on machines, and reading what came of it (`operations.rs`, `effects.rs`).
use crate::api::{Answer, Call};
use crate::auth::{Principal, Role};
use crate::domain::effects::{self, Effect};
use crate::domain::{bindings, machines, operations, sessions, visibility};
use crate::error::{Error, Result};
use crate::guard;
use crate::ids::{EffectId, MachineId, OperationId, SessionId};
use crate::json;
use crate::limits::{
    EFFECTS_PENDING_MAX, NAME_CHARS_MAX, OPERATION_INPUT_BYTES_MAX, OPERATION_KIND_CHARS_MAX,
    ROWS_EXAMINED_MAX,
};
use crate::page::{Keyset, PageQuery};
use crate::params;
use crate::store::{Db, Row, Tx};
use serde_json::json;
use serde_json::value::RawValue;
use std::collections::HashSet;

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Ask<'a> {
    kind: String,
    #[serde(borrow)]
    input: &'a RawValue,
    #[serde(default)]
    binding_id: Option<String>,
}

impl<'a> Ask<'a> {
    fn read(call: &Call<'a>) -> Result<Ask<'a>> {
        let text = std::str::from_utf8(call.bytes()).map_err(|_| json::not_utf8())?;
        let ask: Ask = json::borrowed(text)?;
        guard::line("kind", &ask.kind, OPERATION_KIND_CHARS_MAX)?;
        if !ask.input.get().starts_with('{') {
            return Err(Error::field("input", "must be an object"));
        }
        if ask.input.get().len() > OPERATION_INPUT_BYTES_MAX {
            let error = Error::too_large(OPERATION_INPUT_BYTES_MAX, "input");
            return Err(error.with("field", "input"));
        }
        if let Some(id) = &ask.binding_id {
            guard::line("binding_id", id, NAME_CHARS_MAX)?;
        }
        Ok(ask)
    }
}

#[derive(serde::Serialize)]
struct Operation {
    id: OperationId,
    session_id: Option<SessionId>,
    principal_id: String,
    kind: String,
    state: String,
    input: Box<RawValue>,
    created_at: i64,
    updated_at: i64,
    settled_at: Option<i64>,
    revision: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    effects: Option<Vec<Effect>>,
}

/// `POST /sessions/{session}/operations` asks the agent that has the session open, on the machine
/// where it is attached, bound or came from, in this order.
///
/// `403` unless the caller is a member who may carry the session on; `404` on `binding_id` when no
/// active machine has the session under it; `409 conflict` when none has it at all, or the machine
/// has too many unanswered.
pub fn ask_session(tx: &Tx, call: &Call) -> Result<Answer> {
    let ask = Ask::read(call)?;
    guard::role(&call.who, Role::Member)?;
    let session_id: SessionId = call.id(0)?;
    visibility::must_continue(tx, &call.who, &session_id)?;
    sessions::must_exist(tx, &call.who, &session_id)?;

    let binding_id = ask.binding_id.as_deref();
    let target = target(tx, &call.who, &session_id, binding_id)?;
    let (machine_id, binding_id) = target.ok_or_else(|| match binding_id {
        Some(_) => Error::not_found().with("field", "binding_id"),
        None => Error::conflict("no active machine has this session open or published it"),
    })?;

    make(tx, call, &ask, Some(&session_id), &machine_id, binding_id.as_deref())
}

/// `POST /machines/{machine}/operations` asks a machine; every member may ask every active one.
///
/// `404` for a machine that is not active, and on `binding_id` for a binding that it has not; `409
/// conflict` when it has too many unanswered.
pub fn ask_machine(tx: &Tx, call: &Call) -> Result<Answer> {
    let ask = Ask::read(call)?;
    guard::role(&call.who, Role::Member)?;
    let machine = machines::must_be_active(tx, &call.who.team_id, &call.id(0)?)?;
    let binding_id = ask.binding_id.as_deref();
    if let Some(binding_id) = binding_id {
        bindings::must_exist(tx, &call.who.team_id, &machine.id, binding_id)?;
    }

    make(tx, call, &ask, None, &machine.id, binding_id)
}

/// Where an agent has the session open: attached first, then bound, then its newest publisher.
fn target(
    db: &Db,
    who: &Principal,
    session_id: &SessionId,
    binding_id: Option<&str>,
) -> Result<Option<(MachineId, Option<String>)>> {
    db.query_optional(
        "SELECT t.machine_id, t.binding_id
           FROM (SELECT machine_id, binding_id, rank, since
                   FROM (SELECT machine_id, binding_id, 1 AS rank, created_at AS since
                           FROM attachments
                          WHERE team_id = ?1 AND session_id = ?2
                            AND state IN ('pending', 'active')
                          LIMIT ?4)
                  UNION ALL
                 SELECT machine_id, binding_id, 2, 0
                   FROM (SELECT machine_id, id AS binding_id
                           FROM bindings
                          WHERE team_id = ?1 AND session_id = ?2
                          LIMIT ?4)
                  UNION ALL
                 SELECT machine_id, NULL, 3, since
                   FROM (SELECT s.machine_id, coalesce(s.last_received_at, 0) AS since
                           FROM origins o
                          CROSS JOIN sources s ON s.team_id = ?1 AND s.id = o.source_id
                          WHERE o.team_id = ?1 AND o.session_id = ?2
                            AND s.machine_id IS NOT NULL
                          LIMIT ?4)) t
          CROSS JOIN machines m
             ON m.team_id = ?1 AND m.id = t.machine_id AND m.revoked_at IS NULL
          WHERE ?3 IS NULL OR t.binding_id = ?3
          ORDER BY t.rank, t.since DESC, t.machine_id
          LIMIT 1",
        params![&who.team_id, session_id, binding_id, EFFECTS_PENDING_MAX],
        |row| Ok((row.get()?, row.get()?)),
    )
}

fn make(
    tx: &Tx,
    call: &Call,
    ask: &Ask,
    session_id: Option<&SessionId>,
    machine_id: &MachineId,
    binding_id: Option<&str>,
) -> Result<Answer> {
    let team_id = &call.who.team_id;
    let pending = tx.query_one(
        "SELECT count(*) FROM (SELECT 1 FROM native_effects
                                WHERE team_id = ?1 AND machine_id = ?2 AND state = 'pending'
                                LIMIT ?3)",
        params![team_id, machine_id, EFFECTS_PENDING_MAX],
        |row| row.get::<i64>(),
    )?;
    guard::room("unanswered operations of a machine", pending, EFFECTS_PENDING_MAX)?;
    let (operation_id, effect_id): (OperationId, EffectId) = (tx.new_id(), tx.new_id());
    tx.execute(
        "INSERT INTO operations
             (team_id, id, session_id, principal_id, kind, state, input_json, created_at,
              updated_at)
         VALUES (?1, ?2, ?3, ?4, ?5, 'pending', ?6, ?7, ?7)",
        params![
            team_id,
            &operation_id,
            session_id,
            &call.who.principal_id,
            &ask.kind,
            ask.input.get(),
            tx.now_ms
        ],
    )?;
    // The input is kept once, with the operation.
    tx.execute(
        "INSERT INTO native_effects
             (team_id, id, operation_id, machine_id, binding_id, state, request_json, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5, 'pending', ?6, ?7)",
        params![
            team_id,
            &effect_id,
            &operation_id,
            machine_id,
            binding_id,
            &json!({ "kind": ask.kind }).to_string(),
            tx.now_ms
        ],
    )?;
    operations::announce(tx, &call.who, machine_id, &operation_id)?;

    let operation = load_whole(tx, &call.who, &operation_id)?;
    call.versioned(202, &operation, operation.revision)
}

/// `GET /operations` lists those that the caller may see, by id: its own, those of its machines,
/// and those of sessions that it sees.
pub fn list(db: &Db, call: &Call) -> Result<Answer> {
    let query: PageQuery = call.query()?;
    let page = Keyset::new(call, "", &query)?;
    guard::reads(&call.who, visibility::READ_SCOPE)?;

    let examined = db.query(
        "SELECT id, session_id, principal_id,
                (SELECT m.custodian_id
                   FROM native_effects e
                  CROSS JOIN machines m ON m.team_id = e.team_id AND m.id = e.machine_id
                  WHERE e.team_id = ?1 AND e.operation_id = operations.id
                  LIMIT 1)
           FROM operations
          WHERE team_id = ?1 AND id > ?2
          ORDER BY id
          LIMIT ?3",
        params![&call.who.team_id, page.after(), ROWS_EXAMINED_MAX],
        Seen::read,
    )?;
    let last = (examined.len() == ROWS_EXAMINED_MAX)
        .then(|| examined.last().map(|one| one.operation_id.to_string()))
        .flatten();
    let sessions = examined.iter().filter_map(|one| one.session_id.clone()).collect();
    let sessions = visibility::sessions_seen(db, &call.who, &sessions)?;
    let rows = examined
        .into_iter()
        .filter(|one| one.is_seen_by(&call.who, &sessions))
        .take(page.limit + 1)
        .map(|one| Ok((one.operation_id.to_string(), load(db, &call.who, &one.operation_id)?)))
        .collect::<Result<Vec<_>>>()?;

    let (items, next) = page.page_of_examined(rows, || Ok(last))?;
    call.list(&items, next.as_deref())
}

/// `GET /operations/{operation}` is an operation with its effects, for whoever may see it.
pub fn get(db: &Db, call: &Call) -> Result<Answer> {
    guard::reads(&call.who, visibility::READ_SCOPE)?;

    let found = db.query_optional(
        "SELECT id, session_id, principal_id,
                (SELECT m.custodian_id
                   FROM native_effects e
                  CROSS JOIN machines m ON m.team_id = e.team_id AND m.id = e.machine_id
                  WHERE e.team_id = ?1 AND e.operation_id = ?2
                  LIMIT 1)
           FROM operations
          WHERE team_id = ?1 AND id = ?2",
        params![&call.who.team_id, &call.id::<OperationId>(0)?],
        Seen::read,
    )?;
    let found = found.ok_or_else(Error::not_found)?;
    let session_ids = found.session_id.clone().into_iter().collect();
    let sessions = visibility::sessions_seen(db, &call.who, &session_ids)?;
    if !found.is_seen_by(&call.who, &sessions) {
        return Err(Error::not_found());
    }

    let operation = load_whole(db, &call.who, &found.operation_id)?;
    call.versioned(200, &operation, operation.revision)
}

/// What decides who may see an operation.
struct Seen {
    operation_id: OperationId,
    session_id: Option<String>,
    asked_by: String,
    custodian_id: Option<String>,
}

impl Seen {
    fn read(row: &mut Row) -> Result<Seen> {
        Ok(Seen {
            operation_id: row.get()?,
            session_id: row.get()?,
            asked_by: row.get()?,
            custodian_id: row.get()?,
        })
    }

    fn is_seen_by(&self, who: &Principal, sessions: &HashSet<String>) -> bool {
        let own = who.principal_id.to_string();
        self.asked_by == own
            || self.custodian_id.as_ref() == Some(&own)
            || self.session_id.as_ref().is_some_and(|id| sessions.contains(id))
    }
}

fn load_whole(db: &Db, who: &Principal, id: &OperationId) -> Result<Operation> {
    Ok(Operation { effects: Some(effects::of(db, who, id)?), ..load(db, who, id)? })
}

fn load(db: &Db, who: &Principal, id: &OperationId) -> Result<Operation> {
    db.query_one(
        "SELECT session_id, principal_id, kind, state, input_json, created_at, updated_at,
                settled_at, revision
           FROM operations
          WHERE team_id = ?1 AND id = ?2",
        params![&who.team_id, id],
        |row| {
            Ok(Operation {
                id: id.clone(),
                session_id: row.get()?,
                principal_id: row.get()?,
                kind: row.get()?,
                state: row.get()?,
                input: raw(row.get()?)?,
                created_at: row.get()?,
                updated_at: row.get()?,
                settled_at: row.get()?,
                revision: row.get()?,
                effects: None,
            })
        },
    )
}

pub fn raw(text: String) -> Result<Box<RawValue>> {
    RawValue::from_string(text).map_err(|e| Error::internal(format!("kept JSON: {e}")))
}

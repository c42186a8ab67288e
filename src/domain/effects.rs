//! Effects: what an operation asks of one machine. One waits until its machine answers, once.
use crate::api::{Answer, Call};
use crate::auth::Principal;
use crate::domain::operation_calls::raw;
use crate::domain::operations;
use crate::error::{Error, Result};
use crate::guard;
use crate::ids::{EffectId, Id, MachineId, OperationId, TeamId};
use crate::json;
use crate::limits::{
    EFFECT_RESULT_BYTES_MAX, EFFECTS_PENDING_MAX, EFFECTS_SENT_AT_ONCE, OVERDUE_AGE_MS,
};
use crate::params;
use crate::store::{Db, Row, Tx};
use serde_json::value::RawValue;

#[derive(serde::Serialize)]
pub struct Effect {
    id: EffectId,
    operation_id: OperationId,
    machine_id: MachineId,
    binding_id: Option<String>,
    state: String,
    request: Box<RawValue>,
    result: Option<Box<RawValue>>,
    error: Option<Box<RawValue>>,
    created_at: i64,
}

/// What a machine answered, as `native_effects.result_json` keeps it.
#[derive(Default, serde::Serialize, serde::Deserialize)]
struct Outcome {
    result: Option<Box<RawValue>>,
    error: Option<Box<RawValue>>,
}

/// A machine's answer: `{state, result?, error?}`.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct TakeResult {
    state: Settled,
    #[serde(default)]
    result: Option<Box<RawValue>>,
    #[serde(default)]
    error: Option<Box<RawValue>>,
}

/// The same, by a link.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EffectResult {
    pub effect_id: EffectId,
    state: Settled,
    #[serde(default)]
    result: Option<Box<RawValue>>,
    #[serde(default)]
    error: Option<Box<RawValue>>,
}

impl EffectResult {
    /// Takes the answer of the calling machine.
    pub fn take(self, tx: &Tx, who: &Principal, machine_id: &MachineId) -> Result<()> {
        let EffectResult { effect_id, state, result, error } = self;
        let taken = TakeResult { state, result, error }.checked()?;
        take(tx, who, machine_id, &effect_id, &taken).map(drop)
    }
}

/// A state and its outcome as JSON.
struct Taken {
    state: &'static str,
    outcome: String,
}

impl TakeResult {
    fn checked(self) -> Result<Taken> {
        let state = match self.state {
            Settled::Succeeded => "succeeded",
            Settled::Failed => "failed",
        };
        let outcome = Outcome { result: self.result, error: self.error };
        let outcome = json::to_string(&outcome)?;
        if outcome.len() > EFFECT_RESULT_BYTES_MAX {
            let error = Error::too_large(EFFECT_RESULT_BYTES_MAX, "an answer");
            return Err(error.with("field", "result"));
        }
        Ok(Taken { state, outcome })
    }
}

#[derive(Clone, Copy, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum Settled {
    Succeeded,
    Failed,
}

/// `POST /machines/{machine}/effects/{effect}` is a machine's answer, taken once: the same again is
/// answered alike.
///
/// `403` for every other caller; `404` for another machine's effect; `409 conflict` for another
/// answer, and once the effect is `unknown`.
pub fn settle(tx: &Tx, call: &Call) -> Result<Answer> {
    let text = std::str::from_utf8(call.bytes()).map_err(|_| json::not_utf8())?;
    let body: TakeResult = json::borrowed(text)?;
    let taken = body.checked()?;
    let machine_id: MachineId = call.id(0)?;
    guard::machine(&call.who, &machine_id)?;

    let effect_id: EffectId = call.id(1)?;
    let operation_id = take(tx, &call.who, &machine_id, &effect_id, &taken)?;

    let effects = of(tx, &call.who, &operation_id)?;
    let effect = effects.into_iter().find(|effect| effect.id == effect_id);
    call.one(200, &effect.ok_or_else(|| Error::internal("an effect is gone"))?)
}

/// Takes a machine's answer, unless it has answered so already. Answers whose effect it is.
fn take(
    tx: &Tx,
    who: &Principal,
    machine_id: &MachineId,
    effect_id: &EffectId,
    Taken { state, outcome }: &Taken,
) -> Result<OperationId> {
    let (team_id, state) = (&who.team_id, *state);
    let before = tx.query_optional(
        "SELECT operation_id, state, result_json
           FROM native_effects
          WHERE team_id = ?1 AND id = ?2 AND machine_id = ?3",
        params![team_id, effect_id, machine_id],
        |row| Ok((row.get::<OperationId>()?, row.get::<String>()?, row.get::<Option<String>>()?)),
    )?;
    let (operation_id, state_before, outcome_before) = before.ok_or_else(Error::not_found)?;
    if state_before != state || outcome_before.as_ref() != Some(outcome) {
        let changed = tx.execute_counted(
            "UPDATE native_effects SET state = ?3, result_json = ?4
              WHERE team_id = ?1 AND id = ?2 AND state = 'pending'",
            params![team_id, effect_id, state, outcome],
        )?;
        let message = format!("the effect is {state_before} already");
        guard::changed_one(changed, Error::conflict(message))?;
        settle_operation(tx, who, machine_id, &operation_id)?;
    }
    Ok(operation_id)
}

/// An operation follows its effects: running until all are settled, failed once one failed.
fn settle_operation(
    tx: &Tx,
    who: &Principal,
    machine_id: &MachineId,
    operation_id: &OperationId,
) -> Result<()> {
    let team_id = &who.team_id;
    let state = tx.query_one(
        "SELECT CASE WHEN max(state = 'pending') THEN 'running'
                     WHEN max(state = 'unknown') THEN 'unknown'
                     WHEN max(state = 'failed') THEN 'failed'
                     ELSE 'succeeded' END
           FROM native_effects
          WHERE team_id = ?1 AND operation_id = ?2",
        params![team_id, operation_id],
        |row| row.get::<String>(),
    )?;
    let settled_at = (state != "running").then_some(tx.now_ms);
    let changed = tx.execute_counted(
        "UPDATE operations
            SET state = ?3, updated_at = ?4, settled_at = ?5, revision = revision + 1
          WHERE team_id = ?1 AND id = ?2 AND state IN ('pending', 'running') AND state <> ?3",
        params![team_id, operation_id, &state, tx.now_ms, settled_at],
    )?;
    if changed == 0 {
        return Ok(());
    }
    operations::announce(tx, who, machine_id, operation_id)
}

/// An effect as its machine is sent it.
#[derive(serde::Serialize)]
struct Frame {
    r#type: &'static str,
    effect_id: EffectId,
    operation_id: OperationId,
    kind: String,
    binding_id: Option<String>,
    input: Box<RawValue>,
    created_at: i64,
}

impl Frame {
    /// From the columns id, operation_id, kind, binding_id, input_json, created_at.
    fn read(row: &mut Row) -> Result<Frame> {
        Ok(Frame {
            r#type: "effect",
            effect_id: row.get()?,
            operation_id: row.get()?,
            kind: row.get()?,
            binding_id: row.get()?,
            input: raw(row.get()?)?,
            created_at: row.get()?,
        })
    }

    fn text(&self) -> Result<String> {
        json::to_string(self)
    }
}

/// The effect that a link was sent last, while more are to come.
pub type Unsent = (i64, EffectId);

/// The next effects of a machine that have no result and were asked within a day, oldest first:
/// as frames, and where to go on if there are more.
pub fn pending(
    db: &Db,
    team_id: &TeamId,
    machine_id: &MachineId,
    after: Option<&Unsent>,
) -> Result<(Vec<String>, Option<Unsent>)> {
    let oldest = db.now_ms - OVERDUE_AGE_MS;
    let (after, after_id) = after.map_or((oldest, ""), |(at, id)| (oldest.max(*at), id.as_str()));
    let frames = db.query(
        "SELECT e.id, e.operation_id, o.kind, e.binding_id, o.input_json, e.created_at
           FROM native_effects e
          CROSS JOIN operations o ON o.team_id = e.team_id AND o.id = e.operation_id
          WHERE e.team_id = ?1 AND e.machine_id = ?2 AND e.state = 'pending'
            AND e.created_at > ?5 AND (e.created_at, e.id) > (?3, ?4)
          ORDER BY e.created_at, e.id
          LIMIT ?6",
        params![team_id, machine_id, after, after_id, oldest, EFFECTS_SENT_AT_ONCE + 1],
        Frame::read,
    )?;
    let more = frames.len() > EFFECTS_SENT_AT_ONCE;
    let sent = &frames[..frames.len().min(EFFECTS_SENT_AT_ONCE)];
    let last = sent.last().map(|frame| (frame.created_at, frame.effect_id.clone()));
    Ok((sent.iter().map(Frame::text).collect::<Result<_>>()?, last.filter(|_| more)))
}

/// What an operation asks of that machine and has no result yet, as frames.
pub fn of_operation(
    db: &Db,
    team_id: &TeamId,
    machine_id: &MachineId,
    operation_id: &OperationId,
) -> Result<Vec<String>> {
    let frames = db.query(
        "SELECT e.id, e.operation_id, o.kind, e.binding_id, o.input_json, e.created_at
           FROM native_effects e
          CROSS JOIN operations o ON o.team_id = e.team_id AND o.id = e.operation_id
          WHERE e.team_id = ?1 AND e.operation_id = ?2 AND e.machine_id = ?3
            AND e.state = 'pending'
          LIMIT ?4",
        params![team_id, operation_id, machine_id, EFFECTS_SENT_AT_ONCE],
        Frame::read,
    )?;
    frames.iter().map(Frame::text).collect()
}

/// An operation's effects.
pub fn of(db: &Db, who: &Principal, operation_id: &OperationId) -> Result<Vec<Effect>> {
    db.query(
        "SELECT id, machine_id, binding_id, state, request_json, result_json, created_at
           FROM native_effects
          WHERE team_id = ?1 AND operation_id = ?2
          LIMIT ?3",
        params![&who.team_id, operation_id, EFFECTS_PENDING_MAX],
        |row| {
            let (id, machine_id, binding_id) = (row.get()?, row.get()?, row.get()?);
            let (state, request) = (row.get()?, raw(row.get()?)?);
            let outcome: Outcome = match row.get::<Option<String>>()? {
                None => Outcome::default(),
                Some(kept) => serde_json::from_str(&kept)
                    .map_err(|e| Error::internal(format!("result_json: {e}")))?,
            };
            Ok(Effect {
                id,
                operation_id: operation_id.clone(),
                machine_id,
                binding_id,
                state,
                request,
                result: outcome.result,
                error: outcome.error,
                created_at: row.get()?,
            })
        },
    )
}

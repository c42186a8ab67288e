//! Effects: what an operation asks of one machine. One waits until its machine answers, once.
use crate::api::{Answer, Call};
use crate::auth::Principal;
use crate::domain::operation_calls::raw;
use crate::domain::operations;
use crate::error::{Error, Result};
use crate::guard;
use crate::ids::{EffectId, MachineId, OperationId};
use crate::json;
use crate::limits::{EFFECT_RESULT_BYTES_MAX, EFFECTS_PENDING_MAX};
use crate::params;
use crate::store::{Db, Tx};
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

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct TakeResult<'a> {
    state: Settled,
    #[serde(default, borrow)]
    result: Option<&'a RawValue>,
    #[serde(default, borrow)]
    error: Option<&'a RawValue>,
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
    let outcome = Outcome {
        result: body.result.map(ToOwned::to_owned),
        error: body.error.map(ToOwned::to_owned),
    };
    let outcome = json::to_string(&outcome)?;
    if outcome.len() > EFFECT_RESULT_BYTES_MAX {
        let error = Error::too_large(EFFECT_RESULT_BYTES_MAX, "an answer");
        return Err(error.with("field", "result"));
    }
    let machine_id: MachineId = call.id(0)?;
    guard::machine(&call.who, &machine_id)?;

    let (team_id, effect_id) = (&call.who.team_id, call.id::<EffectId>(1)?);
    let state = match body.state {
        Settled::Succeeded => "succeeded",
        Settled::Failed => "failed",
    };
    let before = tx.query_optional(
        "SELECT operation_id, state, result_json
           FROM native_effects
          WHERE team_id = ?1 AND id = ?2 AND machine_id = ?3",
        params![team_id, &effect_id, &machine_id],
        |row| Ok((row.get::<OperationId>()?, row.get::<String>()?, row.get::<Option<String>>()?)),
    )?;
    let (operation_id, state_before, outcome_before) = before.ok_or_else(Error::not_found)?;
    if state_before != state || outcome_before.as_ref() != Some(&outcome) {
        let changed = tx.execute_counted(
            "UPDATE native_effects SET state = ?3, result_json = ?4
              WHERE team_id = ?1 AND id = ?2 AND state = 'pending'",
            params![team_id, &effect_id, state, &outcome],
        )?;
        let message = format!("the effect is {state_before} already");
        guard::changed_one(changed, Error::conflict(message))?;
        settle_operation(tx, call, &machine_id, &operation_id)?;
    }

    let effects = of(tx, &call.who, &operation_id)?;
    let effect = effects.into_iter().find(|effect| effect.id == effect_id);
    call.one(200, &effect.ok_or_else(|| Error::internal("an effect is gone"))?)
}

/// An operation follows its effects: running until all are settled, failed once one failed.
fn settle_operation(
    tx: &Tx,
    call: &Call,
    machine_id: &MachineId,
    operation_id: &OperationId,
) -> Result<()> {
    let team_id = &call.who.team_id;
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
    operations::announce(tx, call, machine_id, operation_id)
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

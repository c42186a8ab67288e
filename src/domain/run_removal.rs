//! Deleting runs. A tombstone says to a run's readers that it was deleted, and keeps the order of
//! appends; a removal by an admin leaves nothing.
use crate::api::{Answer, Call};
use crate::auth::Role;
use crate::domain::claims::{self, Held};
use crate::domain::events::Stage;
use crate::domain::run_append::{self, NewEvent};
use crate::domain::runs::{self, TOMBSTONE};
use crate::error::Result;
use crate::guard;
use crate::ids::TeamId;
use crate::limits::SEQUENCE_MAX;
use crate::params;
use crate::store::Tx;
use serde_json::json;
use serde_json::value::RawValue;

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Delete<'a> {
    #[serde(borrow)]
    tombstone: Tombstone<'a>,
    claim: Option<Held>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Tombstone<'a> {
    id: String,
    sequence: i64,
    #[serde(borrow)]
    payload: &'a RawValue,
}

/// `POST /runs/{run}/delete` appends a tombstone and removes the run's earlier events and its
/// claim. Again: nothing changes, also for a run that began anew behind it.
///
/// `409 claim_held` while another holds the claim; `duplicate_event` and `sequence_conflict` as for
/// any append.
pub fn delete(tx: &Tx, call: &Call) -> Result<Answer> {
    let run_id = runs::run_id(call)?;
    let Delete { tombstone, claim } = runs::body(call)?;
    let event = NewEvent {
        run_id: run_id.into(),
        id: tombstone.id,
        sequence: tombstone.sequence,
        kind: TOMBSTONE.into(),
        payload: tombstone.payload.get(),
    };
    event.validate("tombstone")?;
    if let Some(claim) = &claim {
        claim.validate("claim.")?;
    }
    runs::may_write(&call.who)?;

    let team_id = &call.who.team_id;
    let held = claims::find(tx, team_id, run_id)?;
    // A fence of 0 is none.
    let claim = claim.map(|claim| Held { fence: claim.fence.filter(|f| *f > 0), ..claim });
    let named =
        |held: &claims::Claim| claim.as_ref().is_some_and(|c| c.names(&held.holder, held.fence));
    if held.as_ref().is_some_and(|held| !named(held)) {
        return Err(claims::held_by_another(run_id));
    }
    let sequence = event.sequence;
    let mut stored = run_append::store(tx, call, &[event], &[])?;
    let mut removed = 0;
    if stored.iter().any(|event| !event.duplicate) {
        removed = remove(tx, team_id, run_id, sequence - 1)?;
        claims::clear(tx, team_id, run_id)?;
        let data = json!({ "through": sequence });
        let is_live = runs::head(tx, team_id, run_id)?.is_live();
        let stage = if is_live { Stage::Current } else { Stage::Last };
        claims::record(tx, call, "run.deleted", run_id, data, stage)?;
    }

    call.one(200, &json!({ "event": stored.pop(), "removed": removed }))
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct RemoveQuery {
    through: Option<i64>,
}

/// `DELETE /runs/{run}` removes the events up to `through`, or all with the tombstones, and the
/// claim, whoever holds it.
pub fn remove_all(tx: &Tx, call: &Call) -> Result<Answer> {
    let run_id = runs::run_id(call)?;
    let RemoveQuery { through } = call.query()?;
    let through = through.unwrap_or(SEQUENCE_MAX);
    runs::sequence("through", through)?;
    guard::role(&call.who, Role::Admin)?;

    let team_id = &call.who.team_id;
    let had_claim = claims::find(tx, team_id, run_id)?.is_some();
    let removed = remove(tx, team_id, run_id, through)?;
    claims::clear(tx, team_id, run_id)?;
    runs::settle(tx, team_id, run_id)?;
    if removed > 0 || had_claim {
        let data = json!({ "through": through });
        let has_events = runs::head(tx, team_id, run_id)?.events > 0;
        let stage = if has_events { Stage::Current } else { Stage::Last };
        claims::record(tx, call, "run.deleted", run_id, data, stage)?;
    }

    Ok(Answer::no_content())
}

/// Removes a run's events up to `through`; how many there were.
fn remove(tx: &Tx, team_id: &TeamId, run_id: &str, through: i64) -> Result<i64> {
    let head = runs::head(tx, team_id, run_id)?;
    let tombstones: i64 = if head.tombstones == 0 {
        0
    } else {
        tx.query_one(
            "SELECT count(*) FROM run_events
              WHERE team_id = ?1 AND run_id = ?2 AND sequence <= ?3 AND kind = 'run_deleted'",
            params![team_id, run_id, through],
            |row| row.get(),
        )?
    };
    let removed = tx.execute_counted(
        "DELETE FROM run_events WHERE team_id = ?1 AND run_id = ?2 AND sequence <= ?3",
        params![team_id, run_id, through],
    )?;
    let removed = i64::try_from(removed).unwrap_or(i64::MAX);
    if removed == 0 {
        return Ok(0);
    }
    if removed < head.events {
        // The highest sequence stays.
        tx.execute(
            "UPDATE runs
                SET events = events - CAST(?3 AS INTEGER),
                    tombstones = tombstones - CAST(?4 AS INTEGER)
              WHERE team_id = ?1 AND run_id = ?2",
            params![team_id, run_id, removed, tombstones],
        )?;
        return Ok(removed);
    }
    tx.execute("DELETE FROM runs WHERE team_id = ?1 AND run_id = ?2", params![team_id, run_id])?;
    tx.execute(
        "INSERT INTO run_marks (team_id, newest_row_id) VALUES (?1, ?2)
         ON CONFLICT (team_id) DO UPDATE
            SET newest_row_id = max(newest_row_id, excluded.newest_row_id)",
        params![team_id, head.newest_row_id],
    )?;
    Ok(removed)
}

//! A claim is the exclusive right to append to a run. It has a holder, a name that the client
//! makes up, and a fence, a number that each new claim of the run raises: so what an earlier holder
//! still sends is told from what the present one sends, also under the same name. A claim never
//! lapses by itself: whoever finds it too old takes it over.
use crate::api::{Answer, Call};
use crate::auth::Role;
use crate::domain::events::{self, Event, Stage};
use crate::domain::runs;
use crate::error::{Code, Error, Result};
use crate::guard;
use crate::ids::TeamId;
use crate::limits::SAFE_INTEGER_MAX;
use crate::params;
use crate::store::{Db, Tx};
use serde_json::{Value as Json, json};

#[derive(Debug, Clone, serde::Serialize)]
pub struct Claim {
    pub run_id: String,
    pub holder: String,
    pub acquired_at: i64,
    pub fence: i64,
}

/// As a caller names its claim.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Held {
    pub holder: String,
    pub fence: Option<i64>,
}

impl Held {
    pub fn validate(&self, within: &str) -> Result<()> {
        runs::name(&format!("{within}holder"), &self.holder)?;
        fence(&format!("{within}fence"), self.fence)
    }

    /// Whether it is this claim, as far as it says.
    pub fn names(&self, holder: &str, fence: i64) -> bool {
        self.holder == holder && self.fence.is_none_or(|own| own == fence)
    }
}

fn fence(field: &str, fence: Option<i64>) -> Result<()> {
    fence.map_or(Ok(()), |fence| guard::in_range(field, fence, 0..=SAFE_INTEGER_MAX))
}

pub fn held_by_another(run_id: &str) -> Error {
    let message = "this needs the claim on the run, which the caller does not hold";
    Error::new(Code::ClaimHeld, message).with("run_id", run_id)
}

fn not_held() -> Error {
    Error::new(Code::ClaimNotHeld, "the caller does not hold the claim on this run")
}

pub fn find(db: &Db, team_id: &TeamId, run_id: &str) -> Result<Option<Claim>> {
    db.query_optional(
        "SELECT holder, acquired_at, fence FROM run_claims WHERE team_id = ?1 AND run_id = ?2",
        params![team_id, run_id],
        |row| {
            let (holder, acquired_at, fence) = (row.get()?, row.get()?, row.get()?);
            Ok(Claim { run_id: run_id.into(), holder, acquired_at, fence })
        },
    )
}

/// `GET /runs/{run}/claim`. `404 claim_not_held` where there is none.
pub fn get(db: &Db, call: &Call) -> Result<Answer> {
    let run_id = runs::run_id(call)?;
    runs::may_read(&call.who)?;
    let claim = find(db, &call.who.team_id, run_id)?;
    let nobody = || Error::new(Code::NoClaim, "nobody holds a claim on this run");
    call.one(200, &claim.ok_or_else(nobody)?)
}

/// `GET /runs/{run}/fenced/{holder}`: whether a takeover displaced that holder, which has not
/// claimed the run again since.
pub fn fenced(db: &Db, call: &Call) -> Result<Answer> {
    let (run_id, holder) = (runs::run_id(call)?, call.segment(1));
    runs::name("holder", holder)?;
    runs::may_read(&call.who)?;
    let fenced = db.query_one(
        "SELECT EXISTS (SELECT 1 FROM fenced_holders
                         WHERE team_id = ?1 AND run_id = ?2 AND holder = ?3)
            AND NOT EXISTS (SELECT 1 FROM run_claims
                             WHERE team_id = ?1 AND run_id = ?2 AND holder = ?3)",
        params![&call.who.team_id, run_id, holder],
        |row| row.get::<bool>(),
    )?;
    call.one(200, &json!({ "fenced": fenced }))
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    /// If nobody else holds it.
    #[default]
    Claim,
    /// Whoever holds it.
    Takeover,
    /// If its holder's claim is `max_age_ms` old, or older.
    TakeoverExpired,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Ask {
    holder: String,
    #[serde(default)]
    mode: Mode,
    max_age_ms: Option<i64>,
}

impl Ask {
    fn validate(&self) -> Result<()> {
        runs::name("holder", &self.holder)?;
        match (self.mode, self.max_age_ms) {
            (Mode::TakeoverExpired, None) => {
                Err(Error::field("max_age_ms", "says from which age on a claim is expired"))
            }
            (Mode::TakeoverExpired, Some(age)) => {
                guard::in_range("max_age_ms", age, 0..=SAFE_INTEGER_MAX)
            }
            (_, Some(_)) => Err(Error::field("max_age_ms", "goes with the mode takeover_expired")),
            (_, None) => Ok(()),
        }
    }
}

/// `POST /runs/{run}/claim` claims the run or takes its claim over. A holder that claims again
/// what it holds keeps its fence; each other success raises it.
///
/// `409 claim_held` while another holds it, or it is not as old as `max_age_ms`; `409
/// claim_not_held` where there is nothing that could have expired.
pub fn claim(tx: &Tx, call: &Call) -> Result<Answer> {
    let run_id = runs::run_id(call)?;
    let ask: Ask = runs::body(call)?;
    ask.validate()?;
    runs::may_write(&call.who)?;

    let team_id = &call.who.team_id;
    let now = find(tx, team_id, run_id)?;
    let mine = now.as_ref().is_some_and(|claim| claim.holder == ask.holder);
    match (&now, ask.mode) {
        (None, Mode::TakeoverExpired) => return Err(not_held()),
        (Some(_), Mode::Claim) if mine => {
            let claim = touch(tx, team_id, run_id, &ask.holder, None)?.ok_or_else(not_held)?;
            return call.one(200, &claim);
        }
        (Some(_), Mode::Claim) => return Err(held_by_another(run_id)),
        (Some(claim), Mode::TakeoverExpired)
            if tx.now_ms - claim.acquired_at < ask.max_age_ms.unwrap_or(SAFE_INTEGER_MAX) =>
        {
            return Err(held_by_another(run_id));
        }
        _ => {}
    }
    let displaced = now.filter(|_| !mine).map(|claim| claim.holder);
    let claim = take(tx, team_id, run_id, &ask.holder, displaced.as_deref())?;
    let (holder, fence) = (&claim.holder, claim.fence);
    let data = json!({ "holder": holder, "fence": fence, "displaced": displaced });
    record(tx, call, "run.claimed", run_id, data, Stage::Current)?;

    call.one(200, &claim)
}

/// Gives the claim to `holder`, with a new fence.
fn take(
    tx: &Tx,
    team_id: &TeamId,
    run_id: &str,
    holder: &str,
    displaced: Option<&str>,
) -> Result<Claim> {
    if let Some(displaced) = displaced {
        tx.execute(
            "INSERT INTO fenced_holders (team_id, run_id, holder, fenced_at)
             VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT (team_id, run_id, holder) DO NOTHING",
            params![team_id, run_id, displaced, tx.now_ms],
        )?;
    }
    let fences = tx.execute_returning(
        "INSERT INTO run_fences (team_id, run_id, fence) VALUES (?1, ?2, 1)
         ON CONFLICT (team_id, run_id) DO UPDATE SET fence = fence + 1, settled_at = NULL
         RETURNING fence",
        params![team_id, run_id],
        |row| row.get::<i64>(),
    )?;
    let fence = *fences.first().ok_or_else(|| Error::internal("a claim without a fence"))?;
    tx.execute(
        "INSERT INTO run_claims (team_id, run_id, holder, acquired_at, fence)
         VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT (team_id, run_id) DO UPDATE
            SET holder = excluded.holder, acquired_at = excluded.acquired_at,
                fence = excluded.fence",
        params![team_id, run_id, holder, tx.now_ms, fence],
    )?;
    Ok(Claim { run_id: run_id.into(), holder: holder.into(), acquired_at: tx.now_ms, fence })
}

/// `POST /runs/{run}/claim/refresh`: a holder's sign of life. It never makes a claim.
///
/// `409 claim_not_held` once the claim is another's or gone.
pub fn refresh(tx: &Tx, call: &Call) -> Result<Answer> {
    let run_id = runs::run_id(call)?;
    let held: Held = runs::body(call)?;
    held.validate("")?;
    runs::may_write(&call.who)?;
    let claim = touch(tx, &call.who.team_id, run_id, &held.holder, held.fence)?;
    call.one(200, &claim.ok_or_else(not_held)?)
}

fn touch(
    tx: &Tx,
    team_id: &TeamId,
    run_id: &str,
    holder: &str,
    fence: Option<i64>,
) -> Result<Option<Claim>> {
    let claims = tx.execute_returning(
        "UPDATE run_claims SET acquired_at = ?5
          WHERE team_id = ?1 AND run_id = ?2 AND holder = ?3 AND fence = coalesce(?4, fence)
         RETURNING fence",
        params![team_id, run_id, holder, fence, tx.now_ms],
        |row| row.get(),
    )?;
    let claim = |fence: &i64| Claim {
        run_id: run_id.into(),
        holder: holder.into(),
        acquired_at: tx.now_ms,
        fence: *fence,
    };
    Ok(claims.first().map(claim))
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct ReleaseQuery {
    holder: Option<String>,
    fence: Option<i64>,
    force: Option<bool>,
}

/// `DELETE /runs/{run}/claim` gives the claim back; with `force` an admin clears whatever there is.
///
/// `409 claim_not_held` where the caller is not its holder.
pub fn release(tx: &Tx, call: &Call) -> Result<Answer> {
    let run_id = runs::run_id(call)?;
    let query: ReleaseQuery = call.query()?;
    let force = query.force.unwrap_or(false);
    let held = match query.holder {
        Some(holder) => Some(Held { holder, fence: query.fence }),
        None if force => None,
        None => return Err(Error::field("holder", "say whose claim it is")),
    };
    if let Some(held) = &held {
        held.validate("")?;
    }
    if force {
        guard::role(&call.who, Role::Admin)?;
    } else {
        runs::may_write(&call.who)?;
    }

    let claim = find(tx, &call.who.team_id, run_id)?;
    let named = |claim: &Claim| held.as_ref().is_some_and(|h| h.names(&claim.holder, claim.fence));
    if !force && !claim.as_ref().is_some_and(named) {
        return Err(not_held());
    }
    if let Some(claim) = claim {
        clear(tx, &call.who.team_id, run_id)?;
        runs::settle(tx, &call.who.team_id, run_id)?;
        let has_events = runs::head(tx, &call.who.team_id, run_id)?.events > 0;
        let stage = if has_events { Stage::Current } else { Stage::Last };
        let data = json!({ "holder": claim.holder, "fence": claim.fence });
        record(tx, call, "run.released", run_id, data, stage)?;
    }

    Ok(Answer::no_content())
}

pub fn clear(tx: &Tx, team_id: &TeamId, run_id: &str) -> Result<()> {
    tx.execute(
        "DELETE FROM run_claims WHERE team_id = ?1 AND run_id = ?2",
        params![team_id, run_id],
    )
}

/// Records a run's event in the team's log.
pub fn record(
    tx: &Tx,
    call: &Call,
    name: &'static str,
    run_id: &str,
    mut data: Json,
    stage: Stage,
) -> Result<()> {
    data["run_id"] = run_id.into();
    let event = Event {
        name,
        resource_kind: "run",
        // Retention sends keys through JSON in SQL, where a NUL may end a text.
        resource_id: &run_id.replace('\0', "\u{fffd}"),
        source_id: None,
        principal_id: Some(&call.who.principal_id),
        data,
        stage,
    };
    events::record(tx, &call.who.team_id, &event).map(drop)
}

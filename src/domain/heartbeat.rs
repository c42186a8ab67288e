//! Heartbeats: a connector says that it is there, and what its machine has open. What it said the
//! last time is kept as a digest, so that a heartbeat that changes nothing costs a row.
use crate::api::{Answer, Call};
use crate::auth::Principal;
use crate::domain::activity::{self, Activity};
use crate::domain::bindings::{self, Binding, Of};
use crate::domain::follow::{self, Watched};
use crate::domain::live::{Live, News};
use crate::domain::machines::{self, Machine};
use crate::domain::roots::{self, Root};
use crate::domain::{attachments, operations};
use crate::error::{Error, Result};
use crate::guard;
use crate::ids::{MachineId, SourceId, TeamId, hex};
use crate::json;
use crate::limits::{
    ACTIVITIES_MAX, BINDINGS_MAX, HEARTBEAT_LIST_BYTES_MAX, HOST_KEY_ID_CHARS_MAX,
    HOST_KEY_ID_CHARS_MIN, INCARNATIONS_REMEMBERED_MAX, LINK_GRACE_MS, NAME_CHARS_MAX, ROOTS_MAX,
    SAFE_INTEGER_MAX,
};
use crate::params;
use crate::store::Tx;
use sha2::{Digest, Sha256};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// What a connector sends, by HTTP or by its link.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Heartbeat {
    incarnation_id: String,
    sequence: i64,
    bindings: Vec<Binding>,
    roots: Vec<Root>,
    #[serde(default)]
    host_key_id: Option<String>,
    /// None: what was said before still holds.
    #[serde(default)]
    activity: Option<Vec<Activity>>,
}

impl Heartbeat {
    pub fn validate(&self) -> Result<()> {
        guard::line("incarnation_id", &self.incarnation_id, NAME_CHARS_MAX)?;
        guard::in_range("sequence", self.sequence, 1..=SAFE_INTEGER_MAX)?;
        if let Some(key) = &self.host_key_id {
            let plain = key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
            if !plain || !(HOST_KEY_ID_CHARS_MIN..=HOST_KEY_ID_CHARS_MAX).contains(&key.len()) {
                return Err(Error::field("host_key_id", "must match [A-Za-z0-9_-]{16,128}"));
            }
        }
        guard::at_most("bindings", self.bindings.len(), BINDINGS_MAX)?;
        for (index, binding) in self.bindings.iter().enumerate() {
            binding.validate(&format!("bindings[{index}]"))?;
        }
        guard::at_most("roots", self.roots.len(), ROOTS_MAX)?;
        for (index, root) in self.roots.iter().enumerate() {
            root.validate(&format!("roots[{index}]"))?;
        }
        let activity = self.activity.as_deref().unwrap_or_default();
        guard::at_most("activity", activity.len(), ACTIVITIES_MAX)?;
        for (index, one) in activity.iter().enumerate() {
            one.validate(&format!("activity[{index}]"))?;
        }
        Ok(())
    }

    /// `[[id, value, harness, native id]]`, by id; of those with one id the last.
    fn bindings_json(&self) -> Result<String> {
        let by_id: BTreeMap<_, _> = self.bindings.iter().map(|b| (&b.id, b)).collect();
        let rows: Vec<_> = by_id
            .into_values()
            .map(|b| Ok((&b.id, json::to_string(b)?, &b.harness, &b.native_id)))
            .collect::<Result<_>>()?;
        json::to_string(&rows)
    }

    /// `[[id, value]]`, by id; of those with one id the last.
    fn roots_json(&self) -> Result<String> {
        let by_id: BTreeMap<_, _> = self.roots.iter().map(|root| (&root.id, root)).collect();
        let rows: Vec<_> = by_id
            .into_values()
            .map(|root| Ok((&root.id, json::to_string(root)?)))
            .collect::<Result<_>>()?;
        json::to_string(&rows)
    }

    /// `[[harness, native id, turn, since]]`, by session; of those of one session the last.
    fn activity_json(activity: &[Activity]) -> Result<String> {
        let by_session: BTreeMap<_, _> =
            activity.iter().map(|a| ((&a.harness, &a.native_id), (&a.turn, a.since))).collect();
        let rows: Vec<_> = by_session
            .into_iter()
            .map(|((harness, native_id), (turn, since))| (harness, native_id, turn, since))
            .collect();
        json::to_string(&rows)
    }
}

/// What the machine's row keeps of the heartbeats before.
#[derive(Debug, Default, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
struct Kept {
    /// The team's epoch when they were kept: a wipe removes what they are digests of.
    epoch: String,
    bindings: String,
    roots: String,
    activity: String,
    unbound: Vec<String>,
    /// Incarnations that another has replaced, the newest last.
    replaced: Vec<String>,
}

/// What a connector is told.
#[derive(Debug, serde::Serialize)]
pub struct Beaten {
    machine: Machine,
    watched: Vec<Watched>,
    unbound_bindings: Vec<String>,
}

/// `POST /machines/{machine}/heartbeat`, by that machine.
///
/// `403` for every other caller.
pub fn post(tx: &Tx, call: &Call) -> Result<Answer> {
    let heartbeat: Heartbeat = call.json()?;
    heartbeat.validate()?;
    let machine_id: MachineId = call.id(0)?;
    guard::machine(&call.who, &machine_id)?;

    let beaten = take(tx, &call.who, &machine_id, &heartbeat, call.live)?;

    call.one(200, &beaten)
}

/// Takes a valid heartbeat of `machine_id`, whose token the caller has.
///
/// One whose sequence is not above the last of its incarnation, or whose incarnation another has
/// replaced, is late: it changes nothing and is answered as usual. Only the server's time counts.
pub fn take(
    tx: &Tx,
    who: &Principal,
    machine_id: &MachineId,
    heartbeat: &Heartbeat,
    live: &RefCell<Live>,
) -> Result<Beaten> {
    let team_id = &who.team_id;
    let beaten = |machine, unbound_bindings| {
        let watched = follow::watched(tx, team_id, who.source_id.as_ref(), &live.borrow())?;
        Ok(Beaten { machine, watched, unbound_bindings })
    };
    let (sequence, kept, epoch) = tx.query_one(
        "SELECT heartbeat_sequence, heartbeat_digests_json,
                (SELECT epoch FROM teams WHERE id = ?1)
           FROM machines
          WHERE team_id = ?1 AND id = ?2",
        params![team_id, machine_id],
        |row| Ok((row.get::<i64>()?, row.get::<String>()?, row.get::<String>()?)),
    )?;
    let mut kept: Kept = serde_json::from_str(&kept)
        .map_err(|e| Error::internal(format!("heartbeat_digests_json: {e}")))?;
    let before = machines::load(tx, team_id, machine_id)?;
    let incarnation = &heartbeat.incarnation_id;
    let same = before.incarnation_id.as_ref() == Some(incarnation);
    let late = (same && heartbeat.sequence <= sequence) || kept.replaced.contains(incarnation);
    if late {
        return beaten(before, kept.unbound);
    }

    if let Some(old) = before.incarnation_id.clone().filter(|_| !same) {
        replace_incarnation(tx, who, &before)?;
        kept.replaced.push(old);
        let excess = kept.replaced.len().saturating_sub(INCARNATIONS_REMEMBERED_MAX);
        kept.replaced.drain(..excess);
        // Bindings that only its attachments and effects held on to may go now.
        kept.bindings.clear();
    }
    let activity = kept.activity.clone();
    // While a wipe is under way, what is written would go with the rest.
    if !who.team_is_wiped {
        if kept.epoch != epoch {
            kept = Kept { epoch, replaced: kept.replaced, ..Kept::default() };
        }
        keep(tx, who, machine_id, heartbeat, &mut kept)?;
    }
    if kept.activity != activity {
        live.borrow_mut().tell(News::Active);
    }
    let kept_json = json::to_string(&kept)?;
    tx.execute(
        "UPDATE machines
            SET incarnation_id = ?3, heartbeat_sequence = ?4, heartbeat_digests_json = ?5,
                host_key_id = coalesce(?6, host_key_id), last_seen_at = ?7
          WHERE team_id = ?1 AND id = ?2",
        params![
            team_id,
            machine_id,
            incarnation,
            heartbeat.sequence,
            &kept_json,
            heartbeat.host_key_id.as_deref(),
            tx.now_ms
        ],
    )?;
    attachments::activate_all_of_machine(tx, team_id, machine_id)?;
    let machine = machines::load(tx, team_id, machine_id)?;
    beaten(machine, kept.unbound)
}

/// Writes what differs from the heartbeat before.
fn keep(
    tx: &Tx,
    who: &Principal,
    machine_id: &MachineId,
    heartbeat: &Heartbeat,
    kept: &mut Kept,
) -> Result<()> {
    let team_id = &who.team_id;
    let source_id = who.source_id.as_ref();
    let (wanted, digest) = digested(heartbeat.bindings_json()?)?;
    if digest != kept.bindings {
        let of = Of { team_id, machine_id, source_id };
        kept.unbound = bindings::replace(tx, &of, &wanted)?;
        kept.bindings = digest;
    }
    let (wanted, digest) = digested(heartbeat.roots_json()?)?;
    if digest != kept.roots {
        roots::replace(tx, team_id, machine_id, &wanted)?;
        kept.roots = digest;
    }
    if let (Some(activity), Some(source_id)) = (&heartbeat.activity, source_id) {
        let (wanted, digest) = digested(Heartbeat::activity_json(activity)?)?;
        if digest != kept.activity {
            activity::replace(tx, team_id, source_id, &wanted)?;
            kept.activity = digest;
        }
    }
    Ok(())
}

/// The connector runs anew: what its last run was attached to is closed, and what that was asked
/// is unknown. What was asked after the machine had gone offline waits for this run.
fn replace_incarnation(tx: &Tx, who: &Principal, before: &Machine) -> Result<()> {
    attachments::close_all_of_machine(tx, &who.team_id, &before.id)?;
    let offline_from = before.last_seen_at.unwrap_or(0) + LINK_GRACE_MS;
    operations::lose_effects_of(tx, who, &before.id, who.source_id.as_ref(), offline_from)
}

/// A session has been made or bound under an origin of this source: which bindings have none is
/// found anew at the next heartbeat.
pub fn forget_bindings(tx: &Tx, team_id: &TeamId, source_id: &SourceId) -> Result<()> {
    tx.execute(
        "UPDATE machines
            SET heartbeat_digests_json = json_remove(heartbeat_digests_json, '$.bindings')
          WHERE team_id = ?1
            AND id = (SELECT machine_id FROM sources WHERE team_id = ?1 AND id = ?2)",
        params![team_id, source_id],
    )
}

/// What goes into one statement, and its digest.
fn digested(json: String) -> Result<(String, String)> {
    if json.len() > HEARTBEAT_LIST_BYTES_MAX {
        return Err(Error::too_large(HEARTBEAT_LIST_BYTES_MAX, "a list of a heartbeat"));
    }
    let digest = hex(&Sha256::digest(&json)[..16]);
    Ok((json, digest))
}

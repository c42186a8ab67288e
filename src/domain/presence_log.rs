//! The log of presence: which machine's link came and went, when.
use crate::api::{Answer, Call};
use crate::auth::Principal;
use crate::domain::position::{self, Log};
use crate::domain::streams::{self, PRESENCE, TOPICS};
use crate::error::Result;
use crate::ids::{MachineId, TeamId};
use crate::json;
use crate::params;
use crate::store::Db;

#[derive(serde::Serialize)]
struct Entry {
    sequence: i64,
    position: String,
    #[serde(rename = "type")]
    name: &'static str,
    machine_id: MachineId,
    linked: bool,
    created_at: i64,
}

/// `GET /machines/events` reads the log behind the position `after`, by page or as a stream.
pub fn list(db: &Db, call: &Call) -> Result<Answer> {
    streams::read(db, call, &TOPICS[PRESENCE])
}

/// Up to `limit` entries behind `after`, and the last sequence looked at; all see all of them.
pub fn entries(
    db: &Db,
    who: &Principal,
    log: &Log,
    after: i64,
    limit: usize,
) -> Result<(Vec<streams::Entry>, i64)> {
    let entries = db.query(
        "SELECT sequence, machine_id, linked, created_at
           FROM machine_presence_events
          WHERE team_id = ?1 AND sequence > ?2
          ORDER BY sequence
          LIMIT ?3",
        params![&who.team_id, after, limit],
        |row| {
            let (sequence, machine_id, linked) = (row.get()?, row.get()?, row.get()?);
            let name = if linked { "machine.online" } else { "machine.unlinked" };
            let created_at = row.get()?;
            let position = log.position(sequence);
            let entry = Entry { sequence, position, name, machine_id, linked, created_at };
            let json = json::to_string(&entry)?;
            Ok(streams::Entry { sequence, name: name.into(), json })
        },
    )?;
    let last = entries.last().map_or(after, |entry| entry.sequence);
    Ok((entries, last))
}

pub fn log(db: &Db, team_id: &TeamId) -> Result<Log> {
    let (pruned_through, newest) = db.query_one(
        "SELECT coalesce((SELECT pruned_through FROM machine_presence_cursors
                           WHERE team_id = ?1), 0),
                coalesce((SELECT max(sequence) FROM machine_presence_events
                           WHERE team_id = ?1), 0)",
        params![team_id],
        |row| Ok((row.get::<i64>()?, row.get::<i64>()?)),
    )?;
    let epoch = position::epoch(db, team_id)?;
    Ok(Log { epoch, pruned_through, newest: newest.max(pruned_through) })
}

//! The log of presence: which machine's link came and went, when.
use crate::api::{Answer, Call};
use crate::domain::position::{self, Log, LogQuery};
use crate::domain::visibility;
use crate::error::{Error, Result};
use crate::guard;
use crate::ids::{MachineId, TeamId};
use crate::page;
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

/// `GET /machines/events` reads the log behind the position `after`.
pub fn list(db: &Db, call: &Call) -> Result<Answer> {
    let query: LogQuery = call.query()?;
    let limit = page::limit(query.limit)?;
    position::only_pages(call)?;
    guard::reads(&call.who, visibility::READ_SCOPE)?;

    let team_id = &call.who.team_id;
    let log = log(db, team_id)?;
    let after = log.after(query.after.as_deref())?;
    let entries = db.query(
        "SELECT sequence, machine_id, linked, created_at
           FROM machine_presence_events
          WHERE team_id = ?1 AND sequence > ?2
          ORDER BY sequence
          LIMIT ?3",
        params![team_id, after, limit],
        |row| {
            let (sequence, machine_id, linked) = (row.get()?, row.get()?, row.get()?);
            Ok(Entry {
                sequence,
                position: log.position(sequence),
                name: if linked { "machine.online" } else { "machine.unlinked" },
                machine_id,
                linked,
                created_at: row.get()?,
            })
        },
    )?;

    let last = entries.last().map_or(after, |entry| entry.sequence);
    let items = entries.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>();
    let items = items.map_err(|e| Error::internal(e.to_string()))?;
    Ok(call.log(&items, log.position(last)))
}

fn log(db: &Db, team_id: &TeamId) -> Result<Log> {
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

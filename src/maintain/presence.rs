//! Lost links: a machine whose link was lost for `LINK_GRACE_MS` becomes unlinked, with one event.
//! And the presence log, which ages as events do; what a machine's presence is now stands in
//! `machine_presence`, so nothing of the log is kept for it.
use super::retention;
use super::work::{Batch, Walks, Work, earliest, json};
use crate::domain::presence;
use crate::error::Result;
use crate::ids::{MachineId, TeamId};
use crate::limits::{DAY_MS, LINK_GRACE_MS};
use crate::params;
use crate::store::{Db, Tx};
use std::collections::BTreeSet;

/// One costs about 30 units, with its events.
const LINKS_MAX: usize = 8;
/// One costs 3 units.
const EVENTS_MAX: usize = 60;
const EVENTS_UNITS: u64 = 3 * EVENTS_MAX as u64 + 30;

pub fn due(db: &Db, _walks: &Walks) -> Result<Option<i64>> {
    let lost = db.query_one(
        "SELECT min(lost_at) + ?1 FROM machine_presence WHERE lost_at IS NOT NULL",
        params![LINK_GRACE_MS],
        |row| row.get(),
    )?;
    Ok(earliest([lost, retention::next(db, "presence")?]))
}

pub fn batch(tx: &Tx, work: &mut Work) -> Result<Batch> {
    let lost = tx.query(
        "SELECT team_id, machine_id
           FROM machine_presence
          WHERE lost_at <= ?1
          ORDER BY lost_at
          LIMIT ?2",
        params![tx.now_ms - LINK_GRACE_MS, LINKS_MAX],
        |row| Ok((row.get::<TeamId>()?, row.get::<MachineId>()?)),
    )?;
    for (index, (team_id, machine_id)) in lost.iter().enumerate() {
        let spent = work.spent(tx);
        presence::unlink(tx, team_id, machine_id)?;
        work.removed("links", 1);
        if index + 1 < lost.len() && !work.has_room_for_another(tx, spent) {
            return Ok(Batch::More);
        }
    }
    if !work.has_room(tx, EVENTS_UNITS) {
        return Ok(Batch::More);
    }
    let events = events(tx, work)?;
    Ok(Batch::more_if(lost.len() == LINKS_MAX || events == Batch::More))
}

fn events(tx: &Tx, work: &mut Work) -> Result<Batch> {
    let Some(due) = retention::first(tx, "presence")? else { return Ok(Batch::Done) };
    let Some(retention) = &due.retention else {
        due.set(tx, None)?;
        return Ok(Batch::More);
    };
    let age_ms = retention.events_days * DAY_MS;
    let window = tx.query(
        "SELECT sequence, created_at
           FROM machine_presence_events
          WHERE team_id = ?1
            AND sequence > coalesce(
                (SELECT deleted_through FROM machine_presence_cursors WHERE team_id = ?1), 0)
          ORDER BY sequence
          LIMIT ?2",
        params![&due.team_id, EVENTS_MAX],
        |row| Ok((row.get::<i64>()?, row.get::<i64>()?)),
    )?;
    let young = window.iter().find(|(_, created_at)| created_at + age_ms > tx.now_ms);
    let young = young.map(|(_, created_at)| created_at + age_ms);
    let old = window.iter().take_while(|(_, created_at)| created_at + age_ms <= tx.now_ms);
    let old = old.map(|(sequence, _)| *sequence).collect::<Vec<_>>();
    if let Some(last) = old.last() {
        tx.execute(
            "INSERT INTO machine_presence_cursors (team_id, pruned_through, deleted_through)
             VALUES (?1, ?2, ?2)
             ON CONFLICT (team_id) DO UPDATE
                SET pruned_through = max(pruned_through, excluded.pruned_through),
                    deleted_through = excluded.deleted_through",
            params![&due.team_id, *last],
        )?;
        tx.execute(
            "DELETE FROM machine_presence_events
              WHERE team_id = ?1 AND sequence >= ?2 AND sequence <= ?3",
            params![&due.team_id, old[0], *last],
        )?;
        work.removed("presence_events", old.len() as u64);
    }
    let more = young.is_none() && window.len() == EVENTS_MAX;
    due.set(tx, if more { Some(tx.now_ms) } else { young })?;
    Ok(Batch::More)
}

/// How many machines the store says are linked; a row a team. When the shell holds another number of sockets, a
/// reset dropped links without a close: it calls [`lose_missing`], and a pass is due.
pub fn linked(db: &Db) -> Result<i64> {
    db.query_one(
        "SELECT coalesce(sum(linked), 0) FROM machine_presence_cursors WHERE team_id > ''",
        params![],
        |row| row.get(),
    )
}

/// Marks as lost now the links of machines for which no socket is held.
pub fn lose_missing(db: &Db, held: &BTreeSet<MachineId>) -> Result<u64> {
    let held = json(held)?;
    db.transaction(|tx| {
        tx.execute_counted(
            "UPDATE machine_presence SET lost_at = ?2
              WHERE team_id > '' AND linked = 1 AND lost_at IS NULL
                AND machine_id NOT IN (SELECT value FROM json_each(?1))",
            params![&held, tx.now_ms],
        )
    })
}

//! Events older than the team's days that are not their resource's current one.
//!
//! Two marks move forward, never back: a reader is told of what lies at or below `pruned_through`,
//! and up to `deleted_through` only current events are left. When a newer event replaces one of
//! those, a trigger removes it at once.
use super::retention;
use super::work::{Batch, LISTED_UNITS, Walks, Work, json};
use crate::error::Result;
use crate::limits::{DAY_MS, PASS_WAIT_MS};
use crate::params;
use crate::store::{Db, Tx};

/// One costs 4 units or 7: found, asked whether it is current, deleted.
const EVENTS_MAX: usize = 60;

pub fn due(db: &Db, _walks: &Walks) -> Result<Option<i64>> {
    retention::next(db, "events")
}

struct Seen {
    sequence: i64,
    created_at: i64,
    is_current: bool,
}

pub fn batch(tx: &Tx, work: &mut Work) -> Result<Batch> {
    let Some(due) = retention::first(tx, "events")? else { return Ok(Batch::Done) };
    let Some(retention) = &due.retention else {
        due.set(tx, None)?;
        return Ok(Batch::More);
    };
    if due.is_removing {
        // The step for teams walks the same mark.
        due.set(tx, Some(tx.now_ms + PASS_WAIT_MS))?;
        return Ok(Batch::More);
    }
    let age_ms = retention.events_days * DAY_MS;
    let window = tx.query(
        "SELECT e.sequence, e.created_at, octet_length(e.value_json),
                e.sequence = (
                    SELECT r.sequence
                      FROM event_resources AS r
                     WHERE r.team_id = e.team_id AND r.source_id = coalesce(e.source_id, '')
                       AND r.resource_kind = e.resource_kind AND r.resource_id = e.resource_id)
           FROM org_events AS e
          WHERE e.team_id = ?1
            AND e.sequence > coalesce(
                (SELECT deleted_through FROM event_retention WHERE team_id = ?1), 0)
          ORDER BY e.sequence
          LIMIT ?2",
        params![&due.team_id, EVENTS_MAX],
        |row| {
            let (sequence, created_at) = (row.get()?, row.get()?);
            let octets: i64 = row.get()?;
            let is_current = row.get::<Option<bool>>()?.unwrap_or(false);
            Ok((Seen { sequence, created_at, is_current }, octets))
        },
    )?;
    let full = window.len() == EVENTS_MAX;
    let is_young = |seen: &Seen| seen.created_at + age_ms > tx.now_ms;
    let young = window.iter().find(|(seen, _)| is_young(seen)).map(|(seen, _)| seen.created_at);
    let old = window.into_iter().take_while(|(seen, _)| !is_young(seen)).collect::<Vec<_>>();
    let old_count = old.len();
    let taken = work.take(tx, old, LISTED_UNITS);
    let Some(last) = taken.last().map(|seen| seen.sequence) else {
        due.set(tx, young.map(|created_at| created_at + age_ms))?;
        return Ok(Batch::More);
    };
    tx.execute(
        "INSERT INTO event_retention (team_id, pruned_through, deleted_through)
         VALUES (?1, ?2, ?2)
         ON CONFLICT (team_id) DO UPDATE
            SET pruned_through = max(pruned_through, excluded.pruned_through),
                deleted_through = excluded.deleted_through",
        params![&due.team_id, last],
    )?;
    // Neighbours in the team's log go as a range.
    let mut listed = Vec::new();
    for run in taken.chunk_by(|a, b| !a.is_current && !b.is_current) {
        match run {
            [seen] if seen.is_current => {}
            [first, _, .., last] => tx.execute(
                "DELETE FROM org_events WHERE team_id = ?1 AND sequence >= ?2 AND sequence <= ?3",
                params![&due.team_id, first.sequence, last.sequence],
            )?,
            few => listed.extend(few.iter().map(|seen| seen.sequence)),
        }
    }
    if !listed.is_empty() {
        tx.execute(
            "DELETE FROM org_events WHERE sequence IN (SELECT value FROM json_each(?1))",
            params![&json(&listed)?],
        )?;
    }
    work.removed("events", taken.iter().filter(|seen| !seen.is_current).count() as u64);
    // A team with more to lose goes behind those that wait already.
    let more = taken.len() < old_count || full && young.is_none();
    due.set(tx, if more { Some(tx.now_ms) } else { young.map(|at| at + age_ms) })?;
    Ok(Batch::More)
}

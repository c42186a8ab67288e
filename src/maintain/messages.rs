//! Message rows that no remaining version holds.
//!
//! A row is held by the versions from its `revision` to below its `until_revision`. Of a removed
//! version `r`, with `older` the newest remaining version below it and `newer` the oldest above, the
//! dead rows are those closed above `r` and up to `newer` that are newer than `older`. The index by
//! closing holds the revision too, so at each closing only the dead rows are read.
use super::work::{AT_ONCE, Batch, LISTED_UNITS, Walks, Work, rows};
use crate::error::Result;
use crate::ids::{SessionId, TeamId};
use crate::params;
use crate::store::{Db, Tx};

/// A row costs 6 units or 3: found by its closing, deleted. A closing costs 2.
const ROWS_MAX: usize = 60;
const CLOSINGS_MAX: usize = 25;
/// Removed versions between the same two neighbours are settled together.
const VERSIONS_MAX: usize = 60;
const TURN_UNITS: u64 = ROWS_MAX as u64 + 2 * CLOSINGS_MAX as u64 + 2 * VERSIONS_MAX as u64 + 40;

pub fn due(db: &Db, _walks: &Walks) -> Result<Option<i64>> {
    let waits = db.query_optional(
        "SELECT 1 FROM message_prune_queue WHERE team_id > '' LIMIT 1",
        params![],
        |row| row.get::<i64>(),
    )?;
    Ok(waits.map(|_| AT_ONCE))
}

struct Queued {
    team_id: TeamId,
    session_id: SessionId,
    revision: i64,
    after_until: i64,
    older: i64,
    newer: i64,
}

pub fn batch(tx: &Tx, work: &mut Work) -> Result<Batch> {
    while work.has_room(tx, TURN_UNITS) {
        let Some(row) = first(tx)? else { return Ok(Batch::Done) };
        match remove(tx, work, &row)? {
            Some(after_until) => tx.execute(
                "UPDATE message_prune_queue SET after_until = ?4
                  WHERE team_id = ?1 AND session_id = ?2 AND revision = ?3 AND after_until <> ?4",
                params![&row.team_id, &row.session_id, row.revision, after_until],
            )?,
            None => tx.execute(
                "DELETE FROM message_prune_queue
                  WHERE team_id = ?1 AND session_id = ?2
                    AND revision >= ?3 AND revision < min(?4, ?3 + ?5)",
                params![&row.team_id, &row.session_id, row.revision, row.newer, VERSIONS_MAX],
            )?,
        }
    }
    Ok(Batch::More)
}

fn first(tx: &Tx) -> Result<Option<Queued>> {
    tx.query_optional(
        "SELECT q.team_id, q.session_id, q.revision, q.after_until,
                coalesce((SELECT max(v.revision)
                            FROM session_versions AS v
                           WHERE v.team_id = q.team_id AND v.session_id = q.session_id
                             AND v.revision < q.revision), -1),
                coalesce((SELECT min(v.revision)
                            FROM session_versions AS v
                           WHERE v.team_id = q.team_id AND v.session_id = q.session_id
                             AND v.revision > q.revision), 9007199254740990)
           FROM message_prune_queue AS q
          WHERE q.team_id > ''
          ORDER BY q.team_id, q.session_id, q.revision
          LIMIT 1",
        params![],
        |row| {
            Ok(Queued {
                team_id: row.get()?,
                session_id: row.get()?,
                revision: row.get()?,
                after_until: row.get()?,
                older: row.get()?,
                newer: row.get()?,
            })
        },
    )
}

/// Removes a batch of the dead rows and says up to which closing all are gone; nothing once all
/// are.
fn remove(tx: &Tx, work: &mut Work, row: &Queued) -> Result<Option<i64>> {
    // One closing after the other, each with its dead rows or a row of nulls; a null at the end.
    let found = tx.query(
        "WITH RECURSIVE closings (at) AS (
             SELECT (SELECT until_revision
                       FROM messages
                      WHERE team_id = ?1 AND session_id = ?2
                        AND until_revision > ?3 AND until_revision <= ?4
                        AND until_revision < 9007199254740991
                      ORDER BY until_revision
                      LIMIT 1)
             UNION ALL
             SELECT (SELECT until_revision
                       FROM messages
                      WHERE team_id = ?1 AND session_id = ?2
                        AND until_revision > closings.at AND until_revision <= ?4
                        AND until_revision < 9007199254740991
                      ORDER BY until_revision
                      LIMIT 1)
               FROM closings
              WHERE closings.at IS NOT NULL
              LIMIT ?6
         )
         SELECT closings.at, m.id, octet_length(m.value_json)
           FROM closings
           LEFT JOIN messages AS m
             ON m.team_id = ?1 AND m.session_id = ?2
            AND m.until_revision = closings.at AND m.until_revision < 9007199254740991
            AND m.revision > ?5
          LIMIT ?7",
        params![
            &row.team_id,
            &row.session_id,
            row.after_until,
            row.newer,
            row.older,
            CLOSINGS_MAX,
            ROWS_MAX
        ],
        |row| Ok((row.get::<Option<i64>>()?, row.get::<Option<i64>>()?, row.get::<Option<i64>>()?)),
    )?;
    let is_end = found.last().is_none_or(|(closing, ..)| closing.is_none());
    let full = found.len() == ROWS_MAX;
    let last = found.iter().filter_map(|(closing, ..)| *closing).next_back();
    let dead = found.iter().filter_map(|&(closing, id, octets)| Some(((closing?, id?), octets?)));
    let dead = dead.collect::<Vec<_>>();
    let first_left = |taken: usize| dead.get(taken).map(|((closing, _), _)| *closing);
    let taken = work.take(tx, dead.clone(), LISTED_UNITS);
    let left = first_left(taken.len());
    if !taken.is_empty() {
        let ids = taken.iter().map(|(_, id)| *id).collect::<Vec<_>>();
        rows!("messages").delete(tx, &ids)?;
        work.removed("messages", taken.len() as u64);
    }
    Ok(match (left, last) {
        (Some(closing), _) => Some(closing - 1),
        (None, _) if is_end => None,
        // The last closing may have more rows than were read.
        (None, Some(closing)) if full => Some(closing - 1),
        (None, last) => last,
    })
}

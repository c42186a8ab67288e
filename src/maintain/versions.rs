//! Versions that nobody needs: older than their source's newest, not the session's current one,
//! pinned by no live cursor, and older than the source's last captured one or without a captured
//! artifact. From then on one is 404; every remaining version reads the same messages as before.
//!
//! A row of the queue walks one source's versions of one session upwards. It never passes the
//! newest, so it need not turn back when another becomes the newest; a trigger turns it back to
//! the last captured one when another is captured; and when the first pin that held a version ends,
//! it begins again there.
use super::work::{Batch, Walks, Work, json};
use crate::error::Result;
use crate::ids::{SessionId, SourceId, TeamId};
use crate::limits::{CAPTURE_ARTIFACTS_MAX, SAFE_INTEGER_MAX};
use crate::params;
use crate::store::{Db, Tx};

/// Looking at a version costs 4 units: itself, its captured row, its last pin, its place.
const EXAMINED_MAX: usize = 16;
const WINDOW_UNITS: u64 = 4 * EXAMINED_MAX as u64 + VERSION_UNITS + 40;
/// Removing one costs about 20 and 8 for each artifact.
const VERSION_UNITS: u64 = 20;
const ARTIFACT_UNITS: u64 = 8;
const ROWS_SEEN_MAX: usize = CAPTURE_ARTIFACTS_MAX + 1;

pub fn due(db: &Db, walks: &Walks) -> Result<Option<i64>> {
    if walks.any_open(&["version_sources", "captured_versions", "cursor_pins"]) {
        return Ok(None);
    }
    db.query_one("SELECT min(due_at) FROM version_prune_queue", params![], |row| row.get())
}

struct Queued {
    team_id: TeamId,
    session_id: SessionId,
    source_id: SourceId,
    after_revision: i64,
    held_revision: Option<i64>,
    held_until: Option<i64>,
    /// The source's newest version, its last captured one and the session's current one; 0 where
    /// there is none.
    newest: i64,
    captured: i64,
    current: i64,
}

struct Version {
    revision: i64,
    is_captured: bool,
    pinned_until: Option<i64>,
}

/// The row that has waited longest has its turn, then goes behind the others.
pub fn batch(tx: &Tx, work: &mut Work) -> Result<Batch> {
    let Some(mut row) = first(tx)? else { return Ok(Batch::Done) };
    if row.held_until.is_some_and(|until| until <= tx.now_ms) {
        let held_revision = row.held_revision.unwrap_or(row.newest);
        row.after_revision = row.after_revision.min(held_revision - 1);
        (row.held_revision, row.held_until) = (None, None);
    }
    let mut more = true;
    while more && work.has_room(tx, WINDOW_UNITS) {
        more = window(tx, work, &mut row)?;
    }
    if more {
        set(tx, &row, tx.now_ms)?;
    } else if let Some(until) = row.held_until {
        set(tx, &row, until)?;
    } else {
        tx.execute(
            "DELETE FROM version_prune_queue
              WHERE team_id = ?1 AND session_id = ?2 AND source_id = ?3",
            params![&row.team_id, &row.session_id, &row.source_id],
        )?;
    }
    Ok(Batch::More)
}

/// Looks at the next versions, removes what nobody needs, and says whether there are more.
fn window(tx: &Tx, work: &mut Work, row: &mut Queued) -> Result<bool> {
    let versions = examine(tx, row)?;
    let (current, captured) = (row.current, row.captured);
    let needless = |version: &Version| {
        version.revision != current && (!version.is_captured || version.revision < captured)
    };
    let going = versions.iter().filter(|v| v.pinned_until.is_none() && needless(v));
    let going = going.map(|version| version.revision).collect::<Vec<_>>();
    let taken = remove(tx, work, row, &going)?;
    // What comes behind the first that did not fit is looked at again.
    let end = going.get(taken).copied().unwrap_or(SAFE_INTEGER_MAX);
    for version in versions.iter().take_while(|version| version.revision < end) {
        row.after_revision = row.after_revision.max(version.revision);
        if let Some(until) = version.pinned_until.filter(|_| needless(version)) {
            row.held_revision =
                Some(row.held_revision.map_or(version.revision, |held| held.min(version.revision)));
            row.held_until = Some(row.held_until.map_or(until, |held| held.min(until)));
        }
    }
    Ok(versions.len() == EXAMINED_MAX || taken < going.len())
}

fn first(tx: &Tx) -> Result<Option<Queued>> {
    tx.query_optional(
        "SELECT q.team_id, q.session_id, q.source_id, q.after_revision, q.held_revision,
                q.held_until,
                coalesce((SELECT max(v.revision)
                            FROM version_sources AS v
                           WHERE v.team_id = q.team_id AND v.session_id = q.session_id
                             AND v.source_id = q.source_id), 0),
                coalesce((SELECT max(c.revision)
                            FROM captured_versions AS c
                           WHERE c.team_id = q.team_id AND c.session_id = q.session_id
                             AND c.source_id = q.source_id), 0),
                coalesce((SELECT s.revision
                            FROM sessions AS s
                           WHERE s.team_id = q.team_id AND s.id = q.session_id), 0)
           FROM version_prune_queue AS q
          WHERE q.due_at <= ?1
          ORDER BY q.due_at
          LIMIT 1",
        params![tx.now_ms],
        |row| {
            Ok(Queued {
                team_id: row.get()?,
                session_id: row.get()?,
                source_id: row.get()?,
                after_revision: row.get()?,
                held_revision: row.get()?,
                held_until: row.get()?,
                newest: row.get()?,
                captured: row.get()?,
                current: row.get()?,
            })
        },
    )
}

fn examine(tx: &Tx, row: &Queued) -> Result<Vec<Version>> {
    tx.query(
        "SELECT v.revision,
                EXISTS (SELECT 1
                          FROM captured_versions AS c
                         WHERE c.team_id = v.team_id AND c.session_id = v.session_id
                           AND c.source_id = v.source_id AND c.revision = v.revision),
                (SELECT max(p.expires_at)
                   FROM cursor_pins AS p
                  WHERE p.team_id = v.team_id AND p.session_id = v.session_id
                    AND p.revision = v.revision AND p.expires_at > ?6)
           FROM version_sources AS v
          WHERE v.team_id = ?1 AND v.session_id = ?2 AND v.source_id = ?3
            AND v.revision > ?4 AND v.revision < ?5
          ORDER BY v.revision
          LIMIT ?7",
        params![
            &row.team_id,
            &row.session_id,
            &row.source_id,
            row.after_revision,
            row.newest,
            tx.now_ms,
            EXAMINED_MAX
        ],
        |row| {
            Ok(Version { revision: row.get()?, is_captured: row.get()?, pinned_until: row.get()? })
        },
    )
}

/// Removes the first of `going` that fit into the batch, each with its artifacts, and says how
/// many. Triggers queue their messages and uploads.
fn remove(tx: &Tx, work: &mut Work, row: &Queued, going: &[i64]) -> Result<usize> {
    if going.is_empty() {
        return Ok(0);
    }
    // The rows come in the versions' order, so only the last one's may be missing some.
    let found = tx.query(
        "SELECT v.revision, coalesce(octet_length(v.source_projection_json), 0),
                a.bundle_id IS NOT NULL
           FROM json_each(?3) AS g
          CROSS JOIN session_versions AS v
             ON v.team_id = ?1 AND v.session_id = ?2 AND v.revision = g.value
           LEFT JOIN session_artifacts AS a
             ON a.team_id = ?1 AND a.session_id = ?2 AND a.revision = g.value
          LIMIT ?4",
        params![&row.team_id, &row.session_id, &json(&going)?, ROWS_SEEN_MAX],
        |row| Ok((row.get::<i64>()?, row.get::<i64>()?, row.get::<bool>()?)),
    )?;
    let cut = found.last().map(|(revision, ..)| *revision).filter(|_| found.len() == ROWS_SEEN_MAX);
    let mut candidates = Vec::new();
    for revision in going.iter().copied() {
        if cut == Some(revision) && !candidates.is_empty() {
            break;
        }
        let rows = found.iter().filter(|(of, ..)| *of == revision);
        let artifacts = rows.clone().filter(|(.., artifact)| *artifact).count() as u64;
        let octets = rows.map(|(_, octets, _)| *octets).next().unwrap_or_default();
        let units = VERSION_UNITS + ARTIFACT_UNITS * artifacts;
        candidates.push((revision, octets, units));
        if cut == Some(revision) {
            break;
        }
    }
    let taken = work.take_weighed(tx, candidates).len();
    let has_artifacts = found.iter().any(|(.., artifact)| *artifact);
    for run in going[..taken].chunk_by(|a, b| a + 1 == *b) {
        remove_run(tx, row, run[0], run[run.len() - 1], has_artifacts)?;
    }
    work.removed("versions", taken as u64);
    Ok(taken)
}

/// Removes the versions from `first` to `last`, all of which are needless.
fn remove_run(tx: &Tx, row: &Queued, first: i64, last: i64, has_artifacts: bool) -> Result<()> {
    if has_artifacts {
        tx.execute(
            "DELETE FROM session_artifacts
              WHERE team_id = ?1 AND session_id = ?2 AND revision >= ?3 AND revision <= ?4",
            params![&row.team_id, &row.session_id, first, last],
        )?;
    }
    tx.execute(
        "DELETE FROM session_versions
          WHERE team_id = ?1 AND session_id = ?2 AND revision >= ?3 AND revision <= ?4",
        params![&row.team_id, &row.session_id, first, last],
    )
}

fn set(tx: &Tx, row: &Queued, due_at: i64) -> Result<()> {
    tx.execute(
        "UPDATE version_prune_queue
            SET after_revision = ?4, due_at = ?5, held_revision = ?6, held_until = ?7
          WHERE team_id = ?1 AND session_id = ?2 AND source_id = ?3",
        params![
            &row.team_id,
            &row.session_id,
            &row.source_id,
            row.after_revision,
            due_at,
            row.held_revision,
            row.held_until
        ],
    )
}

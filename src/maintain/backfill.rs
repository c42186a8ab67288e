//! Walks over rows older than the retention migration, into its tables. Each goes through one
//! table by rowid, in batches inside SQL, and is done when a batch comes back short. Running a
//! batch again changes nothing, and new rows are kept by triggers from the first moment, so walks
//! and writes may overlap freely.
use super::work::{AT_ONCE, Batch, Walks, Work, earliest};
use crate::error::{Error, Result};
use crate::params;
use crate::store::{Db, Tx};

struct Walk {
    name: &'static str,
    /// The last rowid of the next batch of ?2 rows behind ?1, and how many they are.
    window: &'static str,
    rows_max: i64,
    /// Statements over the rows behind ?1 up to ?2.
    fill: &'static [&'static str],
}

/// Versions may be pinned by cursors that the triggers did not see.
const CURSORS: &str = "cursor_pins";

#[allow(clippy::unnecessary_wraps)] // As of every step.
pub fn due(_db: &Db, walks: &Walks) -> Result<Option<i64>> {
    let times = walks
        .open()
        .iter()
        .map(|(name, after_rowid)| Some(if name == CURSORS { *after_rowid } else { AT_ONCE }));
    Ok(earliest(times))
}

pub fn batch(tx: &Tx, work: &mut Work) -> Result<Batch> {
    let walks = Walks::read(tx)?;
    let waits = |(name, until): &&(String, i64)| name == CURSORS && *until > tx.now_ms;
    let Some((name, after_rowid)) = walks.open().iter().find(|walk| !waits(walk)) else {
        return Ok(Batch::Done);
    };
    if name == CURSORS {
        finish(tx, CURSORS)?;
        return Ok(Batch::More);
    }
    let walk = WALKS.iter().find(|walk| walk.name == name);
    let walk = walk.ok_or_else(|| Error::internal(format!("there is no walk {name}")))?;
    let (last, count): (Option<i64>, i64) =
        tx.query_one(walk.window, params![*after_rowid, walk.rows_max], |row| {
            Ok((row.get()?, row.get()?))
        })?;
    if let Some(last) = last {
        for fill in walk.fill {
            tx.execute(fill, params![*after_rowid, last])?;
        }
        work.removed("walked", count.unsigned_abs());
    }
    match last {
        Some(last) if count == walk.rows_max => tx.execute(
            "UPDATE maintain_backfill SET after_rowid = ?2 WHERE name = ?1",
            params![walk.name, last],
        )?,
        _ => finish(tx, walk.name)?,
    }
    Ok(Batch::More)
}

fn finish(tx: &Tx, name: &'static str) -> Result<()> {
    tx.execute("UPDATE maintain_backfill SET done = 1 WHERE name = ?1", params![name])
}

const WALKS: &[Walk] = &[
    Walk {
        name: "version_sources",
        window: "SELECT max(rowid), count(*)
                   FROM (SELECT rowid FROM session_versions WHERE rowid > ?1 ORDER BY rowid LIMIT ?2)",
        rows_max: 50,
        fill: &[
            "INSERT INTO version_sources (team_id, session_id, source_id, revision)
             SELECT team_id, session_id, source_id, revision
               FROM session_versions
              WHERE rowid > ?1 AND rowid <= ?2
             ON CONFLICT (team_id, session_id, source_id, revision) DO NOTHING",
            "INSERT INTO version_prune_queue (team_id, session_id, source_id, due_at)
             SELECT team_id, session_id, source_id, created_at
               FROM session_versions
              WHERE rowid > ?1 AND rowid <= ?2
             ON CONFLICT (team_id, session_id, source_id) DO NOTHING",
        ],
    },
    Walk {
        name: "captured_versions",
        window: "SELECT max(rowid), count(*)
                   FROM (SELECT rowid FROM session_artifacts WHERE rowid > ?1 ORDER BY rowid LIMIT ?2)",
        rows_max: 60,
        fill: &["INSERT INTO captured_versions (team_id, session_id, source_id, revision)
             SELECT v.team_id, v.session_id, v.source_id, v.revision
               FROM session_artifacts AS a
              CROSS JOIN session_versions AS v
                 ON v.team_id = a.team_id AND v.session_id = a.session_id
                AND v.revision = a.revision
              WHERE a.rowid > ?1 AND a.rowid <= ?2 AND a.provenance = 'capture'
             ON CONFLICT (team_id, session_id, source_id, revision) DO NOTHING"],
    },
    Walk {
        name: "artifact_refs",
        window: "SELECT max(rowid), count(*)
                   FROM (SELECT rowid FROM session_artifacts WHERE rowid > ?1 ORDER BY rowid LIMIT ?2)",
        rows_max: 60,
        fill: &["INSERT INTO upload_refs (team_id, upload_id, holder)
             SELECT team_id, upload_id,
                    'a:' || session_id || ':' || CAST(revision AS INTEGER) || ':' || bundle_id
               FROM session_artifacts
              WHERE rowid > ?1 AND rowid <= ?2
             ON CONFLICT (team_id, upload_id, holder) DO NOTHING"],
    },
    Walk {
        name: "continuation_refs",
        window: "SELECT max(rowid), count(*)
                   FROM (SELECT rowid FROM continuations WHERE rowid > ?1 ORDER BY rowid LIMIT ?2)",
        // Each may name 50 uploads.
        rows_max: 2,
        fill: &["INSERT INTO upload_refs (team_id, upload_id, holder)
             SELECT c.team_id, u.value, 'c:' || c.id
               FROM continuations AS c
              CROSS JOIN json_each(c.upload_ids_json) AS u
              WHERE c.rowid > ?1 AND c.rowid <= ?2
             ON CONFLICT (team_id, upload_id, holder) DO NOTHING"],
    },
    Walk {
        name: "captures",
        window: "SELECT max(rowid), count(*)
                   FROM (SELECT rowid FROM captures WHERE rowid > ?1 ORDER BY rowid LIMIT ?2)",
        // Each may name 50 uploads.
        rows_max: 2,
        fill: &[
            "INSERT INTO staging_captures (team_id, id, source_id, created_at)
             SELECT team_id, id, source_id, created_at
               FROM captures
              WHERE rowid > ?1 AND rowid <= ?2 AND state = 'staging'
             ON CONFLICT (team_id, id) DO NOTHING",
            "INSERT INTO upload_refs (team_id, upload_id, holder)
             SELECT c.team_id, u.value, 'p:' || c.id
               FROM captures AS c
              CROSS JOIN json_each(c.upload_ids_json) AS u
              WHERE c.rowid > ?1 AND c.rowid <= ?2 AND c.state = 'staging'
             ON CONFLICT (team_id, upload_id, holder) DO NOTHING",
            "INSERT INTO parts_prune_queue (team_id, capture_id)
             SELECT team_id, id
               FROM captures
              WHERE rowid > ?1 AND rowid <= ?2 AND state <> 'staging'
                AND EXISTS (
                    SELECT 1
                      FROM capture_parts AS p
                     WHERE p.team_id = captures.team_id AND p.capture_id = captures.id)
             ON CONFLICT (team_id, capture_id) DO NOTHING",
        ],
    },
    Walk {
        name: "uploads",
        window: "SELECT max(rowid), count(*)
                   FROM (SELECT rowid FROM uploads WHERE rowid > ?1 ORDER BY rowid LIMIT ?2)",
        rows_max: 60,
        fill: &[
            "INSERT INTO pending_uploads (team_id, id, source_id, created_at)
             SELECT team_id, id, source_id, created_at
               FROM uploads
              WHERE rowid > ?1 AND rowid <= ?2 AND state IN ('pending', 'verifying')
             ON CONFLICT (team_id, id) DO NOTHING",
            "INSERT INTO upload_prune_queue (team_id, upload_id, due_at)
             SELECT team_id, id, coalesce(committed_at, created_at) + 86400000
               FROM uploads
              WHERE rowid > ?1 AND rowid <= ?2 AND state = 'committed'
             ON CONFLICT (team_id, upload_id) DO NOTHING",
        ],
    },
    Walk {
        name: "blobs",
        window: "SELECT max(rowid), count(*)
                   FROM (SELECT rowid FROM artifact_blobs WHERE rowid > ?1 ORDER BY rowid LIMIT ?2)",
        rows_max: 100,
        fill: &["INSERT INTO blob_prune_queue (team_id, sha256)
             SELECT team_id, sha256
               FROM artifact_blobs
              WHERE rowid > ?1 AND rowid <= ?2
             ON CONFLICT (team_id, sha256) DO NOTHING"],
    },
    Walk {
        name: "sessions",
        window: "SELECT max(rowid), count(*)
                   FROM (SELECT rowid FROM sessions WHERE rowid > ?1 ORDER BY rowid LIMIT ?2)",
        rows_max: 100,
        fill: &["INSERT INTO session_prune_queue (team_id, session_id)
             SELECT team_id, id
               FROM sessions
              WHERE rowid > ?1 AND rowid <= ?2 AND deleted_at IS NOT NULL
             ON CONFLICT (team_id, session_id) DO NOTHING"],
    },
    Walk {
        name: "teams",
        window: "SELECT max(rowid), count(*)
                   FROM (SELECT rowid FROM teams WHERE rowid > ?1 ORDER BY rowid LIMIT ?2)",
        rows_max: 20,
        fill: &["INSERT INTO retention_due (team_id, step, due_at)
             SELECT t.id, s.value, 0
               FROM teams AS t
              CROSS JOIN json_each(
                    '[\"events\",\"presence\",\"journal\",\"deliveries\",\"sessions\"]') AS s
              WHERE t.rowid > ?1 AND t.rowid <= ?2
             ON CONFLICT (team_id, step) DO UPDATE SET due_at = 0"],
    },
];

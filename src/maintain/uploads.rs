//! Committed uploads that nothing names, from a day after their commit on. One is ended first, and
//! naming it is 404 from then on; then its chunks go in batches, then its row.
use super::work::{Batch, Walks, Work};
use crate::error::Result;
use crate::ids::TeamId;
use crate::params;
use crate::store::{Db, Tx};

/// A chunk's row costs 5 units, its blob's place in the queue included.
const CHUNKS_MAX: u64 = 40;
/// One upload's turn.
pub const REMOVE_UNITS: u64 = 5 * CHUNKS_MAX + 60;

pub fn due(db: &Db, walks: &Walks) -> Result<Option<i64>> {
    if walks.any_open(&["artifact_refs", "continuation_refs", "captures", "uploads"]) {
        return Ok(None);
    }
    db.query_one("SELECT min(due_at) FROM upload_prune_queue", params![], |row| row.get())
}

pub fn batch(tx: &Tx, work: &mut Work) -> Result<Batch> {
    while work.has_room(tx, REMOVE_UNITS) {
        let first = tx.query_optional(
            "SELECT q.team_id, q.upload_id, u.state,
                    EXISTS (SELECT 1
                              FROM upload_refs AS r
                             WHERE r.team_id = q.team_id AND r.upload_id = q.upload_id)
               FROM (SELECT team_id, upload_id
                       FROM upload_prune_queue
                      WHERE due_at <= ?1
                      ORDER BY due_at
                      LIMIT 1) AS q
               LEFT JOIN uploads AS u ON u.team_id = q.team_id AND u.id = q.upload_id",
            params![tx.now_ms],
            |row| {
                let (team_id, id): (TeamId, String) = (row.get()?, row.get()?);
                Ok((team_id, id, row.get::<Option<String>>()?, row.get::<bool>()?))
            },
        )?;
        let Some((team_id, id, state, named)) = first else { return Ok(Batch::Done) };
        let needless = match state.as_deref() {
            Some("removing") => true,
            Some("committed") => !named,
            _ => false,
        };
        if !needless {
            // Whoever drops the last reference queues it again.
            tx.execute(
                "DELETE FROM upload_prune_queue WHERE team_id = ?1 AND upload_id = ?2",
                params![&team_id, &id],
            )?;
            continue;
        }
        end(tx, &team_id, &id)?;
        if remove(tx, work, &team_id, &id)? {
            work.removed("uploads", 1);
        }
    }
    Ok(Batch::More)
}

/// Takes an upload away from everybody; says whether it was there until now.
pub fn end(tx: &Tx, team_id: &TeamId, id: &str) -> Result<bool> {
    let ended = tx.execute_counted(
        "UPDATE uploads SET state = 'removing'
          WHERE team_id = ?1 AND id = ?2 AND state <> 'removing'",
        params![team_id, id],
    )?;
    Ok(ended == 1)
}

/// Removes some chunks of an ended upload, or with the last of them its row.
pub fn remove(tx: &Tx, work: &mut Work, team_id: &TeamId, id: &str) -> Result<bool> {
    let chunks = tx.execute_counted(
        "DELETE FROM artifact_chunk_refs
          WHERE rowid IN (
                SELECT rowid
                  FROM artifact_chunk_refs
                 WHERE team_id = ?1 AND upload_id = ?2
                 ORDER BY chunk_index
                 LIMIT ?3)",
        params![team_id, id, CHUNKS_MAX],
    )?;
    work.removed("chunk_refs", chunks);
    if chunks == CHUNKS_MAX {
        return Ok(false);
    }
    tx.execute("DELETE FROM uploads WHERE team_id = ?1 AND id = ?2", params![team_id, id])?;
    Ok(true)
}

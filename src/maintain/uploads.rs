//! Committed uploads that nothing names, from a day after their commit on. A small one goes at once
//! with its chunks. A large one is ended first, and naming it is 404 from then on; then its chunks
//! go in batches, its row with the last of them.
use super::work::{Batch, Walks, Work, json, rows};
use crate::error::Result;
use crate::ids::TeamId;
use crate::params;
use crate::store::{Db, Tx};

/// Looking at one costs 4 units, removing it 12, and each chunk's row 9 with its blob's place in
/// the queue.
pub const UPLOADS_MAX: usize = 12;
const UPLOAD_UNITS: u64 = 12;
const CHUNKS_MAX: usize = 40;
const CHUNK_UNITS: u64 = 8;

pub fn due(db: &Db, walks: &Walks) -> Result<Option<i64>> {
    if walks.any_open(&["artifact_refs", "continuation_refs", "captures", "uploads"]) {
        return Ok(None);
    }
    db.query_one("SELECT min(due_at) FROM upload_prune_queue", params![], |row| row.get())
}

/// An upload that is to go.
pub struct Needless {
    pub team_id: TeamId,
    pub id: String,
    pub source_id: String,
    pub row_id: i64,
}

pub fn batch(tx: &Tx, work: &mut Work) -> Result<Batch> {
    let front = tx.query(
        "SELECT q.team_id, q.upload_id, u.source_id, u.rowid,
                u.state = 'removing' OR u.state = 'committed' AND NOT EXISTS (
                    SELECT 1
                      FROM upload_refs AS r
                     WHERE r.team_id = q.team_id AND r.upload_id = q.upload_id)
           FROM (SELECT team_id, upload_id
                   FROM upload_prune_queue
                  WHERE due_at <= ?1
                  ORDER BY due_at
                  LIMIT ?2) AS q
           LEFT JOIN uploads AS u ON u.team_id = q.team_id AND u.id = q.upload_id",
        params![tx.now_ms, UPLOADS_MAX],
        |row| {
            let (team_id, id): (TeamId, String) = (row.get()?, row.get()?);
            let source_id = row.get::<Option<String>>()?.unwrap_or_default();
            let row_id = row.get::<Option<i64>>()?.unwrap_or_default();
            let is_needless = row.get::<Option<bool>>()?.unwrap_or(false);
            Ok((Needless { team_id, id, source_id, row_id }, is_needless))
        },
    )?;
    let full = front.len() == UPLOADS_MAX;
    let (needless, named): (Vec<_>, Vec<_>) =
        front.into_iter().partition(|(_, needless)| *needless);
    if !named.is_empty() {
        // Whoever drops the last reference queues it again.
        let keys = named.iter().map(|(upload, _)| (&upload.team_id, &upload.id));
        tx.execute(
            "DELETE FROM upload_prune_queue
              WHERE (team_id, upload_id) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?1))",
            params![&json(&keys.collect::<Vec<_>>())?],
        )?;
    }
    let needless = needless.into_iter().map(|(upload, _)| upload).collect::<Vec<_>>();
    let gone = remove(tx, work, &needless)?;
    work.removed("uploads", gone as u64);
    Ok(Batch::more_if(full || gone < needless.len()))
}

/// Removes the first of `uploads` that fit into the batch and says how many; nothing where the
/// first is so large that only some of its chunks went.
pub fn remove(tx: &Tx, work: &mut Work, uploads: &[Needless]) -> Result<usize> {
    let Some(first) = uploads.first() else { return Ok(0) };
    let keys = uploads.iter().map(|upload| (&upload.team_id, &upload.id, upload.row_id));
    // The rows come in the uploads' order, so only the last one's may be missing some.
    let chunks = tx.query(
        "SELECT u.value ->> 2, c.rowid
           FROM json_each(?1) AS u
          CROSS JOIN artifact_chunk_refs AS c
             ON c.team_id = u.value ->> 0 AND c.upload_id = u.value ->> 1
          LIMIT ?2",
        params![&json(&keys.collect::<Vec<_>>())?, CHUNKS_MAX],
        |row| Ok((row.get::<i64>()?, row.get::<i64>()?)),
    )?;
    let cut = chunks.last().map(|(of, _)| *of).filter(|_| chunks.len() == CHUNKS_MAX);
    if cut == Some(first.row_id) {
        tx.execute(
            "UPDATE uploads SET state = 'removing' WHERE rowid = ?1 AND state <> 'removing'",
            params![first.row_id],
        )?;
        let row_ids = chunks.iter().map(|(_, chunk)| *chunk).collect::<Vec<_>>();
        rows!("artifact_chunk_refs").delete(tx, &row_ids)?;
        work.removed("chunk_refs", row_ids.len() as u64);
        return Ok(0);
    }
    let whole = uploads.iter().take_while(|upload| cut != Some(upload.row_id));
    let weighed = whole.map(|upload| {
        let count = chunks.iter().filter(|(of, _)| *of == upload.row_id).count() as u64;
        (upload.row_id, 0, UPLOAD_UNITS + CHUNK_UNITS * count)
    });
    let taken = work.take_weighed(tx, weighed.collect());
    let row_ids = chunks.iter().filter(|(of, _)| taken.contains(of)).map(|(_, chunk)| *chunk);
    let row_ids = row_ids.collect::<Vec<_>>();
    rows!("artifact_chunk_refs").delete(tx, &row_ids)?;
    rows!("uploads").delete(tx, &taken)?;
    work.removed("chunk_refs", row_ids.len() as u64);
    Ok(taken.len())
}

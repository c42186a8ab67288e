//! Chunks' bytes that no upload names any more.
use super::work::{AT_ONCE, Batch, Walks, Work, rows};
use crate::error::Result;
use crate::ids::TeamId;
use crate::params;
use crate::store::{Db, Tx};

/// A blob costs 13 units and its size, up to 1 MiB.
const BLOBS_MAX: usize = 35;
const BLOB_UNITS: u64 = 10;

pub fn due(db: &Db, _walks: &Walks) -> Result<Option<i64>> {
    let waits = db.query_optional(
        "SELECT 1 FROM blob_prune_queue WHERE team_id > '' LIMIT 1",
        params![],
        |row| row.get::<i64>(),
    )?;
    Ok(waits.map(|_| AT_ONCE))
}

pub fn batch(tx: &Tx, work: &mut Work) -> Result<Batch> {
    let queued = tx.query(
        "SELECT q.team_id, q.sha256,
                EXISTS (SELECT 1
                          FROM artifact_chunk_refs AS r
                         WHERE r.team_id = q.team_id AND r.sha256 = q.sha256),
                b.rowid, coalesce(octet_length(b.bytes), 0)
           FROM blob_prune_queue AS q
           LEFT JOIN artifact_blobs AS b ON b.team_id = q.team_id AND b.sha256 = q.sha256
          WHERE q.team_id > ''
          ORDER BY q.team_id, q.sha256
          LIMIT ?1",
        params![BLOBS_MAX],
        |row| {
            let (team_id, sha256): (TeamId, String) = (row.get()?, row.get()?);
            let (named, row_id, octets): (bool, Option<i64>, i64) =
                (row.get()?, row.get()?, row.get()?);
            let row_id = row_id.filter(|_| !named);
            Ok(((team_id, sha256, row_id), row_id.map_or(0, |_| octets)))
        },
    )?;
    let count = queued.len();
    let taken = work.take(tx, queued, BLOB_UNITS);
    let Some((team_id, sha256, _)) = taken.last() else { return Ok(Batch::Done) };
    let row_ids = taken.iter().filter_map(|(.., row_id)| *row_id).collect::<Vec<_>>();
    rows!("artifact_blobs").delete(tx, &row_ids)?;
    work.removed("blobs", row_ids.len() as u64);
    // They were taken in the queue's order, from its front.
    tx.execute(
        "DELETE FROM blob_prune_queue
          WHERE team_id > '' AND (team_id, sha256) <= (?1, ?2)",
        params![team_id, sha256],
    )?;
    Ok(Batch::more_if(count == BLOBS_MAX || taken.len() < count))
}

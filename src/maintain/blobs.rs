//! Chunks' bytes that no upload names any more.
use super::work::{AT_ONCE, Batch, Walks, Work, json};
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
                coalesce((SELECT octet_length(b.bytes)
                            FROM artifact_blobs AS b
                           WHERE b.team_id = q.team_id AND b.sha256 = q.sha256), 0)
           FROM blob_prune_queue AS q
          WHERE q.team_id > ''
          LIMIT ?1",
        params![BLOBS_MAX],
        |row| {
            let (team_id, sha256): (TeamId, String) = (row.get()?, row.get()?);
            let (named, octets): (bool, i64) = (row.get()?, row.get()?);
            Ok(((team_id, sha256), if named { 0 } else { octets }))
        },
    )?;
    let count = queued.len();
    let taken = work.take(tx, queued, BLOB_UNITS);
    let keys = json(&taken)?;
    let removed = tx.execute_counted(
        "DELETE FROM artifact_blobs
          WHERE (team_id, sha256) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?1))
            AND NOT EXISTS (
                SELECT 1
                  FROM artifact_chunk_refs AS r
                 WHERE r.team_id = artifact_blobs.team_id AND r.sha256 = artifact_blobs.sha256)",
        params![&keys],
    )?;
    work.removed("blobs", removed);
    tx.execute(
        "DELETE FROM blob_prune_queue
          WHERE (team_id, sha256) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?1))",
        params![&keys],
    )?;
    Ok(Batch::more_if(count == BLOBS_MAX || taken.len() < count))
}

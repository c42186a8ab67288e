//! Content that no event of a run and no grant names, 15 minutes after it was last written.
use super::work::{Batch, Walks, Work, json};
use crate::error::Result;
use crate::params;
use crate::store::{Db, Tx};

/// One costs about 16 units; its chunks go in the step for bodies.
const CONTENT_MAX: usize = 28;

pub fn due(db: &Db, _walks: &Walks) -> Result<Option<i64>> {
    db.query_one("SELECT min(due_at) FROM content_prune_queue", params![], |row| row.get())
}

pub fn batch(tx: &Tx, work: &mut Work) -> Result<Batch> {
    let due = tx.query(
        "SELECT team_id, ref FROM content_prune_queue
          WHERE due_at <= ?1
          ORDER BY due_at
          LIMIT ?2",
        params![tx.now_ms, CONTENT_MAX],
        |row| Ok((row.get::<String>()?, row.get::<String>()?)),
    )?;
    if due.is_empty() {
        return Ok(Batch::Done);
    }
    let keys = json(&due)?;
    let removed = tx.execute_counted(
        "DELETE FROM content
          WHERE (team_id, ref) IN (
                SELECT q.value ->> 0, q.value ->> 1
                  FROM json_each(?1) AS q
                 WHERE NOT EXISTS (SELECT 1 FROM content_refs AS r
                                    WHERE r.team_id = q.value ->> 0 AND r.ref = q.value ->> 1)
                   AND NOT EXISTS (SELECT 1 FROM content_grants AS g
                                    WHERE g.team_id = q.value ->> 0 AND g.ref = q.value ->> 1))",
        params![&keys],
    )?;
    tx.execute(
        "DELETE FROM content_prune_queue
          WHERE (team_id, ref) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?1))",
        params![&keys],
    )?;
    work.removed("content", removed);
    Ok(Batch::more_if(due.len() == CONTENT_MAX))
}

//! The pieces of values that nothing names any more.
use super::work::{AT_ONCE, Batch, LISTED_UNITS, Walks, Work, json, rows};
use crate::error::Result;
use crate::params;
use crate::store::{Db, Tx};

/// A value costs 5 units, a piece of it 7 and its size.
const VALUES_MAX: usize = 30;
const CHUNKS_MAX: usize = 30;

pub fn due(db: &Db, _walks: &Walks) -> Result<Option<i64>> {
    let waits = db.query_optional(
        "SELECT 1 FROM context_value_queue WHERE team_id > '' LIMIT 1",
        params![],
        |row| row.get::<i64>(),
    )?;
    Ok(waits.map(|_| AT_ONCE))
}

pub fn batch(tx: &Tx, work: &mut Work) -> Result<Batch> {
    // The pieces come in the values' order, so only the last one's may be missing some.
    let pieces = tx.query(
        "SELECT q.team_id, q.value_id, c.rowid, octet_length(c.bytes)
           FROM (SELECT team_id, value_id
                   FROM context_value_queue
                  WHERE team_id > ''
                  ORDER BY team_id, value_id
                  LIMIT ?1) AS q
           LEFT JOIN context_chunks AS c ON c.team_id = q.team_id AND c.value_id = q.value_id
          LIMIT ?2",
        params![VALUES_MAX, CHUNKS_MAX],
        |row| {
            let key = (row.get::<String>()?, row.get::<String>()?);
            let (row_id, octets): (Option<i64>, Option<i64>) = (row.get()?, row.get()?);
            Ok(((key, row_id), octets.unwrap_or(0)))
        },
    )?;
    let count = pieces.len();
    let last = pieces.last().map(|((key, _), _)| key.clone());
    let taken = work.take(tx, pieces, LISTED_UNITS + 7);
    let whole_from = if taken.len() == count && count < CHUNKS_MAX { None } else { last };
    // Where not all that was read went, the value at the cut, or the last one read, waits.
    let cut =
        if taken.len() < count { taken.last().map(|(key, _)| key.clone()) } else { whole_from };
    let row_ids = taken.iter().filter_map(|(_, row_id)| *row_id).collect::<Vec<_>>();
    rows!("context_chunks").delete(tx, &row_ids)?;
    work.removed("chunks", row_ids.len() as u64);
    let mut done = taken.iter().map(|(key, _)| key).collect::<Vec<_>>();
    done.dedup();
    done.retain(|key| cut.as_ref() != Some(*key));
    tx.execute(
        "DELETE FROM context_value_queue
          WHERE (team_id, value_id) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?1))",
        params![&json(&done)?],
    )?;
    work.removed("values", done.len() as u64);
    Ok(Batch::more_if(count > 0))
}

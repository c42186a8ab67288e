//! Captures and uploads that were begun and not committed for a day. Each is noted in
//! `capture_expiries` in the transaction that ends it, so that its maker is told 410 from then on.
use super::uploads;
use super::work::{Batch, Walks, Work, json};
use crate::error::Result;
use crate::ids::TeamId;
use crate::limits::{CAPTURE_AGE_MS, NAMED_UPLOADS_MAX, UPLOAD_AGE_MS};
use crate::params;
use crate::store::{Db, Tx};

/// A capture costs 30 units and 8 for each upload that it names.
const CAPTURES_MAX: usize = 8;
const REFS_MAX: usize = NAMED_UPLOADS_MAX + 1;
const CAPTURE_UNITS: u64 = 30;
const REF_UNITS: u64 = 8;

pub fn captures_due(db: &Db, _walks: &Walks) -> Result<Option<i64>> {
    db.query_one(
        "SELECT min(created_at) + ?1 FROM staging_captures",
        params![CAPTURE_AGE_MS],
        |row| row.get(),
    )
}

/// Deletes the captures at the front; triggers release the uploads they name and queue their
/// parts.
pub fn captures(tx: &Tx, work: &mut Work) -> Result<Batch> {
    let expired = tx.query(
        "SELECT team_id, id, source_id
           FROM staging_captures
          WHERE created_at <= ?1
          ORDER BY created_at
          LIMIT ?2",
        params![tx.now_ms - CAPTURE_AGE_MS, CAPTURES_MAX],
        |row| Ok((row.get::<TeamId>()?, row.get::<String>()?, row.get::<String>()?)),
    )?;
    if expired.is_empty() {
        return Ok(Batch::Done);
    }
    // The rows come in the captures' order, so only the last one's may be missing some.
    let counted = tx.query(
        "SELECT c.value ->> 1
           FROM json_each(?1) AS c
          CROSS JOIN upload_refs AS r
             ON r.team_id = c.value ->> 0 AND r.holder = 'p:' || (c.value ->> 1)
          LIMIT ?2",
        params![&json(&expired)?, REFS_MAX],
        |row| row.get::<String>(),
    )?;
    let mut left = REF_UNITS * REFS_MAX as u64;
    let mut taken = 0;
    for (_, id, _) in &expired {
        let refs = counted.iter().filter(|&of| of == id).count();
        let cut = counted.len() == REFS_MAX && counted.last() == Some(id);
        let needed = CAPTURE_UNITS + REF_UNITS * refs as u64;
        if taken > 0 && (cut || needed > left) {
            break;
        }
        left = left.saturating_sub(needed);
        taken += 1;
    }
    let keys = json(&&expired[..taken])?;
    tx.execute(
        "INSERT INTO capture_expiries (team_id, source_id, id, expired_at)
         SELECT value ->> 0, value ->> 2, value ->> 1, ?2
           FROM json_each(?1)
          WHERE true
         ON CONFLICT (team_id, source_id, id) DO NOTHING",
        params![&keys, tx.now_ms],
    )?;
    tx.execute(
        "DELETE FROM captures
          WHERE (team_id, id) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?1))",
        params![&keys],
    )?;
    work.removed("captures", taken as u64);
    Ok(Batch::more_if(taken < expired.len() || expired.len() == CAPTURES_MAX))
}

pub fn uploads_due(db: &Db, _walks: &Walks) -> Result<Option<i64>> {
    db.query_one(
        "SELECT min(created_at) + ?1 FROM pending_uploads",
        params![UPLOAD_AGE_MS],
        |row| row.get(),
    )
}

/// The upload at the front: first it is ended, then its chunks go, then its row.
pub fn uploads(tx: &Tx, work: &mut Work) -> Result<Batch> {
    while work.has_room(tx, uploads::REMOVE_UNITS) {
        let first = tx.query_optional(
            "SELECT team_id, id, source_id
               FROM pending_uploads
              WHERE created_at <= ?1
              ORDER BY created_at
              LIMIT 1",
            params![tx.now_ms - UPLOAD_AGE_MS],
            |row| Ok((row.get::<TeamId>()?, row.get::<String>()?, row.get::<String>()?)),
        )?;
        let Some((team_id, id, source_id)) = first else { return Ok(Batch::Done) };
        if uploads::end(tx, &team_id, &id)? {
            tx.execute(
                "INSERT INTO capture_expiries (team_id, source_id, id, expired_at)
                 VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT (team_id, source_id, id) DO NOTHING",
                params![&team_id, &source_id, &id, tx.now_ms],
            )?;
        }
        if uploads::remove(tx, work, &team_id, &id)? {
            work.removed("uploads_in_flight", 1);
        }
    }
    Ok(Batch::More)
}

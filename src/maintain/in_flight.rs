//! Captures and uploads that were begun and not committed for a day. Each is noted in
//! `capture_expiries` in the transaction that ends it, so that its maker is told 410 from then on.
use super::uploads::{self, Needless};
use super::work::{Batch, Walks, Work, json, rows};
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
        "SELECT s.team_id, s.id, s.source_id, c.rowid
           FROM (SELECT team_id, id, source_id
                   FROM staging_captures
                  WHERE created_at <= ?1
                  ORDER BY created_at
                  LIMIT ?2) AS s
          CROSS JOIN captures AS c ON c.team_id = s.team_id AND c.id = s.id",
        params![tx.now_ms - CAPTURE_AGE_MS, CAPTURES_MAX],
        |row| {
            let (team_id, id): (TeamId, String) = (row.get()?, row.get()?);
            Ok((team_id, id, row.get::<String>()?, row.get::<i64>()?))
        },
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
    for (_, id, ..) in &expired {
        let refs = counted.iter().filter(|&of| of == id).count();
        let cut = counted.len() == REFS_MAX && counted.last() == Some(id);
        let needed = CAPTURE_UNITS + REF_UNITS * refs as u64;
        if taken > 0 && (cut || needed > left) {
            break;
        }
        left = left.saturating_sub(needed);
        taken += 1;
    }
    note(tx, &json(&&expired[..taken])?)?;
    let row_ids = expired[..taken].iter().map(|(.., row_id)| *row_id).collect::<Vec<_>>();
    rows!("captures").delete(tx, &row_ids)?;
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

/// The uploads at the front, each noted before it goes.
pub fn uploads(tx: &Tx, work: &mut Work) -> Result<Batch> {
    let expired = tx.query(
        "SELECT p.team_id, p.id, p.source_id, u.rowid, u.state = 'removing'
           FROM (SELECT team_id, id, source_id
                   FROM pending_uploads
                  WHERE created_at <= ?1
                  ORDER BY created_at
                  LIMIT ?2) AS p
          CROSS JOIN uploads AS u ON u.team_id = p.team_id AND u.id = p.id",
        params![tx.now_ms - UPLOAD_AGE_MS, uploads::UPLOADS_MAX],
        |row| {
            let upload = Needless {
                team_id: row.get()?,
                id: row.get()?,
                source_id: row.get()?,
                row_id: row.get()?,
            };
            Ok((upload, row.get::<bool>()?))
        },
    )?;
    let full = expired.len() == uploads::UPLOADS_MAX;
    let noted = expired.iter().take_while(|(_, is_noted)| *is_noted).count();
    let expired = expired.into_iter().map(|(upload, _)| upload).collect::<Vec<_>>();
    let gone = uploads::remove(tx, work, &expired)?;
    // The first one that stays has lost chunks, unless others went.
    let ended = if gone == 0 { 1 } else { gone };
    let new = expired.iter().take(ended).skip(noted);
    let new = new.map(|upload| (&upload.team_id, &upload.id, &upload.source_id));
    let new = new.collect::<Vec<_>>();
    if !new.is_empty() {
        note(tx, &json(&new)?)?;
    }
    work.removed("uploads_in_flight", gone as u64);
    Ok(Batch::more_if(full || gone < expired.len()))
}

/// Keeps in mind what expired: `[[team, id, source]]`.
fn note(tx: &Tx, keys: &str) -> Result<()> {
    tx.execute(
        "INSERT INTO capture_expiries (team_id, source_id, id, expired_at)
         SELECT value ->> 0, value ->> 2, value ->> 1, ?2
           FROM json_each(?1)
          WHERE true
         ON CONFLICT (team_id, source_id, id) DO NOTHING",
        params![keys, tx.now_ms],
    )
}

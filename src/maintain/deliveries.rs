//! Settled webhook deliveries past the team's days, with their attempts. One that is still pending
//! stays, and nothing waits behind it; unless its app was deleted, then it goes.
use super::retention;
use super::work::{AT_ONCE, Batch, LISTED_UNITS, Walks, Work, earliest, json, rows};
use crate::error::Result;
use crate::limits::DAY_MS;
use crate::params;
use crate::store::{Db, Tx};

/// A delivery costs 4 units or 8, and its body; an attempt costs 6, its answer has at most 2 KiB.
const DELIVERIES_MAX: usize = 30;
const ATTEMPTS_MAX: u64 = 30;

pub fn due(db: &Db, _walks: &Walks) -> Result<Option<i64>> {
    let deleted = db.query_optional(
        "SELECT 1 FROM deleted_apps WHERE team_id > '' LIMIT 1",
        params![],
        |row| row.get::<i64>(),
    )?;
    Ok(earliest([deleted.map(|_| AT_ONCE), retention::next(db, "deliveries")?]))
}

pub fn batch(tx: &Tx, work: &mut Work) -> Result<Batch> {
    if of_deleted_apps(tx, work)? == Batch::More {
        return Ok(Batch::More);
    }
    let Some(due) = retention::first(tx, "deliveries")? else { return Ok(Batch::Done) };
    let Some(retention) = &due.retention else {
        due.set(tx, None)?;
        return Ok(Batch::More);
    };
    let age_ms = retention.deliveries_days * DAY_MS;
    let settled = tx.query(
        "SELECT id, rowid, settled_at, octet_length(body)
           FROM app_webhook_deliveries
          WHERE team_id = ?1 AND settled_at IS NOT NULL
          ORDER BY settled_at
          LIMIT ?2",
        params![&due.team_id, DELIVERIES_MAX],
        |row| {
            let (id, row_id): (String, i64) = (row.get()?, row.get()?);
            Ok(((id, row_id), row.get::<i64>()?, row.get::<i64>()?))
        },
    )?;
    let full = settled.len() == DELIVERIES_MAX;
    let young = settled.iter().map(|(_, settled_at, _)| settled_at + age_ms);
    let young = young.filter(|age_out_at| *age_out_at > tx.now_ms).min();
    let old = settled.into_iter().filter(|(_, settled_at, _)| settled_at + age_ms <= tx.now_ms);
    let old = old.map(|(keys, _, octets)| (keys, octets)).collect::<Vec<_>>();
    let ids = json(&old.iter().map(|((id, _), _)| id).collect::<Vec<_>>())?;
    if attempts(tx, work, &ids)? == Batch::More {
        due.set(tx, Some(tx.now_ms))?;
        return Ok(Batch::More);
    }
    let count = old.len();
    let taken = work.take(tx, old, LISTED_UNITS);
    if !taken.is_empty() {
        let row_ids = taken.iter().map(|(_, row_id)| *row_id).collect::<Vec<_>>();
        rows!("app_webhook_deliveries").delete(tx, &row_ids)?;
        work.removed("deliveries", taken.len() as u64);
    }
    let more = taken.len() < count || full && young.is_none();
    due.set(tx, if more { Some(tx.now_ms) } else { young })?;
    Ok(Batch::More)
}

/// Removes attempts of the deliveries in the JSON array `ids`, and says whether some may be left.
fn attempts(tx: &Tx, work: &mut Work, ids: &str) -> Result<Batch> {
    let attempts = tx.execute_counted(
        "DELETE FROM app_webhook_attempts
          WHERE (delivery_id, attempt) IN (
                SELECT a.delivery_id, a.attempt
                  FROM json_each(?1) AS d
                 CROSS JOIN app_webhook_attempts AS a ON a.delivery_id = d.value
                 LIMIT ?2)",
        params![ids, ATTEMPTS_MAX],
    )?;
    work.removed("delivery_attempts", attempts);
    Ok(Batch::more_if(attempts == ATTEMPTS_MAX))
}

/// What was on its way to an app that is no more. `Done` where nothing was.
fn of_deleted_apps(tx: &Tx, work: &mut Work) -> Result<Batch> {
    let app = tx.query_optional(
        "SELECT team_id, app_id FROM deleted_apps WHERE team_id > '' LIMIT 1",
        params![],
        |row| Ok((row.get::<String>()?, row.get::<String>()?)),
    )?;
    let Some((team_id, app_id)) = app else { return Ok(Batch::Done) };
    let pending = tx.query(
        "SELECT id, rowid, octet_length(body)
           FROM app_webhook_deliveries
          WHERE team_id = ?1 AND app_id = ?2 AND state = 'pending' AND next_at >= 0
          LIMIT ?3",
        params![&team_id, &app_id, DELIVERIES_MAX],
        |row| Ok(((row.get::<String>()?, row.get::<i64>()?), row.get::<i64>()?)),
    )?;
    if pending.is_empty() {
        tx.execute(
            "DELETE FROM deleted_apps WHERE team_id = ?1 AND app_id = ?2",
            params![&team_id, &app_id],
        )?;
        return Ok(Batch::More);
    }
    let ids = json(&pending.iter().map(|((id, _), _)| id).collect::<Vec<_>>())?;
    if attempts(tx, work, &ids)? == Batch::Done {
        let taken = work.take(tx, pending, LISTED_UNITS);
        let row_ids = taken.iter().map(|(_, row_id)| *row_id).collect::<Vec<_>>();
        rows!("app_webhook_deliveries").delete(tx, &row_ids)?;
        work.removed("deliveries", taken.len() as u64);
    }
    Ok(Batch::More)
}

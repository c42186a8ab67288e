//! How much the store holds: its size, and the rows of each table that grows, counted in slices at
//! most hourly.
use crate::error::{Error, Result};
use crate::limits::{STORAGE_COUNT_AGE_MS, STORAGE_COUNT_ROWS_MAX};
use crate::params;
use crate::store::Db;
use std::collections::BTreeMap;

pub type Counts = BTreeMap<String, i64>;

/// Counts so many rows behind a rowid, and says where they end.
macro_rules! window {
    ($table:literal) => {
        (
            $table,
            concat!(
                "SELECT count(*), max(id) FROM (SELECT rowid AS id FROM ",
                $table,
                " WHERE rowid > ?1 ORDER BY rowid LIMIT ?2)"
            ),
        )
    };
}

const TABLES: &[(&str, &str)] = &[
    window!("sessions"),
    window!("session_versions"),
    window!("messages"),
    window!("captures"),
    window!("capture_parts"),
    window!("uploads"),
    window!("artifact_chunk_refs"),
    window!("artifact_blobs"),
    window!("content"),
    window!("body_chunks"),
    window!("session_artifacts"),
    window!("continuations"),
    window!("attachments"),
    window!("operations"),
    window!("native_effects"),
    window!("runs"),
    window!("run_events"),
    window!("org_events"),
    window!("machine_presence_events"),
    window!("journal"),
    window!("idempotency"),
    window!("app_webhook_deliveries"),
    window!("context_operations"),
    window!("context_snapshots"),
    window!("usage_records"),
];

/// The last count and when it was made, if that is not too long ago.
pub fn counted(db: &Db) -> Result<Option<(Counts, i64)>> {
    let stored = db.query_one(
        "SELECT counts_json, counted_at FROM maintain_state WHERE id = 1",
        params![],
        |row| Ok((row.get::<Option<String>>()?, row.get::<Option<i64>>()?)),
    )?;
    let (Some(json), Some(counted_at)) = stored else { return Ok(None) };
    if counted_at + STORAGE_COUNT_AGE_MS <= db.now_ms {
        return Ok(None);
    }
    let counts = serde_json::from_str(&json);
    let counts = counts.map_err(|e| Error::internal(format!("counts_json: {e}")))?;
    Ok(Some((counts, counted_at)))
}

/// A count under way.
#[derive(Default)]
pub struct Counting {
    table: usize,
    after_rowid: i64,
    counts: Counts,
}

impl Counting {
    /// Counts some more rows, and answers once all are counted.
    pub fn slice(&mut self, db: &Db) -> Result<Option<(Counts, i64)>> {
        let mut left = STORAGE_COUNT_ROWS_MAX;
        while let Some((name, window)) = TABLES.get(self.table) {
            let (count, last): (i64, Option<i64>) =
                db.query_one(window, params![self.after_rowid, left], |row| {
                    Ok((row.get()?, row.get()?))
                })?;
            *self.counts.entry((*name).into()).or_default() += count;
            left -= count;
            if left <= 0 {
                self.after_rowid = last.unwrap_or(self.after_rowid);
                return Ok(None);
            }
            (self.table, self.after_rowid) = (self.table + 1, 0);
        }
        let json = super::work::json(&self.counts)?;
        db.transaction(|tx| {
            tx.execute(
                "UPDATE maintain_state SET counts_json = ?1, counted_at = ?2 WHERE id = 1",
                params![&json, tx.now_ms],
            )
        })?;
        Ok(Some((std::mem::take(&mut self.counts), db.now_ms)))
    }
}

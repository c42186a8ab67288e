//! How far retention lags behind.
use super::STEPS;
use super::work::{AT_ONCE, Walks};
use crate::error::Result;
use crate::limits::PASS_WAIT_MS;
use crate::params;
use crate::store::Db;

/// The age of the oldest thing that is due, in milliseconds; 0 where nothing is.
///
/// What waits in a queue without a time has waited since the last pass put the next one off, or
/// since the write that set the alarm at `alarm_at`, whichever is later: so its age is never
/// overstated, and it grows when the alarm does not come.
pub fn backlog_age_ms(db: &Db, alarm_at: Option<i64>) -> Result<i64> {
    let pass_due_at: i64 =
        db.query_one("SELECT pass_due_at FROM maintain_state WHERE id = 1", params![], |row| {
            row.get()
        })?;
    let set_at = alarm_at.map_or(0, |at| at - PASS_WAIT_MS);
    // With neither, no pass has run yet: nothing is known.
    let queued_at = Some(pass_due_at.max(set_at)).filter(|at| *at > 0).unwrap_or(db.now_ms);
    let walks = Walks::read(db)?;
    let mut oldest = db.now_ms;
    for step in STEPS {
        let Some(due_at) = (step.due)(db, &walks)? else { continue };
        oldest = oldest.min(if due_at == AT_ONCE { queued_at } else { due_at });
    }
    Ok(db.now_ms - oldest)
}

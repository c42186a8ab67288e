//! When the object must wake, and what the shell does when it does.
//!
//! An object has one alarm, and a fired alarm is used up. So its handler first sets it to
//! `PASS_WAIT_MS` from now and syncs that (a crash in what follows loses nothing), starts due
//! deliveries, runs a pass if [`is_pass_due`], and sets the alarm to [`next`]. It never throws.
//! Every construction sets a missing alarm; every write sets it to [`after_write`] if that says so.
use super::STEPS;
use super::work::{Walks, earliest};
use crate::domain::{delivering, registry};
use crate::error::Result;
use crate::limits::{ALARM_WAIT_MS_MAX, PASS_BACKLOG_WAIT_MS, PASS_WAIT_MS, SAFE_INTEGER_MAX};
use crate::params;
use crate::store::Db;

/// What the shell knows and the store does not.
#[derive(Debug, Clone, Copy, Default)]
pub struct Outside {
    /// Whether a machine's link is held: a reset drops links without a word, so somebody looks.
    pub is_linked: bool,
    /// When the first credential of an open socket or stream runs out.
    pub sockets_expire_at: Option<i64>,
}

/// When the next pass is due; nothing where nothing in the store ages.
pub fn pass_due_at(db: &Db) -> Result<Option<i64>> {
    let not_before: i64 =
        db.query_one("SELECT pass_due_at FROM maintain_state WHERE id = 1", params![], |row| {
            row.get()
        })?;
    let walks = Walks::read(db)?;
    let mut times = Vec::with_capacity(STEPS.len());
    for step in STEPS {
        let due = (step.due)(db, &walks)?.filter(|at| *at < SAFE_INTEGER_MAX);
        // What was due before the last pass has been tried in vain: it waits like the others.
        let is_new = step.prompt && due.is_some_and(|at| at > not_before - PASS_WAIT_MS);
        times.push(if is_new { due } else { due.map(|at| at.max(not_before)) });
    }
    Ok(earliest(times))
}

pub fn is_pass_due(db: &Db) -> Result<bool> {
    Ok(pass_due_at(db)?.is_some_and(|at| at <= db.now_ms))
}

/// The earliest moment at which something is due; nothing where nothing can be.
pub fn next(db: &Db, outside: &Outside) -> Result<Option<i64>> {
    let pass = pass_due_at(db)?.map(|at| at.max(db.now_ms + PASS_BACKLOG_WAIT_MS));
    let delivery = next_delivery(db)?;
    let link = outside.is_linked.then_some(db.now_ms + PASS_WAIT_MS);
    let teams = registry::asked_at(db)?;
    let next = earliest([pass, delivery, link, outside.sockets_expire_at, teams]);
    Ok(next.map(|at| at.min(db.now_ms + ALARM_WAIT_MS_MAX)))
}

/// When to look at deliveries again. What is due and was not sent waits for a place; whoever gives
/// one up sends it, and this is for when nobody does.
pub fn next_delivery(db: &Db) -> Result<Option<i64>> {
    let next = delivering::next_at(db)?;
    Ok(next.map(|at| if at <= db.now_ms { db.now_ms + PASS_BACKLOG_WAIT_MS } else { at }))
}

/// A write may have made something due sooner: the alarm comes within the minute. Says when to set
/// it; nothing where it comes soon enough.
pub fn after_write(alarm_at: Option<i64>, now_ms: i64) -> Option<i64> {
    let soon = now_ms + PASS_WAIT_MS;
    alarm_at.is_none_or(|at| at > soon).then_some(soon)
}

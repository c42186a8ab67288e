//! The pass that is under way in an object, shared by all who wait for it: the alarm and each
//! `POST /maintain` join it and run its slices in turn, with a yield between two, until it is over.
use super::alarm::{self, Outside};
use super::pass::{Outcome, Pass, Slice};
use super::work::Removed;
use crate::appends::Appends;
use crate::store::Db;

#[derive(Default)]
pub struct Runner {
    pass: Option<Pass>,
    /// Of the pass under way, or else of the last one.
    number: u64,
    last: Option<Outcome>,
    pub totals: Totals,
    /// Kept up to date by the shell.
    pub outside: Outside,
    /// Not of passes: kept here by the shell too, for the metrics.
    pub appends: Appends,
}

/// Sums since this instance of the object began.
#[derive(Debug, Clone, Default)]
pub struct Totals {
    pub passes: u64,
    pub failed_steps: u64,
    pub units: u64,
    pub removed: Removed,
}

impl Runner {
    pub fn is_running(&self) -> bool {
        self.pass.is_some()
    }

    /// Joins the pass under way, or begins one; its number is for [`slice`](Self::slice).
    pub fn join(&mut self, now_ms: i64) -> u64 {
        if self.pass.is_none() {
            self.number += 1;
            self.pass = Some(Pass::new(now_ms));
        }
        self.number
    }

    /// Runs one slice of the pass, and answers what it did once it is over, whoever ran its last
    /// slice.
    pub fn slice(&mut self, db: &Db, number: u64) -> Option<Outcome> {
        if number == self.number
            && let Some(pass) = &mut self.pass
        {
            if pass.slice(db) == Slice::More {
                return None;
            }
            let outcome = self.pass.take().map(Pass::into_outcome).unwrap_or_default();
            self.finish(db, outcome);
        }
        self.last.clone()
    }

    fn finish(&mut self, db: &Db, mut outcome: Outcome) {
        match alarm::next(db, &self.outside) {
            Ok(at) => outcome.next_alarm_at = at,
            Err(error) => outcome.faults.push(format!("alarm: {}", error.message)),
        }
        self.totals.passes += 1;
        self.totals.failed_steps += outcome.failed.len() as u64;
        self.totals.units += outcome.cost.units;
        for (kind, count) in &outcome.removed {
            *self.totals.removed.entry(kind).or_default() += count;
        }
        self.last = Some(outcome);
    }
}

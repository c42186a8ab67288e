//! One pass over the steps, in slices.
//!
//! The first round gives each step that is due one batch, whatever the clock says, so that none
//! starves. What is left of the budget is shared in order, beginning behind the step at which the
//! last pass ended. A step that fails is named, and the others still run.
use super::STEPS;
use super::work::{AT_ONCE, Batch, Removed, Walks, Work, units};
use crate::error::Result;
use crate::limits::{
    BATCH_UNITS_MAX, PASS_BACKLOG_WAIT_MS, PASS_MS_MAX, PASS_UNITS_MAX, PASS_WAIT_MS, PASSES_KEPT,
    SLICE_UNITS_MAX,
};
use crate::params;
use crate::store::{Db, migrate};
use serde_json::{Value as Json, json};

const STEP_COUNT: usize = STEPS.len();

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slice {
    /// Yield, then run the next slice with a fresh `Db`.
    More,
    Done,
}

/// What a pass did.
#[derive(Debug, Clone, Default, serde::Serialize)]
pub struct Outcome {
    pub removed: Removed,
    pub failed: Vec<&'static str>,
    /// Whether something is left that is due now.
    pub backlog: bool,
    pub cost: PassCost,
    pub next_alarm_at: Option<i64>,
    /// What went wrong, for the log.
    #[serde(skip)]
    pub faults: Vec<String>,
    #[serde(skip)]
    pub started_at: i64,
    #[serde(skip)]
    pub largest_batch: u64,
}

#[derive(Debug, Clone, Copy, Default, serde::Serialize)]
pub struct PassCost {
    pub rows_read: u64,
    pub rows_written: u64,
    pub statements: u64,
    pub units: u64,
    pub slices: u64,
    pub ms: i64,
}

impl Outcome {
    /// One line of what it removed; nothing where there is nothing to say.
    pub fn log_line(&self) -> Option<String> {
        if self.removed.is_empty() && self.faults.is_empty() {
            return None;
        }
        serde_json::to_string(self).ok().map(|json| format!("maintain: {json}"))
    }
}

#[derive(Clone, Copy)]
enum Known {
    Unknown,
    /// Nothing where nothing can be.
    DueAt(Option<i64>),
}

enum Phase {
    /// The step whose first batch is next.
    First(usize),
    /// The place in the shared order that is next, whether its turn has begun, and whether this
    /// round has changed anything.
    Shared { place: usize, begun: bool, changed: bool },
}

pub struct Pass {
    outcome: Outcome,
    phase: Phase,
    /// The step at which sharing begins.
    begin: usize,
    octets: u64,
    /// What is known since anything was changed of when each step is next due.
    due: [Known; STEP_COUNT],
    ran: bool,
    changed: bool,
    /// The step whose turn of what is left comes first in the next pass.
    next_turn: Option<usize>,
}

impl Pass {
    /// Begins at `now_ms`, the time of the first slice's `Db`.
    pub fn new(now_ms: i64) -> Pass {
        Pass {
            outcome: Outcome { started_at: now_ms, ..Outcome::default() },
            phase: Phase::First(0),
            begin: 0,
            octets: 0,
            due: [Known::Unknown; STEP_COUNT],
            ran: false,
            changed: false,
            next_turn: None,
        }
    }

    pub fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    pub fn into_outcome(self) -> Outcome {
        self.outcome
    }

    /// Runs a few batches: at most `SLICE_UNITS_MAX` units.
    pub fn slice(&mut self, db: &Db) -> Slice {
        let began = db.cost();
        let mut octets = 0;
        self.outcome.cost.slices += 1;
        let over = self.run(db, &mut octets);
        let spent = db.cost() - began;
        self.octets += octets;
        let cost = &mut self.outcome.cost;
        cost.rows_read += spent.rows_read;
        cost.rows_written += spent.rows_written;
        cost.statements += spent.statements;
        cost.units += units(spent, octets);
        cost.ms = db.now_ms - self.outcome.started_at;
        over
    }

    fn run(&mut self, db: &Db, octets: &mut u64) -> Slice {
        let began = db.cost();
        let mut walks = match Walks::read(db) {
            Ok(walks) => walks,
            Err(error) => return self.give_up(db, error),
        };
        loop {
            let spent = units(db.cost() - began, *octets);
            if spent + BATCH_UNITS_MAX > SLICE_UNITS_MAX {
                return Slice::More;
            }
            let Some(index) = self.next(db, spent) else { break };
            if !self.is_due(db, index, &walks) {
                self.step_over();
                continue;
            }
            let (batch, changed) = self.batch(db, index, octets);
            if STEPS[index].name == "backfill" {
                walks = Walks::read(db).unwrap_or(walks);
            }
            self.advance(batch, changed);
        }
        self.finish(db, &walks);
        Slice::Done
    }

    /// The step that is next; nothing when the pass is over.
    fn next(&mut self, db: &Db, spent_in_slice: u64) -> Option<usize> {
        match self.phase {
            Phase::First(index) if index < STEP_COUNT => Some(index),
            Phase::First(_) if !self.ran => None,
            Phase::First(_) => {
                self.begin = first_shared(db);
                self.phase = Phase::Shared { place: 0, begun: false, changed: false };
                self.next(db, spent_in_slice)
            }
            Phase::Shared { place, changed, .. } if place == STEP_COUNT => {
                if !changed {
                    return None;
                }
                self.phase = Phase::Shared { place: 0, begun: false, changed: false };
                self.next(db, spent_in_slice)
            }
            Phase::Shared { place, begun, .. } => {
                let index = (self.begin + place) % STEP_COUNT;
                let spent = self.outcome.cost.units + spent_in_slice;
                let elapsed_ms = db.now_ms - self.outcome.started_at;
                if spent + BATCH_UNITS_MAX > PASS_UNITS_MAX || elapsed_ms >= PASS_MS_MAX {
                    self.next_turn = Some((index + usize::from(begun)) % STEP_COUNT);
                    return None;
                }
                Some(index)
            }
        }
    }

    fn is_due(&mut self, db: &Db, index: usize, walks: &Walks) -> bool {
        let step = &STEPS[index];
        if self.outcome.failed.contains(&step.name) {
            return false;
        }
        let due = match self.due[index] {
            Known::DueAt(due) => Ok(due),
            Known::Unknown => (step.due)(db, walks),
        };
        match due {
            Ok(due) => {
                self.due[index] = Known::DueAt(due);
                due.is_some_and(|at| at <= db.now_ms)
            }
            Err(error) => {
                self.fail(index, error);
                false
            }
        }
    }

    /// Runs one batch in a transaction, and says whether it changed anything.
    fn batch(&mut self, db: &Db, index: usize, octets: &mut u64) -> (Batch, bool) {
        let step = &STEPS[index];
        let written = db.cost().rows_written;
        let mut work = Work::begin(db);
        let outcome = db.transaction(|tx| (step.batch)(tx, &mut work));
        self.outcome.largest_batch = self.outcome.largest_batch.max(work.spent(db));
        *octets += work.octets();
        self.ran = true;
        self.due = [Known::Unknown; STEP_COUNT];
        match outcome {
            Ok(batch) => {
                if batch == Batch::More {
                    self.due[index] = Known::DueAt(Some(AT_ONCE));
                }
                for (kind, count) in work.into_removed() {
                    *self.outcome.removed.entry(kind).or_default() += count;
                }
                let changed = db.cost().rows_written > written;
                self.changed |= changed;
                (batch, changed)
            }
            Err(error) => {
                self.fail(index, error);
                (Batch::Done, false)
            }
        }
    }

    fn fail(&mut self, index: usize, error: crate::error::Error) {
        let name = STEPS[index].name;
        self.outcome.failed.push(name);
        self.outcome.faults.push(format!("{name}: {}", error.message));
    }

    fn give_up(&mut self, db: &Db, error: crate::error::Error) -> Slice {
        self.outcome.failed.push("maintain");
        self.outcome.faults.push(format!("maintain: {}", error.message));
        self.outcome.backlog = true;
        self.outcome.cost.ms = db.now_ms - self.outcome.started_at;
        Slice::Done
    }

    /// Nothing is due at the step.
    fn step_over(&mut self) {
        match &mut self.phase {
            Phase::First(index) => *index += 1,
            Phase::Shared { place, begun, .. } => {
                *place += 1;
                *begun = false;
            }
        }
    }

    fn advance(&mut self, batch: Batch, batch_changed: bool) {
        match &mut self.phase {
            Phase::First(index) => *index += 1,
            Phase::Shared { place, begun, changed } => {
                *changed |= batch_changed;
                *begun = true;
                // A step that changes nothing is blocked by another; its turn is over.
                if batch == Batch::Done || !batch_changed {
                    *place += 1;
                    *begun = false;
                }
            }
        }
    }

    /// Asks each step whether it left something, and keeps what the next pass needs.
    fn finish(&mut self, db: &Db, walks: &Walks) {
        let mut is_due = false;
        if self.ran {
            self.due = [Known::Unknown; STEP_COUNT];
        }
        for index in 0..STEP_COUNT {
            is_due |= self.is_due(db, index, walks);
        }
        self.outcome.backlog = is_due || !self.outcome.failed.is_empty();
        if !self.changed && self.outcome.failed.is_empty() {
            return;
        }
        if let Err(error) = self.keep(db) {
            self.outcome.faults.push(format!("maintain: {}", error.message));
        }
    }

    fn keep(&self, db: &Db) -> Result<()> {
        let at_once = self.outcome.backlog && self.outcome.failed.is_empty();
        let wait_ms = if at_once { PASS_BACKLOG_WAIT_MS } else { PASS_WAIT_MS };
        let (passes, next_step): (String, String) = db.query_one(
            "SELECT passes_json, next_step FROM maintain_state WHERE id = 1",
            params![],
            |row| Ok((row.get()?, row.get()?)),
        )?;
        let mut passes: Vec<Json> = serde_json::from_str(&passes).unwrap_or_default();
        passes.insert(
            0,
            json!({
                "started_at": self.outcome.started_at,
                "removed": self.outcome.removed,
                "failed": self.outcome.failed,
                "backlog": self.outcome.backlog,
            }),
        );
        passes.truncate(PASSES_KEPT);
        let next_step = self.next_turn.map_or(next_step.as_str(), |at| STEPS[at].name);
        db.transaction(|tx| {
            tx.execute(
                "UPDATE maintain_state SET pass_due_at = ?1, next_step = ?2, passes_json = ?3
                  WHERE id = 1",
                params![tx.now_ms + wait_ms, next_step, &Json::Array(passes).to_string()],
            )?;
            migrate::store_clock(tx)
        })
    }
}

/// The step behind the one whose turn the last pass ended in.
fn first_shared(db: &Db) -> usize {
    let name = db
        .query_optional("SELECT next_step FROM maintain_state WHERE id = 1", params![], |row| {
            row.get::<String>()
        })
        .unwrap_or_default();
    STEPS.iter().position(|step| Some(step.name) == name.as_deref()).unwrap_or(0)
}

//! The retention pass: it removes what nobody needs any more, in bounded batches.
//!
//! Each step costs what it removes, never what the store holds: it reads through a key, an index
//! on the due time or a queue that writes fill. A batch is one transaction of at most
//! `BATCH_UNITS_MAX` units, a slice is a few batches, and between two slices the shell yields. A
//! pass ends by the clock or by its units, whichever comes first: a deployed Worker's clock stands
//! still while code runs, so the units are the bound that always holds.
//!
//! Read [`STEPS`], then one step's file, then [`pass`].
pub mod alarm;
pub mod api;
mod backfill;
mod blobs;
mod bodies;
mod captures;
mod checkpoints;
mod content;
mod context_history;
mod deliveries;
mod events;
mod expiries;
pub mod health;
mod history;
mod in_flight;
mod messages;
mod old_sessions;
mod overdue;
mod parts;
pub mod pass;
mod payloads;
pub mod presence;
mod retention;
pub mod runner;
mod sessions;
mod settled;
pub mod storage;
pub mod teams;
mod uploads;
mod versions;
mod work;
mod worktrees;

pub use pass::{Outcome, Pass, Slice};
pub use runner::Runner;
pub use work::{Batch, Removed, Walks, Work};

use crate::error::Result;
use crate::store::{Db, Tx};

/// One kind of thing that goes. It joins a pass by its line in [`STEPS`].
pub struct Step {
    pub name: &'static str,
    /// Removes one batch, of at most `BATCH_UNITS_MAX` units.
    pub batch: fn(&Tx, &mut Work) -> Result<Batch>,
    /// The earliest moment at which the step has something to do. It costs a row or two.
    pub due: fn(&Db, &Walks) -> Result<Option<i64>>,
    /// Whether somebody waits for it: it is not put off to the minute's pass.
    pub prompt: bool,
}

const fn step(
    name: &'static str,
    batch: fn(&Tx, &mut Work) -> Result<Batch>,
    due: fn(&Db, &Walks) -> Result<Option<i64>>,
) -> Step {
    Step { name, batch, due, prompt: false }
}

/// In this order what releases comes before what it releases.
#[rustfmt::skip] // A table reads best as one.
pub const STEPS: &[Step] = &[
    step("expiries",   expiries::batch,   expiries::due),
    step("in_flight",  in_flight::captures, in_flight::captures_due),
    step("in_flight_uploads", in_flight::uploads, in_flight::uploads_due),
    step("captures",   captures::batch,   captures::due),
    step("versions",   versions::batch,   versions::due),
    step("messages",   messages::batch,   messages::due),
    step("old_sessions", old_sessions::batch, old_sessions::due),
    step("sessions",   sessions::batch,   sessions::due),
    step("parts",      parts::batch,      parts::due),
    step("uploads",    uploads::batch,    uploads::due),
    step("blobs",      blobs::batch,      blobs::due),
    step("content",    content::batch,    content::due),
    step("events",     events::batch,     events::due),
    Step { prompt: true, ..step("presence", presence::batch, presence::due) },
    step("deliveries", deliveries::batch, deliveries::due),
    step("settled",    settled::batch,    settled::due),
    Step { prompt: true, ..step("overdue", overdue::batch, overdue::due) },
    step("checkpoints", checkpoints::batch, checkpoints::due),
    step("payloads",   payloads::batch,   payloads::due),
    step("worktrees",  worktrees::batch,  worktrees::due),
    step("bodies",     bodies::batch,     bodies::due),
    step("context_history", context_history::batch, context_history::due),
    step("history",    history::batch,    history::due),
    step("teams",      teams::batch,      teams::due),
    step("backfill",   backfill::batch,   backfill::due),
];

//! What steps work with: what a batch has cost so far, what it removed, and which walks over older
//! rows are still under way.
use crate::error::Result;
use crate::limits::{BATCH_UNITS_MAX, OCTETS_PER_UNIT, STATEMENT_UNITS};
use crate::params;
use crate::store::{Cost, Db, Tx};
use std::collections::BTreeMap;

/// How many rows of each kind were removed.
pub type Removed = BTreeMap<&'static str, u64>;

/// When what waits in a queue without a time is due.
pub const AT_ONCE: i64 = 0;

/// Whether a step has more to do at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Batch {
    More,
    Done,
}

impl Batch {
    pub fn more_if(more: bool) -> Batch {
        if more { Batch::More } else { Batch::Done }
    }
}

/// What statements cost, in units.
pub fn units(cost: Cost, octets: u64) -> u64 {
    cost.rows_read
        + cost.rows_written
        + STATEMENT_UNITS * cost.statements
        + octets.div_ceil(OCTETS_PER_UNIT)
}

/// One batch, while it runs.
pub struct Work {
    began: Cost,
    /// Of large values removed: freeing one walks its pages, which no counter of rows shows.
    octets: u64,
    took: bool,
    removed: Removed,
}

impl Work {
    pub fn begin(db: &Db) -> Work {
        Work { began: db.cost(), octets: 0, took: false, removed: Removed::new() }
    }

    pub fn removed(&mut self, kind: &'static str, count: u64) {
        if count > 0 {
            *self.removed.entry(kind).or_default() += count;
        }
    }

    pub fn spent(&self, db: &Db) -> u64 {
        units(db.cost() - self.began, self.octets)
    }

    pub fn octets(&self) -> u64 {
        self.octets
    }

    pub fn into_removed(self) -> Removed {
        self.removed
    }

    /// Whether what costs at most `units` still fits into the batch.
    pub fn has_room(&self, db: &Db, units: u64) -> bool {
        self.spent(db) + units <= BATCH_UNITS_MAX
    }

    /// Whether one more fits that costs what the last one did, before which `spent` was spent. An
    /// event costs more where many apps hear of it.
    pub fn has_room_for_another(&self, db: &Db, spent: u64) -> bool {
        self.has_room(db, self.spent(db).saturating_sub(spent))
    }

    /// Takes rows, each with its octets, while they fit into the batch; its first always does.
    pub fn take<T>(&mut self, db: &Db, rows: Vec<(T, i64)>, units_per_row: u64) -> Vec<T> {
        let weighed = rows.into_iter().map(|(row, octets)| (row, octets, units_per_row));
        self.take_weighed(db, weighed.collect())
    }

    /// As `take`, for rows with their octets and units.
    pub fn take_weighed<T>(&mut self, db: &Db, rows: Vec<(T, i64, u64)>) -> Vec<T> {
        let mut left = BATCH_UNITS_MAX.saturating_sub(self.spent(db));
        let mut taken = Vec::with_capacity(rows.len());
        for (row, octets, units) in rows {
            let octets = octets.unsigned_abs();
            let needed = units + octets.div_ceil(OCTETS_PER_UNIT);
            if needed > left && self.took {
                break;
            }
            left = left.saturating_sub(needed);
            self.octets += octets;
            self.took = true;
            taken.push(row);
        }
        taken
    }
}

/// The walks over older rows that are not done. A step that decides by what a walk fills waits.
#[derive(Debug, Clone, Default)]
pub struct Walks(Vec<(String, i64)>);

impl Walks {
    pub fn read(db: &Db) -> Result<Walks> {
        let open = db.query(
            "SELECT name, after_rowid FROM maintain_backfill WHERE done = 0 AND name > '' LIMIT 100",
            params![],
            |row| Ok((row.get()?, row.get()?)),
        )?;
        Ok(Walks(open))
    }

    pub fn open(&self) -> &[(String, i64)] {
        &self.0
    }

    pub fn any_open(&self, names: &[&str]) -> bool {
        self.0.iter().any(|(name, _)| names.contains(&name.as_str()))
    }
}

/// Removes one kind's rows, of at most so many units, and says whether there are more.
pub type Remove = fn(&Tx, &mut Work, u64) -> Result<Batch>;

/// Removes what is due of several kinds, which share the units; `times` says when each is.
pub fn share(
    tx: &Tx,
    work: &mut Work,
    kinds: &[Remove],
    times: &[Option<i64>],
    units: u64,
) -> Result<Batch> {
    let is_due = |at: &Option<i64>| at.is_some_and(|at| at <= tx.now_ms);
    let count = times.iter().filter(|at| is_due(at)).count() as u64;
    let mut outcome = Batch::Done;
    for (remove, _) in kinds.iter().zip(times).filter(|(_, at)| is_due(at)) {
        if remove(tx, work, units / count)? == Batch::More {
            outcome = Batch::More;
        }
    }
    Ok(outcome)
}

/// The earliest of some moments.
pub fn earliest(moments: impl IntoIterator<Item = Option<i64>>) -> Option<i64> {
    moments.into_iter().flatten().min()
}

/// How a table's rows are deleted by their rowids: neighbours as a range, which costs 2 units a
/// row, the others by a list, which costs 5.
pub struct Rows {
    /// From ?1 to ?2.
    pub range: &'static str,
    /// Those in the JSON array ?1.
    pub list: &'static str,
}

/// A row that a list deletes: read from the JSON, put aside, read, found, deleted.
pub const LISTED_UNITS: u64 = 5;
const NEIGHBOURS_MIN: usize = 3;

macro_rules! rows {
    ($table:literal) => {
        $crate::maintain::work::Rows {
            // A full-text table takes only integers as bounds.
            range: concat!(
                "DELETE FROM ",
                $table,
                " WHERE rowid >= CAST(?1 AS INTEGER) AND rowid <= CAST(?2 AS INTEGER)"
            ),
            list: concat!(
                "DELETE FROM ",
                $table,
                " WHERE rowid IN (SELECT value FROM json_each(?1))"
            ),
        }
    };
}
pub(crate) use rows;

impl Rows {
    pub fn delete(&self, tx: &Tx, row_ids: &[i64]) -> Result<()> {
        let mut sorted = row_ids.to_vec();
        sorted.sort_unstable();
        let mut listed: Vec<i64> = Vec::new();
        for run in sorted.chunk_by(|a, b| a + 1 == *b) {
            match run {
                [first, .., last] if run.len() >= NEIGHBOURS_MIN => {
                    tx.execute(self.range, params![*first, *last])?;
                }
                _ => listed.extend(run),
            }
        }
        if listed.is_empty() {
            return Ok(());
        }
        tx.execute(self.list, params![&json(&listed)?])
    }
}

/// Keys as one JSON parameter.
pub fn json(keys: &impl serde::Serialize) -> Result<String> {
    crate::json::to_string(keys)
}

//! The retention pass.
mod api;
mod contexts;
mod cost;
mod histories;
pub mod oracle;
mod rules;
mod starvation;

use crate::team::Team;
use rusqlite::types::Value;
use teamplane::limits::{BATCH_UNITS_MAX, PASS_UNITS_MAX};
use teamplane::maintain::{Outcome, Pass, Slice};

/// The native driver only estimates rows read, so bounds on units leave room for that.
pub const ESTIMATE_FACTOR: u64 = 2;

impl Team {
    /// One pass, by a clock that stands still.
    pub fn pass(&self) -> Outcome {
        let mut pass = Pass::new(self.now_ms.get());
        while pass.slice(&self.db()) == Slice::More {}
        let outcome = pass.into_outcome();
        assert!(outcome.cost.units <= PASS_UNITS_MAX + BATCH_UNITS_MAX, "{outcome:?}");
        outcome
    }

    /// Passes until nothing is left to remove; their outcomes.
    pub fn settle(&self) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        loop {
            let outcome = self.pass();
            assert_eq!(outcome.faults, Vec::<String>::new());
            let backlog = outcome.backlog;
            outcomes.push(outcome);
            if !backlog {
                return outcomes;
            }
            assert!(outcomes.len() < 1_000, "there is no end: {:?}", outcomes.last());
        }
    }

    /// Changes the store from outside; triggers run.
    #[track_caller]
    pub fn sql(&self, sql: &str) {
        self.driver.connection().execute_batch(sql).unwrap_or_else(|e| panic!("{e} in: {sql}"));
    }

    /// Rows as text, their columns separated by a space.
    #[track_caller]
    pub fn lines(&self, sql: &str) -> Vec<String> {
        let connection = self.driver.connection();
        let mut statement = connection.prepare(sql).unwrap_or_else(|e| panic!("{e} in: {sql}"));
        let width = statement.column_count();
        let rows = statement.query_map([], |row| {
            let cells = (0..width).map(|at| row.get(at).map(plain));
            cells.collect::<Result<Vec<_>, _>>()
        });
        rows.expect("the query runs").map(|row| row.expect("a row is read").join(" ")).collect()
    }
}

fn plain(value: Value) -> String {
    match value {
        Value::Null => "NULL".into(),
        Value::Integer(n) => n.to_string(),
        Value::Real(x) => x.to_string(),
        Value::Text(text) => text,
        Value::Blob(bytes) => teamplane::ids::hex(&bytes),
    }
}

/// The beginning of a statement that has numbers from 1 as `n.i`.
pub fn numbers(count: u64) -> String {
    format!("WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})")
}

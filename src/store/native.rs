//! The driver under `cargo test`: bundled SQLite, set up as workerd sets it up, and stricter.
use super::{Cell as Column, Cost, Driver, Rows, Value};
use crate::error::{Code, Error, Result};
use crate::limits::SAFE_INTEGER_MAX_F64;
use rusqlite::{Connection, StatementStatus, limits::Limit, types::ValueRef};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

const STATEMENTS_CACHED_MAX: usize = 1_000;
/// SQLite counts no rows read, so the native count is an estimate from the steps of its virtual
/// machine; exact counts are asserted in workerd.
const VM_STEPS_PER_ROW_READ: u64 = 8;

pub struct Native {
    connection: Connection,
    cost: Cell<Cost>,
    depth: Cell<u32>,
    seen: RefCell<BTreeSet<&'static str>>,
    fault: Cell<Option<Fault>>,
}

/// A failure that a test has asked for.
#[derive(Clone, Copy)]
struct Fault {
    /// So many statements run before it.
    after: u64,
    /// Whether every statement from then on fails, or just one.
    lasts: bool,
}

impl Native {
    pub fn open_in_memory() -> Native {
        Native::over(Connection::open_in_memory().expect("SQLite opens in memory"))
    }

    pub fn open(path: &std::path::Path) -> Native {
        Native::over(Connection::open(path).expect("SQLite opens the file"))
    }

    fn over(connection: Connection) -> Native {
        connection.execute_batch("PRAGMA foreign_keys = ON").expect("the pragma is known");
        for (limit, value) in [
            (Limit::SQLITE_LIMIT_LENGTH, 2_100_000),
            (Limit::SQLITE_LIMIT_SQL_LENGTH, 100_000),
            (Limit::SQLITE_LIMIT_COLUMN, 100),
            (Limit::SQLITE_LIMIT_EXPR_DEPTH, 100),
            (Limit::SQLITE_LIMIT_COMPOUND_SELECT, 5),
            (Limit::SQLITE_LIMIT_VDBE_OP, 25_000),
            (Limit::SQLITE_LIMIT_FUNCTION_ARG, 32),
            (Limit::SQLITE_LIMIT_VARIABLE_NUMBER, 100),
            (Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 50),
            (Limit::SQLITE_LIMIT_TRIGGER_DEPTH, 10),
        ] {
            connection.set_limit(limit, value).expect("the limit is known");
        }
        connection.set_prepared_statement_cache_capacity(STATEMENTS_CACHED_MAX);
        Native {
            connection,
            cost: Cell::default(),
            depth: Cell::default(),
            seen: RefCell::default(),
            fault: Cell::default(),
        }
    }

    /// Every statement run so far, for tests that look at their plans.
    pub fn statements(&self) -> Vec<&'static str> {
        self.seen.borrow().iter().copied().collect()
    }

    /// Makes every statement after the next `count` fail, as a dying object's would.
    pub fn fail_after(&self, count: Option<u64>) {
        self.fault.set(count.map(|after| Fault { after, lasts: true }));
    }

    /// Makes one statement fail: the one after the next `count`.
    pub fn fail_once(&self, count: u64) {
        self.fault.set(Some(Fault { after: count, lasts: false }));
    }

    /// For tests that look at the store from outside.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    fn run(&self, sql: &'static str, params: &[Value], reads_only: bool) -> Result<Rows> {
        self.seen.borrow_mut().insert(sql);
        self.fail_if_asked()?;
        self.rows(sql, params, reads_only)
            .map_err(|error| Error::internal(format!("{error} in: {sql}")))
    }

    fn fail_if_asked(&self) -> Result<()> {
        let Some(fault) = self.fault.get() else { return Ok(()) };
        if let Some(after) = fault.after.checked_sub(1) {
            self.fault.set(Some(Fault { after, ..fault }));
            return Ok(());
        }
        self.fault.set(Some(fault).filter(|fault| fault.lasts));
        Err(Error::internal("the test made the store fail"))
    }

    fn rows(&self, sql: &str, params: &[Value], reads_only: bool) -> rusqlite::Result<Rows> {
        let changes_before = self.connection.total_changes();
        let mut statement = self.connection.prepare_cached(sql)?;
        assert_eq!(statement.readonly(), reads_only, "wrong kind of statement: {sql}");
        statement.reset_status(StatementStatus::VmStep);
        let width = statement.column_count();
        let mut out = Rows::new(width);
        {
            let params = params.iter().map(bound).collect::<Vec<_>>();
            let mut rows = statement.query(rusqlite::params_from_iter(params))?;
            while let Some(row) = rows.next()? {
                for index in 0..width {
                    out.push(column(row.get_ref(index)?));
                }
            }
        }
        let steps = statement.get_status(StatementStatus::VmStep).unsigned_abs();
        let mut cost = self.cost.get();
        cost += Cost {
            rows_read: u64::from(steps) / VM_STEPS_PER_ROW_READ,
            rows_written: self.connection.total_changes() - changes_before,
            statements: 1,
        };
        self.cost.set(cost);
        Ok(out)
    }
}

/// A JS number binds as REAL in workerd, so it does here too.
fn bound(value: &Value) -> rusqlite::types::Value {
    match *value {
        Value::Null => rusqlite::types::Value::Null,
        #[allow(clippy::cast_precision_loss)] // Asserted to be exact.
        Value::Int(n) => {
            assert!(n.unsigned_abs() < 1 << 53, "{n} is no safe integer");
            rusqlite::types::Value::Real(n as f64)
        }
        Value::Text(s) => rusqlite::types::Value::Text(s.into()),
        Value::Blob(b) => rusqlite::types::Value::Blob(b.into()),
    }
}

fn column(value: ValueRef) -> Column {
    match value {
        ValueRef::Null => Column::Null,
        ValueRef::Integer(n) => Column::Int(n),
        // workerd cannot tell 5.0 from 5 once it is a JS number.
        #[allow(clippy::cast_possible_truncation)] // Checked to be whole and safe.
        ValueRef::Real(x) if x.fract() == 0.0 && x.abs() <= SAFE_INTEGER_MAX_F64 => {
            Column::Int(x as i64)
        }
        ValueRef::Real(x) => Column::Real(x),
        ValueRef::Text(text) => Column::Text(String::from_utf8_lossy(text).into()),
        ValueRef::Blob(bytes) => Column::Blob(bytes.into()),
    }
}

impl Driver for Native {
    fn query(&self, sql: &'static str, params: &[Value]) -> Result<Rows> {
        self.run(sql, params, true)
    }

    fn execute(&self, sql: &'static str, params: &[Value]) -> Result<Rows> {
        assert!(self.depth.get() > 0, "a write outside a transaction: {sql}");
        self.run(sql, params, false)
    }

    fn changes(&self) -> Result<u64> {
        Ok(self.connection.changes())
    }

    fn script(&self, sql: &str) -> Result<()> {
        self.connection.execute_batch(sql).map_err(|e| Error::new(Code::Internal, e.to_string()))
    }

    fn atomic(&self, body: &mut dyn FnMut() -> bool) -> Result<()> {
        self.script("SAVEPOINT atomic")?;
        self.depth.set(self.depth.get() + 1);
        let keep = body();
        self.depth.set(self.depth.get() - 1);
        if !keep {
            self.script("ROLLBACK TO atomic")?;
        }
        self.script("RELEASE atomic")
    }

    fn cost(&self) -> Cost {
        self.cost.get()
    }

    fn size_bytes(&self) -> u64 {
        let number = |pragma: &str| {
            self.connection
                .query_row(pragma, [], |row| row.get::<_, i64>(0))
                .expect("the pragma answers")
        };
        let pages = number("PRAGMA page_count") - number("PRAGMA freelist_count");
        (pages * number("PRAGMA page_size")).unsigned_abs()
    }
}

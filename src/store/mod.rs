//! SQL access. Domain code sees [`Db`] (reads) and [`Tx`] (reads and writes), nothing else.
//!
//! Every statement is a `&'static str`, so none can be put together from input, and the driver
//! may keep what it prepares from it.
use crate::error::{Error, Result};
use crate::ids::{Entropy, Id};
use std::ops::{AddAssign, Deref, Sub};

#[cfg(target_arch = "wasm32")]
pub mod durable;
pub mod migrate;
#[cfg(not(target_arch = "wasm32"))]
pub mod native;
mod value;

pub use value::{Cell, FromCell, Row, Rows, Value};

/// The seam between this crate and SQLite. One implementation per target.
pub trait Driver {
    /// Runs a statement that only reads.
    fn query(&self, sql: &'static str, params: &[Value]) -> Result<Rows>;
    /// Runs a statement that writes; returns its `RETURNING` rows.
    fn execute(&self, sql: &'static str, params: &[Value]) -> Result<Rows>;
    /// How many rows the last statement changed, without those its triggers changed.
    fn changes(&self) -> Result<u64>;
    /// Runs several statements without parameters; for migrations.
    fn script(&self, sql: &str) -> Result<()>;
    /// Runs `body` once: keeps its writes if it returns true, undoes them if not.
    fn atomic(&self, body: &mut dyn FnMut() -> bool) -> Result<()>;
    /// What all statements so far have cost.
    fn cost(&self) -> Cost;
    /// The database's size without its free pages.
    fn size_bytes(&self) -> u64;
}

/// What statements cost, as the platform bills them; triggers count too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Cost {
    pub rows_read: u64,
    pub rows_written: u64,
    pub statements: u64,
}

impl Sub for Cost {
    type Output = Cost;
    fn sub(self, earlier: Cost) -> Cost {
        Cost {
            rows_read: self.rows_read - earlier.rows_read,
            rows_written: self.rows_written - earlier.rows_written,
            statements: self.statements - earlier.statements,
        }
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, more: Cost) {
        self.rows_read += more.rows_read;
        self.rows_written += more.rows_written;
        self.statements += more.statements;
    }
}

/// Reads, and the way to a transaction.
#[derive(Clone, Copy)]
pub struct Db<'a> {
    driver: &'a dyn Driver,
    entropy: &'a dyn Entropy,
    /// Unix time in ms at which this event began; constant while it is handled.
    pub now_ms: i64,
}

/// Reads and writes. Only [`Db::transaction`] makes one, so no write escapes a transaction.
pub struct Tx<'a>(Db<'a>);

impl<'a> Db<'a> {
    pub fn new(driver: &'a dyn Driver, entropy: &'a dyn Entropy, now_ms: i64) -> Self {
        Db { driver, entropy, now_ms }
    }

    pub fn query<T>(
        &self,
        sql: &'static str,
        params: &[Value],
        read: impl FnMut(&mut Row) -> Result<T>,
    ) -> Result<Vec<T>> {
        self.driver.query(sql, params)?.map(read)
    }

    /// The first row, if any.
    pub fn query_optional<T>(
        &self,
        sql: &'static str,
        params: &[Value],
        read: impl FnMut(&mut Row) -> Result<T>,
    ) -> Result<Option<T>> {
        Ok(self.query(sql, params, read)?.into_iter().next())
    }

    /// The first row of a query that always has one.
    pub fn query_one<T>(
        &self,
        sql: &'static str,
        params: &[Value],
        read: impl FnMut(&mut Row) -> Result<T>,
    ) -> Result<T> {
        self.query_optional(sql, params, read)?
            .ok_or_else(|| Error::internal(format!("no row: {sql}")))
    }

    /// Runs `body` atomically: an `Err` undoes every write it made. Nests as savepoints.
    pub fn transaction<T>(&self, body: impl FnOnce(&Tx) -> Result<T>) -> Result<T> {
        let tx = Tx(*self);
        let (mut body, mut outcome) = (Some(body), None);
        self.driver.atomic(&mut || {
            let body = body.take().expect("a driver runs its body once");
            outcome.insert(body(&tx)).is_ok()
        })?;
        outcome.expect("a driver runs its body")
    }

    pub fn new_id<T: Id>(&self) -> T {
        T::random(self.entropy)
    }

    pub fn random<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.entropy.fill(&mut bytes);
        bytes
    }

    pub fn cost(&self) -> Cost {
        self.driver.cost()
    }

    pub fn size_bytes(&self) -> u64 {
        self.driver.size_bytes()
    }
}

impl<'a> Deref for Tx<'a> {
    type Target = Db<'a>;
    fn deref(&self) -> &Db<'a> {
        &self.0
    }
}

impl Tx<'_> {
    pub fn execute(&self, sql: &'static str, params: &[Value]) -> Result<()> {
        self.driver.execute(sql, params).map(drop)
    }

    /// Like `execute`, and says how many rows changed.
    pub fn execute_counted(&self, sql: &'static str, params: &[Value]) -> Result<u64> {
        self.driver.execute(sql, params)?;
        self.driver.changes()
    }

    /// A write whose `RETURNING` rows say what it did.
    pub fn execute_returning<T>(
        &self,
        sql: &'static str,
        params: &[Value],
        read: impl FnMut(&mut Row) -> Result<T>,
    ) -> Result<Vec<T>> {
        self.driver.execute(sql, params)?.map(read)
    }

    fn script(&self, sql: &str) -> Result<()> {
        self.driver.script(sql)
    }
}

#[macro_export]
macro_rules! params {
    ($($value:expr),* $(,)?) => { &[$($crate::store::Value::from($value)),*] };
}

//! What goes into a statement and what comes out of it.
use crate::error::{Error, Result};

/// A value to bind. No boolean: workerd would bind `true` as the text 'true'.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    Null,
    /// Within ±(2^53 − 1): workerd carries every number as a double.
    Int(i64),
    Text(&'a str),
    Blob(&'a [u8]),
}

impl From<i64> for Value<'_> {
    fn from(n: i64) -> Self {
        Value::Int(n)
    }
}
impl From<u32> for Value<'_> {
    fn from(n: u32) -> Self {
        Value::Int(n.into())
    }
}
impl From<usize> for Value<'_> {
    fn from(n: usize) -> Self {
        Value::Int(i64::try_from(n).unwrap_or(i64::MAX))
    }
}
impl From<u64> for Value<'_> {
    fn from(n: u64) -> Self {
        Value::Int(i64::try_from(n).unwrap_or(i64::MAX))
    }
}
/// SQL has 0 and 1.
impl From<bool> for Value<'_> {
    fn from(b: bool) -> Self {
        Value::Int(b.into())
    }
}
impl<'a> From<&'a str> for Value<'a> {
    fn from(s: &'a str) -> Self {
        Value::Text(s)
    }
}
impl<'a> From<&'a String> for Value<'a> {
    fn from(s: &'a String) -> Self {
        Value::Text(s)
    }
}
impl<'a> From<&'a [u8]> for Value<'a> {
    fn from(b: &'a [u8]) -> Self {
        Value::Blob(b)
    }
}
impl<'a, T> From<Option<T>> for Value<'a>
where
    Value<'a>: From<T>,
{
    fn from(value: Option<T>) -> Self {
        value.map_or(Value::Null, Value::from)
    }
}
/// A value as SQLite answered it.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    Null,
    Int(i64),
    Real(f64),
    Text(String),
    Blob(Vec<u8>),
}

/// The rows of one statement, in one allocation.
#[derive(Debug, Default)]
pub struct Rows {
    width: usize,
    cells: Vec<Cell>,
}

impl Rows {
    pub fn new(width: usize) -> Rows {
        Rows { width, cells: Vec::new() }
    }

    /// The next cell, row by row.
    pub fn push(&mut self, cell: Cell) {
        self.cells.push(cell);
    }

    pub fn map<T>(self, mut read: impl FnMut(&mut Row) -> Result<T>) -> Result<Vec<T>> {
        let count = self.cells.len().checked_div(self.width).unwrap_or(0);
        let mut cells = self.cells.into_iter();
        (0..count)
            .map(|_| {
                let mut row = Row { cells: &mut cells, left: self.width };
                let outcome = read(&mut row);
                for _ in 0..row.left {
                    row.cells.next();
                }
                outcome
            })
            .collect()
    }
}

/// One row, read from its first column to its last.
pub struct Row<'a> {
    cells: &'a mut std::vec::IntoIter<Cell>,
    left: usize,
}

impl Row<'_> {
    /// The next column.
    pub fn get<T: FromCell>(&mut self) -> Result<T> {
        if self.left == 0 {
            return Err(Error::internal("a row has fewer columns than are read from it"));
        }
        self.left -= 1;
        self.cells.next().map_or_else(|| Err(Error::internal("a row ends early")), T::from_cell)
    }
}

/// A column's type. Ids implement it too.
pub trait FromCell: Sized {
    fn from_cell(cell: Cell) -> Result<Self>;
}

fn mismatch<T>(wanted: &str, cell: &Cell) -> Result<T> {
    let found = match cell {
        Cell::Null => "NULL",
        Cell::Int(_) => "INTEGER",
        Cell::Real(_) => "REAL",
        Cell::Text(_) => "TEXT",
        Cell::Blob(_) => "BLOB",
    };
    Err(Error::internal(format!("a column holds {found}, not {wanted}")))
}

/// Whatever it is.
impl FromCell for Cell {
    fn from_cell(cell: Cell) -> Result<Self> {
        Ok(cell)
    }
}
impl FromCell for i64 {
    fn from_cell(cell: Cell) -> Result<Self> {
        match cell {
            Cell::Int(n) => Ok(n),
            other => mismatch("INTEGER", &other),
        }
    }
}
/// A count; never negative.
impl FromCell for u64 {
    fn from_cell(cell: Cell) -> Result<Self> {
        i64::from_cell(cell).map(i64::unsigned_abs)
    }
}
impl FromCell for usize {
    fn from_cell(cell: Cell) -> Result<Self> {
        u64::from_cell(cell).map(|n| usize::try_from(n).unwrap_or(usize::MAX))
    }
}
impl FromCell for bool {
    fn from_cell(cell: Cell) -> Result<Self> {
        i64::from_cell(cell).map(|n| n != 0)
    }
}
impl FromCell for f64 {
    fn from_cell(cell: Cell) -> Result<Self> {
        match cell {
            Cell::Real(x) => Ok(x),
            #[allow(clippy::cast_precision_loss)] // Integers are within ±(2^53 − 1).
            Cell::Int(n) => Ok(n as f64),
            other => mismatch("REAL", &other),
        }
    }
}
impl FromCell for String {
    fn from_cell(cell: Cell) -> Result<Self> {
        match cell {
            Cell::Text(s) => Ok(s),
            other => mismatch("TEXT", &other),
        }
    }
}
impl FromCell for Vec<u8> {
    fn from_cell(cell: Cell) -> Result<Self> {
        match cell {
            Cell::Blob(b) => Ok(b),
            other => mismatch("BLOB", &other),
        }
    }
}
impl<T: FromCell> FromCell for Option<T> {
    fn from_cell(cell: Cell) -> Result<Self> {
        match cell {
            Cell::Null => Ok(None),
            other => T::from_cell(other).map(Some),
        }
    }
}

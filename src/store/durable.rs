//! The driver inside workerd: `ctx.storage.sql` and `ctx.storage.transactionSync`.
//!
//! The bindings are our own: `worker` lacks `transactionSync`, and its cursor methods let a JS
//! exception through, which would hang the request. Every cursor is drained where it is opened:
//! a write's undrained cursor fails the commit, a read's makes the next use of its text slow.
use super::{Cell as Column, Cost, Driver, Rows, Value};
use crate::error::{Error, Result};
use crate::limits::SAFE_INTEGER_MAX_F64;
use js_sys::{Array, ArrayBuffer, JsString, Uint8Array};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use wasm_bindgen::{JsCast, JsValue, prelude::wasm_bindgen};
use worker::State;

type JsResult<T> = std::result::Result<T, JsValue>;

#[wasm_bindgen]
extern "C" {
    /// `DurableObjectStorage`.
    type Storage;
    #[wasm_bindgen(method, catch, js_name = transactionSync)]
    fn transaction_sync(
        this: &Storage,
        body: &mut dyn FnMut() -> JsResult<JsValue>,
    ) -> JsResult<JsValue>;
    #[wasm_bindgen(method, getter)]
    fn sql(this: &Storage) -> Sql;

    /// `SqlStorage`. One binding per number of parameters: spreading an array costs more.
    type Sql;
    #[wasm_bindgen(method, catch, js_name = exec)]
    fn exec_0(this: &Sql, sql: &JsString) -> JsResult<Cursor>;
    #[wasm_bindgen(method, catch, js_name = exec)]
    fn exec_1(this: &Sql, sql: &JsString, a: JsValue) -> JsResult<Cursor>;
    #[wasm_bindgen(method, catch, js_name = exec)]
    fn exec_2(this: &Sql, sql: &JsString, a: JsValue, b: JsValue) -> JsResult<Cursor>;
    #[wasm_bindgen(method, catch, js_name = exec)]
    fn exec_3(this: &Sql, sql: &JsString, a: JsValue, b: JsValue, c: JsValue) -> JsResult<Cursor>;
    #[wasm_bindgen(method, catch, variadic, js_name = exec)]
    fn exec_all(this: &Sql, sql: &JsString, params: Array) -> JsResult<Cursor>;
    #[wasm_bindgen(method, catch, getter, js_name = databaseSize)]
    fn database_size(this: &Sql) -> JsResult<f64>;

    /// `SqlStorageCursor`.
    type Cursor;
    #[wasm_bindgen(method, catch)]
    fn raw(this: &Cursor) -> JsResult<RawCursor>;
    #[wasm_bindgen(method, getter, js_name = rowsRead)]
    fn rows_read(this: &Cursor) -> f64;
    #[wasm_bindgen(method, getter, js_name = rowsWritten)]
    fn rows_written(this: &Cursor) -> f64;

    type RawCursor;
    #[wasm_bindgen(method, catch, js_name = toArray)]
    fn to_array(this: &RawCursor) -> JsResult<Array>;
}

pub struct Durable {
    storage: Storage,
    sql: Sql,
    /// Statement texts as JS strings, by address: a text is decoded and interned once.
    texts: RefCell<HashMap<(usize, usize), JsString>>,
    cost: Cell<Cost>,
}

impl Durable {
    pub fn new(state: &State) -> Durable {
        let storage: Storage = JsValue::from(state.storage().as_raw()).unchecked_into();
        let sql = storage.sql();
        Durable { storage, sql, texts: RefCell::default(), cost: Cell::default() }
    }

    fn text(&self, sql: &'static str) -> JsString {
        let address = (sql.as_ptr() as usize, sql.len());
        self.texts.borrow_mut().entry(address).or_insert_with(|| sql.into()).clone()
    }

    fn run(&self, sql: &JsString, params: &[Value]) -> JsResult<Rows> {
        let cursor = match params {
            [] => self.sql.exec_0(sql),
            [a] => self.sql.exec_1(sql, bound(a)),
            [a, b] => self.sql.exec_2(sql, bound(a), bound(b)),
            [a, b, c] => self.sql.exec_3(sql, bound(a), bound(b), bound(c)),
            all => self.sql.exec_all(sql, all.iter().map(bound).collect()),
        }?;
        let rows = cursor.raw()?.to_array()?;
        let mut cost = self.cost.get();
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Counts.
        {
            cost += Cost {
                rows_read: cursor.rows_read() as u64,
                rows_written: cursor.rows_written() as u64,
                statements: 1,
            };
        }
        self.cost.set(cost);
        columns(&rows)
    }

    fn exec(&self, sql: &'static str, params: &[Value]) -> Result<Rows> {
        self.run(&self.text(sql), params)
            .map_err(|error| Error::internal(format!("{} in: {sql}", describe(&error))))
    }
}

fn describe(error: &JsValue) -> String {
    error.dyn_ref::<js_sys::Error>().map_or_else(|| format!("{error:?}"), |e| e.message().into())
}

#[allow(clippy::cast_precision_loss)] // Integers are within ±(2^53 − 1).
fn bound(value: &Value) -> JsValue {
    match *value {
        Value::Null => JsValue::NULL,
        Value::Int(n) => JsValue::from_f64(n as f64),
        Value::Text(s) => JsValue::from_str(s),
        Value::Blob(b) => Uint8Array::from(b).into(),
    }
}

fn columns(rows: &Array) -> JsResult<Rows> {
    let width = rows.get(0).dyn_ref::<Array>().map_or(0, Array::length);
    let mut out = Rows::new(width as usize);
    for row in rows.iter() {
        let row: Array = row.unchecked_into();
        for index in 0..width {
            out.push(column(&row.get(index))?);
        }
    }
    Ok(out)
}

#[allow(clippy::cast_possible_truncation)] // Checked to be whole and safe.
fn column(value: &JsValue) -> JsResult<Column> {
    if let Some(x) = value.as_f64() {
        let whole = x.fract() == 0.0 && x.abs() <= SAFE_INTEGER_MAX_F64;
        return Ok(if whole { Column::Int(x as i64) } else { Column::Real(x) });
    }
    if let Some(text) = value.as_string() {
        return Ok(Column::Text(text));
    }
    if value.is_null() {
        return Ok(Column::Null);
    }
    let buffer: &ArrayBuffer = value.dyn_ref().ok_or("a column of an unknown type")?;
    Ok(Column::Blob(Uint8Array::new(buffer).to_vec()))
}

impl Driver for Durable {
    fn query(&self, sql: &'static str, params: &[Value]) -> Result<Rows> {
        self.exec(sql, params)
    }

    fn execute(&self, sql: &'static str, params: &[Value]) -> Result<Rows> {
        self.exec(sql, params)
    }

    fn changes(&self) -> Result<u64> {
        // Not the cursor's rowsWritten: that counts index entries and triggers too.
        let changed = self.exec("SELECT changes()", &[])?.map(|row| row.get::<i64>())?;
        Ok(changed.first().copied().unwrap_or_default().unsigned_abs())
    }

    fn script(&self, sql: &str) -> Result<()> {
        self.run(&sql.into(), &[]).map(drop).map_err(|error| Error::internal(describe(&error)))
    }

    fn atomic(&self, body: &mut dyn FnMut() -> bool) -> Result<()> {
        let mut kept = None;
        // A body that panics is rolled back, and nothing it left behind is looked at again.
        let mut parts = AssertUnwindSafe((body, &mut kept));
        let mut outer = move || {
            let (body, kept) = &mut *parts;
            let keep = body();
            **kept = Some(keep);
            // Throwing is how a callback asks workerd to roll back.
            if keep { Ok(JsValue::UNDEFINED) } else { Err(JsValue::from_str("rolled back")) }
        };
        let ran = self.storage.transaction_sync(&mut outer);
        match (ran, kept) {
            (Ok(_), _) | (Err(_), Some(false)) => Ok(()),
            (Err(error), _) => Err(Error::internal(describe(&error))),
        }
    }

    fn cost(&self) -> Cost {
        self.cost.get()
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // A size.
    fn size_bytes(&self) -> u64 {
        self.sql.database_size().unwrap_or(0.0) as u64
    }
}

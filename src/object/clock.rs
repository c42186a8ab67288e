//! An object's clock: it never goes back, not behind what it has shown, nor behind the mark that
//! the store keeps.
//!
//! With test hooks on, a test sets it. From then on, and also in later instances of the object, it
//! shows the largest time that a test has set, and alarms do nothing.
use crate::limits::SAFE_INTEGER_MAX;
use std::cell::Cell;
use wasm_bindgen::{JsCast, JsValue, prelude::wasm_bindgen};
use worker::State;

#[wasm_bindgen]
extern "C" {
    type Storage;
    #[wasm_bindgen(method, getter)]
    fn kv(this: &Storage) -> Values;

    /// The object's own key-value store, beside its tables.
    type Values;
    #[wasm_bindgen(method, catch)]
    fn get(this: &Values, key: &str) -> Result<JsValue, JsValue>;
    #[wasm_bindgen(method, catch)]
    fn put(this: &Values, key: &str, value: f64) -> Result<(), JsValue>;
}

const TEST_NOW: &str = "test_now_ms";

#[derive(Default)]
pub struct Clock {
    high_ms: Cell<i64>,
    /// Whether a test has set it.
    by_test: Cell<bool>,
    /// Whether it shows a test's time that is not kept yet.
    unkept: Cell<bool>,
}

impl Clock {
    #[allow(clippy::cast_possible_wrap)] // Milliseconds since 1970.
    pub fn now_ms(&self) -> i64 {
        if !self.by_test.get() {
            self.at_least(worker::Date::now().as_millis() as i64);
        }
        self.high_ms.get()
    }

    /// Takes over the mark that the store keeps; a test's time is its own mark.
    pub fn restore(&self, ms: i64) {
        if !self.by_test.get() {
            self.at_least(ms);
        }
    }

    fn at_least(&self, ms: i64) {
        self.high_ms.set(self.high_ms.get().max(ms));
    }

    /// Whether a test has set the clock, so that nothing may happen by itself.
    pub fn is_by_test(&self) -> bool {
        self.by_test.get()
    }

    /// Takes over what a test has set in an earlier instance of the object.
    pub fn restore_test(&self, state: &State) {
        if let Some(ms) = values(state).get(TEST_NOW).ok().and_then(|ms| whole_ms(ms.as_f64()?)) {
            self.by_test.set(true);
            self.high_ms.set(ms);
        }
    }

    /// Shows what a test says: the first time restarts the mark, later ones only raise it.
    pub fn set_by_test(&self, text: &str) {
        let Some(ms) = text.parse().ok().and_then(whole_ms) else { return };
        let first = !self.by_test.replace(true);
        if first || ms > self.high_ms.get() {
            self.high_ms.set(ms);
            self.unkept.set(true);
        }
    }

    /// Keeps what a test has set for later instances of the object.
    #[allow(clippy::cast_precision_loss)] // A safe integer.
    pub fn keep_test(&self, state: &State) {
        if !self.unkept.take() {
            return;
        }
        if let Err(error) = values(state).put(TEST_NOW, self.high_ms.get() as f64) {
            worker::console_error!("the test's clock was not kept: {error:?}");
        }
    }
}

fn values(state: &State) -> Values {
    let storage: Storage = JsValue::from(state.storage().as_raw()).unchecked_into();
    storage.kv()
}

#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)] // Checked.
fn whole_ms(ms: f64) -> Option<i64> {
    ((0.0..=SAFE_INTEGER_MAX as f64).contains(&ms) && ms.fract() == 0.0).then_some(ms as i64)
}

//! What both kinds of object stand on: their store, their clock, and whose they are.
use super::alarm::Known;
use super::clock::Clock;
use super::config;
use super::http;
use crate::api::Answer;
use crate::error::{Error, Result};
use crate::ids::{ServerId, System};
use crate::maintain::{Runner, health};
use crate::store::durable::Durable;
use crate::store::migrate::{self, SCHEMA_VERSION};
use crate::store::{Cost, Db};
use std::cell::{Cell, RefCell};
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use wasm_bindgen::{JsValue, prelude::wasm_bindgen};
use worker::js_sys::Array;
use worker::{Env, Request, Response, State};

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(catch, js_namespace = Reflect, js_name = apply)]
    fn call(body: &mut dyn FnMut(), this: &JsValue, args: &Array) -> Result<JsValue, JsValue>;
}

pub struct Host {
    pub state: State,
    pub clock: Clock,
    /// The retention pass under way.
    pub runner: Rc<RefCell<Runner>>,
    pub alarm: Cell<Known>,
    driver: Durable,
    test_hooks: bool,
    opened: RefCell<Opened>,
}

#[derive(Clone)]
enum Opened {
    NotYet,
    /// Nobody has initialised this object.
    Empty,
    For(ServerId),
}

impl Host {
    pub fn new(state: State, env: &Env) -> Host {
        let (clock, test_hooks) = (Clock::default(), config::test_hooks(env));
        if test_hooks {
            clock.restore_test(&state);
        }
        let opened = RefCell::new(Opened::NotYet);
        let driver = Durable::new(&state);
        let (runner, alarm) = (Rc::default(), Cell::default());
        Host { state, clock, runner, alarm, driver, test_hooks, opened }
    }

    fn db(&self) -> Db<'_> {
        Db::new(&self.driver, &System, self.clock.now_ms())
    }

    /// Runs a synchronous piece of work on the store, at the time it is now.
    ///
    /// It runs inside a JavaScript call, so that an exception which no binding catches ends here
    /// as an error, as a panic does. Beyond, it would end every call of this object.
    pub fn run<T>(&self, work: impl FnOnce(&Db) -> Result<T>) -> Result<T> {
        let mut outcome = None;
        // Work that was cut off is not looked at again; its transaction is rolled back.
        let mut parts = AssertUnwindSafe((self, Some(work), &mut outcome));
        let mut body = move || {
            let (host, work, outcome) = &mut *parts;
            **outcome = work.take().map(|work| work(&host.db()));
        };
        let called = call(&mut body, &JsValue::UNDEFINED, &Array::new());
        match (called, outcome) {
            (Ok(_), Some(outcome)) => outcome,
            (Ok(_), None) => Err(Error::internal("the work did not run")),
            (Err(error), _) => Err(http::thrown(&error.into())),
        }
    }

    /// The server that the object belongs to, if somebody has initialised it. The first call reads
    /// one row and brings an older schema up to date; should that fail, the next call tries again.
    pub fn open(&self) -> Result<Option<ServerId>> {
        if matches!(*self.opened.borrow(), Opened::NotYet) {
            let opened = match self.run(migrate::read)? {
                None => Opened::Empty,
                Some(server) => {
                    self.clock.restore(server.clock_high_at);
                    let (applied, server_id) = (server.schema_version, server.server_id);
                    self.run(|db| migrate::upgrade(db, applied, &server_id, SCHEMA_VERSION))?;
                    Opened::For(server_id)
                }
            };
            self.opened.replace(opened);
        }
        match &*self.opened.borrow() {
            Opened::For(server_id) => {
                self.clock.keep_test(&self.state);
                Ok(Some(server_id.clone()))
            }
            _ => Ok(None),
        }
    }

    /// Makes the object's schema, unless it has one.
    pub fn initialise(&self, server_id: &ServerId) -> Result<()> {
        if self.open()?.is_none() {
            self.run(|db| migrate::initialise(db, server_id))?;
            self.opened.replace(Opened::For(server_id.clone()));
            self.clock.keep_test(&self.state);
        }
        Ok(())
    }

    /// The age of the oldest backlog, as JSON; an object that nobody has initialised has none.
    pub async fn backlog_age(&self) -> Result<Answer> {
        let age_ms = if self.open()?.is_none() {
            0
        } else {
            let alarm_at = self.state.storage().get_alarm().await;
            let alarm_at = alarm_at.map_err(|error| http::thrown(&error))?;
            self.run(|db| health::backlog_age_ms(db, alarm_at))?
        };
        Ok(Answer::json(200, age_ms.to_string()))
    }

    /// Gives the object's storage back. A later request finds it as if nobody had initialised it.
    pub async fn destroy(&self) {
        self.opened.replace(Opened::NotYet);
        let storage = self.state.storage();
        if let Err(error) = storage.delete_all().await {
            worker::console_error!("the emptied store was not given back: {error}");
            return;
        }
        if let Err(error) = storage.delete_alarm().await {
            worker::console_error!("the alarm was not taken away: {error}");
        }
        self.alarm.set(Known::At(None));
    }

    /// What the store has cost this instance so far.
    pub fn cost(&self) -> Cost {
        self.db().cost()
    }

    /// Where a request may use the test hooks, sets the clock as it says; answers what the store
    /// has cost so far, or nothing where it may not.
    pub fn test_hooks(&self, request: &Request) -> worker::Result<Option<Cost>> {
        let headers = request.headers();
        if !self.test_hooks || !headers.has(http::LOOPBACK)? {
            return Ok(None);
        }
        if let Some(text) = headers.get(http::TEST_NOW_MS)? {
            self.clock.set_by_test(&text);
        }
        Ok(Some(self.cost()))
    }

    /// Says what the store has cost since `before`.
    pub fn show_cost(&self, response: Response, before: Option<Cost>) -> worker::Result<Response> {
        if let Some(before) = before {
            let cost = self.cost() - before;
            let headers = response.headers();
            headers.set("X-Test-Rows-Read", &cost.rows_read.to_string())?;
            headers.set("X-Test-Rows-Written", &cost.rows_written.to_string())?;
            headers.set("X-Test-Statements", &cost.statements.to_string())?;
        }
        Ok(response)
    }
}

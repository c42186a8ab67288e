//! What both kinds of object stand on: their store, their clock, and whose they are.
use super::clock::Clock;
use super::config;
use super::http;
use crate::error::Result;
use crate::ids::{ServerId, System};
use crate::store::durable::Durable;
use crate::store::migrate::{self, SCHEMA_VERSION};
use crate::store::{Cost, Db};
use std::cell::RefCell;
use worker::{Env, Request, Response, State};

pub struct Host {
    pub state: State,
    pub clock: Clock,
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
        Host {
            driver: Durable::new(&state),
            state,
            clock: Clock::default(),
            test_hooks: config::test_hooks(env),
            opened: RefCell::new(Opened::NotYet),
        }
    }

    pub fn db(&self) -> Db<'_> {
        Db::new(&self.driver, &System, self.clock.now_ms())
    }

    /// The server that the object belongs to, if somebody has initialised it. The first call reads
    /// one row and brings an older schema up to date; should that fail, the next call tries again.
    pub fn open(&self) -> Result<Option<ServerId>> {
        if matches!(*self.opened.borrow(), Opened::NotYet) {
            let opened = match migrate::read(&self.db())? {
                None => Opened::Empty,
                Some(server) => {
                    self.clock.at_least(server.clock_high_at);
                    if self.test_hooks {
                        self.clock.restore_test(&self.state);
                    }
                    let (applied, server_id) = (server.schema_version, server.server_id);
                    migrate::upgrade(&self.db(), applied, &server_id, SCHEMA_VERSION)?;
                    Opened::For(server_id)
                }
            };
            self.opened.replace(opened);
        }
        Ok(match &*self.opened.borrow() {
            Opened::For(server_id) => Some(server_id.clone()),
            _ => None,
        })
    }

    /// Makes the object's schema, unless it has one.
    pub fn initialise(&self, server_id: &ServerId) -> Result<()> {
        if self.open()?.is_none() {
            migrate::initialise(&self.db(), server_id)?;
            self.opened.replace(Opened::For(server_id.clone()));
            if self.clock.is_by_test() {
                self.clock.keep_test(&self.state);
            }
        }
        Ok(())
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
            if matches!(*self.opened.borrow(), Opened::For(_)) {
                self.clock.keep_test(&self.state);
            }
        }
        Ok(Some(self.db().cost()))
    }

    /// Says what the store has cost since `before`.
    pub fn show_cost(&self, response: Response, before: Option<Cost>) -> worker::Result<Response> {
        if let Some(before) = before {
            let cost = self.db().cost() - before;
            let headers = response.headers();
            headers.set("X-Test-Rows-Read", &cost.rows_read.to_string())?;
            headers.set("X-Test-Rows-Written", &cost.rows_written.to_string())?;
            headers.set("X-Test-Statements", &cost.statements.to_string())?;
        }
        Ok(response)
    }
}

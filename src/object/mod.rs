//! The Durable Objects: the only async code. [`Team`] holds teams, [`Directory`] says which there
//! are. An event opens the store, calls the core and acts on what it answers.
mod alarm;
mod clock;
pub mod config;
mod directory;
mod host;
pub mod http;

use crate::api::{self, Answer, Chunks, Config, Job, Plane, Reply};
use crate::domain::{registry::MakeTeam, teams};
use crate::error::{Error, Result};
use crate::ids::ServerId;
use crate::json;
use crate::maintain::Runner;
use crate::rate::RateLimiter;
use crate::store::migrate;
use futures_util::stream;
use host::Host;
use http::Head;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use worker::{
    Delay, DurableObject, Env, Request, Response, ResponseBuilder, State, durable_object,
};

pub use directory::Directory;

/// Where the Directory has a team made. The edge forwards nothing that is not below `/v1`.
const MAKE_TEAM: &str = "/internal/teams";

#[durable_object]
pub struct Team {
    /// Shared with bodies that are still being sent.
    object: Rc<Object>,
}

impl std::panic::UnwindSafe for Team {}
impl std::panic::RefUnwindSafe for Team {}

struct Object {
    host: Host,
    config: Config,
    limiter: RefCell<RateLimiter>,
    /// The retention pass under way.
    runner: Rc<RefCell<Runner>>,
    /// Whether this instance has seen to its alarm.
    armed: Cell<bool>,
}

impl DurableObject for Team {
    fn new(state: State, env: Env) -> Team {
        let object = Object {
            host: Host::new(state, &env),
            config: config::read(&env),
            limiter: RefCell::default(),
            runner: Rc::default(),
            armed: Cell::new(false),
        };
        Team { object: Rc::new(object) }
    }

    async fn fetch(&self, mut request: Request) -> worker::Result<Response> {
        let object = &self.object;
        let head = Head::read(&request)?;
        let opened = object.host.open();
        let before = object.host.test_hooks(&request)?;
        let body = http::body(&mut request).await?;
        let answer = match opened {
            Err(error) => Answer::refusal(error, &head.request_id),
            _ if head.path == MAKE_TEAM => object.make_team(&head, &body.unwrap_or_default()),
            Ok(None) => Answer::refusal(Error::unauthenticated(), &head.request_id),
            Ok(Some(server_id)) => object.answer(&server_id, &head, body.as_deref()).await,
        };
        if !object.armed.replace(true) {
            alarm::arm(object).await;
        }
        let response = http::response(answer, &head.request_id, |builder, chunks| {
            object.clone().send(builder, chunks, head.request_id.clone())
        })?;
        object.host.show_cost(response, before)
    }

    async fn alarm(&self) -> worker::Result<Response> {
        alarm::run(&self.object).await;
        Response::empty()
    }
}

impl Object {
    async fn answer(&self, server_id: &ServerId, head: &Head, body: Option<&[u8]>) -> Answer {
        let reply = {
            let (db, config, limiter) = (self.host.db(), &self.config, &self.limiter);
            let plane = Plane { db, server_id, config, limiter, runner: &self.runner };
            api::handle(&plane, &head.with_body(body))
        };
        match reply {
            Reply::Answer(answer) => answer,
            Reply::Job(job) => {
                let done = self.work(job).await;
                done.unwrap_or_else(|error| Answer::refusal(error, &head.request_id))
            }
        }
    }

    /// Does a job slice by slice. Waiting between two commits the slice and lets other requests in.
    async fn work(&self, mut job: Job) -> Result<Answer> {
        loop {
            if let Some(answer) = job(&self.host.db())? {
                return Ok(answer);
            }
            Delay::from(Duration::ZERO).await;
        }
    }

    /// Sends a body chunk by chunk, each made when the reader asks for it.
    fn send(
        self: Rc<Self>,
        builder: ResponseBuilder,
        chunks: Chunks,
        request_id: String,
    ) -> worker::Result<Response> {
        let body = stream::try_unfold(chunks, move |mut chunks| {
            let (object, request_id) = (self.clone(), request_id.clone());
            async move {
                Delay::from(Duration::ZERO).await;
                match chunks(&object.host.db()) {
                    Ok(chunk) => Ok(chunk.map(|bytes| (bytes, chunks))),
                    Err(error) => {
                        worker::console_error!("{request_id}: {}", error.message);
                        Err(worker::Error::from(error.code.text()))
                    }
                }
            }
        });
        builder.from_stream(Box::pin(body))
    }

    /// `POST /internal/teams` makes a team on behalf of the Directory, and the store for it.
    fn make_team(&self, head: &Head, body: &[u8]) -> Answer {
        let make = || {
            let wanted: MakeTeam = json::body(body)?;
            self.host.initialise(&wanted.server_id)?;
            let db = self.host.db();
            api::room(&db, &self.config)?;
            let created = db.transaction(|tx| {
                migrate::store_clock(tx)?;
                teams::create(tx, &wanted.team_id, &wanted.team)
            })?;
            serde_json::to_string(&created).map_err(|e| Error::internal(e.to_string()))
        };
        match make() {
            Ok(created) => Answer::json(201, created),
            Err(error) => Answer::refusal(error, &head.request_id),
        }
    }
}

//! The Durable Objects: the only async code. [`Team`] holds teams, [`directory::Directory`] says
//! which there are. An event opens the store, calls the core and acts on what it answers.
mod alarm;
mod clock;
pub mod config;
mod directory;
mod host;
pub mod http;

use crate::api::{self, Answer, Chunks, Config, Job, Plane, Reply};
use crate::domain::registry::{DeleteTeam, MakeTeam};
use crate::domain::{team_removal, teams};
use crate::error::{Error, Result};
use crate::json;
use crate::rate::RateLimiter;
use crate::store::migrate;
use futures_util::stream;
use host::Host;
use http::Head;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use worker::{
    Delay, DurableObject, Env, FixedLengthStream, Request, Response, ResponseBuilder, State,
    durable_object, worker_sys,
};

/// Where the Directory has a team made, and deleted. The edge forwards nothing to a team's object
/// that is not below `/v1`.
const MAKE_TEAM: &str = "/internal/teams";
const DELETE_TEAM: &str = "/internal/teams/delete";

/// Where the edge says that an owner has deleted the team whose id follows.
pub const TEAM_DELETED: &str = "/internal/deleted-teams/";

/// Where the edge asks an object how it is.
pub const BACKLOG_AGE: &str = "/internal/backlog-age";

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
}

impl DurableObject for Team {
    fn new(state: State, env: Env) -> Team {
        let object = Object {
            host: Host::new(state, &env),
            config: config::read(&env),
            limiter: RefCell::default(),
        };
        Team { object: Rc::new(object) }
    }

    async fn fetch(&self, mut request: Request) -> worker::Result<Response> {
        let object = &self.object;
        let head = Head::read(&request)?;
        let before = object.host.test_hooks(&request)?;
        let written = object.host.cost().rows_written;
        let answer = object.answer(&head, &mut request).await;
        let answer = answer.unwrap_or_else(|error| Answer::refusal(error, &head.request_id));
        alarm::see_to(&object.host, object.host.cost().rows_written > written).await;
        let length = http::length(&answer);
        let response = http::response(answer, &head.request_id, |builder, chunks| {
            object.clone().send(builder, chunks, length, head.request_id.clone())
        })?;
        object.host.show_cost(response, before)
    }

    async fn alarm(&self) -> worker::Result<Response> {
        let host = &self.object.host;
        alarm::run(host).await;
        // Its last team was deleted and emptied, so the object goes too.
        if !host.clock.is_by_test() && matches!(host.open(), Ok(Some(_))) {
            match host.run(team_removal::is_last_gone) {
                Ok(true) => host.destroy().await,
                Ok(false) => {}
                Err(error) => worker::console_error!("who is left? {}", error.message),
            }
        }
        Response::empty()
    }
}

impl Object {
    async fn answer(&self, head: &Head, request: &mut Request) -> Result<Answer> {
        if head.path == MAKE_TEAM {
            let body = http::body(request).await?;
            return self.make_team(&body.unwrap_or_default());
        }
        if head.path == BACKLOG_AGE {
            return self.host.backlog_age().await;
        }
        let Some(server_id) = self.host.open()? else { return Err(Error::unauthenticated()) };
        if head.path == DELETE_TEAM {
            let body = http::body(request).await?;
            let wanted: DeleteTeam = json::body(&body.unwrap_or_default())?;
            return self.host.run(|db| {
                db.transaction(|tx| {
                    team_removal::delete_for_operator(tx, &wanted.team_id, &wanted.confirmed)
                })?;
                Ok(Answer { status: 202, ..Answer::default() })
            });
        }
        let body = http::body(request).await?;
        let reply = self.host.run(|db| {
            let (config, limiter, runner) = (&self.config, &self.limiter, &self.host.runner);
            let plane = Plane { db: *db, server_id: &server_id, config, limiter, runner };
            Ok(api::handle(&plane, &head.with_body(body.as_deref())))
        })?;
        match reply {
            Reply::Answer(answer) => Ok(answer),
            Reply::Job(job) => self.work(job).await,
        }
    }

    /// Does a job slice by slice. Waiting between two commits the slice and lets other requests in.
    async fn work(&self, mut job: Job) -> Result<Answer> {
        loop {
            if let Some(answer) = self.host.run(&mut job)? {
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
        length: Option<u64>,
        request_id: String,
    ) -> worker::Result<Response> {
        let body = stream::try_unfold(chunks, move |mut chunks| {
            let (object, request_id) = (self.clone(), request_id.clone());
            async move {
                Delay::from(Duration::ZERO).await;
                match object.host.run(&mut chunks) {
                    Ok(chunk) => Ok(chunk.map(|bytes| (bytes, chunks))),
                    Err(error) => {
                        worker::console_error!("{request_id}: {}", error.message);
                        Err(worker::Error::from(error.code.text()))
                    }
                }
            }
        });
        let body = Box::pin(body);
        // The platform drops `Content-Length` unless the stream itself has a length.
        let Some(length) = length else { return builder.from_stream(body) };
        let fixed: worker_sys::FixedLengthStream = FixedLengthStream::wrap(body, length).into();
        Ok(builder.stream(fixed.readable()))
    }

    /// `POST /internal/teams` makes a team on behalf of the Directory, and the store for it.
    fn make_team(&self, body: &[u8]) -> Result<Answer> {
        let wanted: MakeTeam = json::body(body)?;
        self.host.initialise(&wanted.server_id)?;
        let created = self.host.run(|db| {
            api::room(db, &self.config)?;
            db.transaction(|tx| {
                migrate::store_clock(tx)?;
                teams::create(tx, &wanted.team_id, &wanted.team)
            })
        })?;
        let body = serde_json::to_string(&created).map_err(|e| Error::internal(e.to_string()))?;
        Ok(Answer::json(201, body))
    }
}

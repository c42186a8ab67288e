//! The Durable Objects: the only async code. [`Team`] holds teams, [`directory::Directory`] says
//! which there are. An event opens the store, calls the core and acts on what it answers.
mod alarm;
mod clock;
pub mod config;
mod directory;
mod host;
pub mod http;
mod intake;
mod sockets;

use crate::api::{self, Answer, Body, Chunks, Config, Job, Plane, Reply};
use crate::domain::registry::{DeleteTeam, MakeTeam};
use crate::domain::{links, team_removal, teams};
use crate::error::{Code, Error, Result};
use crate::json;
use crate::rate::RateLimiter;
use crate::store::migrate;
use futures_util::stream;
use host::Host;
use http::Head;
use intake::Append;
use sockets::{BROKEN, Sockets};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use worker::{
    Delay, DurableObject, Env, FixedLengthStream, Request, Response, ResponseBuilder, State,
    WebSocket, WebSocketIncomingMessage, durable_object, worker_sys,
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
    sockets: Sockets,
}

impl DurableObject for Team {
    fn new(state: State, env: Env) -> Team {
        let object = Object {
            host: Host::new(state, &env),
            config: config::read(&env),
            limiter: RefCell::default(),
            sockets: Sockets::default(),
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
        let response = object.respond(answer, &head)?;
        object.after(written).await;
        object.host.show_cost(response, before)
    }

    async fn alarm(&self) -> worker::Result<Response> {
        let Object { host, sockets, .. } = &*self.object;
        alarm::run(host, || {
            sockets.begin(host)?;
            sockets.tend(host, true);
            Ok(())
        })
        .await;
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

    async fn websocket_message(
        &self,
        socket: WebSocket,
        message: WebSocketIncomingMessage,
    ) -> worker::Result<()> {
        let object = &self.object;
        let written = object.host.cost().rows_written;
        object.receive(&socket, message);
        object.after(written).await;
        Ok(())
    }

    async fn websocket_close(
        &self,
        socket: WebSocket,
        code: usize,
        reason: String,
        _was_clean: bool,
    ) -> worker::Result<()> {
        self.object.closed(&socket, u16::try_from(code).unwrap_or(BROKEN), &reason).await;
        Ok(())
    }

    async fn websocket_error(&self, socket: WebSocket, _: worker::Error) -> worker::Result<()> {
        self.object.closed(&socket, BROKEN, "").await;
        Ok(())
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
        if self.host.open()?.is_none() {
            return Err(Error::unauthenticated());
        }
        if head.path == DELETE_TEAM {
            let body = http::body(request).await?;
            let wanted: DeleteTeam = json::body(&body.unwrap_or_default())?;
            return self.run(|plane| {
                plane.db.transaction(|tx| {
                    team_removal::delete_for_operator(tx, &wanted.team_id, &wanted.confirmed)
                })?;
                Ok(Answer { status: 202, ..Answer::default() })
            });
        }
        let append = Append::enter(&self.host, head)?;
        let body = http::body(request).await?;
        let reply = self.run(|plane| Ok(api::handle(plane, &head.with_body(body.as_deref()))))?;
        match reply {
            Reply::Answer(answer) => {
                if let Some(append) = append {
                    append.answered(&answer);
                }
                Ok(answer)
            }
            Reply::Job(job) => self.work(job).await,
        }
    }

    /// Runs a piece of the core, if somebody has initialised this object.
    fn run<T>(&self, work: impl FnOnce(&Plane) -> Result<T>) -> Result<T> {
        let Some(server_id) = self.host.open()? else { return Err(Error::unauthenticated()) };
        self.sockets.begin(&self.host)?;
        self.host.run(|db| {
            let (config, limiter, runner) = (&self.config, &self.limiter, &self.host.runner);
            work(&Plane { db: *db, server_id: &server_id, config, limiter, runner })
        })
    }

    /// Ends every event but the alarm: `written` is what the store had cost before it.
    async fn after(&self, written: u64) {
        let wrote = self.host.cost().rows_written > written;
        self.sockets.tend(&self.host, wrote);
        alarm::see_to(&self.host, wrote).await;
    }

    fn receive(&self, socket: &WebSocket, message: WebSocketIncomingMessage) {
        let Some(link) = sockets::live(socket) else { return };
        let answer = match message {
            WebSocketIncomingMessage::String(frame) => {
                self.run(|plane| links::receive(plane, &link, &frame))
            }
            WebSocketIncomingMessage::Binary(_) => {
                Err(Error::new(Code::InvalidRequest, "a frame is a text"))
            }
        };
        sockets::answer(&self.host, socket, &link, answer);
    }

    async fn closed(&self, socket: &WebSocket, code: u16, reason: &str) {
        let written = self.host.cost().rows_written;
        // Here the links that are held are compared with the store's.
        if let Err(error) = self.run(|_| Ok(())) {
            worker::console_error!("a link closed, and the store did not open: {}", error.message);
        }
        let given_up_at = sockets::closed(&self.host, socket, code, reason);
        self.after(written).await;
        if let Some(at) = given_up_at {
            alarm::bring_forward(&self.host, at).await;
        }
    }

    /// An answer as a response; a link begins here.
    fn respond(self: &Rc<Self>, answer: Answer, head: &Head) -> worker::Result<Response> {
        if let Body::Link(link) = &answer.body {
            let opened = self.sockets.open(&self.host, link).and_then(|response| {
                response.headers().set(http::REQUEST_ID, &head.request_id)?;
                Ok(response)
            });
            return opened.or_else(|error| {
                sockets::lose(&self.host, link, BROKEN);
                http::refusal(http::thrown(&error), &head.request_id)
            });
        }
        let length = http::length(&answer);
        http::response(answer, &head.request_id, |builder, chunks| {
            self.clone().send(builder, chunks, length, head.request_id.clone())
        })
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

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
mod watchers;
mod webhooks;

use crate::api::{self, Answer, Body, Chunks, Config, Intake, Job, Plane, Reply};
use crate::domain::registry::{AskAfter, DeleteTeam, MakeTeam};
use crate::domain::{links, team_removal, teams};
use crate::error::{Code, Error, Result};
use crate::json;
use crate::limits::LINK_GRACE_MS;
use crate::rate::RateLimiter;
use crate::store::migrate;
use futures_util::{TryStreamExt, stream};
use host::Host;
use http::Head;
use intake::Append;
use sockets::{BROKEN, Held, Sockets};
use std::cell::RefCell;
use std::ops::Not;
use std::rc::Rc;
use std::time::Duration;
use webhooks::Webhooks;
use worker::{
    Delay, DurableObject, Env, FixedLengthStream, Request, Response, ResponseBuilder, State,
    WebSocket, WebSocketIncomingMessage, durable_object, worker_sys,
};

/// Where the Directory has a team made, and deleted. The edge forwards nothing to a team's object
/// that is not below `/v1`.
const MAKE_TEAM: &str = "/internal/teams";
const DELETE_TEAM: &str = "/internal/teams/delete";
/// Where the Directory asks whether a team is still there.
const ASK_AFTER: &str = "/internal/teams/ask";

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
    webhooks: Webhooks,
}

impl DurableObject for Team {
    fn new(state: State, env: Env) -> Team {
        let object = Object {
            host: Host::new(state, &env),
            config: config::read(&env),
            limiter: RefCell::default(),
            sockets: Sockets::default(),
            webhooks: Webhooks::new(&env),
        };
        Team { object: Rc::new(object) }
    }

    async fn fetch(&self, mut request: Request) -> worker::Result<Response> {
        let object = &self.object;
        let head = Head::read(&request)?;
        let before = object.host.test_hooks(&request)?;
        let written = object.host.cost().rows_written;
        let drains = object.is_a_tests_pass(&head);
        if drains {
            object.start_deliveries();
            object.drain_deliveries().await;
        }
        let answer = object.answer(&head, &mut request).await;
        let answer = answer.unwrap_or_else(|error| Answer::refusal(error, &head.request_id));
        let response = object.respond(answer, &head)?;
        object.after(written).await;
        if drains {
            object.drain_deliveries().await;
        }
        object.host.show_cost(response, before)
    }

    async fn alarm(&self) -> worker::Result<Response> {
        let object = &self.object;
        let Object { host, sockets, .. } = &**object;
        alarm::run(host, async || {
            object.start_deliveries();
            sockets.begin(host)?;
            sockets.tend(host, true).await;
            Ok(())
        })
        .await;
        // The pass has its events too.
        sockets.tend(host, true).await;
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
            // Whoever asks after a team learns that it is gone.
            return match head.path.as_str() {
                ASK_AFTER => Ok(Answer::json(200, "true".into())),
                _ => Err(Error::unauthenticated()),
            };
        }
        if head.path == ASK_AFTER {
            let body = http::body(request).await?;
            let asked: AskAfter = json::body(&body.unwrap_or_default())?;
            let is_gone =
                self.run(|plane| plane.db.transaction(|tx| team_removal::ask_after(tx, &asked)))?;
            return Ok(Answer::json(200, is_gone.to_string()));
        }
        if head.path == DELETE_TEAM {
            let body = http::body(request).await?;
            let wanted: DeleteTeam = json::body(&body.unwrap_or_default())?;
            return self.run(|plane| {
                let DeleteTeam { team_id, confirmed } = &wanted;
                plane.db.transaction(|tx| {
                    team_removal::delete_for_operator(tx, team_id, confirmed, &head.request_id)
                })?;
                Ok(Answer { status: 202, ..Answer::default() })
            });
        }
        let append = Append::enter(&self.host, head)?;
        let body = if head.is_streamed() {
            http::is_too_large(request)?.not().then(Vec::new)
        } else {
            http::body(request).await?
        };
        if head.path == api::INSTALL {
            return self.run(|plane| Ok(api::install(plane, &head.with_body(body.as_deref()))));
        }
        let reply = self.run(|plane| Ok(api::handle(plane, &head.with_body(body.as_deref()))))?;
        match reply {
            Reply::Answer(answer) => {
                if let Some(append) = append {
                    append.answered(&answer);
                }
                Ok(answer)
            }
            Reply::Job(job) => self.work(job).await,
            Reply::Intake(intake) => self.take_in(intake, request).await,
        }
    }

    /// Hands a body to the core as it comes. Where it breaks off, what is stored of it is left to
    /// retention.
    async fn take_in(&self, mut intake: Intake, request: &mut Request) -> Result<Answer> {
        if request.inner().body().is_some() {
            let mut pieces = request.stream().map_err(|error| http::thrown(&error))?;
            while let Some(piece) = pieces.try_next().await.map_err(http::broken_off)? {
                self.host.run(|db| intake(db, Some(&piece)))?;
            }
        }
        let answer = self.host.run(|db| intake(db, None))?;
        answer.ok_or_else(|| Error::internal("a body came to its end unanswered"))
    }

    /// Runs a piece of the core, if somebody has initialised this object.
    fn run<T>(&self, work: impl FnOnce(&Plane) -> Result<T>) -> Result<T> {
        let Some(server_id) = self.host.open()? else { return Err(Error::unauthenticated()) };
        self.sockets.begin(&self.host)?;
        self.host.run(|db| {
            let Object { config, limiter, host, sockets, .. } = self;
            let (runner, live) = (&host.runner, &sockets.live);
            work(&Plane { db: *db, server_id: &server_id, config, limiter, runner, live })
        })
    }

    /// Ends every event but the alarm: `written` is what the store had cost before it.
    async fn after(self: &Rc<Self>, written: u64) {
        let wrote = self.host.cost().rows_written > written;
        self.sockets.tend(&self.host, wrote).await;
        alarm::see_to(&self.host, wrote).await;
        let expire_at = self.host.runner.borrow().outside.sockets_expire_at;
        if let Some(at) = expire_at {
            alarm::bring_forward(&self.host, at).await;
        }
        if wrote {
            self.tend_deliveries().await;
        }
    }

    /// Whether a test that stopped the clock runs a pass. Deliveries are then waited for, so that
    /// the test finds what became of them; nothing else would send those that are due by then.
    fn is_a_tests_pass(&self, head: &Head) -> bool {
        self.host.clock.is_by_test()
            && head.method == "POST"
            && head.path.ends_with("/maintain")
            && matches!(self.host.open(), Ok(Some(_)))
    }

    fn receive(&self, socket: &WebSocket, message: WebSocketIncomingMessage) {
        let link = match sockets::live(socket) {
            None => return,
            Some(Held::Watch(watch)) => {
                // Opens the store first, if this instance is new.
                let opened = self.run(|_| Ok(()));
                return match opened {
                    Ok(()) => watchers::asked(&self.sockets, &self.host, socket, watch),
                    Err(error) => worker::console_error!("a stream waits: {}", error.message),
                };
            }
            Some(Held::Link(link)) => link,
        };
        let answer = match message {
            WebSocketIncomingMessage::String(frame) => {
                self.run(|plane| links::receive(plane, &link, &frame))
            }
            WebSocketIncomingMessage::Binary(_) => {
                Err(Error::new(Code::InvalidRequest, "a frame is a text"))
            }
        };
        self.sockets.answer(&self.host, socket, link, answer);
    }

    async fn closed(self: &Rc<Self>, socket: &WebSocket, code: u16, reason: &str) {
        let written = self.host.cost().rows_written;
        // Here the links that are held are compared with the store's.
        if let Err(error) = self.run(|_| Ok(())) {
            worker::console_error!("a link closed, and the store did not open: {}", error.message);
        }
        let is_lost = self.sockets.closed(&self.host, socket, code, reason);
        self.after(written).await;
        if is_lost {
            let given_up_at = self.host.clock.now_ms() + LINK_GRACE_MS;
            alarm::bring_forward(&self.host, given_up_at).await;
        }
    }

    /// An answer as a response; a link or a stream begins here.
    fn respond(self: &Rc<Self>, answer: Answer, head: &Head) -> worker::Result<Response> {
        let opened = match &answer.body {
            Body::Link(link) => {
                let opened = self.sockets.open_link(&self.host, link.clone());
                opened.inspect_err(|_| sockets::lose(&self.host, link, BROKEN))
            }
            Body::Watch(watch) => watchers::open(&self.sockets, &self.host, watch.clone()),
            _ => return self.respond_with(answer, head),
        };
        match opened {
            Ok(response) => {
                response.headers().set(http::REQUEST_ID, &head.request_id)?;
                Ok(response)
            }
            Err(error) => http::refusal(error, &head.request_id),
        }
    }

    fn respond_with(self: &Rc<Self>, answer: Answer, head: &Head) -> worker::Result<Response> {
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
        let body = json::to_string(&created)?;
        Ok(Answer::json(201, body))
    }
}

//! The HTTP API: every endpoint on one line, and the order in which a request may be refused:
//! route, method, token, team, rate, media type, size; then the handler's fields, role,
//! existence, precondition, state.
pub use crate::answer::{Answer, Body, Chunks, Job, Reply};
use crate::auth::{self, Kind, Principal, Token};
pub use crate::call::{Call, Config, Envelope, HEADERS, Request};
use crate::domain::{
    attachments, capture_commit, capture_parts, captures, claims, configuration, continuation_list,
    continuations, credentials, effects, event_log, grants, groups, heartbeat, idempotency,
    journal, links, machines, members, message_pages, operation_calls, presence_log, roots, rules,
    run_append, run_removal, runs, session_export, session_list, session_versions, sessions,
    sources, team_removal, teams, upload_chunks, upload_commit, upload_content, uploads,
};
use crate::error::{Code, Error, Result};
use crate::ids::{Id, ServerId, TeamId};
use crate::limits::{
    CHUNK_BYTES_MAX, HEARTBEAT_BYTES_MAX, HEARTBEAT_TENTHS, JSON_BYTES_MAX, PART_BYTES_MAX,
    RATE_TENTHS, STORE_FULL_PERCENT, URL_BYTES_MAX, WIPE_RETRY_S,
};
use crate::maintain;
use crate::rate::RateLimiter;
use crate::scopes::{CAPTURES_WRITE, EVENTS_READ, RUNS_READ, RUNS_WRITE, SESSIONS_READ};
use crate::store::{Db, Tx};
use percent_encoding::percent_decode_str;
use std::cell::RefCell;
use std::rc::Rc;

type Read = fn(&Db, &Call) -> Result<Answer>;
type Write = fn(&Tx, &Call) -> Result<Answer>;
type Long = fn(&Db, &Call) -> Result<Job>;

#[derive(Clone, Copy)]
pub enum Run {
    /// Outside a transaction; may open one.
    Read(Read),
    /// In a transaction.
    Write(Write),
    /// In a transaction, and repeated by its `Idempotency-Key`.
    Create(Write),
    /// In slices, each of which may open a transaction.
    Long(Long),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Payload {
    None,
    Json(usize),
    Bytes(usize),
}

impl Payload {
    pub fn bytes_max(self) -> usize {
        match self {
            Payload::None => JSON_BYTES_MAX,
            Payload::Json(bytes_max) | Payload::Bytes(bytes_max) => bytes_max,
        }
    }
}

pub struct Route {
    pub method: &'static str,
    /// Below `/v1/teams/{team}`.
    pub path: &'static str,
    pub payload: Payload,
    run: Run,
    /// Whether it takes query parameters; elsewhere each is refused.
    query: bool,
    /// What it takes from the rate limit, in tenths of a request.
    tenths: i64,
    /// Whether it may make the store grow; refused when the store is nearly full.
    grows: bool,
    /// Whether apps may call it: never, or with any one of these scopes; none is asked if empty.
    pub apps: Option<&'static [&'static str]>,
}

impl Route {
    /// Opens the route to apps that hold any one of `scopes`; to every app if there are none.
    ///
    /// The handler refuses the others where it is their turn. Should it forget to, [`answer`]
    /// takes back what it did.
    const fn apps(self, scopes: &'static [&'static str]) -> Route {
        Route { apps: Some(scopes), ..self }
    }

    fn admits(&self, who: &Principal) -> Result<()> {
        let holds = |scope: &&str| who.scopes.iter().any(|held| held == scope);
        match self.apps {
            _ if who.kind != Kind::App => Ok(()),
            None => Err(Error::forbidden("no app may do this")),
            Some(scopes) if scopes.is_empty() || scopes.iter().any(holds) => Ok(()),
            Some(scopes) => {
                Err(Error::forbidden(format!("this needs the scope {}", scopes.join(" or "))))
            }
        }
    }
}

const fn route(method: &'static str, path: &'static str, payload: Payload, run: Run) -> Route {
    let (tenths, query, grows, apps) = (RATE_TENTHS, false, true, None);
    Route { method, path, payload, run, query, tenths, grows, apps }
}
const fn get(path: &'static str, run: Read) -> Route {
    Route { grows: false, ..route("GET", path, Payload::None, Run::Read(run)) }
}
/// A GET with query parameters.
const fn find(path: &'static str, run: Read) -> Route {
    Route { query: true, ..get(path, run) }
}
const fn create(path: &'static str, run: Write) -> Route {
    route("POST", path, Payload::Json(JSON_BYTES_MAX), Run::Create(run))
}
const fn post(path: &'static str, run: Write) -> Route {
    route("POST", path, Payload::Json(JSON_BYTES_MAX), Run::Write(run))
}
const fn set(path: &'static str, payload: Payload, run: Write) -> Route {
    route("PUT", path, payload, Run::Write(run))
}
/// A piece of something large, which counts a tenth.
const fn put(path: &'static str, payload: Payload, run: Write) -> Route {
    Route { tenths: 1, ..set(path, payload, run) }
}
/// Changes grow next to nothing, and one of them shortens what a full team keeps.
const fn patch(path: &'static str, run: Write) -> Route {
    let payload = Payload::Json(JSON_BYTES_MAX);
    Route { grows: false, ..route("PATCH", path, payload, Run::Write(run)) }
}
const fn delete(path: &'static str, run: Write) -> Route {
    Route { grows: false, ..route("DELETE", path, Payload::None, Run::Write(run)) }
}
/// Changes that make the store smaller, with a body that confirms them.
const fn end(path: &'static str, run: Write) -> Route {
    Route { payload: Payload::Json(JSON_BYTES_MAX), ..delete(path, run) }
}
const fn empty(path: &'static str, run: Write) -> Route {
    Route { grows: false, ..post(path, run) }
}
const fn long(method: &'static str, path: &'static str, run: Long) -> Route {
    route(method, path, Payload::Json(JSON_BYTES_MAX), Run::Long(run))
}
/// As `long`, where a full store is no obstacle.
const fn long_upkeep(method: &'static str, path: &'static str, run: Long) -> Route {
    Route { grows: false, ..long(method, path, run) }
}

/// A heartbeat, which a full store takes too.
const fn beat(path: &'static str, run: Write) -> Route {
    let payload = Payload::Json(HEARTBEAT_BYTES_MAX);
    Route {
        tenths: HEARTBEAT_TENTHS,
        grows: false,
        ..route("POST", path, payload, Run::Write(run))
    }
}

/// A WebSocket, which a full store takes too.
const fn link(path: &'static str, run: Write) -> Route {
    Route { grows: false, ..route("GET", path, Payload::None, Run::Write(run)) }
}

/// A DELETE with query parameters.
const fn discard(path: &'static str, run: Write) -> Route {
    Route { query: true, ..delete(path, run) }
}

const GRANT: Payload = Payload::Json(JSON_BYTES_MAX);
const PART: Payload = Payload::Json(PART_BYTES_MAX);
#[allow(clippy::cast_possible_truncation)] // A small constant.
const CHUNK: Payload = Payload::Bytes(CHUNK_BYTES_MAX as usize);

#[rustfmt::skip] // A table reads best as one.
pub const ROUTES: &[Route] = &[
    get   ("",                                   teams::get).apps(&[]),
    patch ("",                                   teams::change),
    end   ("",                                   team_removal::delete),
    get   ("/me",                                teams::me).apps(&[]),
    find  ("/members",                           members::list).apps(&[SESSIONS_READ]),
    create("/members",                           members::add),
    patch ("/members/{principal}",               members::change),
    delete("/members/{principal}",               members::remove),
    find  ("/groups",                            groups::list).apps(&[SESSIONS_READ]),
    create("/groups",                            groups::create),
    get   ("/groups/{group}",                    groups::get).apps(&[SESSIONS_READ]),
    patch ("/groups/{group}",                    groups::change),
    delete("/groups/{group}",                    groups::delete),
    set   ("/groups/{group}/members/{principal}",    Payload::None, groups::add_member),
    delete("/groups/{group}/members/{principal}",    groups::remove_member),
    find  ("/credentials",                       credentials::list).apps(&[]),
    create("/credentials",                       credentials::create),
    get   ("/credentials/{credential}",          credentials::get).apps(&[]),
    delete("/credentials/{credential}",          credentials::revoke).apps(&[]),
    find  ("/journal",                           journal::list),
    find  ("/sources",                           sources::list).apps(&[SESSIONS_READ, CAPTURES_WRITE]),
    create("/sources",                           sources::create).apps(&[CAPTURES_WRITE]),
    get   ("/sources/{source}",                  sources::get).apps(&[SESSIONS_READ, CAPTURES_WRITE]),
    patch ("/sources/{source}",                  sources::change),
    find  ("/machines",                          machines::list).apps(&[SESSIONS_READ]),
    create("/machines",                          machines::enroll),
    find  ("/machines/events",                   presence_log::list).apps(&[SESSIONS_READ]),
    get   ("/machines/{machine}",                machines::get).apps(&[SESSIONS_READ]),
    delete("/machines/{machine}",                machines::remove),
    beat  ("/machines/{machine}/heartbeat",      heartbeat::post),
    create("/machines/{machine}/token",          credentials::renew),
    get   ("/machines/{machine}/configuration",  configuration::get),
    link  ("/machines/{machine}/link",           links::open),
    find  ("/machines/{machine}/roots",          roots::list),
    find  ("/machines/{machine}/rules",          rules::list),
    create("/machines/{machine}/rules",          rules::create),
    get   ("/machines/{machine}/rules/{rule}",   rules::get),
    patch ("/machines/{machine}/rules/{rule}",   rules::change),
    delete("/machines/{machine}/rules/{rule}",   rules::delete),
    create("/machines/{machine}/operations",     operation_calls::ask_machine),
    post  ("/machines/{machine}/effects/{effect}",   effects::settle),
    create("/captures",                          captures::begin).apps(&[CAPTURES_WRITE]),
    get   ("/captures/{capture}",                captures::get).apps(&[CAPTURES_WRITE]),
    delete("/captures/{capture}",                captures::abort).apps(&[CAPTURES_WRITE]),
    put   ("/captures/{capture}/parts/{index}",  PART, capture_parts::put).apps(&[CAPTURES_WRITE]),
    post  ("/captures/{capture}/commit",         capture_commit::commit).apps(&[CAPTURES_WRITE]),
    find  ("/sessions",                          session_list::list).apps(&[SESSIONS_READ]),
    get   ("/sessions/{session}",                sessions::get).apps(&[SESSIONS_READ]),
    patch ("/sessions/{session}",                sessions::change),
    delete("/sessions/{session}",                sessions::delete),
    find  ("/sessions/{session}/messages",       message_pages::list).apps(&[SESSIONS_READ]),
    find  ("/sessions/{session}/versions",       session_versions::list).apps(&[SESSIONS_READ]),
    find  ("/sessions/{session}/artifacts",      session_versions::artifacts).apps(&[SESSIONS_READ]),
    find  ("/sessions/{session}/grants",         grants::list).apps(&[SESSIONS_READ]),
    get   ("/sessions/{session}/grants/{kind}/{subject}", grants::get).apps(&[SESSIONS_READ]),
    set   ("/sessions/{session}/grants/{kind}/{subject}", GRANT, grants::put),
    delete("/sessions/{session}/grants/{kind}/{subject}", grants::remove),
    get   ("/sessions/{session}/export",         session_export::get).apps(&[SESSIONS_READ]),
    create("/sessions/{session}/continuations",  continuations::create).apps(&[CAPTURES_WRITE]),
    create("/sessions/{session}/attachments",    attachments::create),
    create("/sessions/{session}/operations",     operation_calls::ask_session),
    create("/uploads",                           uploads::create).apps(&[CAPTURES_WRITE]),
    get   ("/uploads/{upload}",                  uploads::get).apps(&[SESSIONS_READ, CAPTURES_WRITE]),
    post  ("/uploads/{upload}/chunks",           upload_chunks::attach).apps(&[CAPTURES_WRITE]),
    put   ("/uploads/{upload}/chunks/{index}",   CHUNK, upload_chunks::put).apps(&[CAPTURES_WRITE]),
    long  ("POST", "/uploads/{upload}/commit",   upload_commit::commit).apps(&[CAPTURES_WRITE]),
    get   ("/uploads/{upload}/content",          upload_content::get).apps(&[SESSIONS_READ, CAPTURES_WRITE]),
    find  ("/continuations",                     continuation_list::list).apps(&[SESSIONS_READ]),
    get   ("/continuations/{continuation}",      continuations::get).apps(&[SESSIONS_READ]),
    post  ("/continuations/{continuation}/accept",   continuations::accept),
    post  ("/continuations/{continuation}/complete", continuations::complete),
    delete("/attachments/{attachment}",          attachments::close).apps(&[SESSIONS_READ]),
    find  ("/operations",                        operation_calls::list).apps(&[SESSIONS_READ]),
    get   ("/operations/{operation}",            operation_calls::get).apps(&[SESSIONS_READ]),
    find  ("/events",                            event_log::list).apps(&[EVENTS_READ]),
    find  ("/events/current",                    event_log::current).apps(&[EVENTS_READ]),
    find  ("/runs",                              runs::list).apps(&[RUNS_READ]),
    create("/runs",                              run_append::open).apps(&[RUNS_WRITE]),
    discard("/runs/{run}",                       run_removal::remove_all),
    find  ("/runs/{run}/events",                 runs::events).apps(&[RUNS_READ]),
    post  ("/runs/{run}/events",                 run_append::append).apps(&[RUNS_WRITE]),
    post  ("/run-events",                        run_append::append_mixed).apps(&[RUNS_WRITE]),
    find  ("/run-changes",                       runs::changes).apps(&[RUNS_READ]),
    empty ("/runs/{run}/delete",                 run_removal::delete).apps(&[RUNS_WRITE]),
    get   ("/runs/{run}/claim",                  claims::get).apps(&[RUNS_READ]),
    post  ("/runs/{run}/claim",                  claims::claim).apps(&[RUNS_WRITE]),
    discard("/runs/{run}/claim",                 claims::release).apps(&[RUNS_WRITE]),
    empty ("/runs/{run}/claim/refresh",          claims::refresh).apps(&[RUNS_WRITE]),
    get   ("/runs/{run}/fenced/{holder}",        claims::fenced).apps(&[RUNS_READ]),
    empty ("/wipe",                              team_removal::wipe),
    get   ("/maintain",                          maintain::api::get),
    long_upkeep("POST", "/maintain",             maintain::api::run),
    get   ("/metrics",                           maintain::api::metrics),
    long_upkeep("GET", "/usage/storage",         maintain::api::storage),
];

/// What every request of an object shares.
pub struct Plane<'a> {
    pub db: Db<'a>,
    pub server_id: &'a ServerId,
    pub config: &'a Config,
    pub limiter: &'a RefCell<RateLimiter>,
    /// The retention pass under way.
    pub runner: &'a Rc<RefCell<maintain::Runner>>,
}

/// A route and the parameters in its path.
pub struct Matched {
    pub route: &'static Route,
    pub team_id: Option<TeamId>,
    segments: Vec<String>,
}

impl Matched {
    /// The `index`th parameter, decoded.
    pub fn segment(&self, index: usize) -> &str {
        self.segments.get(index).map_or("", String::as_str)
    }
}

/// Finds a team route. The team's id may be malformed: that is refused after the token.
pub fn find_route(method: &str, path: &str) -> Result<Matched> {
    if path.len() > URL_BYTES_MAX {
        return Err(Error::not_found());
    }
    let rest = path.strip_prefix("/v1/teams/").ok_or_else(Error::not_found)?;
    let (team, rest) = rest.find('/').map_or((rest, ""), |slash| rest.split_at(slash));
    if team.is_empty() {
        return Err(Error::not_found());
    }
    let mut allowed = Vec::new();
    for route in ROUTES {
        let Some(segments) = segments(route.path, rest) else { continue };
        if route.method == method {
            let segments = segments.into_iter().map(decoded).collect::<Option<_>>();
            let segments = segments.ok_or_else(Error::not_found)?;
            let team_id = decoded(team).and_then(|text| TeamId::parse(&text));
            return Ok(Matched { route, team_id, segments });
        }
        allowed.push(route.method);
    }
    if allowed.is_empty() {
        return Err(Error::not_found());
    }
    let message = format!("{method} is not among this address's methods");
    Err(Error::new(Code::MethodNotAllowed, message).with_header("Allow", allowed.join(", ")))
}

/// The parameters of `path` if it has the pattern's shape.
fn segments<'p>(pattern: &str, path: &'p str) -> Option<Vec<&'p str>> {
    let (mut wanted, mut given) = (pattern.split('/'), path.split('/'));
    let mut found = Vec::new();
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => return Some(found),
            (Some(name), Some(value)) if name.starts_with('{') && !value.is_empty() => {
                found.push(value);
            }
            (Some(literal), Some(value)) if literal == value => {}
            _ => return None,
        }
    }
}

fn decoded(segment: &str) -> Option<String> {
    percent_decode_str(segment).decode_utf8().ok().map(Into::into)
}

/// The refusals that need no object: route, method, a token of the right shape. Whether the token
/// is good, and of the team in the path, its own team's object says.
pub fn admit(request: &Request) -> Result<(Matched, Token)> {
    let matched = find_route(request.method, request.path)?;
    let token = Token::from_header(request.header("authorization"))?;
    Ok((matched, token))
}

/// Answers one request. Never fails: a refusal is an answer too.
pub fn handle(plane: &Plane, request: &Request) -> Reply {
    answer(plane, request)
        .unwrap_or_else(|error| Reply::Answer(Answer::refusal(error, request.request_id)))
}

fn answer(plane: &Plane, request: &Request) -> Result<Reply> {
    let (matched, token) = admit(request)?;
    let (db, route) = (&plane.db, matched.route);
    let who = auth::authenticate(db, &token)?;
    if matched.team_id.as_ref() != Some(&who.team_id) {
        return Err(Error::not_found());
    }
    let per_second = plane.config.rate_limit_per_s;
    plane.limiter.borrow_mut().take(&who.credential_id, db.now_ms, per_second, route.tenths)?;
    let body = request.payload(route.payload)?;
    if !route.query {
        request.no_query()?;
    }
    credentials::touch(db, &who)?;
    let call = Call {
        who,
        config: plane.config,
        request_id: request.request_id,
        runner: plane.runner,
        list_name: route.path,
        server_id: plane.server_id,
        segments: matched.segments,
        request,
        body,
    };
    if route.grows && call.who.team_is_wiped {
        let message = "the team is being wiped; what it makes now would go too";
        return Err(Error::new(Code::Overloaded, message)
            .with_header("Retry-After", WIPE_RETRY_S.to_string()));
    }
    if route.grows {
        room(db, plane.config)?;
    }
    let admitted = |answer| route.admits(&call.who).map(|()| answer);
    match route.run {
        Run::Read(run) => run(db, &call).and_then(admitted).map(Reply::Answer),
        Run::Write(run) => {
            db.transaction(|tx| run(tx, &call).and_then(admitted)).map(Reply::Answer)
        }
        Run::Create(run) => {
            let once = |tx: &Tx| idempotency::once(tx, &call, run).and_then(admitted);
            db.transaction(once).map(Reply::Answer)
        }
        Run::Long(run) => {
            let job = run(db, &call)?;
            route.admits(&call.who).map(|()| Reply::Job(job))
        }
    }
}

/// Whether the store may still grow.
pub fn room(db: &Db, config: &Config) -> Result<()> {
    if db.size_bytes() < config.store_bytes_max / 100 * STORE_FULL_PERCENT {
        return Ok(());
    }
    let message = "the team's store is nearly full; delete sessions or shorten retention";
    Err(Error::new(Code::StorageFull, message))
}

//! The HTTP API: the order in which a request may be refused: route, method, token, team, rate,
//! media type, size; then the handler's fields, role, existence, precondition, state.
pub use crate::answer::{Answer, Body, Chunks, Intake, Job, Reply};
use crate::auth::{self, Token};
pub use crate::call::{Call, Config, Envelope, HEADERS, Request};
use crate::domain::live::Live;
use crate::domain::{app_installs, credentials, idempotency};
use crate::error::{Code, Error, Result};
use crate::ids::{Id, ServerId, TeamId};
use crate::limits::{INSTALL_BYTES_MAX, STORE_FULL_PERCENT, URL_BYTES_MAX, WIPE_RETRY_S};
use crate::maintain;
use crate::rate::RateLimiter;
pub use crate::routes::{Payload, ROUTES, Route, Run};
use crate::store::{Db, Tx};
use percent_encoding::percent_decode_str;
use std::cell::RefCell;
use std::rc::Rc;

/// What every request of an object shares.
pub struct Plane<'a> {
    pub db: Db<'a>,
    pub server_id: &'a ServerId,
    pub config: &'a Config,
    pub limiter: &'a RefCell<RateLimiter>,
    /// The retention pass under way.
    pub runner: &'a Rc<RefCell<maintain::Runner>>,
    /// What goes on between the object's sockets.
    pub live: &'a RefCell<Live>,
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

/// The one address below no team, whose proof is in its body: an install code.
pub const INSTALL: &str = "/v1/apps/install";

/// Answers `POST /v1/apps/install`.
pub fn install(plane: &Plane, request: &Request) -> Answer {
    let body = request.payload(Payload::Json(INSTALL_BYTES_MAX));
    let installed = body.and_then(|body| {
        request.no_query()?;
        room(&plane.db, plane.config)?;
        app_installs::install(plane, request, body)
    });
    installed.unwrap_or_else(|error| Answer::refusal(error, request.request_id))
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
        live: plane.live,
        list_name: route.path,
        server_id: plane.server_id,
        segments: matched.segments,
        request,
        body,
    };
    if route.grows {
        not_busy(&call)?;
    }
    let fits = if route.grows { room(db, plane.config) } else { Ok(()) };
    let admitted = |answer| route.admits(&call.who).map(|()| answer);
    // A full store is the last reason to refuse: it undoes what would have been written.
    let write = |run: &dyn Fn(&Tx) -> Result<Answer>| {
        db.transaction(|tx| {
            let before = tx.cost().rows_written;
            let answer = run(tx).and_then(admitted)?;
            let wrote = tx.cost().rows_written > before && !idempotency::is_replay(&answer);
            if wrote { fits.clone().map(|()| answer) } else { Ok(answer) }
        })
    };
    match route.run {
        Run::Read(run) => run(db, &call).and_then(admitted).map(Reply::Answer),
        Run::Write(run) => write(&|tx| run(tx, &call)).map(Reply::Answer),
        Run::Create(run) => write(&|tx| idempotency::once(tx, &call, run)).map(Reply::Answer),
        Run::Long(run) => {
            let job = run(db, &call)?;
            route.admits(&call.who)?;
            fits.map(|()| Reply::Job(job))
        }
        Run::Take(run) => {
            let intake = run(db, &call)?;
            route.admits(&call.who)?;
            fits.map(|()| Reply::Intake(intake))
        }
    }
}

/// Refuses what would make something in a team that is being emptied or filled.
fn not_busy(call: &Call) -> Result<()> {
    let message = if call.who.team_is_wiped {
        "the team is being wiped; what it makes now would go too"
    } else if call.who.team_is_imported {
        "the team is being imported; send the import's pages to their end, or wipe it"
    } else {
        return Ok(());
    };
    let wait = WIPE_RETRY_S.to_string();
    Err(Error::new(Code::Overloaded, message).with_header("Retry-After", wait))
}

/// Whether the store may still grow.
pub fn room(db: &Db, config: &Config) -> Result<()> {
    if db.size_bytes() < config.store_bytes_max / 100 * STORE_FULL_PERCENT {
        return Ok(());
    }
    let message = "the team's store is nearly full; delete sessions or shorten retention";
    Err(Error::new(Code::StorageFull, message))
}

//! The HTTP API: every endpoint on one line, and the order in which a request may be refused:
//! route, method, token, team, rate, media type, size; then the handler's fields, role,
//! existence, precondition, state.
use crate::auth::{self, Principal, Token};
use crate::domain::{credentials, idempotency, journal, teams};
use crate::error::{Code, Error, Result};
use crate::ids::{Id, PrincipalId, ServerId, TeamId};
use crate::json;
use crate::limits::{
    CHUNK_BYTES_MAX, JSON_BYTES_MAX, PART_BYTES_MAX, RATE_TENTHS, STORE_FULL_PERCENT, URL_BYTES_MAX,
};
use crate::rate::RateLimiter;
use crate::store::{Db, Tx};
use percent_encoding::percent_decode_str;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value as Json, json};
use std::cell::RefCell;

type Read = fn(&Db, &Call) -> Result<Answer>;
type Write = fn(&Tx, &Call) -> Result<Answer>;
type Long = fn(&Db, &Call) -> Result<Job>;
/// Work in bounded slices, with a yield between two: answers when it is done.
pub type Job = Box<dyn FnMut(&Db) -> Result<Option<Answer>>>;
/// A body made in bounded chunks, with a yield between two.
pub type Chunks = Box<dyn FnMut(&Db) -> Result<Option<Vec<u8>>>>;

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
}

const fn route(method: &'static str, path: &'static str, payload: Payload, run: Run) -> Route {
    Route { method, path, payload, run, query: false, tenths: RATE_TENTHS, grows: true }
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
const fn put(path: &'static str, payload: Payload, run: Write) -> Route {
    Route { tenths: 1, ..route("PUT", path, payload, Run::Write(run)) }
}
const fn patch(path: &'static str, run: Write) -> Route {
    route("PATCH", path, Payload::Json(JSON_BYTES_MAX), Run::Write(run))
}
const fn delete(path: &'static str, run: Write) -> Route {
    Route { grows: false, ..route("DELETE", path, Payload::None, Run::Write(run)) }
}
const fn long(method: &'static str, path: &'static str, run: Long) -> Route {
    route(method, path, Payload::Json(JSON_BYTES_MAX), Run::Long(run))
}

const PART: Payload = Payload::Json(PART_BYTES_MAX);
const CHUNK: Payload = Payload::Bytes(CHUNK_BYTES_MAX as usize);

#[rustfmt::skip] // A table reads best as one.
pub const ROUTES: &[Route] = &[
    get   ("",                                   teams::get),
//    patch ("",                                   teams::change),
//    get   ("/me",                                teams::me),
//    find  ("/members",                           members::list),
//    create("/members",                           members::add),
//    patch ("/members/{principal}",               members::change),
//    delete("/members/{principal}",               members::remove),
//    find  ("/credentials",                       credentials::list),
//    create("/credentials",                       credentials::create),
//    get   ("/credentials/{credential}",          credentials::get),
//    delete("/credentials/{credential}",          credentials::revoke),
    find  ("/journal",                           journal::list),
//    find  ("/sources",                           sources::list),
//    create("/sources",                           sources::create),
//    get   ("/sources/{source}",                  sources::get),
//    patch ("/sources/{source}",                  sources::change),
//    find  ("/machines",                          machines::list),
//    create("/machines",                          machines::enroll),
//    get   ("/machines/{machine}",                machines::get),
//    create("/captures",                          captures::begin),
//    get   ("/captures/{capture}",                captures::get),
//    delete("/captures/{capture}",                captures::abort),
//    put   ("/captures/{capture}/parts/{index}",  PART, captures::put_part),
//    post  ("/captures/{capture}/commit",         captures::commit),
//    find  ("/sessions",                          session_list::list),
//    get   ("/sessions/{session}",                sessions::get),
//    patch ("/sessions/{session}",                sessions::change),
//    delete("/sessions/{session}",                sessions::delete),
//    find  ("/sessions/{session}/messages",       message_pages::list),
//    find  ("/sessions/{session}/versions",       sessions::versions),
//    find  ("/sessions/{session}/artifacts",      sessions::artifacts),
//    create("/uploads",                           uploads::create),
//    get   ("/uploads/{upload}",                  uploads::get),
//    post  ("/uploads/{upload}/chunks",           uploads::attach),
//    put   ("/uploads/{upload}/chunks/{index}",   CHUNK, uploads::put_chunk),
//    long  ("POST", "/uploads/{upload}/commit",   uploads::commit),
//    get   ("/uploads/{upload}/content",          uploads::content),
];

/// The headers that any handler reads, lower-case.
pub const HEADERS: &[&str] = &[
    "authorization",
    "accept",
    "content-type",
    "content-digest",
    "idempotency-key",
    "if-match",
    "if-none-match",
    "range",
];

pub struct Request<'a> {
    pub method: &'a str,
    /// As sent, still percent-encoded.
    pub path: &'a str,
    /// Without its question mark.
    pub query: &'a str,
    pub headers: &'a [(&'static str, String)],
    /// Nothing where the body is larger than its route takes; it was never read.
    pub body: Option<&'a [u8]>,
    pub request_id: &'a str,
}

impl<'a> Request<'a> {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }

    /// The body, if its media type and its size are what `payload` asks for.
    pub fn payload(&self, payload: Payload) -> Result<&'a [u8]> {
        let essence =
            |value: &str| value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let sent = self.header("content-type").map(essence);
        let json = sent.as_deref().is_none_or(|t| t == "application/json" || t.ends_with("+json"));
        if matches!(payload, Payload::Json(_)) && !json {
            let message = "send the body as Content-Type: application/json";
            return Err(Error::new(Code::UnsupportedMediaType, message));
        }
        self.body.ok_or_else(|| Error::too_large(payload.bytes_max(), "the body"))
    }

    /// Refuses query parameters where an address takes none.
    pub fn no_query(&self) -> Result<()> {
        if self.query.is_empty() {
            return Ok(());
        }
        let first = form_urlencoded::parse(self.query.as_bytes()).next();
        let name = first.map_or_else(String::new, |(name, _)| name.into_owned());
        Err(Error::field(name, "this address takes no query parameters"))
    }
}

/// What every request of an object shares.
pub struct Plane<'a> {
    pub db: Db<'a>,
    pub server_id: &'a ServerId,
    pub config: &'a Config,
    pub limiter: &'a RefCell<RateLimiter>,
}

/// What an operator sets.
#[derive(Debug, Clone)]
pub struct Config {
    pub rate_limit_per_s: i64,
    pub upload_bytes_max: i64,
    pub store_bytes_max: u64,
}

/// An admitted request, as its handler sees it.
pub struct Call<'a> {
    pub who: Principal,
    pub config: &'a Config,
    pub request_id: &'a str,
    /// Names the list in its cursors: the route's path.
    pub list_name: &'static str,
    server_id: &'a ServerId,
    segments: Vec<String>,
    request: &'a Request<'a>,
    body: &'a [u8],
}

impl<'a> Call<'a> {
    /// The route's `index`th parameter as an id; malformed is as good as unknown.
    pub fn id<T: Id>(&self, index: usize) -> Result<T> {
        self.segments.get(index).and_then(|text| T::parse(text)).ok_or_else(Error::not_found)
    }

    /// The route's `index`th parameter as a number.
    pub fn number(&self, index: usize) -> Result<i64> {
        let text = self.segments.get(index).map_or("", String::as_str);
        let plain = text.bytes().all(|b| b.is_ascii_digit()) && text.len() <= 15;
        text.parse().ok().filter(|_| plain).ok_or_else(Error::not_found)
    }

    /// The route's `index`th parameter, decoded.
    pub fn segment(&self, index: usize) -> &str {
        self.segments.get(index).map_or("", String::as_str)
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.request.header(name)
    }

    pub fn bytes(&self) -> &'a [u8] {
        self.body
    }

    pub fn json<T: DeserializeOwned>(&self) -> Result<T> {
        json::body(self.body)
    }

    pub fn query<T: DeserializeOwned>(&self) -> Result<T> {
        json::query(self.request.query)
    }

    /// Whether `If-Match`, where there is one, names the current revision.
    pub fn if_match(&self, current: i64) -> Result<()> {
        let Some(header) = self.header("if-match").map(str::trim) else { return Ok(()) };
        let names = |tag: &str| tag.trim() == format!("\"{current}\"");
        if header == "*" || header.split(',').any(names) {
            return Ok(());
        }
        Err(Error::revision_mismatch(current))
    }

    /// As `if_match`, and the header must be there.
    pub fn must_match(&self, current: i64) -> Result<()> {
        if self.header("if-match").is_none() {
            return Err(Error::new(
                Code::PreconditionRequired,
                "send If-Match with the revision that you read",
            ));
        }
        self.if_match(current)
    }

    /// What a repeated request must equal: method, address and body.
    pub fn fingerprint(&self) -> [u8; 32] {
        use sha2::Digest;
        let Request { method, path, query, .. } = self.request;
        let head = format!("{method} {path}?{query}\n");
        sha2::Sha256::new_with_prefix(head).chain_update(self.body).finalize().into()
    }

    fn envelope(&self) -> String {
        let Principal { team_id, principal_id, .. } = &self.who;
        envelope(self.server_id, Some(team_id), Some(principal_id))
    }

    /// One resource in its envelope.
    pub fn one(&self, status: u16, data: &impl Serialize) -> Result<Answer> {
        let data = serde_json::to_string(data).map_err(|e| Error::internal(e.to_string()))?;
        let body = format!(r#"{},"data":{data}}}"#, self.envelope());
        Ok(Answer { status, body: Body::Json(body), ..Answer::default() })
    }

    /// One resource and its revision.
    pub fn versioned(&self, status: u16, data: &impl Serialize, revision: i64) -> Result<Answer> {
        Ok(self.one(status, data)?.with("ETag", format!("\"{revision}\"")))
    }

    /// A page of a list.
    pub fn list(&self, items: &[impl Serialize], next_cursor: Option<&str>) -> Result<Answer> {
        let items = serde_json::to_string(items).map_err(|e| Error::internal(e.to_string()))?;
        let body = format!(
            r#"{},"items":{items},"next_cursor":{}}}"#,
            self.envelope(),
            json!(next_cursor)
        );
        Ok(Answer { body: Body::Json(body), ..Answer::default() })
    }

    /// A page of a log whose items are JSON already, and the position to go on from.
    pub fn log(&self, items: &[String], last: impl Serialize) -> Answer {
        let (items, last) = (items.join(","), json!(last));
        let body =
            format!(r#"{},"items":[{items}],"last":{last},"next_cursor":null}}"#, self.envelope());
        Answer { body: Body::Json(body), ..Answer::default() }
    }
}

/// How every answer with data begins. Where the operator asks, no principal acts.
pub fn envelope(
    server_id: &ServerId,
    team_id: Option<&TeamId>,
    principal_id: Option<&PrincipalId>,
) -> String {
    let context =
        json!({ "server_id": server_id, "team_id": team_id, "principal_id": principal_id });
    format!(r#"{{"version":1,"context":{context}"#)
}

pub enum Body {
    Empty,
    Json(String),
    Bytes(Vec<u8>),
    Chunks(Chunks),
}

pub struct Answer {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Body,
    /// Whether it holds a secret, which no repetition may.
    pub secret: bool,
    /// What went wrong on our side: for the log, never for the caller.
    pub fault: Option<String>,
}

impl Default for Answer {
    fn default() -> Answer {
        Answer { status: 200, headers: Vec::new(), body: Body::Empty, secret: false, fault: None }
    }
}

impl Answer {
    pub fn json(status: u16, body: String) -> Answer {
        Answer { status, body: Body::Json(body), ..Answer::default() }
    }

    pub fn no_content() -> Answer {
        Answer { status: 204, ..Answer::default() }
    }

    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Answer {
        self.headers.push((name, value.into()));
        self
    }

    #[must_use]
    pub fn secret(self) -> Answer {
        Answer { secret: true, ..self }
    }

    /// A refusal in its envelope.
    pub fn refusal(error: Error, request_id: &str) -> Answer {
        let mut body = json!({ "code": error.code.text(), "request_id": request_id });
        let mut fault = None;
        body["message"] = if error.code == Code::Internal {
            fault = Some(error.message);
            "a fault of the server; its log has this request's id".into()
        } else {
            error.message.into()
        };
        if !error.details.is_empty() {
            body["details"] = Json::Object(error.details);
        }
        let body = json!({ "version": 1, "error": body }).to_string();
        let mut answer = Answer {
            status: error.code.status(),
            body: Body::Json(body),
            fault,
            ..Answer::default()
        };
        answer.headers.extend(error.header);
        if error.code == Code::Unauthenticated {
            answer = answer.with("WWW-Authenticate", "Bearer");
        }
        answer
    }
}

/// A request's answer, or the work that leads to it.
pub enum Reply {
    Answer(Answer),
    Job(Job),
}

/// A route and the parameters in its path.
pub struct Matched {
    pub route: &'static Route,
    pub team_id: Option<TeamId>,
    segments: Vec<String>,
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

/// The refusals that need no object: route, method, a token of the right shape, its team.
pub fn admit(request: &Request) -> Result<(Matched, Token)> {
    let matched = find_route(request.method, request.path)?;
    let token = Token::from_header(request.header("authorization"))?;
    if matched.team_id.as_ref() != Some(&token.team_id) {
        return Err(Error::not_found());
    }
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
        list_name: route.path,
        server_id: plane.server_id,
        segments: matched.segments,
        request,
        body,
    };
    if route.grows {
        room(db, plane.config)?;
    }
    match route.run {
        Run::Read(run) => run(db, &call).map(Reply::Answer),
        Run::Write(run) => db.transaction(|tx| run(tx, &call)).map(Reply::Answer),
        Run::Create(run) => {
            db.transaction(|tx| idempotency::once(tx, &call, run)).map(Reply::Answer)
        }
        Run::Long(run) => run(db, &call).map(Reply::Job),
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

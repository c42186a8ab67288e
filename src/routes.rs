//! Every endpoint on one line.
use crate::answer::{Answer, Intake, Job};
use crate::auth::{Kind, Principal};
use crate::call::Call;
use crate::domain::streams::Offer;
use crate::domain::{
    app_installs, apps, attachments, capture_commit, capture_parts, captures, claims,
    configuration, content, context_advance, context_commit, context_export, context_import,
    context_list, context_owner, context_payloads, context_source, contexts, continuation_list,
    continuations, credentials, deliveries, effects, event_log, follow, grants, groups, heartbeat,
    journal, links, machines, members, message_pages, operation_calls, presence_log, roots, rules,
    run_append, run_removal, runs, session_export, session_list, session_versions, sessions,
    snapshot_admissions, snapshots, sources, team_export, team_import, team_removal, teams,
    upload_chunks, upload_commit, upload_content, uploads, usage, worktree_deletion,
    worktree_routes, worktrees,
};
use crate::error::{Error, Result};
use crate::limits::{
    CHUNK_BYTES_MAX, CONTENT_BYTES_MAX, CONTEXT_BODY_BYTES_MAX, HEARTBEAT_BYTES_MAX,
    HEARTBEAT_TENTHS, JSON_BYTES_MAX, PART_BYTES_MAX, PAYLOAD_BYTES_MAX, RATE_TENTHS,
    TRANSFER_BYTES_MAX,
};
use crate::maintain;
use crate::scopes::{CAPTURES_WRITE, CONTEXTS, EVENTS_READ, RUNS_READ, RUNS_WRITE, SESSIONS_READ};
use crate::store::{Db, Tx};

type Read = fn(&Db, &Call) -> Result<Answer>;
type Write = fn(&Tx, &Call) -> Result<Answer>;
type Long = fn(&Db, &Call) -> Result<Job>;
type Take = fn(&Db, &Call) -> Result<Intake>;

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
    /// While the body comes in, which is never whole in memory.
    Take(Take),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Payload {
    None,
    Json(usize),
    Bytes(usize),
    /// Of any type, as it comes.
    Stream(usize),
}

impl Payload {
    pub fn bytes_max(self) -> usize {
        match self {
            Payload::None => JSON_BYTES_MAX,
            Payload::Json(bytes_max) | Payload::Bytes(bytes_max) | Payload::Stream(bytes_max) => {
                bytes_max
            }
        }
    }
}

pub struct Route {
    pub method: &'static str,
    /// Below `/v1/teams/{team}`.
    pub path: &'static str,
    pub payload: Payload,
    pub(crate) run: Run,
    /// Whether it takes query parameters; elsewhere each is refused.
    pub(crate) query: bool,
    /// What it takes from the rate limit, in tenths of a request.
    pub(crate) tenths: i64,
    /// Whether it may make the store grow; refused when the store is nearly full.
    pub(crate) grows: bool,
    /// Whether apps may call it: never, or with any one of these scopes; none is asked if empty.
    pub apps: Option<&'static [&'static str]>,
    /// Whether it may answer with a stream.
    pub streams: Offer,
}

impl Route {
    /// Opens the route to apps that hold any one of `scopes`; to every app if there are none.
    ///
    /// The handler refuses the others where it is their turn. Should it forget to, [`answer`]
    /// takes back what it did.
    const fn apps(self, scopes: &'static [&'static str]) -> Route {
        Route { apps: Some(scopes), ..self }
    }

    pub(crate) fn admits(&self, who: &Principal) -> Result<()> {
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
    let (tenths, query, grows, apps, streams) = (RATE_TENTHS, false, true, None, Offer::Page);
    Route { method, path, payload, run, query, tenths, grows, apps, streams }
}
const fn get(path: &'static str, run: Read) -> Route {
    Route { grows: false, ..route("GET", path, Payload::None, Run::Read(run)) }
}
const fn head(path: &'static str, run: Read) -> Route {
    Route { method: "HEAD", ..get(path, run) }
}
/// A GET with query parameters.
const fn find(path: &'static str, run: Read) -> Route {
    Route { query: true, ..get(path, run) }
}
/// A log, by page or as a stream.
const fn log(path: &'static str, run: Read) -> Route {
    Route { streams: Offer::Both, ..find(path, run) }
}
/// Nothing but a stream.
const fn stream(path: &'static str, run: Read) -> Route {
    Route { streams: Offer::Stream, ..get(path, run) }
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
/// A DELETE with query parameters.
const fn discard(path: &'static str, run: Write) -> Route {
    Route { query: true, ..delete(path, run) }
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
/// A GET whose answer takes slices.
const fn count(path: &'static str, run: Long) -> Route {
    Route { payload: Payload::None, ..long_upkeep("GET", path, run) }
}

/// A page of another team, which looks for room itself.
const fn import(path: &'static str, run: Long) -> Route {
    let payload = Payload::Bytes(TRANSFER_BYTES_MAX);
    Route { payload, query: true, ..long_upkeep("POST", path, run) }
}

/// A large body, which is stored while it comes in.
const fn take(path: &'static str, bytes_max: usize, run: Take) -> Route {
    route("PUT", path, Payload::Stream(bytes_max), Run::Take(run))
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

/// What an agent writes, in the scope that its query names; `scoped` where nothing grows.
const fn turn(method: &'static str, path: &'static str, payload: Payload, run: Write) -> Route {
    Route { query: true, ..route(method, path, payload, Run::Write(run)) }
}
const fn scoped(method: &'static str, path: &'static str, payload: Payload, run: Write) -> Route {
    Route { grows: false, ..turn(method, path, payload, run) }
}
const SMALL: Payload = Payload::Json(JSON_BYTES_MAX);
const LARGE: Payload = Payload::Json(CONTEXT_BODY_BYTES_MAX);
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
    log   ("/machines/events",                   presence_log::list).apps(&[SESSIONS_READ]),
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
    set   ("/sessions/{session}/grants/{kind}/{subject}", SMALL, grants::put),
    delete("/sessions/{session}/grants/{kind}/{subject}", grants::remove),
    stream("/sessions/{session}/follow",         follow::get).apps(&[SESSIONS_READ]),
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
    find  ("/apps",                              apps::list),
    create("/apps",                              apps::create),
    get   ("/apps/{app}",                        apps::get),
    patch ("/apps/{app}",                        apps::change),
    delete("/apps/{app}",                        apps::delete),
    empty ("/apps/{app}/enable",                 apps::enable),
    create("/apps/{app}/install-codes",          app_installs::create_code),
    create("/apps/{app}/rotate-secret",          app_installs::rotate_secret),
    create("/apps/{app}/test",                   deliveries::test),
    find  ("/apps/{app}/deliveries",             deliveries::list),
    long  ("POST", "/apps/{app}/deliveries/recover", deliveries::recover),
    post  ("/apps/{app}/deliveries/{delivery}/retry", deliveries::retry),
    log   ("/events",                            event_log::list).apps(&[EVENTS_READ]),
    find  ("/events/current",                    event_log::current).apps(&[EVENTS_READ]),
    find  ("/export",                            team_export::get),
    import("/import",                            team_import::post),
    find  ("/contexts",                          context_list::list).apps(&[CONTEXTS]),
    turn  ("PUT", "/contexts/{context}",         SMALL, contexts::ensure).apps(&[CONTEXTS]),
    find  ("/contexts/{context}",                contexts::get).apps(&[CONTEXTS]),
    scoped("PATCH", "/contexts/{context}",       SMALL, contexts::change).apps(&[CONTEXTS]),
    scoped("DELETE", "/contexts/{context}",      Payload::None, contexts::delete).apps(&[CONTEXTS]),
    turn  ("POST", "/contexts/{context}/commit", LARGE, context_commit::commit).apps(&[CONTEXTS]),
    turn  ("POST", "/contexts/{context}/advance", SMALL, context_advance::advance).apps(&[CONTEXTS]),
    find  ("/contexts/{context}/source",         context_source::list).apps(&[CONTEXTS]),
    find  ("/contexts/{context}/first-user-message", context_source::first_user_message).apps(&[CONTEXTS]),
    find  ("/contexts/{context}/payloads/{ref}", context_payloads::get).apps(&[CONTEXTS]),
    Route { query: true, ..take("/contexts/{context}/payloads/{ref}", PAYLOAD_BYTES_MAX, context_payloads::upload) }.apps(&[CONTEXTS]),
    turn  ("POST", "/contexts/{context}/import", LARGE, context_import::import).apps(&[CONTEXTS]),
    find  ("/contexts/{context}/export",         context_export::get).apps(&[CONTEXTS]),
    scoped("POST", "/contexts/{context}/reclaim", SMALL, context_owner::reclaim).apps(&[CONTEXTS]),
    scoped("PUT", "/contexts/{context}/lease",   SMALL, context_owner::renew).apps(&[CONTEXTS]),
    scoped("DELETE", "/contexts/{context}/lease", Payload::None, context_owner::release).apps(&[CONTEXTS]),
    turn  ("PUT", "/snapshots/{name}",           LARGE, snapshots::put).apps(&[CONTEXTS]),
    find  ("/snapshots/{name}",                  snapshots::get).apps(&[CONTEXTS]),
    scoped("DELETE", "/snapshots/{name}",        Payload::None, snapshots::delete).apps(&[CONTEXTS]),
    turn  ("PUT", "/snapshots/{name}/admission", SMALL, snapshot_admissions::put).apps(&[CONTEXTS]),
    find  ("/snapshots/{name}/admission",        snapshot_admissions::get).apps(&[CONTEXTS]),
    scoped("POST", "/snapshots/prune",           SMALL, snapshots::prune).apps(&[CONTEXTS]),
    find  ("/worktrees",                         worktrees::list).apps(&[CONTEXTS]),
    create("/worktrees",                         worktrees::begin).apps(&[CONTEXTS]),
    find  ("/worktrees/{instance}",              worktrees::get).apps(&[CONTEXTS]),
    scoped("POST", "/worktrees/{instance}/register", SMALL, worktrees::register).apps(&[CONTEXTS]),
    scoped("POST", "/worktrees/{instance}/abandon", SMALL, worktrees::abandon).apps(&[CONTEXTS]),
    scoped("POST", "/worktrees/{instance}/begin-deletion", SMALL, worktrees::begin_deletion).apps(&[CONTEXTS]),
    scoped("POST", "/worktrees/{instance}/reactivate", SMALL, worktrees::reactivate).apps(&[CONTEXTS]),
    Route { query: true, ..long_upkeep("POST", "/worktrees/{instance}/finish-deletion", worktree_deletion::finish) }.apps(&[CONTEXTS]),
    scoped("POST", "/worktrees/{instance}/validate", SMALL, worktrees::validate).apps(&[CONTEXTS]),
    find  ("/worktree-routes/{worktree}",        worktree_routes::get).apps(&[CONTEXTS]),
    turn  ("PUT", "/worktree-routes/{worktree}", SMALL, worktree_routes::put).apps(&[CONTEXTS]),
    scoped("DELETE", "/worktree-routes/{worktree}", Payload::None, worktree_routes::delete).apps(&[CONTEXTS]),
    create("/usage",                             usage::record).apps(&[CONTEXTS]),
    find  ("/usage",                             usage::sums).apps(&[CONTEXTS]),
    find  ("/usage/calibration",                 usage::calibration).apps(&[CONTEXTS]),
    empty ("/wipe",                              team_removal::wipe),
    find  ("/runs",                              runs::list).apps(&[RUNS_READ]),
    create("/runs",                              run_append::open).apps(&[RUNS_WRITE]),
    discard("/runs/{run}",                       run_removal::remove_all),
    find  ("/runs/{run}/events",                 runs::events).apps(&[RUNS_READ]),
    post  ("/runs/{run}/events",                 run_append::append).apps(&[RUNS_WRITE]),
    post  ("/run-events",                        run_append::append_mixed).apps(&[RUNS_WRITE]),
    log   ("/run-changes",                       runs::changes).apps(&[RUNS_READ]),
    empty ("/runs/{run}/delete",                 run_removal::delete).apps(&[RUNS_WRITE]),
    get   ("/runs/{run}/claim",                  claims::get).apps(&[RUNS_READ]),
    post  ("/runs/{run}/claim",                  claims::claim).apps(&[RUNS_WRITE]),
    discard("/runs/{run}/claim",                 claims::release).apps(&[RUNS_WRITE]),
    empty ("/runs/{run}/claim/refresh",          claims::refresh).apps(&[RUNS_WRITE]),
    get   ("/runs/{run}/fenced/{holder}",        claims::fenced).apps(&[RUNS_READ]),
    take  ("/content/{ref}", CONTENT_BYTES_MAX,  content::put).apps(&[RUNS_WRITE]),
    get   ("/content/{ref}",                     content::get).apps(&[RUNS_READ, RUNS_WRITE]),
    head  ("/content/{ref}",                     content::head).apps(&[RUNS_READ, RUNS_WRITE]),
    get   ("/content/{ref}/grants/{session}",    content::granted).apps(&[RUNS_READ, RUNS_WRITE]),
    set   ("/content/{ref}/grants/{session}", Payload::None, content::grant).apps(&[RUNS_WRITE]),
    get   ("/maintain",                          maintain::api::get),
    long_upkeep("POST", "/maintain",             maintain::api::run),
    get   ("/metrics",                           maintain::api::metrics),
    count("/usage/storage",                      maintain::api::storage),
];

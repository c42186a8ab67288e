//! The stateless Worker: request ids, CORS, what can be refused without an object, and the way to
//! the object that answers.
mod cors;
mod forward;
mod operator;
mod stream;

use crate::api::{self, Answer, Payload};
use crate::auth;
use crate::domain::app_installs;
use crate::domain::streams::{Format, Offer};
use crate::error::{Code, Error, Result};
use crate::ids::{Id, RequestId, System};
use crate::limits::INSTALL_BYTES_MAX;
use crate::object::http::{self, Head};
use crate::object::{BACKLOG_AGE, TEAM_DELETED, config};
use crate::store::migrate::SCHEMA_VERSION;
use cors::Cors;
use serde_json::json;
use worker::{Context, Env, Request, Response, event};

/// What only the deletion of a team answers to DELETE.
const ACCEPTED: u16 = 202;

#[event(fetch)]
async fn fetch(mut request: Request, env: Env, _: Context) -> worker::Result<Response> {
    let request_id = RequestId::random(&System).to_string();
    let head = Head::read_as(&request, request_id)?;
    let cors = Cors::read(&request, &head, &env)?;
    let response = if cors.is_preflight {
        http::whole(Answer::no_content(), &head.request_id)?
    } else {
        match route(&env, &head, &mut request).await {
            Ok(response) => response,
            Err(error) => http::refusal(error, &head.request_id)?,
        }
    };
    // An object's response has headers that cannot be changed, so it gets new ones.
    let (builder, body) = response.into_parts();
    let response = builder.body(body);
    let headers = response.headers().clone();
    cors.apply(&headers)?;
    Ok(response.with_headers(headers))
}

async fn route(env: &Env, head: &Head, request: &mut Request) -> Result<Response> {
    match head.path.as_str() {
        "/v1/health" => health(env, head).await,
        api::INSTALL => install(env, head, request).await,
        "/v1/teams" => operator::teams(env, head, request).await,
        path if is_operators_deletion(head, path) => operator::delete(env, head, request).await,
        _ => team(env, head, request).await,
    }
}

/// Whether a team's deletion comes with a token that is no team's.
fn is_operators_deletion(head: &Head, path: &str) -> bool {
    let is_team = path.strip_prefix("/v1/teams/").is_some_and(|team| !team.contains('/'));
    let token = head.header("authorization").and_then(auth::bearer);
    head.method == "DELETE" && is_team && token.is_some_and(|token| !token.starts_with("tp_"))
}

/// Everything below `/v1/teams/{team}`, answered by the object that holds the team.
async fn team(env: &Env, head: &Head, request: &mut Request) -> Result<Response> {
    let (matched, token) = api::admit(&head.with_body(None))?;
    let name = config::sharding(env).object_name(&token.team_id).to_owned();
    let payload = matched.route.payload;
    let offer = matched.route.streams;
    // What the caller takes is refused by the object, where it is its turn.
    let is_stream =
        offer != Offer::Page && Format::wanted(head.header("accept"), offer) == Ok(Format::Stream);
    if is_stream {
        let head = head.with_header("upgrade", "websocket");
        let object = forward::to_object(env, config::TEAM, &name, &head, request, payload);
        return stream::of(object.await?, &head.request_id);
    }
    let response = forward::to_object(env, config::TEAM, &name, head, request, payload).await?;
    if head.method == "DELETE" && response.status_code() == ACCEPTED {
        // The registry only shows it, so the deletion stands even where this fails.
        let path = format!("{TEAM_DELETED}{}", token.team_id);
        let (binding, name) = (config::DIRECTORY, operator::DIRECTORY_OBJECT);
        if let Err(error) = forward::ask::<bool>(env, binding, name, &path, head).await {
            worker::console_error!("{}: not noted: {}", head.request_id, error.message);
        }
    }
    Ok(response)
}

/// `POST /v1/apps/install`, answered by the object of the team that the code in the body names.
async fn install(env: &Env, head: &Head, request: &mut Request) -> Result<Response> {
    only(head, &["POST"])?;
    let body = forward::read(request, INSTALL_BYTES_MAX).await?;
    let sent = head.with_body(body.as_deref());
    let (_, team_id) = app_installs::read_code(sent.payload(Payload::Json(INSTALL_BYTES_MAX))?)?;
    let name = config::sharding(env).object_name(&team_id).to_owned();
    let body = body.unwrap_or_default();
    forward::bytes_to_object(env, config::TEAM, &name, head, request, body).await
}

/// `GET /v1/health` says that the Worker answers, which build and schema it is, and how far
/// retention lags behind: in the only team object, or where each team has its own in the Directory.
///
/// `503`, `status` "degraded" and no age where that object fails.
async fn health(env: &Env, head: &Head) -> Result<Response> {
    only(head, &["GET"])?;
    head.with_body(None).no_query()?;
    let backlog_age_ms = backlog_age_ms(env, head).await;
    let (code, status) = match &backlog_age_ms {
        Ok(_) => (200, "ok"),
        Err(error) => {
            worker::console_error!("{}: health: {}", head.request_id, error.message);
            (503, "degraded")
        }
    };
    let body = json!({
        "status": status,
        "version": env!("CARGO_PKG_VERSION"),
        "schema": SCHEMA_VERSION,
        "backlog_age_ms": backlog_age_ms.ok(),
    });
    http::whole(Answer::json(code, body.to_string()), &head.request_id)
        .map_err(|error| http::thrown(&error))
}

async fn backlog_age_ms(env: &Env, head: &Head) -> Result<i64> {
    let (binding, name) = match config::sharding(env).server_object() {
        Some(name) => (config::TEAM, name),
        None => (config::DIRECTORY, operator::DIRECTORY_OBJECT),
    };
    forward::ask(env, binding, name, BACKLOG_AGE, head).await
}

fn only(head: &Head, methods: &[&str]) -> Result<()> {
    if methods.contains(&head.method.as_str()) {
        return Ok(());
    }
    let message = format!("{} is not among this address's methods", head.method);
    Err(Error::new(Code::MethodNotAllowed, message).with_header("Allow", methods.join(", ")))
}

//! The operator's addresses, which need `OPERATOR_TOKEN` and lead to the Directory.
use super::forward;
use crate::api::Payload;
use crate::auth;
use crate::error::{Code, Error, Result};
use crate::limits::JSON_BYTES_MAX;
use crate::object::{config, http::Head};
use worker::{Env, Request, Response};

/// The name of the only Directory.
pub const DIRECTORY_OBJECT: &str = "directory";

/// `POST /v1/teams` makes a team; `GET` lists the teams.
///
/// `503 not_configured` where the server has no operator's token.
pub async fn teams(env: &Env, head: &Head, request: &mut Request) -> Result<Response> {
    super::only(head, &["GET", "POST"])?;
    admit(env, head)?;
    let binding = config::DIRECTORY;
    forward::to_object(env, binding, DIRECTORY_OBJECT, head, request, Payload::Json(JSON_BYTES_MAX))
        .await
}

/// `DELETE /v1/teams/{team}` deletes a team, as its owner may.
pub async fn delete(env: &Env, head: &Head, request: &mut Request) -> Result<Response> {
    admit(env, head)?;
    let binding = config::DIRECTORY;
    forward::to_object(env, binding, DIRECTORY_OBJECT, head, request, Payload::Json(JSON_BYTES_MAX))
        .await
}

fn admit(env: &Env, head: &Head) -> Result<()> {
    let token = config::text(env, "OPERATOR_TOKEN").ok_or_else(|| {
        Error::new(Code::NotConfigured, "set the secret OPERATOR_TOKEN to use this address")
    })?;
    match head.header("authorization").and_then(auth::bearer) {
        Some(sent) if auth::same_secret(sent.as_bytes(), token.as_bytes()) => Ok(()),
        _ => Err(Error::new(
            Code::Unauthenticated,
            "send the operator's token as Authorization: Bearer …",
        )),
    }
}

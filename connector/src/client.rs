//! Requests to the plane. What may be gone by itself is tried again, after a wait of random length
//! or as long as the server says; every request may be repeated.
use crate::error::{Error, Result};
use crate::limits::{BACKOFF_FIRST, BACKOFF_MAX, CONNECT, REQUEST, REQUEST_TRIES, RETRY_AFTER_MAX};
use bytes::Bytes;
use reqwest::header::{AUTHORIZATION, RETRY_AFTER};
use reqwest::{Method, Response, StatusCode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::RwLock;
use std::time::Duration;

/// What the server answered instead.
#[derive(Debug, Clone)]
pub struct Refusal {
    pub status: u16,
    pub code: String,
    pub message: String,
    pub details: serde_json::Value,
    pub retry_after: Option<Duration>,
    pub request_id: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "the server refused: {} ({} {})", self.message, self.status, self.code)?;
        if let Some(field) = self.details.get("field").and_then(|field| field.as_str()) {
            write!(f, ", about {field}")?;
        }
        if self.status >= 500 {
            write!(f, ", request {}", self.request_id)?;
        }
        Ok(())
    }
}

#[derive(Debug, Default, Clone)]
pub struct Body {
    bytes: Bytes,
    headers: Vec<(&'static str, String)>,
}

impl Body {
    pub fn none() -> Body {
        Body::default()
    }

    pub fn json(value: &impl Serialize) -> Body {
        let bytes = serde_json::to_vec(value).expect("what is sent can be written as JSON");
        Body::raw_json(bytes)
    }

    pub fn raw_json(bytes: impl Into<Bytes>) -> Body {
        Body::bytes(bytes).with("content-type", "application/json")
    }

    pub fn bytes(bytes: impl Into<Bytes>) -> Body {
        Body { bytes: bytes.into(), headers: Vec::new() }
    }

    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Body {
        self.headers.push((name, value.into()));
        self
    }
}

pub struct Client {
    http: reqwest::Client,
    pub server: String,
    pub team_id: String,
    token: RwLock<String>,
    tries: u32,
}

#[derive(Deserialize)]
struct One<T> {
    data: T,
}

#[derive(Deserialize)]
pub struct List<T> {
    pub items: Vec<T>,
    #[serde(default)]
    pub next_cursor: Option<String>,
    #[serde(default)]
    pub last: Option<i64>,
}

#[derive(Deserialize)]
struct Failed {
    error: Failure,
}

#[derive(Deserialize)]
struct Failure {
    code: String,
    message: String,
    #[serde(default)]
    request_id: String,
    #[serde(default)]
    details: serde_json::Value,
}

impl Client {
    /// The team is the one that the token names.
    pub fn new(server: &str, token: &str) -> Result<Client> {
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT)
            .timeout(REQUEST)
            .user_agent(concat!("teamplane-connector/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| Error::other(format!("no HTTP client: {}", reasons(&error))))?;
        Ok(Client {
            http,
            server: server.trim_end_matches('/').to_owned(),
            team_id: team_of(token)?,
            token: RwLock::new(token.to_owned()),
            tries: REQUEST_TRIES,
        })
    }

    /// Gives up at the first failure: for a person who waits, or for who tries again by itself.
    pub fn once(self) -> Client {
        Client { tries: 1, ..self }
    }

    pub fn token(&self) -> String {
        self.token.read().expect("no holder panics").clone()
    }

    pub fn set_token(&self, token: &str) {
        token.clone_into(&mut self.token.write().expect("no holder panics"));
    }

    /// The address of a path below the team.
    pub fn url(&self, path: &str) -> String {
        format!("{}/v1/teams/{}{path}", self.server, self.team_id)
    }

    /// A resource.
    pub async fn json<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Body,
    ) -> Result<T> {
        let response = self.send(method, path, body).await?;
        self.parse::<One<T>>(response).await.map(|One { data }| data)
    }

    /// A page of a list.
    pub async fn list<T: DeserializeOwned>(&self, path: &str) -> Result<List<T>> {
        let response = self.send(Method::GET, path, Body::none()).await?;
        self.parse(response).await
    }

    async fn parse<T: DeserializeOwned>(&self, response: Response) -> Result<T> {
        let bytes = response.bytes().await.map_err(|error| self.unreachable(&error))?;
        serde_json::from_slice(&bytes).map_err(|error| {
            let server = &self.server;
            Error::other(format!("{server} answers what no teamplane server would: {error}"))
        })
    }

    /// The answer to a request that succeeded.
    pub async fn send(&self, method: Method, path: &str, body: Body) -> Result<Response> {
        let mut backoff = Backoff::default();
        let mut tries = self.tries;
        loop {
            tries -= 1;
            let error = match self.send_once(method.clone(), path, &body).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            let wait = match &error {
                Error::Unreachable(_) => None,
                Error::Refused(refusal) if is_passing(refusal) => refusal.retry_after,
                _ => return Err(error),
            };
            if tries == 0 {
                return Err(error);
            }
            let wait = wait.unwrap_or_else(|| backoff.next());
            tracing::debug!("{method} {path}: {error}; again in {} ms", wait.as_millis());
            tokio::time::sleep(wait).await;
        }
    }

    async fn send_once(&self, method: Method, path: &str, body: &Body) -> Result<Response> {
        let mut request = self
            .http
            .request(method, self.url(path))
            .header(AUTHORIZATION, format!("Bearer {}", self.token()));
        for (name, value) in &body.headers {
            request = request.header(*name, value);
        }
        if !body.headers.is_empty() {
            request = request.body(body.bytes.clone());
        }
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        let status = response.status();
        if status.is_success() || status == StatusCode::NOT_MODIFIED {
            return Ok(response);
        }
        Err(refused(response).await)
    }

    fn unreachable(&self, error: &reqwest::Error) -> Error {
        let server = &self.server;
        Error::Unreachable(format!("{server} cannot be reached: {}", reasons(error)))
    }
}

async fn refused(response: Response) -> Error {
    let status = response.status().as_u16();
    let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
    let seconds: Option<u64> = header(RETRY_AFTER.as_str()).and_then(|text| text.parse().ok());
    let request_id = header("x-request-id").unwrap_or_default().to_owned();
    let retry_after = seconds.map(|s| Duration::from_secs(s).min(RETRY_AFTER_MAX));
    let bytes = response.bytes().await.unwrap_or_default();
    if status == 401 {
        return Error::Rejected(
            "the server does not take the token: it is revoked, expired or of another server; \
             log in and enrol again (teamplane login, teamplane enroll)"
                .into(),
        );
    }
    let failure = serde_json::from_slice::<Failed>(&bytes).map_or_else(
        |_| Failure {
            code: format!("http_{status}"),
            message: "an answer that no teamplane server gives; check the address".into(),
            request_id,
            details: serde_json::Value::Null,
        },
        |failed| failed.error,
    );
    let Failure { code, message, request_id, details } = failure;
    Error::Refused(Box::new(Refusal { status, code, message, details, retry_after, request_id }))
}

/// Whether the same request may succeed later.
fn is_passing(refusal: &Refusal) -> bool {
    match refusal.status {
        429 | 500 | 502..=504 => refusal.code != "not_configured",
        // Its Idempotency-Key is in use by itself.
        409 => refusal.retry_after.is_some(),
        _ => false,
    }
}

fn reasons(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// `tp_<kind>_<team>_<credential>_<secret>`.
fn team_of(token: &str) -> Result<String> {
    let is_hex =
        |text: &str, digits| text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit());
    let parts: Vec<&str> = token.split('_').collect();
    match parts[..] {
        ["tp", "user" | "machine" | "app", team, credential, secret]
            if is_hex(team, 32) && is_hex(credential, 32) && is_hex(secret, 64) =>
        {
            Ok(format!("team_{team}"))
        }
        _ => Err(Error::usage(
            "this is no teamplane token: one looks like tp_user_… and is shown once when it is made",
        )),
    }
}

/// Waits that double, each of a random length up to that, so that machines that lost the server
/// together do not come back together.
#[derive(Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    pub fn next(&mut self) -> Duration {
        let most = BACKOFF_FIRST.saturating_mul(1 << self.failures.min(16)).min(BACKOFF_MAX);
        self.failures += 1;
        most.mul_f64(random_share())
    }

    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

/// From 0 to 1.
fn random_share() -> f64 {
    f64::from(getrandom::u32().unwrap_or(u32::MAX / 2)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_their_limit_and_never_pass_it() {
        let mut backoff = Backoff::default();
        for failures in 0..100 {
            let most = BACKOFF_FIRST.saturating_mul(1 << failures.min(16)).min(BACKOFF_MAX);
            assert!(backoff.next() <= most);
        }
        backoff.reset();
        assert!(backoff.next() <= BACKOFF_FIRST);
    }

    #[test]
    fn a_token_names_its_team() {
        let hex = "0123456789abcdef".repeat(2);
        let token = format!("tp_user_{hex}_{hex}_{hex}{hex}");
        assert_eq!(team_of(&token).unwrap(), format!("team_{hex}"));
        for wrong in ["", "tp_user_a_b_c", "password", &token[..token.len() - 1]] {
            assert!(team_of(wrong).is_err());
        }
    }
}

//! worker's requests and responses ↔ the core's.
use crate::api::{self, Answer, Body, Chunks, Payload};
use crate::error::{Code, Error};
use std::net::Ipv4Addr;
use worker::{Headers, Request, Response, ResponseBuilder, Result};

/// Headers between the edge and the objects; the edge lets none of them in from outside.
pub const REQUEST_ID: &str = "x-request-id";
/// The request was sent to this very machine.
pub const LOOPBACK: &str = "x-teamplane-loopback";
/// The body was larger than its route takes, so it was left behind.
pub const TOO_LARGE: &str = "x-teamplane-too-large";
/// Sets the object's clock, where test hooks are on.
pub const TEST_NOW_MS: &str = "x-test-now-ms";

/// A request without its body.
#[derive(Clone)]
pub struct Head {
    pub method: String,
    /// As sent, still percent-encoded.
    pub path: String,
    pub query: String,
    /// Scheme, host and port.
    pub origin: String,
    /// Those that handlers read.
    pub headers: Vec<(&'static str, String)>,
    pub request_id: String,
}

impl Head {
    /// Reads a request that the edge or the Directory sent.
    pub fn read(request: &Request) -> Result<Head> {
        let request_id = request.headers().get(REQUEST_ID)?.unwrap_or_default();
        Head::read_as(request, request_id)
    }

    pub fn read_as(request: &Request, request_id: String) -> Result<Head> {
        let url = request.inner().url();
        let url = url.split('#').next().unwrap_or_default();
        let (address, query) = url.split_once('?').unwrap_or((url, ""));
        let host_at = address.find("://").map_or(0, |at| at + 3);
        let path_at = address[host_at..].find('/').map_or(address.len(), |at| host_at + at);
        let (origin, path) = address.split_at(path_at);
        let mut headers = Vec::new();
        for name in api::HEADERS {
            if let Some(value) = request.headers().get(name)? {
                headers.push((*name, value));
            }
        }
        Ok(Head {
            // Not worker's Method, which reads an unknown one as GET.
            method: request.inner().method(),
            path: path.to_owned(),
            query: query.to_owned(),
            origin: origin.to_owned(),
            headers,
            request_id,
        })
    }

    pub fn with_body<'a>(&'a self, body: Option<&'a [u8]>) -> api::Request<'a> {
        api::Request {
            method: &self.method,
            path: &self.path,
            query: &self.query,
            headers: &self.headers,
            body,
            request_id: &self.request_id,
        }
    }

    /// The same with another header, in place of one that was sent.
    pub fn with_header(&self, name: &'static str, value: &str) -> Head {
        let mut headers = self.headers.clone();
        headers.retain(|(known, _)| *known != name);
        headers.push((name, value.to_owned()));
        Head { headers, ..self.clone() }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }

    /// Whether the body goes to the core as it comes.
    pub fn is_streamed(&self) -> bool {
        api::find_route(&self.method, &self.path)
            .is_ok_and(|found| matches!(found.route.payload, Payload::Stream(_)))
    }

    /// Whether the request's host is this very machine.
    pub fn is_loopback(&self) -> bool {
        let (_, host) = self.origin.split_once("://").unwrap_or_default();
        if host.starts_with("[::1]") {
            return true;
        }
        let name = host.split(':').next().unwrap_or_default();
        name == "localhost" || name.parse::<Ipv4Addr>().is_ok_and(|address| address.is_loopback())
    }
}

/// The body that the edge let through; nothing where it was too large.
pub async fn body(request: &mut Request) -> crate::error::Result<Option<Vec<u8>>> {
    if is_too_large(request)? {
        return Ok(None);
    }
    if request.inner().body().is_none() {
        return Ok(Some(Vec::new()));
    }
    request.bytes().await.map(Some).map_err(broken_off)
}

pub fn is_too_large(request: &Request) -> crate::error::Result<bool> {
    request.headers().has(TOO_LARGE).map_err(|error| thrown(&error))
}

/// A body fails when its caller goes away, so this is seldom read.
pub fn broken_off(error: worker::Error) -> Error {
    Error::new(Code::InvalidRequest, format!("the body could not be read: {error}"))
}

/// The length that an answer announces for its body.
pub fn length(answer: &Answer) -> Option<u64> {
    let (_, value) = answer.headers.iter().find(|(name, _)| *name == "Content-Length")?;
    value.parse().ok()
}

/// An answer as a response. `stream` turns chunks into a body, which needs the object's store.
pub fn response(
    answer: Answer,
    request_id: &str,
    stream: impl FnOnce(ResponseBuilder, Chunks) -> Result<Response>,
) -> Result<Response> {
    if let Some(fault) = &answer.fault {
        worker::console_error!("{request_id}: {fault}");
    }
    let headers = Headers::new();
    headers.set(REQUEST_ID, request_id)?;
    headers.set("Cache-Control", "no-store")?;
    headers.set("X-Content-Type-Options", "nosniff")?;
    if matches!(answer.body, Body::Json(_)) {
        headers.set("Content-Type", "application/json")?;
    }
    for (name, value) in &answer.headers {
        headers.set(name, value)?;
    }
    let builder = Response::builder().with_status(answer.status).with_headers(headers);
    match answer.body {
        Body::Empty => Ok(builder.empty()),
        Body::Json(text) => Ok(builder.fixed(text.into_bytes())),
        Body::Bytes(bytes) => Ok(builder.fixed(bytes)),
        Body::Chunks(chunks) => stream(builder, chunks),
        Body::Link(_) | Body::Watch(_) => Err("only an object of teams holds sockets".into()),
    }
}

/// A response to an answer that has no chunks.
pub fn whole(answer: Answer, request_id: &str) -> Result<Response> {
    response(answer, request_id, |_, _| Err("this answer has no body in chunks".into()))
}

pub fn refusal(error: Error, request_id: &str) -> Result<Response> {
    whole(Answer::refusal(error, request_id), request_id)
}

/// What the platform threw, as a fault of ours or, where it asks to come again, as overload.
pub fn thrown(error: &worker::Error) -> Error {
    let asks_again = match error {
        worker::Error::UnknownJsError { original, .. } => {
            ["overloaded", "retryable", "durableObjectReset"].iter().any(|name| {
                worker::js_sys::Reflect::get(original, &(*name).into())
                    .is_ok_and(|value| value.is_truthy())
            })
        }
        _ => false,
    };
    if asks_again {
        return Error::new(Code::Overloaded, "too busy, or restarting; ask again")
            .with_header("Retry-After", "1");
    }
    Error::internal(error.to_string())
}

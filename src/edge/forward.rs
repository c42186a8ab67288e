//! Requests to objects. A body that is too large stays here: its object says so where it is its
//! turn in the order of refusals.
use crate::api::Payload;
use crate::error::{Error, Result};
use crate::object::http::{self, Head};
use futures_util::TryStreamExt;
use serde::de::DeserializeOwned;
use worker::js_sys::Uint8Array;
use worker::{Env, Headers, Request, RequestInit, Response};

/// Sends `request` to the object called `name` and answers what it does.
pub async fn to_object(
    env: &Env,
    binding: &str,
    name: &str,
    head: &Head,
    request: &mut Request,
    payload: Payload,
) -> Result<Response> {
    let sent = async {
        let forwarded = forwarded(head, request, payload).await?;
        env.durable_object(binding)?.get_by_name(name)?.fetch_with_request(forwarded).await
    };
    sent.await.map_err(|error| http::thrown(&error))
}

/// Asks the object called `name` for what it says at an internal path, as JSON.
pub async fn ask<T: DeserializeOwned>(
    env: &Env,
    binding: &str,
    name: &str,
    path: &str,
    head: &Head,
) -> Result<T> {
    let asked = async {
        let headers = Headers::new();
        headers.set(http::REQUEST_ID, &head.request_id)?;
        let mut init = RequestInit::new();
        init.with_headers(headers);
        let request = Request::new_with_init(&format!("http://object{path}"), &init)?;
        let object = env.durable_object(binding)?.get_by_name(name)?;
        let mut response = object.fetch_with_request(request).await?;
        Ok((response.status_code(), response.text().await?))
    };
    let (status, body) = asked.await.map_err(|error| http::thrown(&error))?;
    let answer = serde_json::from_str(&body).ok().filter(|_| status == 200);
    answer.ok_or_else(|| Error::internal(format!("{binding} answered {status} {body}")))
}

/// The request with nothing in it but what objects read, so no client sets an internal header.
async fn forwarded(
    head: &Head,
    request: &mut Request,
    payload: Payload,
) -> worker::Result<Request> {
    let headers = Headers::new();
    for (name, value) in &head.headers {
        // The platform upgrades nothing but a GET.
        if *name != "upgrade" || head.method == "GET" {
            headers.set(name, value)?;
        }
    }
    headers.set(http::REQUEST_ID, &head.request_id)?;
    if head.is_loopback() {
        headers.set(http::LOOPBACK, "1")?;
        if let Some(now_ms) = request.headers().get(http::TEST_NOW_MS)? {
            headers.set(http::TEST_NOW_MS, &now_ms)?;
        }
    }
    let mut init = RequestInit::new();
    init.with_method(request.method());
    match body(head, request, payload).await? {
        Sent::Nothing => {}
        Sent::Stream(stream) => {
            init.with_body(Some(stream.into()));
        }
        Sent::Bytes(bytes) => {
            init.with_body(Some(Uint8Array::from(&bytes[..]).into()));
        }
        Sent::TooLarge => headers.set(http::TOO_LARGE, "1")?,
    }
    init.with_headers(headers);
    Request::new_with_init(&request.inner().url(), &init)
}

enum Sent {
    Nothing,
    /// Of a known length, or counted where it is stored, so it needs no reading here.
    Stream(worker::web_sys::ReadableStream),
    Bytes(Vec<u8>),
    TooLarge,
}

async fn body(head: &Head, request: &mut Request, payload: Payload) -> worker::Result<Sent> {
    let bytes_max = payload.bytes_max();
    let (Some(stream), false) = (request.inner().body(), head.method == "GET") else {
        return Ok(Sent::Nothing);
    };
    if let Some(length) = request.headers().get("Content-Length")? {
        let fits = length.parse().is_ok_and(|length: usize| length <= bytes_max);
        return Ok(if fits { Sent::Stream(stream) } else { Sent::TooLarge });
    }
    if matches!(payload, Payload::Stream(_)) {
        return Ok(Sent::Stream(stream));
    }
    let mut chunks = request.stream()?;
    let mut bytes = Vec::new();
    while let Some(chunk) = chunks.try_next().await? {
        if bytes.len() + chunk.len() > bytes_max {
            return Ok(Sent::TooLarge);
        }
        bytes.extend(chunk);
    }
    Ok(Sent::Bytes(bytes))
}

//! An admitted request as its handler sees it, and the envelope that answers it.
use crate::answer::{Answer, Body};
use crate::auth::Principal;
use crate::error::{Code, Error, Result};
use crate::ids::{Id, ServerId};
use crate::json;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

/// The headers that any handler reads, lower-case.
pub const HEADERS: &[&str] = &[
    "authorization",
    "accept",
    "content-type",
    "content-digest",
    "idempotency-key",
    "if-match",
    "if-none-match",
    "if-range",
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

impl Request<'_> {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }
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
    pub(crate) server_id: &'a ServerId,
    pub(crate) segments: Vec<String>,
    pub(crate) request: &'a Request<'a>,
    pub(crate) body: &'a [u8],
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

    /// For a request without fields: no body, or an empty object.
    pub fn no_fields(&self) -> Result<()> {
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct None {}
        if self.body.is_empty() { Ok(()) } else { self.json::<None>().map(drop) }
    }

    /// What a repeated request must equal: method, address and body.
    pub fn fingerprint(&self) -> [u8; 32] {
        use sha2::Digest;
        let Request { method, path, query, .. } = self.request;
        let head = format!("{method} {path}?{query}\n");
        sha2::Sha256::new_with_prefix(head).chain_update(self.body).finalize().into()
    }

    /// What every answer to the caller begins with; for work that outlives the call.
    pub fn envelope(&self) -> Envelope {
        let context = json!({
            "server_id": self.server_id,
            "team_id": self.who.team_id,
            "principal_id": self.who.principal_id,
        });
        Envelope(format!(r#"{{"version":1,"context":{context}"#))
    }

    /// One resource in its envelope.
    pub fn one(&self, status: u16, data: &impl Serialize) -> Result<Answer> {
        self.envelope().one(status, data)
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
            self.envelope().0,
            json!(next_cursor)
        );
        Ok(Answer { body: Body::Json(body), ..Answer::default() })
    }

    /// A page of a log whose items are JSON already, and the position to go on from.
    pub fn log(&self, items: &[String], last: impl Serialize) -> Answer {
        let (items, last) = (items.join(","), json!(last));
        let Envelope(envelope) = self.envelope();
        let body = format!(r#"{envelope},"items":[{items}],"last":{last},"next_cursor":null}}"#);
        Answer { body: Body::Json(body), ..Answer::default() }
    }
}

/// The beginning of an answer: its version and context.
pub struct Envelope(String);

impl Envelope {
    pub fn one(&self, status: u16, data: &impl Serialize) -> Result<Answer> {
        let data = serde_json::to_string(data).map_err(|e| Error::internal(e.to_string()))?;
        let body = format!(r#"{},"data":{data}}}"#, self.0);
        Ok(Answer { status, body: Body::Json(body), ..Answer::default() })
    }
}

//! An admitted request as its handler sees it, and the envelope that answers it.
use crate::answer::{Answer, Body};
use crate::api::Payload;
use crate::auth::Principal;
use crate::domain::live::Live;
use crate::error::{Code, Error, Result};
use crate::ids::{Id, PrincipalId, ServerId, TeamId};
use crate::json;
use crate::maintain::Runner;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use std::cell::RefCell;
use std::rc::Rc;

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
    "last-event-id",
    "range",
    "upgrade",
    "x-context-capability",
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

/// What an operator sets.
#[derive(Debug, Clone)]
pub struct Config {
    pub rate_limit_per_s: i64,
    pub upload_bytes_max: i64,
    pub store_bytes_max: u64,
    /// What webhook secrets are derived from.
    pub app_root_secret: Option<String>,
    /// Whether webhooks may go to loopback addresses.
    pub webhook_allow_local: bool,
}

/// An admitted request, as its handler sees it.
pub struct Call<'a> {
    pub who: Principal,
    pub config: &'a Config,
    pub request_id: &'a str,
    pub runner: &'a Rc<RefCell<Runner>>,
    pub live: &'a RefCell<Live>,
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

    /// Whether a header that lists tags, if it is there, names this one or all: `If-Match` as it is,
    /// `If-None-Match` also where it is weak.
    pub fn names_tag(&self, header: &str, tag: &str) -> Option<bool> {
        let weak = header == "if-none-match";
        let is_it = |one: &str| {
            let one = one.trim();
            let one = if weak { one.strip_prefix("W/").unwrap_or(one) } else { one };
            one == tag || one == "*"
        };
        self.header(header).map(|tags| tags.split(',').any(is_it))
    }

    /// Whether `If-Match`, where there is one, names the current revision.
    pub fn if_match(&self, current: i64) -> Result<()> {
        if self.names_tag("if-match", &format!("\"{current}\"")).unwrap_or(true) {
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
        let Principal { team_id, principal_id, .. } = &self.who;
        Envelope::new(self.server_id, Some(team_id), Some(principal_id))
    }

    /// One resource in its envelope.
    pub fn one(&self, status: u16, data: &impl Serialize) -> Result<Answer> {
        self.envelope().one(status, data)
    }

    /// One resource that is JSON already.
    pub fn raw(&self, data: String) -> Result<Answer> {
        let body = format!("{}{data}}}", self.opened(""));
        Ok(Answer { body: Body::Json(body), ..Answer::default() })
    }

    /// The beginning of one resource's answer, up to `lead` in its data; what comes behind ends
    /// the data and then the envelope.
    pub fn opened(&self, lead: &str) -> String {
        let Envelope(envelope) = self.envelope();
        format!(r#"{envelope},"data":{lead}"#)
    }

    /// One resource and its revision.
    pub fn versioned(&self, status: u16, data: &impl Serialize, revision: i64) -> Result<Answer> {
        Ok(self.one(status, data)?.with("ETag", format!("\"{revision}\"")))
    }

    /// A page of a list.
    pub fn list(&self, items: &[impl Serialize], next_cursor: Option<&str>) -> Result<Answer> {
        self.envelope().list(items, next_cursor)
    }

    /// A page of a log whose items are JSON already, and the position to go on from.
    pub fn log(&self, items: &[String], last: impl Serialize) -> Answer {
        let (items, last) = (items.join(","), json!(last));
        let Envelope(envelope) = self.envelope();
        let body = format!(r#"{envelope},"items":[{items}],"last":{last},"next_cursor":null}}"#);
        Answer { body: Body::Json(body), ..Answer::default() }
    }

    /// A page of a list that also says the position of a log to go on from.
    pub fn log_page(
        &self,
        items: &[impl Serialize],
        last: impl Serialize,
        next_cursor: Option<&str>,
    ) -> Result<Answer> {
        let items = json::to_string(items)?;
        let (last, next) = (json!(last), json!(next_cursor));
        let Envelope(envelope) = self.envelope();
        let body = format!(r#"{envelope},"items":{items},"last":{last},"next_cursor":{next}}}"#);
        Ok(Answer { body: Body::Json(body), ..Answer::default() })
    }
}

/// The beginning of an answer: its version and context.
pub struct Envelope(String);

impl Envelope {
    /// Where the operator asks, no principal acts; a list of teams is in none of them.
    pub fn new(
        server_id: &ServerId,
        team_id: Option<&TeamId>,
        principal_id: Option<&PrincipalId>,
    ) -> Envelope {
        let context =
            json!({ "server_id": server_id, "team_id": team_id, "principal_id": principal_id });
        Envelope(format!(r#"{{"version":1,"context":{context}"#))
    }

    pub fn one(&self, status: u16, data: &impl Serialize) -> Result<Answer> {
        let data = json::to_string(data)?;
        let body = format!(r#"{},"data":{data}}}"#, self.0);
        Ok(Answer { status, body: Body::Json(body), ..Answer::default() })
    }

    pub fn list(&self, items: &[impl Serialize], next_cursor: Option<&str>) -> Result<Answer> {
        let items = json::to_string(items)?;
        let next_cursor = json!(next_cursor);
        let body = format!(r#"{},"items":{items},"next_cursor":{next_cursor}}}"#, self.0);
        Ok(Answer { body: Body::Json(body), ..Answer::default() })
    }
}

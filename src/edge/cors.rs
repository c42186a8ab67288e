//! CORS: the server's own origin and the console's, no other.
use crate::limits::CORS_AGE_S;
use crate::object::{config, http::Head};
use worker::{Env, Headers, Request, Result};

const METHODS: &str = "GET, POST, PUT, PATCH, DELETE";
const ASKED_HEADERS: &str = "Authorization, Content-Type, Content-Digest, Idempotency-Key, \
                             If-Match, If-None-Match, If-Range, Last-Event-ID, Range, \
                             X-Context-Capability";
const SHOWN_HEADERS: &str = "ETag, X-Request-Id, Retry-After, Idempotent-Replayed, Location, \
                             Allow, Content-Digest, Content-Range, Content-Disposition, \
                             Accept-Ranges, WWW-Authenticate";

pub struct Cors {
    /// The page's origin, if it may read the answer.
    allowed: Option<String>,
    pub is_preflight: bool,
}

impl Cors {
    pub fn read(request: &Request, head: &Head, env: &Env) -> Result<Cors> {
        let Some(origin) = request.headers().get("Origin")? else {
            return Ok(Cors { allowed: None, is_preflight: false });
        };
        let asks = request.headers().has("Access-Control-Request-Method")?;
        let console = config::text(env, "CONSOLE_ORIGIN");
        let may = origin == head.origin || console.is_some_and(|console| console == origin);
        Ok(Cors { allowed: may.then_some(origin), is_preflight: head.method == "OPTIONS" && asks })
    }

    pub fn apply(&self, headers: &Headers) -> Result<()> {
        headers.append("Vary", "Origin")?;
        let Some(origin) = &self.allowed else { return Ok(()) };
        headers.set("Access-Control-Allow-Origin", origin)?;
        if self.is_preflight {
            headers.set("Access-Control-Allow-Methods", METHODS)?;
            headers.set("Access-Control-Allow-Headers", ASKED_HEADERS)?;
            headers.set("Access-Control-Max-Age", &CORS_AGE_S.to_string())?;
        } else {
            headers.set("Access-Control-Expose-Headers", SHOWN_HEADERS)?;
        }
        Ok(())
    }
}

//! What an app may be given. Each route says which of them it asks of an app's token
//! (`api::ROUTES`); a route that names none is closed to apps.
pub const SESSIONS_READ: &str = "sessions:read";
pub const EVENTS_READ: &str = "events:read";
pub const CAPTURES_WRITE: &str = "captures:write";
pub const RUNS_READ: &str = "runs:read";
pub const RUNS_WRITE: &str = "runs:write";
pub const CONTEXTS: &str = "contexts";

pub const ALL: &[&str] =
    &[SESSIONS_READ, EVENTS_READ, CAPTURES_WRITE, RUNS_READ, RUNS_WRITE, CONTEXTS];

//! The one error type. A [`Code`] is what a program branches on; this file is the only place
//! that knows which HTTP status it becomes.
use serde_json::{Map, Value as Json};

pub type Result<T, E = Error> = std::result::Result<T, E>;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident $status:literal $text:literal,)*) => {
        /// A stable, machine-readable reason for a refusal.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Code { $($(#[$doc])* $name),* }

        impl Code {
            pub fn status(self) -> u16 {
                match self { $(Code::$name => $status),* }
            }
            pub fn text(self) -> &'static str {
                match self { $(Code::$name => $text),* }
            }
        }
    };
}

codes! {
    InvalidRequest 400 "invalid_request",
    InvalidJson 400 "invalid_json",
    InvalidCursor 400 "invalid_cursor",
    Unauthenticated 401 "unauthenticated",
    Forbidden 403 "forbidden",
    PrincipalMismatch 403 "principal_mismatch",
    NotFound 404 "not_found",
    PayloadNotFound 404 "payload_not_found",
    /// A claim that somebody asks for, and nobody holds.
    NoClaim 404 "claim_not_held",
    MethodNotAllowed 405 "method_not_allowed",
    NotAcceptable 406 "not_acceptable",
    Conflict 409 "conflict",
    RevisionMismatch 409 "revision_mismatch",
    IdempotencyMismatch 409 "idempotency_mismatch",
    CaptureIncomplete 409 "capture_incomplete",
    UploadIncomplete 409 "upload_incomplete",
    DigestMismatch 409 "digest_mismatch",
    StaleRevision 409 "stale_revision",
    StaleBinding 409 "stale_binding",
    CheckpointConflict 409 "checkpoint_conflict",
    Tombstoned 409 "tombstoned",
    LiveElsewhere 409 "live_elsewhere",
    WorktreeState 409 "worktree_state",
    ClaimHeld 409 "claim_held",
    ClaimNotHeld 409 "claim_not_held",
    DuplicateEvent 409 "duplicate_event",
    SequenceConflict 409 "sequence_conflict",
    Expired 410 "expired",
    EventsPruned 410 "events_pruned",
    SessionDeleted 410 "session_deleted",
    PayloadRevoked 410 "payload_revoked",
    TooLarge 413 "too_large",
    ExportTooLarge 413 "export_too_large",
    UnsupportedMediaType 415 "unsupported_media_type",
    RangeNotSatisfiable 416 "range_not_satisfiable",
    UpgradeRequired 426 "upgrade_required",
    PreconditionRequired 428 "precondition_required",
    RateLimited 429 "rate_limited",
    Internal 500 "internal",
    Overloaded 503 "overloaded",
    NotConfigured 503 "not_configured",
    StorageFull 507 "storage_full",
}

/// A refusal: a code, a message for a person, and what a program needs to go on.
#[derive(Debug, Clone, PartialEq)]
pub struct Error {
    pub code: Code,
    pub message: String,
    pub details: Map<String, Json>,
    /// Sent as a header beside the body: `Allow`, `Retry-After`, `Content-Range`.
    pub header: Option<(&'static str, String)>,
}

impl Error {
    pub fn new(code: Code, message: impl Into<String>) -> Error {
        Error { code, message: message.into(), details: Map::new(), header: None }
    }

    /// A bad value in a field, query parameter or header, named so that the caller finds it.
    pub fn field(field: impl Into<String>, message: impl Into<String>) -> Error {
        Error::new(Code::InvalidRequest, message).with("field", field.into())
    }

    pub fn not_found() -> Error {
        Error::new(Code::NotFound, "no such resource, or none that this token may know of")
    }

    pub fn forbidden(message: impl Into<String>) -> Error {
        Error::new(Code::Forbidden, message)
    }

    pub fn conflict(message: impl Into<String>) -> Error {
        Error::new(Code::Conflict, message)
    }

    pub fn unauthenticated() -> Error {
        Error::new(Code::Unauthenticated, "send a valid token as Authorization: Bearer tp_…")
    }

    pub fn too_large(limit_bytes: usize, what: &str) -> Error {
        Error::new(Code::TooLarge, format!("{what} may have at most {limit_bytes} bytes"))
            .with("limit", limit_bytes)
    }

    pub fn revision_mismatch(current: i64) -> Error {
        Error::new(Code::RevisionMismatch, format!("the current revision is {current}"))
            .with("revision", current)
    }

    /// A fault of ours: the text goes to the log, never to the caller.
    pub fn internal(text: impl Into<String>) -> Error {
        Error::new(Code::Internal, text)
    }

    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Json>) -> Error {
        self.details.insert(key.into(), value.into());
        self
    }

    #[must_use]
    pub fn with_header(mut self, name: &'static str, value: impl Into<String>) -> Error {
        self.header = Some((name, value.into()));
        self
    }
}

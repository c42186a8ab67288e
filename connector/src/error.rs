//! What can go wrong, with what to do about it, and the exit code that says so to scripts.
use crate::client::Refusal;
use std::fmt;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug)]
pub enum Error {
    /// A wrong argument or configuration.
    Usage(String),
    /// Not logged in, or not enrolled.
    NotSetUp(String),
    /// The server no longer takes the token.
    Rejected(String),
    /// The server cannot be reached.
    Unreachable(String),
    /// Another instance runs.
    Running(String),
    /// The server refused.
    Refused(Box<Refusal>),
    /// A file changed while it was read.
    Changed,
    Other(String),
}

impl Error {
    pub fn usage(message: impl Into<String>) -> Error {
        Error::Usage(message.into())
    }

    pub fn other(message: impl Into<String>) -> Error {
        Error::Other(message.into())
    }

    pub fn io(what: impl fmt::Display, error: std::io::Error) -> Error {
        Error::Other(format!("{what}: {error}"))
    }

    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Usage(_) => 2,
            Error::NotSetUp(_) => 3,
            Error::Rejected(_) => 4,
            Error::Unreachable(_) => 5,
            Error::Running(_) => 6,
            Error::Refused(_) | Error::Changed | Error::Other(_) => 1,
        }
    }

    /// The code of the server's refusal.
    pub fn code(&self) -> &str {
        match self {
            Error::Refused(refusal) => &refusal.code,
            Error::Rejected(_) => "unauthenticated",
            _ => "",
        }
    }

    pub fn name(&self) -> &'static str {
        match self {
            Error::Usage(_) => "usage",
            Error::NotSetUp(_) => "not_set_up",
            Error::Rejected(_) => "rejected",
            Error::Unreachable(_) => "unreachable",
            Error::Running(_) => "running",
            Error::Refused(_) => "refused",
            Error::Changed => "changed",
            Error::Other(_) => "failed",
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Error::Usage(text)
            | Error::NotSetUp(text)
            | Error::Rejected(text)
            | Error::Unreachable(text)
            | Error::Running(text)
            | Error::Other(text) => f.write_str(text),
            Error::Refused(refusal) => refusal.fmt(f),
            Error::Changed => f.write_str("the transcript changed while it was read; try again"),
        }
    }
}

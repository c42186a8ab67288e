//! What a handler answers: a status, headers and a body, or the work that leads there.
use crate::domain::links::Link;
use crate::domain::streams::Watch;
use crate::error::{Code, Error, Result};
use crate::store::Db;
use serde_json::{Value as Json, json};

/// Work in bounded slices, with a yield between two: answers when it is done.
pub type Job = Box<dyn FnMut(&Db) -> Result<Option<Answer>>>;
/// A body made in bounded chunks, with a yield between two.
pub type Chunks = Box<dyn FnMut(&Db) -> Result<Option<Vec<u8>>>>;

/// Takes a request's body in, piece by piece; nothing is its end, and has it answered.
pub type Intake = Box<dyn FnMut(&Db, Option<&[u8]>) -> Result<Option<Answer>>>;

pub enum Body {
    Empty,
    Json(String),
    Bytes(Vec<u8>),
    Chunks(Chunks),
    /// No body: the connection becomes a machine's link, which the shell holds.
    Link(Link),
    /// Likewise: a stream, which the edge hands on to the caller.
    Watch(Watch),
}

pub struct Answer {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Body,
    /// Whether it holds a secret, which no repetition may.
    pub secret: bool,
    /// What went wrong on our side: for the log, never for the caller.
    pub fault: Option<String>,
}

impl Default for Answer {
    fn default() -> Answer {
        Answer { status: 200, headers: Vec::new(), body: Body::Empty, secret: false, fault: None }
    }
}

impl Answer {
    pub fn json(status: u16, body: String) -> Answer {
        Answer { status, body: Body::Json(body), ..Answer::default() }
    }

    pub fn no_content() -> Answer {
        Answer { status: 204, ..Answer::default() }
    }

    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Answer {
        self.headers.push((name, value.into()));
        self
    }

    #[must_use]
    pub fn secret(self) -> Answer {
        Answer { secret: true, ..self }
    }

    /// A refusal in its envelope.
    pub fn refusal(error: Error, request_id: &str) -> Answer {
        let mut body = json!({ "code": error.code.text(), "request_id": request_id });
        let mut fault = None;
        body["message"] = if error.code == Code::Internal {
            fault = Some(error.message);
            "a fault of the server; its log has this request's id".into()
        } else {
            error.message.into()
        };
        if !error.details.is_empty() {
            body["details"] = Json::Object(error.details);
        }
        let body = json!({ "version": 1, "error": body }).to_string();
        let mut answer = Answer { fault, ..Answer::json(error.code.status(), body) };
        answer.headers.extend(error.header);
        if error.code == Code::Unauthenticated {
            answer = answer.with("WWW-Authenticate", "Bearer");
        }
        answer
    }
}

/// A request's answer, or the work that leads to it.
pub enum Reply {
    Answer(Answer),
    Job(Job),
    Intake(Intake),
}

//! Large values of contexts: payloads, active contexts, snapshots. Each is a body, read piece by
//! piece; nothing holds more than one piece of a large one.
use crate::api::{Answer, Body, Call, Chunks};
use crate::auth;
use crate::domain::bodies;
use crate::error::{Error, Result};
use crate::ids::{BodyId, TeamId};
use crate::limits::{BODY_CHUNK_BYTES, VALUE_WHOLE_BYTES_MAX};
use crate::store::Db;
use std::io::Read;

/// Where a value is.
#[derive(Debug, Clone)]
pub struct Stored {
    pub team_id: TeamId,
    pub body_id: BodyId,
    pub size: i64,
}

impl Stored {
    /// The piece at an index; nothing behind the last.
    pub fn chunk(&self, db: &Db, index: i64) -> Result<Option<Vec<u8>>> {
        bodies::chunk(db, &self.team_id, &self.body_id, index)
    }

    fn chunk_count(&self) -> i64 {
        (self.size + BODY_CHUNK_BYTES - 1) / BODY_CHUNK_BYTES
    }

    /// As a reader that holds one piece at a time.
    pub fn reader<'a>(&'a self, db: &'a Db<'a>) -> impl Read + 'a {
        Reader { stored: self, db, index: 0, piece: Vec::new(), at: 0 }
    }

    /// What `before` and `after` enclose, for a body in chunks. It breaks off when the token ends.
    pub fn chunks(self, call: &Call, before: Vec<u8>, after: Vec<u8>) -> Chunks {
        let (who, count) = (call.who.clone(), self.chunk_count());
        let (mut before, mut after) = (Some(before), Some(after));
        let mut index = 0;
        Box::new(move |db| {
            auth::again(db, &who)?;
            if let Some(before) = before.take().filter(|before| !before.is_empty()) {
                return Ok(Some(before));
            }
            if index < count {
                index += 1;
                return self.chunk(db, index - 1)?.ok_or_else(Error::not_found).map(Some);
            }
            Ok(after.take().filter(|after| !after.is_empty()))
        })
    }

    /// A JSON answer in which the value stands, as it is, between two texts.
    pub fn enclosed(self, db: &Db, call: &Call, before: String, after: &str) -> Result<Answer> {
        let body = if self.size <= VALUE_WHOLE_BYTES_MAX {
            let mut whole = before.into_bytes();
            for index in 0..self.chunk_count() {
                let piece = self.chunk(db, index)?;
                whole.extend(piece.ok_or_else(|| Error::internal("a value's piece is missing"))?);
            }
            whole.extend_from_slice(after.as_bytes());
            let text = String::from_utf8(whole);
            Body::Json(text.map_err(|_| Error::internal("a JSON value is not UTF-8"))?)
        } else {
            Body::Chunks(self.chunks(call, before.into_bytes(), after.into()))
        };
        let answer = Answer { body, ..Answer::default() };
        Ok(match answer.body {
            Body::Chunks(_) => answer.with("Content-Type", "application/json"),
            _ => answer,
        })
    }
}

struct Reader<'a> {
    stored: &'a Stored,
    db: &'a Db<'a>,
    index: i64,
    piece: Vec<u8>,
    at: usize,
}

impl Read for Reader<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if self.at == self.piece.len() {
            let piece = self.stored.chunk(self.db, self.index);
            self.piece = piece.map_err(|e| std::io::Error::other(e.message))?.unwrap_or_default();
            self.index += 1;
            self.at = 0;
        }
        let count = into.len().min(self.piece.len() - self.at);
        into[..count].copy_from_slice(&self.piece[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

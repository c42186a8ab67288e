//! A session as JSON Lines: its current messages, one a line, as they were sent.
use crate::api::{Answer, Body, Call, Chunks};
use crate::auth;
use crate::domain::{journal, message_pages, sessions};
use crate::error::Result;
use crate::ids::Id;
use crate::limits::PAGE_ITEMS_MAX;
use crate::store::Db;

/// `GET /sessions/{session}/export` streams the messages of the version that is current when it
/// begins. The body breaks off when the session is deleted, or the caller may not see it any more.
pub fn get(db: &Db, call: &Call) -> Result<Answer> {
    let session = sessions::seen(db, &call.who, &call.id(0)?)?;
    db.transaction(|tx| journal::write(tx, call, "session.exported", session.session_id.as_str()))?;

    let (who, session_id, revision) = (call.who.clone(), session.session_id, session.revision);
    let mut next = 0;
    let mut done = false;
    let chunks: Chunks = Box::new(move |db| {
        if done {
            return Ok(None);
        }
        let who = auth::again(db, &who)?;
        let current = sessions::seen(db, &who, &session_id)?;
        if current.revision != revision {
            // Kept for as long as a page of it is: each chunk renews that.
            db.transaction(|tx| message_pages::pin(tx, &who, &session_id, revision))?;
        }
        let read = message_pages::Read { who: &who, session_id: &session_id, revision };
        let count = read.fitting(db, next, PAGE_ITEMS_MAX)?;
        let messages = read.values(db, next, count)?;
        if messages.is_empty() {
            done = true;
            return Ok(None);
        }
        next += i64::try_from(messages.len()).unwrap_or(0);
        let mut lines = messages.join("\n");
        lines.push('\n');
        Ok(Some(lines.into_bytes()))
    });
    let answer = Answer { body: Body::Chunks(chunks), ..Answer::default() };
    Ok(answer
        .with("Content-Type", "application/jsonl; charset=utf-8")
        .with("Content-Disposition", "attachment"))
}

//! Content: bytes that the events of runs name by their digest, kept once per team.
use crate::api::{Answer, Body, Call, Chunks, Intake};
use crate::auth::{Kind, Principal, Role};
use crate::domain::bodies::{self, Published, Taken};
use crate::error::{Code, Error, Result};
use crate::guard;
use crate::ids::{BodyId, is_hex};
use crate::limits::{CONTENT_BYTES_MAX, CONTENT_GRANTS_MAX, RUN_NAME_BYTES_MAX, SHA256_DIGITS};
use crate::params;
use crate::ranges::{self, File};
use crate::scopes::{RUNS_READ, RUNS_WRITE};
use crate::store::{Db, Tx};
use serde_json::json;

const KINDS: &[&str] = &["output", "error", "message"];

/// `PUT /content/{ref}` stores what the ref is the digest of; again it is `204` too, and keeps the
/// content from retention for another while. Of nothing, nothing is stored.
///
/// `409 digest_mismatch` for other bytes; `413 too_large`.
pub fn put(_: &Db, call: &Call) -> Result<Intake> {
    let name = call.segment(0).to_owned();
    let Some(digest) = digest_of(&name).map(str::to_owned) else {
        return Err(Error::field(
            "ref",
            "must be sha256:<64 lowercase hex digits> or ref:<output, error or message>:<as many>",
        ));
    };
    writes(&call.who)?;
    Ok(bodies::intake(call, CONTENT_BYTES_MAX, move |tx, who, taken| {
        writes(who)?;
        if taken.sha256 != digest {
            let message = "the bytes are not those whose digest the ref is";
            return Err(Error::new(Code::DigestMismatch, message).with("sha256", taken.sha256));
        }
        publish(tx, who, &name, taken)
    }))
}

fn publish(tx: &Tx, who: &Principal, name: &str, taken: &Taken) -> Result<Published> {
    if taken.size == 0 {
        return Ok(Published::Unused(Answer::no_content()));
    }
    let again = tx.execute_counted(
        "UPDATE content SET created_at = ?3 WHERE team_id = ?1 AND ref = ?2",
        params![&who.team_id, name, tx.now_ms],
    )?;
    if again > 0 {
        return Ok(Published::Unused(Answer::no_content()));
    }
    tx.execute(
        "INSERT INTO content (team_id, ref, size, sha256, body_id, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        params![&who.team_id, name, taken.size, taken.sha256, taken.body_id, tx.now_ms],
    )?;
    Ok(Published::Kept(Answer::no_content()))
}

/// `GET /content/{ref}` sends the bytes, or the one range of them that `Range` asks for. The body
/// breaks off when the content is removed or the token revoked while it is sent.
pub fn get(db: &Db, call: &Call) -> Result<Answer> {
    let (answer, sent) = head_of(db, call)?;
    let body = sent.map_or(Body::Empty, Body::Chunks);
    Ok(Answer { body, ..answer })
}

/// `HEAD /content/{ref}` says what a GET would send.
pub fn head(db: &Db, call: &Call) -> Result<Answer> {
    Ok(head_of(db, call)?.0)
}

fn head_of(db: &Db, call: &Call) -> Result<(Answer, Option<Chunks>)> {
    reads(&call.who)?;
    let found = db.query_optional(
        "SELECT size, sha256, body_id FROM content WHERE team_id = ?1 AND ref = ?2",
        params![&call.who.team_id, call.segment(0)],
        |row| Ok((row.get::<i64>()?, row.get::<String>()?, row.get::<BodyId>()?)),
    )?;
    let (size, sha256, body_id) = found.ok_or_else(Error::not_found)?;
    let file = File { size, sha256: &sha256, media_type: "application/octet-stream" };
    let (answer, sent) = ranges::answer(call, &file)?;
    Ok((answer, sent.map(|(first, end)| bodies::chunks(&call.who, body_id, first, end))))
}

/// `GET /content/{ref}/grants/{session}` says whether that session of an agent may read it.
pub fn granted(db: &Db, call: &Call) -> Result<Answer> {
    reads(&call.who)?;
    let found = db.query_optional(
        "SELECT 1 FROM content_grants WHERE team_id = ?1 AND ref = ?2 AND session_id = ?3",
        params![&call.who.team_id, call.segment(0), call.segment(1)],
        |row| row.get::<i64>(),
    )?;
    call.one(200, &json!({ "granted": found.is_some() }))
}

/// `PUT /content/{ref}/grants/{session}` lets it; whether the content is there is not asked.
///
/// `409 conflict` at `CONTENT_GRANTS_MAX` of one content.
pub fn grant(tx: &Tx, call: &Call) -> Result<Answer> {
    let (name, session_id) = (call.segment(0), call.segment(1));
    if digest_of(name).is_none() {
        return Err(Error::field("ref", "is no content's name"));
    }
    if session_id.is_empty() || session_id.len() > RUN_NAME_BYTES_MAX {
        return Err(Error::field("session", format!("must have 1 to {RUN_NAME_BYTES_MAX} bytes")));
    }
    writes(&call.who)?;
    let count = tx.query_one(
        "SELECT count(*) FROM (SELECT 1 FROM content_grants
                                WHERE team_id = ?1 AND ref = ?2 AND session_id <> ?3 LIMIT ?4)",
        params![&call.who.team_id, name, session_id, CONTENT_GRANTS_MAX],
        |row| row.get::<i64>(),
    )?;
    if count >= CONTENT_GRANTS_MAX {
        let message = format!("a content has at most {CONTENT_GRANTS_MAX} grants");
        return Err(Error::new(Code::Conflict, message));
    }
    tx.execute(
        "INSERT INTO content_grants (team_id, ref, session_id, created_at)
         VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT DO NOTHING",
        params![&call.who.team_id, name, session_id, tx.now_ms],
    )?;
    call.one(200, &json!({ "granted": true }))
}

fn reads(who: &Principal) -> Result<()> {
    match who.kind {
        Kind::App if !who.scopes.iter().any(|scope| scope == RUNS_WRITE) => {
            guard::app_scope(who, RUNS_READ)
        }
        Kind::App => Ok(()),
        _ => guard::role(who, Role::Viewer),
    }
}

fn writes(who: &Principal) -> Result<()> {
    match who.kind {
        Kind::App => guard::app_scope(who, RUNS_WRITE),
        _ => guard::role(who, Role::Member),
    }
}

/// The digest that a content's name holds, if it is one.
fn digest_of(name: &str) -> Option<&str> {
    let (kind, digest) = name.rsplit_once(':')?;
    let known =
        kind == "sha256" || kind.strip_prefix("ref:").is_some_and(|kind| KINDS.contains(&kind));
    (known && is_hex(digest, SHA256_DIGITS)).then_some(digest)
}

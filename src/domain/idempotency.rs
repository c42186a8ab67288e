//! Creating requests that carry an `Idempotency-Key` take effect once.
//!
//! The first answer is kept in the transaction that made it, so a crash between effect and reply
//! is followed by a replay, and a failure leaves the key free. A handler never awaits, so a second
//! request never finds the first one still running.
use crate::api::{Answer, Body, Call};
use crate::error::{Code, Error, Result};
use crate::limits::{IDEMPOTENCY_AGE_MS, IDEMPOTENCY_KEY_CHARS_MAX};
use crate::params;
use crate::store::Tx;
use serde_json::Value as Json;
use serde_json::value::RawValue;

/// Fields that hold a secret in an answer marked as such.
const SECRET_FIELDS: &[&str] = &["token", "webhook_secret", "code"];

const REPLAYED: &str = "Idempotent-Replayed";

/// A kept answer: the body is sent again as it is, also what a client sent that no text can hold.
#[derive(serde::Serialize, serde::Deserialize)]
struct Kept {
    etag: Option<String>,
    body: Box<RawValue>,
}

/// Runs `create`, or replays what it answered to the same request of the same principal or machine.
pub fn once(tx: &Tx, call: &Call, create: fn(&Tx, &Call) -> Result<Answer>) -> Result<Answer> {
    let Some(key) = call.header("idempotency-key") else { return create(tx, call) };
    validate(key)?;
    let fingerprint = call.fingerprint();
    let known = tx.query_optional(
        "SELECT request_hash, status, response_json
           FROM idempotency
          WHERE team_id = ?1 AND principal_id = ?2 AND key = ?3 AND expires_at > ?4",
        params![&call.who.team_id, call.who.actor(), key, tx.now_ms],
        |row| Ok((row.get::<Vec<u8>>()?, row.get::<i64>()?, row.get::<String>()?)),
    )?;
    if let Some((hash, status, response)) = known {
        may_still(tx, call, create)?;
        return if hash == fingerprint { replay(status, &response) } else { Err(mismatch()) };
    }
    let answer = create(tx, call)?;
    let kept = keep(&answer)?;
    tx.execute(
        "INSERT INTO idempotency
             (team_id, principal_id, key, request_hash, status, response_json, created_at,
              expires_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
         ON CONFLICT (team_id, principal_id, key) DO UPDATE
            SET request_hash = excluded.request_hash, status = excluded.status,
                response_json = excluded.response_json, created_at = excluded.created_at,
                expires_at = excluded.expires_at",
        params![
            &call.who.team_id,
            call.who.actor(),
            key,
            &fingerprint[..],
            i64::from(answer.status),
            &kept,
            tx.now_ms,
            tx.now_ms + IDEMPOTENCY_AGE_MS
        ],
    )?;
    Ok(answer)
}

/// Refuses whoever may not do it any more: tries it anew, and undoes that whatever comes of it.
fn may_still(tx: &Tx, call: &Call, create: fn(&Tx, &Call) -> Result<Answer>) -> Result<()> {
    let mut refused = None;
    let tried = tx.transaction(|tx| {
        refused = create(tx, call).err().filter(|error| error.code == Code::Forbidden);
        Err::<(), Error>(Error::internal("tried only"))
    });
    debug_assert!(tried.is_err(), "what was tried is undone");
    refused.map_or(Ok(()), Err)
}

pub fn validate(key: &str) -> Result<()> {
    let printable = key.bytes().all(|b| (b' '..=b'~').contains(&b));
    if printable && !key.is_empty() && key.len() <= IDEMPOTENCY_KEY_CHARS_MAX {
        return Ok(());
    }
    let message = format!("must be 1 to {IDEMPOTENCY_KEY_CHARS_MAX} printable ASCII characters");
    Err(Error::field("Idempotency-Key", message))
}

pub fn mismatch() -> Error {
    let message = "this key was used for another request; use a new one";
    Error::new(Code::IdempotencyMismatch, message)
}

/// An answer as it is kept, without its secrets.
pub fn keep(answer: &Answer) -> Result<String> {
    let Body::Json(text) = &answer.body else {
        return Err(Error::internal("only JSON answers are kept for repetition"));
    };
    let internal = |e: serde_json::Error| Error::internal(e.to_string());
    let body = if answer.secret {
        let mut body: Json = serde_json::from_str(text).map_err(internal)?;
        forget_secrets(&mut body);
        serde_json::value::to_raw_value(&body)
    } else {
        RawValue::from_string(text.clone())
    };
    let body = body.map_err(internal)?;
    let etag = answer.headers.iter().find(|(name, _)| *name == "ETag").map(|(_, v)| v.clone());
    crate::json::to_string(&Kept { etag, body })
}

/// Replaces secrets by null and says so beside them.
pub fn forget_secrets(json: &mut Json) {
    match json {
        Json::Object(fields) => {
            for name in SECRET_FIELDS {
                if fields.contains_key(*name) {
                    fields.insert((*name).into(), Json::Null);
                    fields.insert("replayed".into(), Json::Bool(true));
                }
            }
            fields.values_mut().for_each(forget_secrets);
        }
        Json::Array(items) => items.iter_mut().for_each(forget_secrets),
        _ => {}
    }
}

pub fn is_replay(answer: &Answer) -> bool {
    answer.headers.iter().any(|(name, _)| *name == REPLAYED)
}

/// A kept answer, sent again.
pub fn replay(status: i64, response: &str) -> Result<Answer> {
    let kept: Kept = serde_json::from_str(response).map_err(|e| Error::internal(e.to_string()))?;
    let answer = Answer {
        status: u16::try_from(status).unwrap_or(200),
        body: Body::Json(kept.body.get().to_owned()),
        ..Answer::default()
    };
    let answer = answer.with(REPLAYED, "true");
    Ok(match kept.etag {
        Some(etag) => answer.with("ETag", etag),
        None => answer,
    })
}

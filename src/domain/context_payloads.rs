//! A context's payloads: bytes that its events and checkpoints name, or only their digest. They
//! are uploaded ahead or come with a commit, and are known by their ref within their context only.
use crate::api::{Answer, Body, Call, Intake};
use crate::domain::bodies::{self, Published, Taken};
use crate::domain::context_access::{self, APP_SCOPE, Capability};
use crate::domain::context_checkpoints::conflict;
use crate::domain::context_values::Stored;
use crate::error::{Code, Error, Result};
use crate::guard;
use crate::ids::{BodyId, TeamId, hex};
use crate::json;
use crate::limits::{COMMIT_ROWS_AT_ONCE, LABEL_BYTES_MAX, PAYLOAD_BYTES_MAX, SAFE_INTEGER_MAX};
use crate::params;
use crate::store::{Db, Tx};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// What a payload is kept for unless its commit says so.
const RETENTION_DEFAULT: &str = "session";

/// A payload as a commit or an import lists it.
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Payload<'a> {
    pub r#ref: String,
    pub sha256: String,
    pub size: i64,
    pub retention: String,
    /// In base64; without them only the digest is kept. Their digest stands for them.
    #[serde(default, borrow, serialize_with = "whether")]
    pub bytes: Option<Cow<'a, str>>,
}

#[allow(clippy::ref_option)] // As serde calls it.
fn whether<S: serde::Serializer>(bytes: &Option<Cow<str>>, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_bool(bytes.is_some())
}

impl Payload<'_> {
    fn decoded(&self, field: &str) -> Result<Option<Vec<u8>>> {
        let Some(text) = &self.bytes else { return Ok(None) };
        let bytes = STANDARD.decode(text.as_ref());
        bytes.map(Some).map_err(|_| Error::field(format!("{field}.bytes"), "must be base64"))
    }

    fn is_like(&self, other: &Payload) -> bool {
        (&self.sha256, self.size, &self.retention) == (&other.sha256, other.size, &other.retention)
    }
}

pub fn validate(payloads: &[Payload]) -> Result<()> {
    let mut seen: BTreeMap<&str, &Payload> = BTreeMap::new();
    for (index, payload) in payloads.iter().enumerate() {
        let field = format!("payloads[{index}]");
        guard::label(format!("{field}.ref"), &payload.r#ref, LABEL_BYTES_MAX)?;
        guard::sha256(format!("{field}.sha256"), &payload.sha256)?;
        guard::in_range(&format!("{field}.size"), payload.size, 0..=SAFE_INTEGER_MAX)?;
        guard::label(format!("{field}.retention"), &payload.retention, LABEL_BYTES_MAX)?;
        if let Some(bytes) = payload.decoded(&field)? {
            if i64::try_from(bytes.len()) != Ok(payload.size) {
                let message = format!("bytes has {}", bytes.len());
                return Err(Error::field(format!("{field}.size"), message));
            }
            if hex(&Sha256::digest(&bytes)) != payload.sha256 {
                let message = "is not the digest of bytes";
                return Err(Error::field(format!("{field}.sha256"), message));
            }
        }
        if seen.insert(&payload.r#ref, payload).is_some_and(|other| !other.is_like(payload)) {
            let message = "is listed twice, and differently";
            return Err(Error::field(format!("{field}.ref"), message));
        }
    }
    Ok(())
}

/// What a commit's events and checkpoint name.
pub struct Named<'a> {
    pub sources: BTreeSet<&'a str>,
    pub active: Option<&'a str>,
}

struct Held {
    sha256: String,
    size: i64,
    retention: Option<String>,
    body_id: Option<BodyId>,
}

fn held(
    db: &Db,
    team_id: &TeamId,
    context_id: &str,
    refs: &BTreeSet<&str>,
) -> Result<BTreeMap<String, Held>> {
    let refs = refs.iter().collect::<Vec<_>>();
    let mut found = BTreeMap::new();
    for some in refs.chunks(COMMIT_ROWS_AT_ONCE) {
        let some = json::to_string(some)?;
        let rows = db.query(
            "SELECT p.ref, p.sha256, p.size, p.retention, p.body_id
               FROM json_each(?1) AS r
              CROSS JOIN context_payloads AS p
                 ON p.team_id = ?2 AND p.context_id = ?3 AND p.ref = r.value",
            params![&some, team_id, context_id],
            |row| {
                let name: String = row.get()?;
                let held = Held {
                    sha256: row.get()?,
                    size: row.get()?,
                    retention: row.get()?,
                    body_id: row.get()?,
                };
                Ok((name, held))
            },
        )?;
        found.extend(rows);
    }
    Ok(found)
}

/// Stores what a commit or an import lists, and makes what it names stay. Answers digest and size
/// of the payload that is the active context.
///
/// `409 checkpoint_conflict` for a payload that is there otherwise, and for an event that names
/// none; `404 payload_not_found` for an active context without bytes.
pub fn name(
    tx: &Tx,
    team_id: &TeamId,
    context_id: &str,
    payloads: &[Payload],
    named: &Named,
) -> Result<Option<(String, i64)>> {
    let listed = payloads.iter().map(|payload| payload.r#ref.as_str());
    let refs = listed.chain(named.sources.iter().copied()).chain(named.active);
    let mut held = held(tx, team_id, context_id, &refs.collect())?;
    for (index, payload) in payloads.iter().enumerate() {
        let bytes = payload.decoded(&format!("payloads[{index}]"))?;
        let is_source = named.active != Some(payload.r#ref.as_str());
        let body_id = put(tx, team_id, context_id, payload, bytes, held.get(&payload.r#ref), {
            is_source || named.sources.contains(payload.r#ref.as_str())
        })
        .map_err(|error| match error.code {
            Code::CheckpointConflict => error.with("field", format!("payloads[{index}].ref")),
            _ => error,
        })?;
        held.insert(
            payload.r#ref.clone(),
            Held {
                sha256: payload.sha256.clone(),
                size: payload.size,
                retention: Some(payload.retention.clone()),
                body_id,
            },
        );
    }
    if let Some(missing) = named.sources.iter().find(|name| !held.contains_key(**name)) {
        let message = format!("an event names the payload {missing}, which is not there");
        return Err(conflict(message).with("field", "events"));
    }
    keep(tx, team_id, context_id, &named.sources.iter().copied().collect::<Vec<_>>(), true)?;
    let Some(active) = named.active else { return Ok(None) };
    let Some(Held { sha256, size, body_id: Some(_), .. }) = held.remove(active) else {
        let message = "active_context_ref names no payload whose bytes are there";
        return Err(Error::new(Code::PayloadNotFound, message)
            .with("field", "checkpoint.active_context_ref"));
    };
    keep(tx, team_id, context_id, &[active], false)?;
    Ok(Some((sha256, size)))
}

/// Stores one payload unless it is there; where only its digest is, its bytes join it.
fn put(
    tx: &Tx,
    team_id: &TeamId,
    context_id: &str,
    payload: &Payload,
    bytes: Option<Vec<u8>>,
    held: Option<&Held>,
    is_source: bool,
) -> Result<Option<BodyId>> {
    if let Some(held) = held {
        let Held { sha256, size, retention, .. } = held;
        let same_retention = retention.as_ref().is_none_or(|kept| *kept == payload.retention);
        if *sha256 != payload.sha256 || *size != payload.size || !same_retention {
            return Err(conflict(format!("the payload {} is there otherwise", payload.r#ref)));
        }
    }
    let known = held.and_then(|held| held.body_id.clone());
    let body_id = match (known, bytes) {
        (None, Some(bytes)) => Some(bodies::write(tx, team_id, &bytes)?),
        (known, _) => known,
    };
    tx.execute(
        "INSERT INTO context_payloads
             (team_id, context_id, ref, sha256, size, retention, body_id, is_source, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
         ON CONFLICT (team_id, context_id, ref) DO UPDATE
            SET retention = excluded.retention, body_id = excluded.body_id,
                is_source = max(is_source, excluded.is_source), staged_at = NULL
          WHERE retention IS NULL OR body_id IS NOT excluded.body_id
             OR is_source < excluded.is_source OR staged_at IS NOT NULL",
        params![
            team_id,
            context_id,
            &payload.r#ref,
            &payload.sha256,
            payload.size,
            &payload.retention,
            body_id.as_ref(),
            is_source,
            tx.now_ms
        ],
    )?;
    Ok(body_id)
}

/// Payloads that are named now stay: as a source for good, else while a checkpoint names them.
fn keep(tx: &Tx, team_id: &TeamId, context_id: &str, refs: &[&str], is_source: bool) -> Result<()> {
    for some in refs.chunks(COMMIT_ROWS_AT_ONCE) {
        let some = json::to_string(some)?;
        tx.execute(
            "UPDATE context_payloads
                SET staged_at = NULL, is_source = max(is_source, ?4),
                    retention = coalesce(retention, ?5)
              WHERE team_id = ?2 AND context_id = ?3
                AND ref IN (SELECT value FROM json_each(?1))
                AND (staged_at IS NOT NULL OR is_source < ?4 OR retention IS NULL)",
            params![&some, team_id, context_id, is_source, RETENTION_DEFAULT],
        )?;
    }
    Ok(())
}

/// The payload's ref in a path.
pub fn payload_ref<'a>(call: &'a Call) -> Result<&'a str> {
    guard::label("ref", call.segment(1), LABEL_BYTES_MAX)?;
    Ok(call.segment(1))
}

/// `PUT /contexts/{context}/payloads/{ref}` takes the bytes in as they come, before a commit names
/// them. The same again changes nothing; what nothing names goes after a day.
///
/// `409 checkpoint_conflict` where the ref has other bytes. Whose the context is, and that its
/// worktree is active, is asked again in the transaction of the last byte.
pub fn upload(db: &Db, call: &Call) -> Result<Intake> {
    context_access::context_id(call)?;
    let name = payload_ref(call)?.to_owned();
    let scope = context_access::scope(call)?;
    let capability = Capability::read(call)?;
    guard::member_or_app(&call.who, APP_SCOPE)?;
    let context_id = call.segment(0).to_owned();
    context_access::usable(db, &call.who, (&scope, &context_id), &capability)?;

    Ok(bodies::intake(call, PAYLOAD_BYTES_MAX, move |tx, who, taken| {
        guard::member_or_app(who, APP_SCOPE)?;
        let context = context_access::usable(tx, who, (&scope, &context_id), &capability)?;
        let answer = Answer::no_content();
        if arrive(tx, &who.team_id, &context.id, &name, taken)? {
            Ok(Published::Kept(answer))
        } else {
            Ok(Published::Unused(answer))
        }
    }))
}

/// Whether what has arrived is used: its ref has no bytes yet.
fn arrive(tx: &Tx, team_id: &TeamId, context_id: &str, name: &str, taken: &Taken) -> Result<bool> {
    let Taken { body_id, size, sha256 } = *taken;
    let known = held(tx, team_id, context_id, &BTreeSet::from([name]))?.remove(name);
    if let Some(known) = &known
        && (known.sha256 != sha256 || known.size != size)
    {
        return Err(conflict("this ref has other bytes; use a new one").with("field", "ref"));
    }
    if known.is_some_and(|known| known.body_id.is_some()) {
        return Ok(false);
    }
    tx.execute(
        "INSERT INTO context_payloads
             (team_id, context_id, ref, sha256, size, body_id, staged_at, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7)
         ON CONFLICT (team_id, context_id, ref) DO UPDATE SET body_id = excluded.body_id",
        params![team_id, context_id, name, sha256, size, body_id, tx.now_ms],
    )?;
    Ok(true)
}

/// `GET /contexts/{context}/payloads/{ref}` sends the bytes; `204` where only the digest, which is
/// the `ETag`, is kept.
pub fn get(db: &Db, call: &Call) -> Result<Answer> {
    context_access::context_id(call)?;
    let name = payload_ref(call)?;
    let scope = context_access::scope(call)?;
    let capability = Capability::read(call)?;
    guard::viewer_or_app(&call.who, APP_SCOPE)?;
    let context = context_access::usable(db, &call.who, (&scope, call.segment(0)), &capability)?;

    let team_id = &call.who.team_id;
    let held = held(db, team_id, &context.id, &BTreeSet::from([name]))?.remove(name);
    let Some(Held { sha256, size, body_id, .. }) = held else {
        return Err(Error::new(Code::PayloadNotFound, "the context has no such payload"));
    };
    let tag = format!("\"{sha256}\"");
    let Some(body_id) = body_id else {
        return Ok(Answer::no_content().with("ETag", tag));
    };
    let stored = Stored { team_id: team_id.clone(), body_id, size };
    let body = Body::Chunks(stored.chunks(call, Vec::new(), Vec::new()));
    Ok(Answer { body, ..Answer::default() }
        .with("Content-Type", "application/octet-stream")
        .with("Content-Length", size.to_string())
        .with("ETag", tag)
        // What a client sent: no browser shall show or run it.
        .with("Content-Disposition", "attachment")
        .with("X-Content-Type-Options", "nosniff"))
}

//! A context as JSON Lines: its head, its events, its payloads, and how many there were.
use crate::api::{Answer, Body, Call, Chunks};
use crate::auth::{self, Principal};
use crate::domain::context_access::{self, APP_SCOPE, Capability};
use crate::domain::context_values::Stored;
use crate::domain::contexts::{self, Context};
use crate::domain::{context_audits, context_source};
use crate::error::{Code, Error, Result};
use crate::guard;
use crate::ids::{BodyId, Id};
use crate::limits::{EXPORT_BYTES_MAX, PAGE_ITEMS_MAX};
use crate::params;
use crate::store::Db;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

/// `GET /contexts/{context}/export` streams it and writes one audit. Lines are `{"context"}`,
/// `{"event"}` by sequence, `{"payload"}` by ref with its `bytes` in base64, and at last `{"end"}`.
///
/// `413 export_too_large`, before anything is sent.
pub fn get(db: &Db, call: &Call) -> Result<Answer> {
    context_access::context_id(call)?;
    let scope = context_access::scope(call)?;
    let capability = Capability::read(call)?;
    guard::member_or_app(&call.who, APP_SCOPE)?;
    let context = context_access::usable(db, &call.who, (&scope, call.segment(0)), &capability)?;
    if context.payload_bytes > EXPORT_BYTES_MAX {
        let message = format!("an export may have at most {EXPORT_BYTES_MAX} bytes of payloads");
        return Err(Error::new(Code::ExportTooLarge, message).with("limit", EXPORT_BYTES_MAX));
    }
    let audit_id = db.transaction(|tx| {
        let (size, revision) = (context.payload_bytes, context.revision.durable);
        let who = (&call.who.team_id, call.who.principal_id.as_str());
        context_audits::write(tx, who, &context.id, "export", size, revision)
    })?;

    let mut head = context.shape();
    head["audit_id"] = json!(audit_id);
    let first = json!({ "version": 1, "context": head }).to_string() + "\n";
    let mut export = Export {
        who: call.who.clone(),
        context,
        after_sequence: 0,
        after_ref: String::new(),
        payloads: 0,
        open: None,
        at: Stage::Events,
    };
    let mut first = Some(first);
    let chunks: Chunks = Box::new(move |db| match first.take() {
        Some(first) => Ok(Some(first.into_bytes())),
        None => export.next(db),
    });
    Ok(Answer { body: Body::Chunks(chunks), ..Answer::default() }
        .with("Content-Type", "application/jsonl; charset=utf-8")
        .with("Content-Disposition", "attachment"))
}

enum Stage {
    Events,
    Payloads,
    Done,
}

struct Export {
    who: Principal,
    context: Context,
    after_sequence: i64,
    after_ref: String,
    payloads: i64,
    /// The payload whose bytes are being sent: the next chunk, and bytes that wait for enough to
    /// be encoded without padding.
    open: Option<(Stored, i64, Vec<u8>)>,
    at: Stage,
}

impl Export {
    fn next(&mut self, db: &Db) -> Result<Option<Vec<u8>>> {
        auth::again(db, &self.who)?;
        let now = contexts::load(db, &self.who.team_id, &self.context.id)?;
        if now.is_none_or(|now| now.deleted_at.is_some()) {
            return Err(Error::not_found());
        }
        if let Some(open) = self.open.take() {
            return self.bytes(db, open).map(Some);
        }
        match self.at {
            Stage::Events => self.events(db).map(Some),
            Stage::Payloads => self.payload(db).map(Some),
            Stage::Done => Ok(None),
        }
    }

    fn events(&mut self, db: &Db) -> Result<Vec<u8>> {
        let last = self.context.revision.source;
        let team_id = &self.who.team_id;
        let events = context_source::read(
            db,
            team_id,
            &self.context.id,
            self.after_sequence,
            last,
            PAGE_ITEMS_MAX,
        )?;
        let Some(newest) = events.last() else {
            self.at = Stage::Payloads;
            return self.payload(db);
        };
        self.after_sequence = newest.sequence;
        let lines = events.iter().map(|event| json!({ "event": event }).to_string() + "\n");
        Ok(lines.collect::<String>().into_bytes())
    }

    fn payload(&mut self, db: &Db) -> Result<Vec<u8>> {
        let next = db.query_optional(
            "SELECT ref, sha256, size, retention, body_id
               FROM context_payloads
              WHERE team_id = ?1 AND context_id = ?2 AND ref > ?3
              ORDER BY ref
              LIMIT 1",
            params![&self.who.team_id, &self.context.id, &self.after_ref],
            |row| {
                let (name, sha256): (String, String) = (row.get()?, row.get()?);
                let (size, retention): (i64, Option<String>) = (row.get()?, row.get()?);
                Ok((name, sha256, size, retention, row.get::<Option<BodyId>>()?))
            },
        )?;
        let Some((name, sha256, size, retention, body_id)) = next else {
            self.at = Stage::Done;
            let end = json!({ "events": self.after_sequence, "payloads": self.payloads });
            return Ok((json!({ "end": end }).to_string() + "\n").into_bytes());
        };
        self.payloads += 1;
        let mut line = json!({ "payload": {
            "ref": name, "sha256": sha256, "size": size, "retention": retention,
            "hash_only": body_id.is_none(),
        } })
        .to_string();
        self.after_ref = name;
        if let Some(body_id) = body_id {
            line.truncate(line.len() - 2);
            line.push_str(r#","bytes":""#);
            let team_id = self.who.team_id.clone();
            self.open = Some((Stored { team_id, body_id, size }, 0, Vec::new()));
        } else {
            line.push('\n');
        }
        Ok(line.into_bytes())
    }

    fn bytes(
        &mut self,
        db: &Db,
        (stored, index, mut waiting): (Stored, i64, Vec<u8>),
    ) -> Result<Vec<u8>> {
        let Some(piece) = stored.chunk(db, index)? else {
            return Ok((STANDARD.encode(waiting) + "\"}}\n").into_bytes());
        };
        waiting.extend(piece);
        let rest = waiting.split_off(waiting.len() - waiting.len() % 3);
        self.open = Some((stored, index + 1, rest));
        Ok(STANDARD.encode(waiting).into_bytes())
    }
}

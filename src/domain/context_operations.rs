//! What a context's repeated calls are known by: an operation's id and what it asked for.
use crate::domain::context_checkpoints::conflict;
use crate::domain::contexts::Revision;
use crate::error::{Error, Result};
use crate::ids::TeamId;
use crate::params;
use crate::store::{Db, Tx};
use serde::Serialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

/// A hash over parts of a request, each set off from the next.
pub struct Fingerprint(Sha256);

impl Fingerprint {
    pub fn of(fields: &impl Serialize) -> Result<Fingerprint> {
        let mut hasher = Sha256::new();
        serde_json::to_writer(&mut hasher, fields).map_err(|e| Error::internal(e.to_string()))?;
        Ok(Fingerprint(hasher))
    }

    /// JSON that is kept as it was sent. White space between its tokens does not count.
    #[must_use]
    pub fn and(mut self, raw: Option<&RawValue>) -> Fingerprint {
        self.0.update(b"\n");
        let Some(raw) = raw.map(RawValue::get) else { return self };
        let (mut in_text, mut is_escaped, mut from) = (false, false, 0);
        for (at, byte) in raw.bytes().enumerate() {
            if !in_text && byte.is_ascii_whitespace() {
                self.0.update(&raw.as_bytes()[from..at]);
                from = at + 1;
            }
            in_text = in_text != (byte == b'"' && !is_escaped);
            is_escaped = in_text && byte == b'\\' && !is_escaped;
        }
        self.0.update(&raw.as_bytes()[from..]);
        self
    }

    pub fn end(self) -> [u8; 32] {
        self.0.finalize().into()
    }
}

/// What an operation did.
pub struct Done {
    pub revision: Revision,
    pub checkpoint_id: Option<String>,
}

/// What was done under the same id before. `409 checkpoint_conflict` where that was something else.
pub fn known(
    db: &Db,
    team_id: &TeamId,
    context_id: &str,
    operation_id: &str,
    (kind, fingerprint): (&str, &[u8; 32]),
) -> Result<Option<Done>> {
    let found = db.query_optional(
        "SELECT kind, fingerprint, session_revision, durable_revision, source_revision,
                checkpoint_id
           FROM context_operations
          WHERE team_id = ?1 AND context_id = ?2 AND operation_id = ?3",
        params![team_id, context_id, operation_id],
        |row| {
            let (kind, fingerprint): (String, Vec<u8>) = (row.get()?, row.get()?);
            let revision =
                Revision { session: row.get()?, durable: row.get()?, source: row.get()? };
            Ok((kind, fingerprint, Done { revision, checkpoint_id: row.get()? }))
        },
    )?;
    let Some((known_kind, known_fingerprint, done)) = found else { return Ok(None) };
    if known_kind == kind && known_fingerprint == fingerprint {
        return Ok(Some(done));
    }
    let message = "this operation id was used for another call; use a new one";
    Err(conflict(message).with("field", "operation_id"))
}

pub fn record(
    tx: &Tx,
    team_id: &TeamId,
    context_id: &str,
    operation_id: &str,
    (kind, fingerprint): (&str, &[u8; 32]),
    done: &Done,
) -> Result<()> {
    tx.execute(
        "INSERT INTO context_operations
             (team_id, context_id, operation_id, kind, fingerprint, session_revision,
              durable_revision, source_revision, checkpoint_id, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        params![
            team_id,
            context_id,
            operation_id,
            kind,
            &fingerprint[..],
            done.revision.session,
            done.revision.durable,
            done.revision.source,
            done.checkpoint_id.as_ref(),
            tx.now_ms
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_white_space_between_tokens_does_not_count() {
        let of = |text: &str| {
            let raw = RawValue::from_string(text.into()).unwrap();
            Fingerprint::of(&1).unwrap().and(Some(&raw)).end()
        };
        assert_eq!(of(r#"{"a" : [1, "x y"]}"#), of(r#"{"a":[1,"x y"]}"#));
        assert_ne!(of(r#"{"a":["x y"]}"#), of(r#"{"a":["xy"]}"#));
        assert_ne!(of(r#"["\" a"]"#), of(r#"["\"a"]"#));
        assert_ne!(of(r#"["\\","  "]"#), of(r#"["\\"," "]"#));
        assert_ne!(Fingerprint::of(&1).unwrap().end(), Fingerprint::of(&2).unwrap().end());
    }
}

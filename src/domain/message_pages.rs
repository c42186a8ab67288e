//! Reading a session's messages, a page at a time, of any version that is left.
use crate::api::{Answer, Call};
use crate::auth::Principal;
use crate::domain::{session_versions, sessions};
use crate::error::Result;
use crate::guard;
use crate::ids::{CursorId, Id, SessionId, hex};
use crate::limits::{CURSOR_AGE_MS, PAGE_BYTES_MAX, SAFE_INTEGER_MAX};
use crate::page;
use crate::params;
use crate::store::{Db, Tx};
use serde_json::json;
use sha2::{Digest, Sha256};

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct MessageQuery {
    revision: Option<i64>,
    after: Option<i64>,
    limit: Option<i64>,
}

/// `GET /sessions/{session}/messages` reads the messages behind the ordinal `after`, as they were
/// sent. Reading a revision that is not the current one keeps it for a quarter of an hour.
pub fn list(db: &Db, call: &Call) -> Result<Answer> {
    let MessageQuery { revision, after, limit } = call.query()?;
    if let Some(revision) = revision {
        guard::in_range("revision", revision, 1..=SAFE_INTEGER_MAX)?;
    }
    if let Some(after) = after {
        guard::in_range("after", after, 0..=SAFE_INTEGER_MAX - 1)?;
    }
    let limit = page::limit(limit)?;
    let session = sessions::seen(db, &call.who, &call.id(0)?)?;
    let revision = revision.unwrap_or(session.revision);
    if revision != session.revision {
        session_versions::must_have(db, call, &session.session_id, revision)?;
        db.transaction(|tx| pin(tx, &call.who, &session.session_id, revision))?;
    }

    let first = after.map_or(0, |after| after + 1);
    let read = Read { who: &call.who, session_id: &session.session_id, revision };
    let count = read.fitting(db, first, limit)?;
    let messages = read.values(db, first, count)?;

    let last = i64::try_from(messages.len()).unwrap_or(0) + first - 1;
    Ok(call.log(&messages, (!messages.is_empty()).then_some(last).or(after)))
}

/// Ordinals are without gaps, so a page is read by naming each: the row that a version holds is the
/// newest at its ordinal that is not younger than the version, however many others there are.
pub struct Read<'a> {
    pub who: &'a Principal,
    pub session_id: &'a SessionId,
    pub revision: i64,
}

impl Read<'_> {
    /// How many messages from `first` on fit a page; one always does.
    pub fn fitting(&self, db: &Db, first: i64, limit: usize) -> Result<usize> {
        let sizes = db.query(
            "WITH RECURSIVE wanted (ordinal) AS (
                 SELECT CAST(?3 AS INTEGER)
                  UNION ALL
                 SELECT ordinal + 1 FROM wanted LIMIT ?5)
             SELECT (SELECT CASE WHEN m.until_revision > ?4
                                 THEN octet_length(m.value_json) END
                       FROM messages m
                      WHERE m.team_id = ?1 AND m.session_id = ?2 AND m.ordinal = wanted.ordinal
                        AND m.revision <= ?4
                      ORDER BY m.revision DESC
                      LIMIT 1)
               FROM wanted",
            params![&self.who.team_id, self.session_id, first, self.revision, limit],
            |row| row.get::<Option<i64>>(),
        )?;
        let mut total = 0;
        let fits = |size: &i64| {
            total += usize::try_from(*size).unwrap_or(usize::MAX);
            total <= PAGE_BYTES_MAX
        };
        let there = sizes.iter().map_while(|size| *size).collect::<Vec<_>>();
        let count = there.iter().copied().take_while(fits).count();
        Ok(if there.is_empty() { 0 } else { count.max(1) })
    }

    pub fn values(&self, db: &Db, first: i64, count: usize) -> Result<Vec<String>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        db.query(
            "WITH RECURSIVE wanted (ordinal) AS (
                 SELECT CAST(?3 AS INTEGER)
                  UNION ALL
                 SELECT ordinal + 1 FROM wanted LIMIT ?5)
             SELECT (SELECT m.value_json
                       FROM messages m
                      WHERE m.team_id = ?1 AND m.session_id = ?2 AND m.ordinal = wanted.ordinal
                        AND m.revision <= ?4
                      ORDER BY m.revision DESC
                      LIMIT 1)
               FROM wanted",
            params![&self.who.team_id, self.session_id, first, self.revision, count],
            |row| row.get(),
        )
    }
}

/// Keeps a revision from being removed while somebody reads it. A reader's pins of the same half
/// of a cursor's life are one, and a pin's end never changes.
pub fn pin(tx: &Tx, who: &Principal, session_id: &SessionId, revision: i64) -> Result<()> {
    let half = tx.now_ms / (CURSOR_AGE_MS / 2);
    let name = format!("{} {session_id} {revision} {half}", who.principal_id);
    let cursor_id = CursorId::from_hex(&hex(&Sha256::digest(name)[..16]));
    let snapshot = json!({ "session_id": session_id, "revision": revision }).to_string();
    tx.execute(
        "INSERT INTO cursors
             (id, team_id, principal_id, kind, filters_hash, snapshot_json, expires_at)
         VALUES (?1, ?2, ?3, 'history', '', ?4, ?5)
         ON CONFLICT (id) DO NOTHING",
        params![&cursor_id, &who.team_id, &who.principal_id, &snapshot, tx.now_ms + CURSOR_AGE_MS],
    )
}

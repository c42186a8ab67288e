//! The messages of a new version: what is the same as before stays, changed or gone rows are closed
//! at the new revision, new rows are inserted. So the cost follows what was captured and what
//! changed, never what the session holds.
use crate::api::Call;
use crate::domain::capture_commit::{Current, Version};
use crate::domain::capture_parts::{Message, digest};
use crate::domain::captures::Held;
use crate::error::{Error, Result};
use crate::json;
use crate::limits::{BATCH_BYTES_MAX, WIDENED_AT_ONCE, WIDENED_MESSAGES_MAX};
use crate::params;
use crate::store::Tx;
use serde_json::value::RawValue;
use std::collections::HashSet;

/// Closes what changed or went, inserts what is new, and says whether there was any of it.
///
/// The row that a version holds at an ordinal is the newest one there, if it is still open: so
/// each comparison reads one row, however often that message was written before.
pub fn change(tx: &Tx, call: &Call, held: &Held, current: &Current, new: &Version) -> Result<bool> {
    let (team_id, session_id) = (&call.who.team_id, new.session_id);
    let mut closed = 0;
    if current.revision > 0 {
        closed += tx.execute_counted(
            "UPDATE messages SET until_revision = ?4
              WHERE id IN (
                        SELECT c.id
                          FROM capture_parts p
                         CROSS JOIN json_each(p.digests_json) d
                         CROSS JOIN messages c
                            ON c.id = (SELECT n.id FROM messages n
                                        WHERE n.team_id = ?1 AND n.session_id = ?3
                                          AND n.ordinal = CAST(d.key AS INTEGER)
                                        ORDER BY n.revision DESC
                                        LIMIT 1)
                         WHERE p.team_id = ?1 AND p.capture_id = ?2
                           AND c.until_revision = 9007199254740991
                           AND c.digest <> d.value)",
            params![team_id, &held.capture_id, session_id, new.revision],
        )?;
        if new.message_count < current.message_count {
            closed += tx.execute_counted(
                "UPDATE messages SET until_revision = ?4
                  WHERE team_id = ?1 AND session_id = ?2 AND ordinal >= ?3
                    AND until_revision = 9007199254740991",
                params![team_id, session_id, new.message_count, new.revision],
            )?;
        }
    }
    if closed > 0 {
        // messages_closed finds them.
        tx.execute(
            "DELETE FROM message_search
              WHERE rowid IN (
                        SELECT id FROM messages
                         WHERE team_id = ?1 AND session_id = ?2 AND until_revision = ?3
                           AND until_revision < 9007199254740991)",
            params![team_id, session_id, new.revision],
        )?;
    }
    let mut inserted = 0;
    for part_index in 0..held.part_count {
        let fresh: Option<HashSet<i64>> = if current.revision == 0 {
            None
        } else {
            Some(fresh_ordinals(tx, call, held, new, part_index)?)
        };
        if fresh.as_ref().is_none_or(|ordinals| !ordinals.is_empty()) {
            inserted += insert_part(tx, call, held, new, part_index, fresh.as_ref())?;
        }
    }
    debug_assert!(new.keep <= new.message_count, "a version keeps what it has");
    Ok(closed > 0 || inserted > 0)
}

/// The part's ordinals at which no open row is left.
fn fresh_ordinals(
    tx: &Tx,
    call: &Call,
    held: &Held,
    new: &Version,
    part_index: i64,
) -> Result<HashSet<i64>> {
    let ordinals = tx.query(
        "SELECT CAST(d.key AS INTEGER)
           FROM capture_parts p CROSS JOIN json_each(p.digests_json) d
          WHERE p.team_id = ?1 AND p.capture_id = ?2 AND p.part_index = ?4
            AND coalesce((SELECT n.until_revision FROM messages n
                           WHERE n.team_id = ?1 AND n.session_id = ?3
                             AND n.ordinal = CAST(d.key AS INTEGER)
                           ORDER BY n.revision DESC
                           LIMIT 1), 0) < 9007199254740991",
        params![&call.who.team_id, &held.capture_id, new.session_id, part_index],
        |row| row.get::<i64>(),
    )?;
    Ok(ordinals.into_iter().collect())
}

/// Inserts a part's messages, or those of them that are fresh, in batches that fit one parameter.
fn insert_part(
    tx: &Tx,
    call: &Call,
    held: &Held,
    new: &Version,
    part_index: i64,
    fresh: Option<&HashSet<i64>>,
) -> Result<u64> {
    let stored = tx.query_one(
        "SELECT messages_json FROM capture_parts
          WHERE team_id = ?1 AND capture_id = ?2 AND part_index = ?3",
        params![&call.who.team_id, &held.capture_id, part_index],
        |row| row.get::<String>(),
    )?;
    let messages: Vec<&RawValue> =
        serde_json::from_str(&stored).map_err(|e| Error::internal(format!("a part: {e}")))?;
    let mut batch = Batch::default();
    for sent in messages.iter().map(|raw| raw.get()) {
        let message = Message::read(sent)?;
        if fresh.is_some_and(|fresh| !fresh.contains(&message.ordinal)) {
            continue;
        }
        batch.push(&message, sent)?;
        if batch.rows.len() + batch.texts.len() >= BATCH_BYTES_MAX {
            batch.insert(tx, call, new)?;
        }
    }
    batch.insert(tx, call, new)?;
    Ok(batch.inserted)
}

/// A further source joins the session: whoever sees that source finds what is there already.
pub fn widen_scope(tx: &Tx, call: &Call, new: &Version) -> Result<()> {
    let mut before = new.message_count;
    for _ in 0..WIDENED_MESSAGES_MAX / WIDENED_AT_ONCE {
        let carried = tx.query(
            "SELECT id, ordinal, value_json FROM messages
              WHERE team_id = ?1 AND session_id = ?2 AND ordinal < CAST(?3 AS INTEGER)
                AND until_revision = 9007199254740991 AND revision < ?4
              ORDER BY ordinal DESC
              LIMIT CAST(?5 AS INTEGER)",
            params![&call.who.team_id, new.session_id, before, new.revision, WIDENED_AT_ONCE],
            |row| Ok((row.get::<i64>()?, row.get::<i64>()?, row.get::<String>()?)),
        )?;
        let Some((_, first, _)) = carried.last() else { return Ok(()) };
        before = *first;
        let texts = carried
            .iter()
            .map(|(id, _, sent)| Ok((id, Message::read(sent)?.searched_text(sent))))
            .collect::<Result<Vec<_>>>()?;
        let texts = json::to_string(&texts)?;
        tx.execute(
            "DELETE FROM message_search
              WHERE rowid IN (SELECT j.value ->> 0 FROM json_each(?1) j)",
            params![&texts],
        )?;
        tx.execute(
            "INSERT INTO message_search (rowid, text, scope)
             SELECT j.value ->> 0, j.value ->> 1, ?2 FROM json_each(?1) j",
            params![&texts, &new.scope],
        )?;
    }
    Ok(())
}

/// Messages on their way into the store, as the JSON of two statements' parameters.
#[derive(Default)]
struct Batch {
    rows: String,
    texts: String,
    inserted: u64,
}

impl Batch {
    fn push(&mut self, message: &Message, sent: &str) -> Result<()> {
        let append = |to: &mut String, row: serde_json::Result<String>| -> Result<()> {
            to.push(if to.is_empty() { '[' } else { ',' });
            to.push_str(&row.map_err(|e| Error::internal(e.to_string()))?);
            Ok(())
        };
        let (ordinal, searched) = (message.ordinal, message.searched_text(sent));
        let row = (ordinal, &message.role, digest(sent), sent);
        append(&mut self.rows, serde_json::to_string(&row))?;
        append(&mut self.texts, serde_json::to_string(&(ordinal, searched)))
    }

    fn insert(&mut self, tx: &Tx, call: &Call, new: &Version) -> Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let (mut rows, mut texts) =
            (std::mem::take(&mut self.rows), std::mem::take(&mut self.texts));
        rows.push(']');
        texts.push(']');
        self.inserted += tx.execute_counted(
            "INSERT INTO messages (team_id, session_id, ordinal, revision, role, digest, value_json)
             SELECT ?1, ?2, j.value ->> 0, CAST(?3 AS INTEGER), j.value ->> 1, j.value ->> 2,
                    j.value ->> 3
               FROM json_each(?4) j",
            params![&call.who.team_id, new.session_id, new.revision, &rows],
        )?;
        tx.execute(
            "INSERT INTO message_search (rowid, text, scope)
             SELECT m.id, j.value ->> 1, ?5
               FROM json_each(?4) j CROSS JOIN messages m
                 ON m.team_id = ?1 AND m.session_id = ?2
                AND m.ordinal = j.value ->> 0 AND m.revision = ?3",
            params![&call.who.team_id, new.session_id, new.revision, &texts, &new.scope],
        )
    }
}

//! How an import puts events of runs in: in the order of the old team's appends, as new ones.
use crate::domain::run_append::{self, Added, NewEvent};
use crate::domain::runs::TOMBSTONE;
use crate::domain::transfer_rows::{Into, Row};
use crate::error::Result;
use crate::params;
use crate::store::Tx;
use crate::text;
use std::collections::BTreeMap;

/// An event whose id is there already stays as it is.
pub fn put(tx: &Tx, into: &Into, row: &Row) -> Result<()> {
    let payload: String = row.get("payload_json")?;
    let event = NewEvent {
        run_id: row.get("run_id")?,
        id: row.get("id")?,
        sequence: row.get("sequence")?,
        kind: row.get("kind")?,
        payload: &payload,
    };
    event.validate("row")?;
    let row_ids = tx.execute_returning(
        "INSERT INTO run_events (team_id, id, run_id, sequence, kind, created_at, payload_json)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
         ON CONFLICT DO NOTHING
         RETURNING row_id",
        params![
            into.team_id,
            &event.id,
            &event.run_id,
            event.sequence,
            &event.kind,
            row.get::<i64>("created_at")?,
            event.payload
        ],
        |row| row.get::<i64>(),
    )?;
    let Some(row_id) = row_ids.first().copied() else { return Ok(()) };
    let run = Added {
        events: 1,
        tombstones: i64::from(event.kind == TOMBSTONE),
        last: Some((event.sequence, row_id)),
        newest_row_id: row_id,
    };
    run_append::raise(tx, into.team_id, &BTreeMap::from([(event.run_id.as_str(), run)]))?;
    let refs = text::content_refs(event.payload).into_iter().map(|named| (named, row_id));
    run_append::name_content(tx, into.team_id, &refs.collect::<Vec<_>>())
}

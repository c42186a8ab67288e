//! Teams that are being deleted or wiped, table by table in batches. A wipe keeps the team, its
//! people, machines, sources and apps; a deletion ends with the team's row, after which the shell
//! may destroy the object.
use super::work::{AT_ONCE, Batch, Walks, Work, json};
use crate::error::Result;
use crate::ids::TeamId;
use crate::params;
use crate::store::{Db, Tx};

/// A row costs 3 to 8 units, with what its triggers do. Finding all tables empty costs 400.
const ROWS_MAX: u64 = 20;
const ROW_UNITS: u64 = 7;
const EVENTS_MAX: u64 = 40;
/// What one table's turn may cost, without its octets.
const TABLE_UNITS: u64 = 8 * ROWS_MAX + 20;

pub fn due(db: &Db, _walks: &Walks) -> Result<Option<i64>> {
    let waits = db.query_optional(
        "SELECT 1 FROM teams WHERE removing IS NOT NULL LIMIT 1",
        params![],
        |row| row.get::<i64>(),
    )?;
    Ok(waits.map(|_| AT_ONCE))
}

struct Table {
    /// Keys as JSON arrays, and octets, of up to ?2 rows of team ?1.
    front: &'static str,
    /// Deletes the rows with the keys in ?1.
    delete: &'static [&'static str],
    row_units: u64,
}

/// A table whose rows are found again by rowid; `octets` are those of its large values.
macro_rules! rows {
    ($table:literal, $octets:literal $(, $search:literal)?) => {
        Table {
            front: concat!(
                "SELECT json_array(rowid), ", $octets, " FROM ", $table,
                " WHERE team_id = ?1 LIMIT ?2"
            ),
            delete: &[
                $(concat!(
                    "DELETE FROM ", $search, " WHERE rowid IN (
                         SELECT value ->> 0 FROM json_each(?1))"
                ),)?
                concat!(
                    "DELETE FROM ", $table, " WHERE rowid IN (
                         SELECT value ->> 0 FROM json_each(?1))"
                ),
            ],
            row_units: ROW_UNITS,
        }
    };
}

/// A table without rowid whose key has two or more columns, the team's among them.
macro_rules! keyed {
    ($table:literal, $a:literal, $b:literal) => {
        keyed!(@ $table, concat!($a, ", ", $b), "value ->> 0, value ->> 1")
    };
    ($table:literal, $a:literal, $b:literal, $c:literal) => {
        keyed!(@ $table, concat!($a, ", ", $b, ", ", $c), "value ->> 0, value ->> 1, value ->> 2")
    };
    ($table:literal, $a:literal, $b:literal, $c:literal, $d:literal) => {
        keyed!(
            @ $table,
            concat!($a, ", ", $b, ", ", $c, ", ", $d),
            "value ->> 0, value ->> 1, value ->> 2, value ->> 3"
        )
    };
    ($table:literal, $a:literal, $b:literal, $c:literal, $d:literal, $e:literal) => {
        keyed!(
            @ $table,
            concat!($a, ", ", $b, ", ", $c, ", ", $d, ", ", $e),
            "value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4"
        )
    };
    (@ $table:literal, $columns:expr, $values:literal) => {
        Table {
            front: concat!(
                "SELECT json_array(", $columns, "), 0 FROM ", $table,
                " WHERE team_id = ?1 LIMIT ?2"
            ),
            delete: &[concat!(
                "DELETE FROM ", $table, " WHERE (", $columns, ") IN (SELECT ", $values,
                " FROM json_each(?1))"
            )],
            row_units: ROW_UNITS,
        }
    };
}

/// What the team made. References first: what names uploads then has none to release.
const CONTENT: &[Table] = &[
    keyed!("upload_refs", "team_id", "upload_id", "holder"),
    rows!("messages", "octet_length(value_json)", "message_search"),
    rows!("session_artifacts", "0"),
    rows!("session_versions", "coalesce(octet_length(source_projection_json), 0)"),
    keyed!("session_grants", "team_id", "session_id", "subject_kind", "subject_id"),
    keyed!("session_activity", "team_id", "source_id", "harness", "native_id"),
    keyed!("origins", "team_id", "source_id", "harness", "native_id"),
    keyed!("bindings", "team_id", "machine_id", "id"),
    rows!("sessions", "0", "title_search"),
    rows!("capture_parts", "octet_length(messages_json) + octet_length(digests_json)"),
    rows!("captures", "octet_length(begin_json) + coalesce(octet_length(result_json), 0)"),
    rows!("capture_expiries", "0"),
    rows!("artifact_chunk_refs", "0"),
    rows!("artifact_blobs", "octet_length(bytes)"),
    rows!("uploads", "0"),
    keyed!("content_grants", "team_id", "ref", "session_id"),
    rows!("content", "0"),
    keyed!("content_prune_queue", "team_id", "ref"),
    rows!("continuations", "octet_length(value_json)"),
    rows!("attachments", "0"),
    rows!("native_effects", "octet_length(request_json)"),
    rows!("operations", "octet_length(input_json)"),
    rows!("app_webhook_deliveries", "octet_length(body)"),
    keyed!("deleted_apps", "team_id", "app_id"),
    rows!("idempotency", "octet_length(response_json)"),
    keyed!("content_refs", "team_id", "ref", "event_row_id"),
    rows!("run_events", "octet_length(payload_json)"),
    rows!("runs", "0"),
    keyed!("run_marks", "team_id", "newest_row_id"),
    rows!("run_claims", "0"),
    rows!("fenced_holders", "0"),
    rows!("run_fences", "0"),
    keyed!("version_sources", "team_id", "session_id", "source_id", "revision"),
    keyed!("captured_versions", "team_id", "session_id", "source_id", "revision"),
    keyed!("version_prune_queue", "team_id", "session_id", "source_id"),
    keyed!("message_prune_queue", "team_id", "session_id", "revision"),
    keyed!("session_prune_queue", "team_id", "session_id"),
    keyed!("upload_prune_queue", "team_id", "upload_id"),
    keyed!("pending_uploads", "team_id", "id"),
    keyed!("staging_captures", "team_id", "id"),
    keyed!("parts_prune_queue", "team_id", "capture_id"),
    keyed!("blob_prune_queue", "team_id", "sha256"),
    Table { row_units: 12, ..keyed!("context_payloads", "team_id", "context_id", "ref") },
    keyed!("context_checkpoints", "team_id", "context_id", "durable_revision"),
    keyed!("context_events", "team_id", "context_id", "sequence"),
    rows!("context_operations", "0"),
    rows!("context_imports", "octet_length(result_json)"),
    rows!("context_audits", "0"),
    keyed!("contexts", "team_id", "id"),
    rows!("context_snapshots", "0"),
    rows!("snapshot_admissions", "octet_length(value_json)"),
    keyed!("staged_bodies", "team_id", "id"),
    rows!("body_chunks", "octet_length(bytes)"),
    keyed!("body_prune_queue", "team_id", "body_id"),
    keyed!("worktree_routes", "team_id", "workspace", "subject_id", "worktree", "instance_id"),
    keyed!("worktrees", "team_id", "workspace", "instance_id"),
    keyed!("usage_sums", "team_id", "workspace", "axis", "key"),
    Table { row_units: 25, ..rows!("usage_records", "0") },
];

/// What a wipe keeps. The team's row goes after these.
const TEAM: &[Table] = &[
    keyed!("event_resources", "team_id", "source_id", "resource_kind", "resource_id"),
    rows!("org_events", "octet_length(value_json)"),
    keyed!("event_retention", "team_id", "pruned_through"),
    keyed!("machine_roots", "team_id", "machine_id", "id"),
    keyed!("machine_presence", "team_id", "machine_id"),
    rows!("machine_presence_events", "0"),
    keyed!("machine_presence_cursors", "team_id", "pruned_through"),
    keyed!("sync_rules", "team_id", "id"),
    keyed!("machines", "team_id", "id"),
    keyed!("sources", "team_id", "id"),
    // An app's principal is known to be of the team only by the app.
    Table {
        front: "SELECT json_array(team_id, id, principal_id), 0 FROM apps
                 WHERE team_id = ?1 LIMIT ?2",
        delete: &[
            "DELETE FROM principals WHERE id IN (SELECT value ->> 2 FROM json_each(?1))",
            "DELETE FROM apps WHERE (team_id, id) IN (
                 SELECT value ->> 0, value ->> 1 FROM json_each(?1))",
        ],
        row_units: 2 * ROW_UNITS,
    },
    keyed!("group_members", "team_id", "group_id", "principal_id"),
    keyed!("groups_table", "team_id", "id"),
    keyed!("credentials", "id", "team_id"),
    rows!("journal", "0"),
    keyed!("retention_due", "team_id", "step"),
];

pub fn batch(tx: &Tx, work: &mut Work) -> Result<Batch> {
    let first = tx.query_optional(
        "SELECT id, removing = 'delete' FROM teams WHERE removing IS NOT NULL LIMIT 1",
        params![],
        |row| Ok((row.get::<TeamId>()?, row.get::<bool>()?)),
    )?;
    let Some((team_id, deletes)) = first else { return Ok(Batch::Done) };
    if cursors(tx, work, &team_id)? == Batch::More || attempts(tx, work, &team_id)? == Batch::More {
        return Ok(Batch::More);
    }
    if !deletes && events(tx, work, &team_id)? == Batch::More {
        return Ok(Batch::More);
    }
    let rest = if deletes { TEAM } else { &[] };
    let mut any = false;
    for table in CONTENT.iter().chain(rest) {
        if any && !work.has_room(tx, TABLE_UNITS) {
            return Ok(Batch::More);
        }
        match empty(tx, work, &team_id, table)? {
            Some(Batch::More) => return Ok(Batch::More),
            Some(Batch::Done) => any = true,
            None => {}
        }
    }
    if any {
        return Ok(Batch::More);
    }
    if !deletes {
        tx.execute("UPDATE teams SET removing = NULL WHERE id = ?1", params![&team_id])?;
    } else if people(tx, work, &team_id)? == Batch::Done {
        tx.execute("DELETE FROM teams WHERE id = ?1", params![&team_id])?;
        work.removed("teams", 1);
    }
    Ok(Batch::More)
}

/// Removes some rows of a table, if it has any, and says whether there may be more.
fn empty(tx: &Tx, work: &mut Work, team_id: &TeamId, table: &Table) -> Result<Option<Batch>> {
    let front = tx.query(table.front, params![team_id, ROWS_MAX], |row| {
        Ok((row.get::<String>()?, row.get::<i64>()?))
    })?;
    if front.is_empty() {
        return Ok(None);
    }
    let count = front.len();
    let taken = work.take(tx, front, table.row_units);
    let keys = format!("[{}]", taken.join(","));
    for delete in table.delete {
        tx.execute(delete, params![&keys])?;
    }
    work.removed("team_rows", taken.len() as u64);
    Ok(Some(Batch::more_if(count as u64 == ROWS_MAX || taken.len() < count)))
}

/// Cursors are found through their pins; those that pin nothing expire within minutes.
fn cursors(tx: &Tx, work: &mut Work, team_id: &TeamId) -> Result<Batch> {
    let first = tx.query_optional(
        "SELECT cursor_id FROM cursor_pins WHERE team_id = ?1 LIMIT 1",
        params![team_id],
        |row| row.get::<String>(),
    )?;
    let Some(cursor_id) = first else { return Ok(Batch::Done) };
    let pins = tx.execute_counted(
        "DELETE FROM cursor_pins
          WHERE (team_id, session_id, revision, expires_at, cursor_id) IN (
                SELECT team_id, session_id, revision, expires_at, cursor_id
                  FROM cursor_pins
                 WHERE cursor_id = ?1
                 LIMIT ?2)",
        params![&cursor_id, ROWS_MAX * 2],
    )?;
    work.removed("team_rows", pins);
    if pins < ROWS_MAX * 2 {
        tx.execute("DELETE FROM cursors WHERE id = ?1", params![&cursor_id])?;
    }
    Ok(Batch::More)
}

/// Attempts know their team only through their delivery, so they go before it.
fn attempts(tx: &Tx, work: &mut Work, team_id: &TeamId) -> Result<Batch> {
    let ids = tx.query(
        "SELECT id FROM app_webhook_deliveries WHERE team_id = ?1 LIMIT ?2",
        params![team_id, ROWS_MAX],
        |row| row.get::<String>(),
    )?;
    if ids.is_empty() {
        return Ok(Batch::Done);
    }
    let ids = json(&ids)?;
    let attempts = tx.execute_counted(
        "DELETE FROM app_webhook_attempts
          WHERE (delivery_id, attempt) IN (
                SELECT a.delivery_id, a.attempt
                  FROM json_each(?1) AS d
                 CROSS JOIN app_webhook_attempts AS a ON a.delivery_id = d.value
                 LIMIT ?2)",
        params![&ids, ROWS_MAX],
    )?;
    work.removed("team_rows", attempts);
    if attempts < ROWS_MAX {
        let gone = tx.execute_counted(
            "DELETE FROM app_webhook_deliveries WHERE id IN (SELECT value FROM json_each(?1))",
            params![&ids],
        )?;
        work.removed("team_rows", gone);
    }
    Ok(Batch::More)
}

/// A wipe walks the log from its beginning, by the mark up to which only current events are left
/// (a trigger sets it back when the wipe begins). Only the current events of what is kept stay.
fn events(tx: &Tx, work: &mut Work, team_id: &TeamId) -> Result<Batch> {
    let window = tx.query(
        "SELECT e.sequence, e.source_id, e.resource_kind, e.resource_id,
                e.resource_kind IN ('team', 'member', 'group', 'source', 'machine', 'app'),
                e.sequence = (
                    SELECT r.sequence
                      FROM event_resources AS r
                     WHERE r.team_id = e.team_id AND r.source_id = coalesce(e.source_id, '')
                       AND r.resource_kind = e.resource_kind AND r.resource_id = e.resource_id)
           FROM org_events AS e
          WHERE e.team_id = ?1
            AND e.sequence > coalesce(
                (SELECT deleted_through FROM event_retention WHERE team_id = ?1), 0)
          ORDER BY e.sequence
          LIMIT ?2",
        params![team_id, EVENTS_MAX],
        |row| {
            let sequence: i64 = row.get()?;
            let source_id: Option<String> = row.get()?;
            let (kind, id): (String, String) = (row.get()?, row.get()?);
            let (is_kept, is_current): (bool, Option<bool>) = (row.get()?, row.get()?);
            let stays = is_kept && is_current.unwrap_or(false);
            Ok((sequence, source_id.unwrap_or_default(), kind, id, stays))
        },
    )?;
    let Some((last, ..)) = window.last() else { return Ok(Batch::Done) };
    let going = window.iter().filter(|(.., stays)| !stays).collect::<Vec<_>>();
    tx.execute(
        "INSERT INTO event_retention (team_id, pruned_through, deleted_through)
         VALUES (?1, ?2, ?2)
         ON CONFLICT (team_id) DO UPDATE
            SET pruned_through = max(pruned_through, excluded.pruned_through),
                deleted_through = excluded.deleted_through",
        params![team_id, *last],
    )?;
    let going = json(&going)?;
    tx.execute(
        "DELETE FROM event_resources
          WHERE (team_id, source_id, resource_kind, resource_id) IN (
                SELECT ?1, value ->> 1, value ->> 2, value ->> 3 FROM json_each(?2))
            AND sequence IN (SELECT value ->> 0 FROM json_each(?2))",
        params![team_id, &going],
    )?;
    let gone = tx.execute_counted(
        "DELETE FROM org_events WHERE sequence IN (SELECT value ->> 0 FROM json_each(?1))",
        params![&going],
    )?;
    work.removed("events", gone);
    Ok(Batch::More)
}

/// Principals are known to belong to the team only through their memberships.
fn people(tx: &Tx, work: &mut Work, team_id: &TeamId) -> Result<Batch> {
    let ids = tx.query(
        "SELECT principal_id FROM memberships WHERE team_id = ?1 LIMIT ?2",
        params![team_id, ROWS_MAX],
        |row| row.get::<String>(),
    )?;
    let keys = json(&ids)?;
    tx.execute(
        "DELETE FROM principals WHERE id IN (SELECT value FROM json_each(?1))",
        params![&keys],
    )?;
    let gone = tx.execute_counted(
        "DELETE FROM memberships
          WHERE (team_id, principal_id) IN (SELECT ?1, value FROM json_each(?2))",
        params![team_id, &keys],
    )?;
    work.removed("team_rows", gone);
    Ok(Batch::more_if(ids.len() as u64 == ROWS_MAX))
}

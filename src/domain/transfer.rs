//! What of a team its export holds and its import takes: one line a table. A table of the schema
//! stands here, or in [`LEFT_OUT`] with the reason.
//!
//! Each row becomes `{"table": …, "row": {column: value}}`; bytes are base64, columns that hold
//! JSON stay the text that they are. Rows go in by key and in the order of the lines, so that what
//! names an upload or a session's messages is there before retention may ask for it.
use crate::domain::transfer_rows as rows;
use crate::domain::transfer_rows::Put;
use crate::domain::{transfer_runs, transfer_usage};

/// A column's kind, where it matters to an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Plain,
    /// A key that is a number.
    Int,
    /// Names a principal, whose id may have to change.
    Who,
    Blob,
    /// A name that a client chose, of any characters.
    Own,
}

pub struct Column {
    pub name: &'static str,
    pub kind: Kind,
}

pub struct Table {
    pub name: &'static str,
    /// The key first.
    pub columns: &'static [Column],
    /// How many of them are the key; of a child's the first is its parent.
    pub key_count: usize,
    /// Rows of a team behind a key: `team_id`, the key's values, how many.
    pub read: &'static str,
    pub insert: &'static str,
    /// How many rows are read at a time, so that together they have a few MiB at most.
    pub at_once: usize,
    /// Instead of `insert`.
    pub put: Option<Put>,
}

/// A table whose rows are read by key; with children, each row is followed by its own.
pub struct Section {
    pub table: Table,
    pub children: &'static [Table],
}

macro_rules! mark {
    ($column:ident) => {
        ", ?"
    };
}
macro_rules! kind {
    () => {
        Kind::Plain
    };
    (int) => {
        Kind::Int
    };
    (who) => {
        Kind::Who
    };
    (blob) => {
        Kind::Blob
    };
    (own) => {
        Kind::Own
    };
}

/// `table!("name", [key, other_key: int], [column, column: who], at_once)`; before the end, `where`
/// and more of the statement that reads; with `of parent`, a child's.
macro_rules! table {
    ($name:literal $(of $parent:ident)?,
     [$first:ident $(: $fk:ident)? $(, $key:ident $(: $kk:ident)?)*],
     [$($column:ident $(: $ck:ident)?),* $(,)?], $at_once:literal
     $(, where $where:literal)?) => {
        Table {
            name: $name,
            columns: &[
                $(Column { name: stringify!($parent), kind: Kind::Plain },)?
                Column { name: stringify!($first), kind: kind!($($fk)?) },
                $(Column { name: stringify!($key), kind: kind!($($kk)?) },)*
                $(Column { name: stringify!($column), kind: kind!($($ck)?) },)*
            ],
            key_count: [$(stringify!($parent),)? stringify!($first) $(, stringify!($key))*].len(),
            read: concat!(
                "SELECT ", $(stringify!($parent), ", ",)? stringify!($first)
                $(, ", ", stringify!($key))* $(, ", ", stringify!($column))*,
                " FROM ", $name, " WHERE team_id = ?"
                $(, " AND ", stringify!($parent), " = ?")?,
                " AND (", stringify!($first) $(, ", ", stringify!($key))*, ") > (?"
                $(, mark!($key))*, ")" $(, " AND ", $where)?,
                " ORDER BY ", stringify!($first) $(, ", ", stringify!($key))*, " LIMIT ?"
            ),
            insert: concat!(
                "INSERT INTO ", $name, " (team_id", $(", ", stringify!($parent),)? ", ",
                stringify!($first) $(, ", ", stringify!($key))* $(, ", ", stringify!($column))*,
                ") VALUES (?, ?" $(, mark!($parent))? $(, mark!($key))* $(, mark!($column))*,
                ") ON CONFLICT DO NOTHING"
            ),
            at_once: $at_once,
            put: None,
        }
    };
}

const fn flat(table: Table) -> Section {
    Section { table, children: &[] }
}

/// A table whose rows need more than an insert.
const fn with(table: Table, put: Put) -> Table {
    Table { put: Some(put), ..table }
}

/// As `with`, and read by a statement of its own, in the columns' order.
const fn read_by(table: Table, read: &'static str, put: Put) -> Table {
    Table { read, put: Some(put), ..table }
}

#[rustfmt::skip] // A table reads best as one.
pub const SECTIONS: &[Section] = &[
    flat(read_by(
        table!("memberships", [principal_id: who], [name, email, principal_created_at, role, active, revision, created_at], 100),
        "SELECT m.principal_id, p.name, p.email, p.created_at, m.role, m.active, m.revision, m.created_at
           FROM memberships m CROSS JOIN principals p ON p.id = m.principal_id
          WHERE m.team_id = ? AND m.principal_id > ?
          ORDER BY m.principal_id LIMIT ?",
        rows::member)),
    flat(read_by(
        table!("apps", [id], [name, principal_id: who, principal_created_at, webhook_url, webhook_events_json,
            scopes_json, secret_version, disabled_at, revision, created_at], 20),
        "SELECT a.id, a.name, a.principal_id, coalesce(p.created_at, a.created_at), a.webhook_url,
                a.webhook_events_json, a.scopes_json, a.secret_version, a.disabled_at, a.revision,
                a.created_at
           FROM apps a LEFT JOIN principals p ON p.id = a.principal_id
          WHERE a.team_id = ? AND a.id > ?
          ORDER BY a.id LIMIT ?",
        rows::app)),
    flat(read_by(
        table!("groups_table", [id], [name, revision, created_at, principal_ids_json: who], 10),
        "SELECT g.id, g.name, g.revision, g.created_at,
                (SELECT json_group_array(m.principal_id) FROM group_members m
                  WHERE m.team_id = g.team_id AND m.group_id = g.id)
           FROM groups_table g
          WHERE g.team_id = ? AND g.id > ?
          ORDER BY g.id LIMIT ?",
        rows::group)),
    flat(with(
        table!("machines", [id], [name, custodian_id: who, enrollment_key, host_key_id, incarnation_id,
            heartbeat_sequence, last_seen_at, revoked_at, revision, created_at], 100),
        rows::machine)),
    flat(table!("machine_roots", [machine_id, id], [value_json], 50)),
    flat(with(
        table!("sources", [id], [name, kind, machine_id, custodian_id: who, visibility, state, revision,
            last_received_at, decoder, counters_json, last_error, created_at], 50),
        rows::source)),
    flat(table!("sync_rules", [id], [machine_id, source_id, value_json, state, revision, created_at], 50)),
    flat(table!("captures", [id], [source_id, state, begin_json, upload_ids_json, session_id, revision, created_at,
        settled_at, principal_id: who, part_count, message_count, bytes, result_json], 10)),
    flat(table!("capture_parts", [capture_id, part_index: int], [digest, messages_json, digests_json, created_at], 2,
        where "EXISTS (SELECT 1 FROM captures c WHERE c.team_id = capture_parts.team_id
                          AND c.id = capture_parts.capture_id AND c.state = 'staging')")),
    flat(table!("capture_expiries", [source_id, id], [expired_at], 100)),
    flat(table!("continuations", [id], [session_id, machine_id, state, value_json, upload_ids_json, created_at,
        updated_at, settled_at, principal_id: who, revision], 8)),
    flat(table!("attachments", [id], [session_id, machine_id, binding_id, principal_id: who, state, created_at,
        settled_at, revision], 100)),
    flat(table!("operations", [id], [session_id, principal_id: who, kind, state, input_json, created_at, updated_at,
        settled_at, revision], 8)),
    flat(table!("native_effects", [id], [operation_id, machine_id, binding_id, state, request_json, result_json,
        created_at], 4)),
    Section {
        table: with(
            table!("sessions", [id], [revision, edits, harness, title, title_by: who, message_count, created_at,
                updated_at, origins_json], 1, where "deleted_at IS NULL"),
            rows::session),
        children: &[
            table!("session_grants" of session_id, [subject_kind, subject_id: who], [access, created_at], 100),
            table!("session_artifacts" of session_id, [revision: int, bundle_id], [upload_id, name, provenance], 100),
            with(table!("messages" of session_id, [ordinal: int, revision: int],
                [until_revision, role, digest, value_json], 8,
                where "(until_revision = 9007199254740991 OR EXISTS (
                            SELECT 1 FROM session_versions v
                             WHERE v.team_id = messages.team_id AND v.session_id = messages.session_id
                               AND v.revision >= messages.revision
                               AND v.revision < messages.until_revision))"),
                rows::message),
            with(table!("session_versions" of session_id, [revision: int],
                [source_id, title, source_projection_json, capture_id, message_count, created_at], 20),
                rows::version),
        ],
    },
    // Tombstones, and origins of sessions: a session that is not there was made or deleted meanwhile.
    flat(read_by(
        table!("origins", [source_id, harness, native_id], [session_id], 100),
        "SELECT o.source_id, o.harness, o.native_id,
                (SELECT s.id FROM sessions s
                  WHERE s.team_id = o.team_id AND s.id = o.session_id AND s.deleted_at IS NULL)
           FROM origins o
          WHERE o.team_id = ? AND (o.source_id, o.harness, o.native_id) > (?, ?, ?)
          ORDER BY o.source_id, o.harness, o.native_id LIMIT ?",
        rows::origin)),
    flat(table!("bindings", [machine_id, id], [session_id, value_json], 20)),
    flat(table!("session_activity", [source_id, harness, native_id], [turn, since, observed_at], 100)),
    Section {
        table: table!("uploads", [id], [source_id, media_type, size, sha256, chunk_size, state, committed_at,
            created_at], 1, where "state <> 'removing'"),
        children: &[
            table!("artifact_chunk_refs" of upload_id, [chunk_index: int], [sha256, size, source_id], 100),
        ],
    },
    flat(with(
        table!("artifact_blobs", [sha256], [size, bytes: blob], 2,
            where "EXISTS (SELECT 1 FROM artifact_chunk_refs r WHERE r.team_id = artifact_blobs.team_id
                              AND r.sha256 = artifact_blobs.sha256)"),
        rows::blob)),
    // By the order of appends; the index of a team's ids would have every page sorted.
    flat(read_by(
        table!("run_events", [row_id: int], [id: own, run_id: own, sequence, kind: own, created_at, payload_json], 8),
        "SELECT row_id, id, run_id, sequence, kind, created_at, payload_json
           FROM run_events NOT INDEXED
          WHERE team_id = ? AND row_id > ?
          ORDER BY row_id LIMIT ?",
        transfer_runs::put)),
    flat(table!("run_claims", [run_id: own], [holder: own, acquired_at, fence], 100)),
    flat(table!("run_fences", [run_id: own], [fence, settled_at], 100)),
    flat(table!("fenced_holders", [run_id: own, holder: own], [fenced_at], 100)),
    flat(table!("content_grants", [ref, session_id: own], [created_at], 100)),
    flat(table!("content", [ref], [size, sha256, body_id, created_at], 100)),
    flat(table!("contexts", [id], [workspace, worktree, instance_id, subject_id: who, capability_hash: blob,
        session_revision, durable_revision, source_revision, provider, model, generation,
        checkpoint_revision, title, dir, lease_at, first_commit_at, listed_at, prune_at, deleted_at,
        audit_id, purge_at, created_at, updated_at], 50)),
    flat(table!("context_events", [context_id, sequence: int], [kind, role, tool_call_id, payload_ref, size,
        provenance, redaction_status, created_at], 100)),
    flat(table!("context_payloads", [context_id, ref], [sha256, size, retention, body_id, is_source,
        staged_at, created_at], 100)),
    flat(table!("context_checkpoints", [context_id, durable_revision: int], [id, session_revision,
        source_start, source_end, turn_id, algorithm, schema_version, summary_model, summary_json,
        provider, model, generation, payload_ref, body_id, sha256, size, created_at], 20)),
    flat(table!("context_operations", [context_id, operation_id], [kind, fingerprint: blob,
        session_revision, durable_revision, source_revision, checkpoint_id, created_at], 100)),
    flat(table!("context_imports", [context_id, operation_key], [fingerprint: blob, result_json, created_at], 5)),
    flat(table!("context_audits", [id], [context_id, principal_id: who, action, size, revision, created_at,
        expires_at], 100)),
    flat(table!("context_snapshots", [workspace, instance_id, subject_id: who, name], [worktree, model,
        provider, turns, tokens, message_count, dir, session_id, session_revision, body_id, size,
        created_at, updated_at], 50)),
    flat(table!("snapshot_admissions", [workspace, instance_id, subject_id: who, name], [value_json,
        updated_at], 5)),
    flat(table!("worktrees", [workspace, instance_id], [worktree, path, state, adopted, created_at,
        updated_at], 50)),
    flat(table!("worktree_routes", [workspace, subject_id: who, worktree, instance_id], [dir, created_at,
        updated_at], 50)),
    flat(with(
        table!("usage_records", [id: int], [workspace, principal_id: who, kind, provider, model, session_id,
            agent, reason, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens,
            estimated_tokens, before_tokens, after_tokens, summarized, created_at], 100),
        transfer_usage::put)),
    flat(table!("body_chunks", [body_id, chunk_index: int], [bytes: blob], 8,
        where "NOT EXISTS (SELECT 1 FROM staged_bodies s WHERE s.team_id = body_chunks.team_id
                                                           AND s.id = body_chunks.body_id)
           AND NOT EXISTS (SELECT 1 FROM body_prune_queue q WHERE q.team_id = body_chunks.team_id
                                                              AND q.body_id = body_chunks.body_id)")),
    flat(read_by(
        table!("event_resources", [source_id, resource_kind, resource_id: who],
            [type, principal_id: who, value_json: who, created_at], 50),
        "SELECT r.source_id, r.resource_kind, r.resource_id, e.type, e.principal_id, e.value_json, e.created_at
           FROM event_resources r CROSS JOIN org_events e ON e.sequence = r.sequence
          WHERE r.team_id = ? AND (r.source_id, r.resource_kind, r.resource_id) > (?, ?, ?)
          ORDER BY r.source_id, r.resource_kind, r.resource_id LIMIT ?",
        rows::event)),
];

/// Tables that an export leaves out, and why.
pub const LEFT_OUT: &[(&str, &str)] = &[
    ("server", "of the object"),
    ("registry", "of the Directory"),
    ("global_idempotency", "of the Directory"),
    ("global_cursors", "of the Directory"),
    ("teams", "its name and retention are in the first line; the rest is the new team's own"),
    ("principals", "in the lines of memberships and apps"),
    ("group_members", "in the lines of groups_table"),
    ("org_events", "each resource's current event is in event_resources; a new epoch begins"),
    ("event_retention", "marks of the log; a new epoch begins"),
    ("credentials", "no secret leaves, nor its hash: tokens are made anew"),
    ("app_install_codes", "a secret, for ten minutes"),
    ("journal", "evidence of what was done here, which no import may forge"),
    ("idempotency", "answers kept for a day to the holders of tokens that do not move"),
    ("cursors", "pages under way, for minutes"),
    ("cursor_pins", "of cursors"),
    ("machine_presence", "links that this server holds"),
    ("machine_presence_events", "of links that this server held"),
    ("machine_presence_cursors", "of links that this server held"),
    ("app_webhook_deliveries", "on their way from this server"),
    ("app_webhook_attempts", "of deliveries"),
    ("deleted_apps", "what retention has yet to remove here"),
    ("message_search", "made from messages"),
    ("title_search", "made from sessions"),
    ("runs", "made from run_events"),
    ("run_marks", "marks of the order of appends; a new epoch begins"),
    ("content_refs", "found again in the payloads of run_events"),
    ("content_prune_queue", "kept by triggers"),
    ("staged_bodies", "bodies on their way in"),
    ("body_prune_queue", "kept by triggers"),
    ("usage_sums", "kept by triggers"),
    ("version_sources", "kept by triggers"),
    ("captured_versions", "kept by triggers"),
    ("version_prune_queue", "kept by triggers"),
    ("message_prune_queue", "kept by triggers"),
    ("session_prune_queue", "kept by triggers"),
    ("upload_refs", "kept by triggers"),
    ("upload_prune_queue", "kept by triggers"),
    ("pending_uploads", "kept by triggers"),
    ("staging_captures", "kept by triggers"),
    ("parts_prune_queue", "kept by triggers"),
    ("blob_prune_queue", "kept by triggers"),
    ("retention_due", "kept by triggers"),
    ("maintain_state", "of the object"),
    ("maintain_backfill", "of the object"),
];

/// What a team must have none of before an import.
pub const MUST_BE_EMPTY: &[(&str, &str)] = &[
    ("sessions", "SELECT 1 FROM sessions WHERE team_id = ?1 LIMIT 1"),
    ("runs", "SELECT 1 FROM runs WHERE team_id = ?1 LIMIT 1"),
    ("contexts", "SELECT 1 FROM contexts WHERE team_id = ?1 LIMIT 1"),
];

pub fn table(name: &str) -> Option<&'static Table> {
    let all = SECTIONS.iter().flat_map(|s| std::iter::once(&s.table).chain(s.children));
    all.into_iter().find(|table| table.name == name)
}

impl Table {
    /// The key before every other; of a child's rows, behind its parent.
    pub fn first_key(&self, parent: Option<&serde_json::Value>) -> Vec<serde_json::Value> {
        let own = &self.columns[usize::from(parent.is_some())..self.key_count];
        let first = own.iter().map(|column| match column.kind {
            Kind::Int => (-1).into(),
            Kind::Plain | Kind::Who | Kind::Own | Kind::Blob => "".into(),
        });
        parent.cloned().into_iter().chain(first).collect()
    }
}

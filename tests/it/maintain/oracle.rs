//! What retention must leave, as plain rules over whole tables. They know of no queue, no pin, no
//! reference and no walk: the base tables are copied, the rules run over the copy, and the store
//! must come to equal it.
use crate::team::Team;
use teamplane::limits::{DAY_MS, LINK_GRACE_MS, MINUTE_MS};

/// Every base table that retention touches, with the columns that are compared.
const TABLES: &[(&str, &str)] = &[
    ("idempotency", "team_id, principal_id, key"),
    ("app_install_codes", "hex(code_hash)"),
    ("journal", "sequence"),
    ("cursors", "id, snapshot_json"),
    ("credentials", "id"),
    ("captures", "team_id, id, state"),
    ("capture_parts", "team_id, capture_id, part_index"),
    ("capture_expiries", "team_id, source_id, id"),
    ("sessions", "team_id, id, revision, title, deleted_at"),
    ("session_versions", "team_id, session_id, revision, source_id"),
    ("messages", "id, session_id, ordinal, revision, until_revision, digest"),
    ("session_artifacts", "team_id, session_id, revision, bundle_id, upload_id"),
    ("session_grants", "team_id, session_id, subject_kind, subject_id"),
    ("session_activity", "team_id, source_id, harness, native_id"),
    ("origins", "team_id, source_id, harness, native_id, session_id"),
    ("bindings", "team_id, machine_id, id, session_id"),
    ("uploads", "team_id, id, state"),
    ("artifact_chunk_refs", "team_id, upload_id, chunk_index, sha256"),
    ("artifact_blobs", "team_id, sha256"),
    ("content", "team_id, ref"),
    ("content_grants", "team_id, ref, session_id"),
    ("continuations", "team_id, id, state, settled_at"),
    ("operations", "team_id, id, state, settled_at"),
    ("native_effects", "team_id, id, state"),
    ("attachments", "team_id, id, state"),
    ("machine_presence", "team_id, machine_id, linked, lost_at"),
    ("app_webhook_attempts", "delivery_id, attempt"),
    ("contexts", "team_id, id, deleted_at"),
    ("context_events", "team_id, context_id, sequence"),
    ("context_payloads", "team_id, context_id, ref"),
    ("context_checkpoints", "team_id, context_id, durable_revision"),
    ("context_operations", "team_id, context_id, operation_id"),
    ("context_imports", "team_id, context_id, operation_key"),
    ("context_snapshots", "team_id, workspace, instance_id, subject_id, name"),
    ("snapshot_admissions", "team_id, workspace, instance_id, subject_id, name"),
    ("worktrees", "team_id, workspace, instance_id, state"),
    ("worktree_routes", "team_id, workspace, subject_id, worktree, instance_id"),
    ("usage_records", "id"),
    ("staged_bodies", "team_id, id"),
    ("body_chunks", "team_id, body_id, chunk_index"),
    ("run_events", "row_id"),
    ("run_claims", "team_id, run_id, holder, fence"),
    ("run_fences", "team_id, run_id, fence"),
    ("fenced_holders", "team_id, run_id, holder"),
];

/// Tables whose rows retention itself adds to: only those there before are compared.
const LOGS: &[(&str, &str)] = &[
    ("org_events", "sequence"),
    ("machine_presence_events", "sequence"),
    ("app_webhook_deliveries", "id"),
];

/// The rules, in an order in which each finds settled what it refers to. `:now` is the time.
const RULES: &str = "
    DELETE FROM o.idempotency WHERE expires_at <= :now;
    DELETE FROM o.app_install_codes WHERE expires_at <= :now;
    DELETE FROM o.cursors WHERE expires_at <= :now;
    DELETE FROM o.journal
     WHERE created_at + :day * coalesce((SELECT retention_json ->> 'journal_days'
                                           FROM teams WHERE id = team_id), 90) <= :now;
    DELETE FROM o.credentials
     WHERE expires_at + 30 * :day <= :now OR revoked_at + 30 * :day <= :now;

    DELETE FROM o.capture_expiries WHERE expired_at + 30 * :day <= :now;
    INSERT INTO o.capture_expiries
    SELECT team_id, source_id, id, :now FROM o.captures
     WHERE state = 'staging' AND created_at + :day <= :now
    UNION
    SELECT team_id, source_id, id, :now FROM o.uploads
     WHERE state IN ('pending', 'verifying') AND created_at + :day <= :now;
    DELETE FROM o.captures
     WHERE created_at + :day <= :now AND state = 'staging' OR settled_at + :day <= :now;
    DELETE FROM o.capture_parts
     WHERE (team_id, capture_id) NOT IN (
           SELECT team_id, id FROM o.captures WHERE state = 'staging');

    DELETE FROM o.sessions
     WHERE deleted_at IS NOT NULL
        OR updated_at + :day * (SELECT retention_json ->> 'sessions_days'
                                  FROM teams WHERE id = team_id) <= :now;
    DELETE FROM o.session_activity
     WHERE (team_id, source_id, harness, native_id) IN (
           SELECT team_id, source_id, harness, native_id FROM o.origins
            WHERE (team_id, session_id) NOT IN (SELECT team_id, id FROM o.sessions));
    UPDATE o.origins SET session_id = NULL
     WHERE (team_id, session_id) NOT IN (SELECT team_id, id FROM o.sessions);
    UPDATE o.bindings SET session_id = NULL
     WHERE (team_id, session_id) NOT IN (SELECT team_id, id FROM o.sessions);
    DELETE FROM o.session_grants
     WHERE (team_id, session_id) NOT IN (SELECT team_id, id FROM o.sessions);

    CREATE TABLE o.pins AS
    SELECT c.team_id, j.value ->> 0 AS session_id, j.value ->> 1 AS revision
      FROM o.cursors c, json_each(c.snapshot_json) j WHERE c.kind IN ('list', 'search')
    UNION ALL
    SELECT team_id, snapshot_json ->> 'session_id', snapshot_json ->> 'revision'
      FROM o.cursors WHERE kind = 'history';
    CREATE TABLE o.captured AS
    SELECT v.team_id, v.session_id, v.source_id, v.revision
      FROM o.session_versions v, o.session_artifacts a
     WHERE a.team_id = v.team_id AND a.session_id = v.session_id AND a.revision = v.revision
       AND a.provenance = 'capture';
    CREATE TABLE o.versions AS SELECT * FROM o.session_versions;
    DELETE FROM o.session_versions AS v
     WHERE (team_id, session_id) NOT IN (SELECT team_id, id FROM o.sessions)
        OR (revision < (SELECT max(n.revision) FROM o.versions n
                         WHERE n.team_id = v.team_id AND n.session_id = v.session_id
                           AND n.source_id = v.source_id)
            AND revision <> (SELECT s.revision FROM o.sessions s
                              WHERE s.team_id = v.team_id AND s.id = v.session_id)
            AND NOT EXISTS (SELECT 1 FROM o.pins p
                             WHERE p.team_id = v.team_id AND p.session_id = v.session_id
                               AND p.revision = v.revision)
            AND (NOT EXISTS (SELECT 1 FROM o.captured c
                              WHERE c.team_id = v.team_id AND c.session_id = v.session_id
                                AND c.revision = v.revision)
                 OR revision < (SELECT max(c.revision) FROM o.captured c
                                 WHERE c.team_id = v.team_id AND c.session_id = v.session_id
                                   AND c.source_id = v.source_id)));
    DELETE FROM o.session_artifacts
     WHERE (team_id, session_id, revision) NOT IN (
           SELECT team_id, session_id, revision FROM o.session_versions);
    CREATE TABLE o.messages_before AS SELECT * FROM o.messages;
    DELETE FROM o.messages AS m
     WHERE NOT EXISTS (SELECT 1 FROM o.session_versions v
                        WHERE v.team_id = m.team_id AND v.session_id = m.session_id
                          AND v.revision >= m.revision AND v.revision < m.until_revision);

    DELETE FROM o.continuations WHERE settled_at + 30 * :day <= :now;
    UPDATE o.continuations SET state = 'expired', settled_at = :now
     WHERE settled_at IS NULL AND updated_at + :day <= :now;
    DELETE FROM o.operations WHERE settled_at + 30 * :day <= :now;
    DELETE FROM o.native_effects
     WHERE (team_id, operation_id) NOT IN (SELECT team_id, id FROM o.operations);
    UPDATE o.operations SET state = 'unknown', settled_at = :now
     WHERE state IN ('pending', 'running')
       AND (team_id, id) IN (SELECT team_id, operation_id FROM o.native_effects
                              WHERE state = 'pending' AND created_at + :day <= :now);
    UPDATE o.native_effects SET state = 'unknown'
     WHERE state = 'pending' AND created_at + :day <= :now;
    DELETE FROM o.attachments WHERE settled_at + 30 * :day <= :now;

    CREATE TABLE o.named AS
    SELECT team_id, upload_id FROM o.session_artifacts
    UNION
    SELECT team_id, value FROM o.continuations, json_each(upload_ids_json)
    UNION
    SELECT team_id, value FROM o.captures, json_each(upload_ids_json) WHERE state = 'staging';
    DELETE FROM o.uploads
     WHERE state IN ('pending', 'verifying') AND created_at + :day <= :now
        OR state = 'removing'
        OR state = 'committed' AND committed_at + :day <= :now
           AND (team_id, id) NOT IN (SELECT team_id, upload_id FROM o.named);
    DELETE FROM o.artifact_chunk_refs
     WHERE (team_id, upload_id) NOT IN (SELECT team_id, id FROM o.uploads);
    DELETE FROM o.artifact_blobs
     WHERE (team_id, sha256) NOT IN (SELECT team_id, sha256 FROM o.artifact_chunk_refs);

    DELETE FROM o.content
     WHERE created_at + :grace_of_content <= :now
       AND (team_id, ref) NOT IN (SELECT team_id, ref FROM content_refs
                                  UNION SELECT team_id, ref FROM o.content_grants);

    UPDATE o.machine_presence SET linked = 0, lost_at = NULL WHERE lost_at + :grace <= :now;
    DELETE FROM o.machine_presence_events
     WHERE created_at + :day * coalesce((SELECT retention_json ->> 'events_days'
                                           FROM teams WHERE id = team_id), 7) <= :now;
    DELETE FROM o.app_webhook_deliveries
     WHERE settled_at + :day * coalesce((SELECT retention_json ->> 'deliveries_days'
                                           FROM teams WHERE id = team_id), 7) <= :now;
    DELETE FROM o.app_webhook_deliveries
     WHERE settled_at IS NULL
       AND (team_id, app_id) IN (SELECT team_id, app_id FROM main.deleted_apps);
    DELETE FROM o.app_webhook_attempts
     WHERE delivery_id NOT IN (SELECT id FROM o.app_webhook_deliveries);

    DELETE FROM o.worktrees
     WHERE state IN ('creating', 'deleted') AND updated_at + 30 * :day <= :now;
    DELETE FROM o.worktree_routes
     WHERE instance_id <> '' AND (team_id, workspace, instance_id) NOT IN (
           SELECT team_id, workspace, instance_id FROM o.worktrees);
    DELETE FROM o.context_snapshots
     WHERE instance_id <> '' AND (team_id, workspace, instance_id) NOT IN (
           SELECT team_id, workspace, instance_id FROM o.worktrees);
    DELETE FROM o.snapshot_admissions
     WHERE instance_id <> '' AND (team_id, workspace, instance_id) NOT IN (
           SELECT team_id, workspace, instance_id FROM o.worktrees);
    UPDATE o.contexts SET deleted_at = :now
     WHERE instance_id <> '' AND deleted_at IS NULL
       AND (team_id, workspace, instance_id) NOT IN (
           SELECT team_id, workspace, instance_id FROM o.worktrees);

    CREATE TABLE o.checkpoints AS SELECT * FROM o.context_checkpoints;
    DELETE FROM o.context_checkpoints AS k
     WHERE created_at + 30 * :day <= :now
       AND durable_revision IS NOT (SELECT checkpoint_revision FROM o.contexts c
                                     WHERE c.team_id = k.team_id AND c.id = k.context_id)
       AND durable_revision <> (SELECT n.durable_revision FROM o.checkpoints n
                                 WHERE n.team_id = k.team_id AND n.context_id = k.context_id
                                 ORDER BY n.source_start, n.durable_revision LIMIT 1)
       AND 3 <= (SELECT count(*) FROM o.checkpoints n
                  WHERE n.team_id = k.team_id AND n.context_id = k.context_id
                    AND n.durable_revision > k.durable_revision);
    DELETE FROM o.context_payloads WHERE staged_at + :day <= :now;
    CREATE TABLE o.gone AS
    SELECT team_id, id FROM o.contexts WHERE deleted_at + 365 * :day <= :now;
    DELETE FROM o.context_payloads WHERE (team_id, context_id) IN (SELECT team_id, id FROM o.gone);
    DELETE FROM o.context_checkpoints
     WHERE (team_id, context_id) IN (SELECT team_id, id FROM o.gone);
    DELETE FROM o.context_events WHERE (team_id, context_id) IN (SELECT team_id, id FROM o.gone);
    DELETE FROM o.context_operations WHERE created_at + 30 * :day <= :now;
    DELETE FROM o.context_imports WHERE created_at + 30 * :day <= :now;
    DELETE FROM o.usage_records WHERE created_at + 400 * :day <= :now;
    DELETE FROM o.staged_bodies WHERE created_at + :day / 24 <= :now;
    DELETE FROM o.body_chunks
     WHERE (team_id, body_id) NOT IN (
           SELECT team_id, body_id FROM o.context_payloads WHERE body_id IS NOT NULL
           UNION
           SELECT team_id, body_id FROM o.context_checkpoints WHERE body_id IS NOT NULL
           UNION
           SELECT team_id, body_id FROM o.context_snapshots
           UNION
           SELECT team_id, body_id FROM o.content
           UNION
           SELECT team_id, id FROM o.staged_bodies);
    DELETE FROM o.run_fences WHERE settled_at + 30 * :day <= :now;
    DELETE FROM o.fenced_holders
     WHERE (team_id, run_id) NOT IN (SELECT team_id, run_id FROM o.run_fences);
";

/// Which events are current is asked after the passes, which record events of their own. What fell
/// behind the mark stays there, also when the team keeps its events longer from now on.
const EVENT_RULE: &str = "
    DELETE FROM o.org_events AS e
     WHERE (created_at + :day * coalesce((SELECT retention_json ->> 'events_days'
                                            FROM teams WHERE id = team_id), 7) <= :now
            OR sequence <= (SELECT pruned_through FROM event_retention r
                             WHERE r.team_id = e.team_id))
       AND sequence NOT IN (SELECT sequence FROM main.event_resources);
";

/// What side tables mirror, as a query over the base tables.
const MIRRORS: &[(&str, &str, &str)] = &[
    (
        "version_sources",
        "team_id, session_id, source_id, revision",
        "SELECT team_id, session_id, source_id, revision FROM session_versions",
    ),
    (
        "captured_versions",
        "team_id, session_id, source_id, revision",
        "SELECT v.team_id, v.session_id, v.source_id, v.revision
           FROM session_versions v, session_artifacts a
          WHERE a.team_id = v.team_id AND a.session_id = v.session_id AND a.revision = v.revision
            AND a.provenance = 'capture'",
    ),
    (
        "upload_refs",
        "team_id, upload_id, holder",
        "SELECT team_id, upload_id, 'a:' || session_id || ':' || revision || ':' || bundle_id
           FROM session_artifacts
         UNION SELECT team_id, value, 'c:' || continuations.id FROM continuations, json_each(upload_ids_json)
         UNION SELECT team_id, value, 'p:' || captures.id FROM captures, json_each(upload_ids_json)
                WHERE state = 'staging'",
    ),
    (
        "staging_captures",
        "team_id, id, source_id, created_at",
        "SELECT team_id, id, source_id, created_at FROM captures WHERE state = 'staging'",
    ),
    (
        "pending_uploads",
        "team_id, id, source_id, created_at",
        "SELECT team_id, id, source_id, created_at FROM uploads WHERE state <> 'committed'",
    ),
    (
        "runs",
        "team_id, run_id, events, tombstones, last_sequence",
        "SELECT team_id, run_id, count(*), sum(kind = 'run_deleted'), max(sequence)
           FROM run_events GROUP BY 1, 2",
    ),
    ("message_search", "rowid", "SELECT id FROM messages WHERE until_revision = 9007199254740991"),
    ("title_search", "rowid", "SELECT rowid FROM sessions WHERE title IS NOT NULL"),
    (
        "contexts",
        "team_id, id, payload_count, payload_bytes",
        "SELECT c.team_id, c.id, count(p.ref), coalesce(sum(p.size) FILTER (WHERE p.body_id > ''), 0)
           FROM contexts c
           LEFT JOIN context_payloads p ON p.team_id = c.team_id AND p.context_id = c.id
          GROUP BY 1, 2",
    ),
    // When the next checkpoint may go, which is later than now once all that may have gone.
    (
        "contexts",
        "team_id, id, prune_at",
        "SELECT c.team_id, c.id,
                (SELECT min(k.created_at) + 30 * 86400000 FROM context_checkpoints k
                  WHERE k.team_id = c.team_id AND k.context_id = c.id
                    AND k.durable_revision IS NOT c.checkpoint_revision
                    AND k.durable_revision <> (SELECT n.durable_revision FROM context_checkpoints n
                                                WHERE n.team_id = c.team_id AND n.context_id = c.id
                                                ORDER BY n.source_start, n.durable_revision LIMIT 1)
                    AND 3 <= (SELECT count(*) FROM context_checkpoints n
                               WHERE n.team_id = c.team_id AND n.context_id = c.id
                                 AND n.durable_revision > k.durable_revision))
           FROM contexts c",
    ),
    // A payload waits for its end while neither an event nor a checkpoint names it.
    (
        "context_payloads",
        "team_id, context_id, ref, staged_at IS NULL",
        "SELECT team_id, context_id, ref,
                is_source OR EXISTS (SELECT 1 FROM context_checkpoints k
                                      WHERE k.team_id = p.team_id AND k.context_id = p.context_id
                                        AND k.payload_ref = p.ref)
           FROM context_payloads p",
    ),
    (
        "usage_sums",
        "team_id, workspace, axis, key, records, input_tokens, estimated_tokens",
        "SELECT team_id, workspace, 'day', printf('%08d', created_at / 86400000), count(*),
                coalesce(sum(input_tokens), 0), coalesce(sum(estimated_tokens), 0)
           FROM usage_records GROUP BY 1, 2, 4
         UNION ALL
         SELECT team_id, workspace, 'model', coalesce(provider, '') || char(31) || coalesce(model, ''),
                count(*), coalesce(sum(input_tokens), 0), coalesce(sum(estimated_tokens), 0)
           FROM usage_records GROUP BY 1, 2, 4
         UNION ALL
         SELECT team_id, workspace, 'session', session_id, count(*),
                coalesce(sum(input_tokens), 0), coalesce(sum(estimated_tokens), 0)
           FROM usage_records WHERE session_id IS NOT NULL GROUP BY 1, 2, 4",
    ),
];

/// Empty once nothing is left to do.
const QUEUES: &[&str] = &[
    "message_prune_queue",
    "session_prune_queue",
    "parts_prune_queue",
    "blob_prune_queue",
    "body_prune_queue",
];

fn at(sql: &str, now_ms: i64) -> String {
    sql.replace(":now", &now_ms.to_string())
        .replace(":day", &DAY_MS.to_string())
        .replace(":grace_of_content", &(15 * MINUTE_MS).to_string())
        .replace(":grace", &LINK_GRACE_MS.to_string())
}

/// Settles the store and fails unless it then holds exactly what the rules leave. Answers which
/// kinds of rows went.
pub fn check(team: &Team) -> Vec<&'static str> {
    let now_ms = team.now_ms.get();
    team.sql("ATTACH ':memory:' AS o");
    for (table, _) in TABLES.iter().chain(LOGS).chain(&[("context_audits", "")]) {
        team.sql(&format!("CREATE TABLE o.{table} AS SELECT * FROM main.{table}"));
    }
    team.sql(&at(RULES, now_ms));
    let outcomes = team.settle();
    for (table, columns) in TABLES {
        equal(team, table, columns, &format!("SELECT {columns} FROM o.{table}"), "");
    }
    team.sql(&at(EVENT_RULE, now_ms));
    // Passes add events of their own, at the time at which they run.
    for (log, key) in LOGS {
        equal(
            team,
            log,
            key,
            &format!("SELECT {key} FROM o.{log} WHERE created_at < {now_ms}"),
            &format!("WHERE created_at < {now_ms}"),
        );
    }
    // A worktree's end makes audits of its own.
    equal(
        team,
        "context_audits",
        "team_id, id",
        &format!("SELECT team_id, id FROM o.context_audits WHERE expires_at > {now_ms}"),
        &format!("WHERE created_at < {now_ms} OR id IN (SELECT id FROM o.context_audits)"),
    );
    mirrors(team);
    reads_as_before(team);
    team.sql("DETACH o");
    outcomes.into_iter().flat_map(|outcome| outcome.removed.into_keys()).collect()
}

#[track_caller]
fn equal(team: &Team, table: &str, columns: &str, expected: &str, only: &str) {
    let found = format!("SELECT {columns} FROM main.{table} {only}");
    let kept = team.lines(&format!("{found} EXCEPT SELECT * FROM ({expected})"));
    let lost = team.lines(&format!("SELECT * FROM ({expected}) EXCEPT {found}"));
    assert!(kept.is_empty(), "{table} still has {kept:?}");
    assert!(lost.is_empty(), "{table} has lost {lost:?}");
}

fn mirrors(team: &Team) {
    for (table, columns, expected) in MIRRORS {
        equal(team, table, columns, expected, "");
    }
    equal(
        team,
        "cursor_pins",
        "team_id, session_id, revision, expires_at, cursor_id",
        "SELECT c.team_id, j.value ->> 0, j.value ->> 1, c.expires_at, c.id
           FROM cursors c, json_each(c.snapshot_json) j
          WHERE c.kind IN ('list', 'search') AND j.value ->> 0 IS NOT NULL
         UNION
         SELECT team_id, snapshot_json ->> 'session_id', snapshot_json ->> 'revision', expires_at,
                cursors.id
           FROM cursors WHERE kind = 'history'",
        "",
    );
    for queue in QUEUES {
        assert_eq!(team.count(&format!("SELECT count(*) FROM {queue}")), 0, "{queue}");
    }
    let dangling = "SELECT count(*) FROM event_resources
                     WHERE sequence NOT IN (SELECT sequence FROM org_events)";
    assert_eq!(team.count(dangling), 0, "current events are kept");
    // A history ages exactly while its run has neither events nor a claim.
    let unsettled = "SELECT count(*) FROM run_fences f
                      WHERE (settled_at IS NULL) = (
                            (team_id, run_id) NOT IN (SELECT team_id, run_id FROM runs)
                            AND (team_id, run_id) NOT IN (SELECT team_id, run_id FROM run_claims))";
    assert_eq!(team.count(unsettled), 0, "a claim history ages");
    let unqueued = "SELECT count(*) FROM uploads u
                     WHERE state = 'committed'
                       AND NOT EXISTS (SELECT 1 FROM upload_refs r
                                        WHERE r.team_id = u.team_id AND r.upload_id = u.id)
                       AND NOT EXISTS (SELECT 1 FROM upload_prune_queue q
                                        WHERE q.team_id = u.team_id AND q.upload_id = u.id)";
    assert_eq!(team.count(unqueued), 0, "an unnamed upload waits for its day");
}

/// Every version that is left reads the same messages as before.
fn reads_as_before(team: &Team) {
    let read = |messages: &str| {
        team.lines(&format!(
            "SELECT v.team_id, v.session_id, v.revision, m.ordinal, m.digest
               FROM main.session_versions v, {messages} m
              WHERE m.team_id = v.team_id AND m.session_id = v.session_id
                AND m.revision <= v.revision AND m.until_revision > v.revision
              ORDER BY 1, 2, 3, 4"
        ))
    };
    assert_eq!(read("main.messages"), read("o.messages_before"));
    let short = "SELECT v.team_id, v.session_id, v.revision, v.message_count, count(m.id)
                   FROM session_versions v
                   LEFT JOIN messages m
                     ON m.team_id = v.team_id AND m.session_id = v.session_id
                    AND m.revision <= v.revision AND m.until_revision > v.revision
                  GROUP BY 1, 2, 3, 4 HAVING v.message_count <> count(m.id)";
    assert_eq!(team.lines(short), Vec::<String>::new());
}

// The kinds of things that retention removes: rows that fill a store, and rows whose turn comes.
// tests/workerd/maintain-cost.test.mjs counts what a few cost in a small store and in a large one;
// bench/ does so in larger ones, and compares with what a plain DELETE of the same rows costs.

import assert from 'node:assert/strict';
import { maintain, maintainAll, numbers, sum } from './retention.mjs';

export const SMALL = 1_000;

export const START_MS = 1_900_000_000_000;
const SECOND_MS = 1_000;
export const MINUTE_MS = 60 * SECOND_MS;
const DAY_MS = 86_400_000;
const SESSIONS_DAYS = 365;
export const REMOVES = 500;
const SOURCE = `source_${'0'.repeat(32)}`;
const MACHINE = `machine_${'0'.repeat(32)}`;
/** Later than anything in these tests. */
const FAR_MS = START_MS + 100 * DAY_MS;

// A store gets rows that are due before those that are not, since logs are read from their front.
// Each kind below is due at a minute of its own, so that a pass meets one kind alone.
export const KINDS = [
  {
    name: 'idempotency',
    rows: (tag, count, { expires }) => [
      `INSERT INTO idempotency
           (team_id, principal_id, key, request_hash, status, response_json, created_at, expires_at)
       SELECT :team, 'user_1', '${tag}' || i, x'00', 201, '{}', ${expires - DAY_MS}, ${expires}
         FROM ${numbers(count)}`,
    ],
    due: (at) => ({ expires: at }),
    live: { expires: FAR_MS },
  },
  {
    name: 'codes',
    rows: (tag, count, { expires }) => [
      `INSERT INTO app_install_codes (code_hash, team_id, app_id, created_at, expires_at)
       SELECT CAST('${tag}' || i AS BLOB), :team, 'app_1', ${expires - DAY_MS}, ${expires}
         FROM ${numbers(count)}`,
    ],
    due: (at) => ({ expires: at }),
    live: { expires: FAR_MS },
  },
  {
    name: 'expiries',
    rows: (tag, count, { expired }) => [
      `INSERT INTO capture_expiries (team_id, source_id, id, expired_at)
       SELECT :team, 'source_1', '${tag}' || i, ${expired} FROM ${numbers(count)}`,
    ],
    due: (at) => ({ expired: at - 30 * DAY_MS }),
    live: { expired: START_MS },
  },
  {
    name: 'cursors (10 pins each)',
    rows: (tag, count, { expires }) => [
      `INSERT INTO cursors
           (id, team_id, principal_id, kind, filters_hash, snapshot_json, expires_at)
       SELECT '${tag}' || i, :team, 'user_1', 'list', '',
              (SELECT json_group_array(json_array('session_' || p.i, 1))
                 FROM ${numbers(10)} AS p),
              ${expires}
         FROM ${numbers(count / 10)} AS n`,
    ],
    due: (at) => ({ expires: at }),
    live: { expires: FAR_MS },
  },
  {
    name: 'journal',
    rows: (tag, count, { created }) => [
      `INSERT INTO journal (team_id, principal_id, action, target_id, request_id, created_at)
       SELECT :team, 'user_1', 'act', '${tag}', '', ${created} FROM ${numbers(count)}`,
    ],
    due: (at) => ({ created: at - 90 * DAY_MS }),
    live: { created: START_MS },
  },
  {
    name: 'captures in flight',
    rows: (tag, count, { created }) => [
      `INSERT INTO captures (team_id, id, source_id, state, begin_json, created_at)
       SELECT :team, 'flight_${tag}' || i, 'source_1', 'staging', '{}', ${created}
         FROM ${numbers(count)}`,
    ],
    due: (at) => ({ created: at - DAY_MS }),
    live: { created: START_MS },
  },
  {
    name: 'uploads in flight (2 chunks each)',
    rows: (tag, count, { created }) => [
      upload(`flight_${tag}`, count / 2, 'pending', created),
      chunks(`flight_${tag}`, count / 2, 2),
    ],
    due: (at) => ({ created: at - DAY_MS }),
    live: { created: START_MS },
  },
  {
    name: 'captures, settled',
    rows: (tag, count, { settled }) => [
      `INSERT INTO captures
           (team_id, id, source_id, state, begin_json, created_at, settled_at, result_json)
       SELECT :team, 'settled_${tag}' || i, 'source_1', 'committed', '{}', ${settled}, ${settled}, '{}'
         FROM ${numbers(count)}`,
    ],
    due: (at) => ({ settled: at - DAY_MS }),
    live: { settled: START_MS },
  },
  {
    name: 'versions (one of two)',
    rows: (tag, count, { created }) => [
      ...session(`versions_${tag}`, count / 10, { at: FAR_MS, revision: 2 }),
      ...[1, 2].map((revision) => version(`versions_${tag}`, count / 10, revision, created)),
      messages(`versions_${tag}`, count, { revision: 1 }),
    ],
    due: (at) => ({ created: at }),
    live: { created: START_MS },
  },
  {
    name: 'messages, 500 of one session',
    rows: (tag, count) => [
      ...session(`m1_${tag}`, 1, { at: FAR_MS, revision: 3 }),
      version(`m1_${tag}`, 1, 3, START_MS),
      messages(`m1_${tag}`, count, { revision: 1, until: 2, perSession: count }),
    ],
    queue: (tag) => deadMessages(`m1_${tag}`, 1),
  },
  {
    name: 'messages, 10 of each session',
    rows: (tag, count) => [
      ...session(`m10_${tag}`, count / 10, { at: FAR_MS, revision: 3 }),
      version(`m10_${tag}`, count / 10, 3, START_MS),
      messages(`m10_${tag}`, count, { revision: 1, until: 2 }),
    ],
    queue: (tag, count) => deadMessages(`m10_${tag}`, count / 10),
  },
  {
    name: 'sessions, aged (10 messages each)',
    rows: (tag, count, { updated }) => wholeSessions(`aged_${tag}`, count, updated),
    due: (at) => ({ updated: at - SESSIONS_DAYS * DAY_MS }),
    live: { updated: START_MS },
  },
  {
    name: 'sessions, deleted (10 messages each)',
    rows: (tag, count) => wholeSessions(`deleted_${tag}`, count, START_MS),
    queue: (tag, count) => [
      `UPDATE sessions SET deleted_at = ${START_MS}
        WHERE team_id = :team
          AND id IN (SELECT ${id('session', `deleted_${tag}`)} FROM ${numbers(count / 10)})`,
    ],
  },
  {
    name: 'parts (10 a capture)',
    rows: (tag, count) => [
      `INSERT INTO captures
           (team_id, id, source_id, state, begin_json, created_at, settled_at)
       SELECT :team, 'parts_${tag}' || i, 'source_1', 'committed', '{}', ${FAR_MS}, ${FAR_MS}
         FROM ${numbers(count / 10)}`,
      `INSERT INTO capture_parts
           (team_id, capture_id, part_index, digest, messages_json, digests_json, created_at)
       SELECT :team, 'parts_${tag}' || (i / 10), i % 10, '', '[]', '{}', ${FAR_MS}
         FROM ${numbers(count)}`,
    ],
    queue: (tag, count) => [
      `INSERT INTO parts_prune_queue (team_id, capture_id)
       SELECT :team, 'parts_${tag}' || i FROM ${numbers(count / 10)}`,
    ],
  },
  {
    name: 'uploads (4 chunks each)',
    rows: (tag, count, { committed }) => [
      upload(`whole_${tag}`, count / 4, 'committed', committed),
      chunks(`whole_${tag}`, count / 4, 4),
    ],
    due: (at) => ({ committed: at - DAY_MS }),
    live: { committed: START_MS },
  },
  {
    name: 'blobs of 16 bytes',
    rows: (tag, count) => [blobs(`blob_${tag}`, count, 16)],
    queue: (tag, count) => queuedBlobs(`blob_${tag}`, count),
  },
  {
    name: 'blobs of 64 KiB',
    stored: 0, // Those of the row above stand for them.
    removes: 50,
    rows: (tag, count) => [blobs(`large_${tag}`, count, 65_536)],
    queue: (tag, count) => queuedBlobs(`large_${tag}`, count),
  },
  {
    name: 'events',
    rows: (tag, count, { created }) => [
      `INSERT INTO org_events
           (team_id, resource_kind, resource_id, type, value_json, created_at)
       SELECT :team, 'session', '${tag}' || i, 'session.created', '{}', ${created}
         FROM ${numbers(count)}`,
      // What is alive is its resource's current event.
      `INSERT INTO event_resources (team_id, source_id, resource_kind, resource_id, sequence)
       SELECT team_id, '', resource_kind, resource_id, sequence
         FROM org_events
        WHERE created_at = ${created} AND resource_id GLOB 'live*'`,
    ],
    due: (at) => ({ created: at - 7 * DAY_MS }),
    live: { created: START_MS },
  },
  {
    name: 'presence events',
    rows: (tag, count, { created }) => [
      `INSERT INTO machine_presence_events (team_id, machine_id, linked, created_at)
       SELECT :team, 'machine_${tag}' || i, 0, ${created} FROM ${numbers(count)}`,
    ],
    due: (at) => ({ created: at - 7 * DAY_MS }),
    live: { created: START_MS },
  },
  {
    name: 'links lost',
    removes: 50,
    rows: (tag, count, { lost }) => [
      `INSERT INTO machine_presence (team_id, machine_id, linked, lost_at, changed_at)
       SELECT :team, ${id('machine', `link_${tag}`)}, 1, ${lost}, ${START_MS}
         FROM ${numbers(count)}`,
    ],
    due: (at) => ({ lost: at - 45 * SECOND_MS }),
    live: { lost: null },
  },
  {
    name: 'deliveries (1 attempt each)',
    rows: (tag, count, { settled }) => [
      // As many that are still pending stand in front.
      `INSERT INTO app_webhook_deliveries
           (id, team_id, app_id, event_type, body, state, next_at, created_at)
       SELECT '0pending_${tag}' || i, :team, 'app_1', 'e', '{}', 'pending', ${FAR_MS}, 0
         FROM ${numbers(count)}`,
      `INSERT INTO app_webhook_deliveries
           (id, team_id, app_id, event_type, body, state, next_at, created_at, settled_at)
       SELECT '${tag}' || i, :team, 'app_1', 'e', '{}', 'delivered', 0, ${settled}, ${settled}
         FROM ${numbers(count)}`,
      `INSERT INTO app_webhook_attempts (delivery_id, attempt, at, status, answer)
       SELECT '${tag}' || i, 1, ${settled}, 200, 'ok' FROM ${numbers(count)}`,
    ],
    due: (at) => ({ settled: at - 7 * DAY_MS }),
    live: { settled: START_MS },
  },
  {
    name: 'operations (1 effect each)',
    rows: (tag, count, { settled }) => [
      operations(`settled_${tag}`, count, 'succeeded', settled, settled),
      effects(`settled_${tag}`, count, 'succeeded', settled),
    ],
    due: (at) => ({ settled: at - 30 * DAY_MS }),
    live: { settled: START_MS },
  },
  {
    name: 'attachments',
    rows: (tag, count, { settled }) => [
      `INSERT INTO attachments
           (team_id, id, session_id, machine_id, binding_id, principal_id, state, created_at, settled_at)
       SELECT :team, '${tag}' || i, 'session_1', 'machine_1', 'b', 'user_1', 'closed', 0, ${settled}
         FROM ${numbers(count)}`,
    ],
    due: (at) => ({ settled: at - 30 * DAY_MS }),
    live: { settled: START_MS },
  },
  {
    name: 'continuations, settled',
    rows: (tag, count, { settled }) => [
      `INSERT INTO continuations
           (team_id, id, session_id, state, value_json, created_at, updated_at, settled_at)
       SELECT :team, 'settled_${tag}' || i, 'session_1', 'completed', '{}', 0, ${settled}, ${settled}
         FROM ${numbers(count)}`,
    ],
    due: (at) => ({ settled: at - 30 * DAY_MS }),
    live: { settled: START_MS },
  },
  {
    name: 'credentials',
    rows: (tag, count, { expires }) => [
      `INSERT INTO credentials
           (id, token_hash, kind, team_id, principal_id, created_at, expires_at)
       SELECT '${tag}' || i, x'00', 'user', :team, 'user_1', 0, ${expires} FROM ${numbers(count)}`,
    ],
    due: (at) => ({ expires: at - 30 * DAY_MS }),
    live: { expires: FAR_MS },
  },
  {
    name: 'effects lost (with operation, event)',
    removes: 100,
    rows: (tag, count, { created }) => [
      operations(`lost_${tag}`, count, 'running', created, null),
      effects(`lost_${tag}`, count, 'pending', created),
    ],
    due: (at) => ({ created: at - DAY_MS }),
    live: { created: START_MS },
  },
  {
    name: 'continuations expired (with event)',
    removes: 100,
    rows: (tag, count, { updated }) => [
      `INSERT INTO continuations
           (team_id, id, session_id, machine_id, state, value_json, created_at, updated_at)
       SELECT :team, ${id('continuation', `lost_${tag}`)}, ${id('session', 'none')}, NULL, 'pending',
              '{}', 0, ${updated}
         FROM ${numbers(count)}`,
    ],
    due: (at) => ({ updated: at - DAY_MS }),
    live: { updated: START_MS },
  },
  {
    name: 'claim history (3 displaced holders each)',
    rows: (tag, count, { settled }) => [
      `INSERT INTO run_fences (team_id, run_id, fence, settled_at)
       SELECT :team, '${tag}' || i, 4, ${settled} FROM ${numbers(count / 4)}`,
      `INSERT INTO fenced_holders (team_id, run_id, holder, fenced_at)
       SELECT :team, '${tag}' || (i / 3), 'holder' || i, 0
         FROM ${numbers((count / 4) * 3)}`,
    ],
    due: (at) => ({ settled: at - 30 * DAY_MS }),
    live: { settled: 'NULL' },
  },
  {
    name: 'checkpoints (5 of a context)',
    rows: (tag, count, { created }) => [
      context(`k_${tag}`, count / 5, `, checkpoint_revision = 9, prune_at = ${created + 30 * DAY_MS}`),
      `INSERT INTO context_checkpoints
           (team_id, context_id, durable_revision, id, session_revision, source_start, source_end,
            turn_id, algorithm, schema_version, provider, model, generation, body_id, sha256, size,
            created_at)
       SELECT :team, 'k_${tag}' || n.i, r.i + 1, 'x' || r.i, 1, 0, r.i, 1, 'a', 1, 'p', 'm', 1,
              'body_k${tag}' || n.i || '-' || r.i, '', 1, iif(r.i < 6, ${created}, ${FAR_MS})
         FROM ${numbers(count / 5)} AS n, ${numbers(9)} AS r`,
    ],
    due: (at) => ({ created: at - 30 * DAY_MS }),
    live: { created: FAR_MS },
  },
  {
    name: 'payloads, unnamed',
    rows: (tag, count, { staged }) => [
      context(`s_${tag}`, 1),
      `INSERT INTO context_payloads
           (team_id, context_id, ref, sha256, size, body_id, staged_at, created_at)
       SELECT :team, 's_${tag}0', 'r' || i, '', 1, 'body_s${tag}' || i, ${staged}, ${staged}
         FROM ${numbers(count)}`,
    ],
    due: (at) => ({ staged: at - DAY_MS }),
    live: { staged: FAR_MS },
  },
  {
    name: 'what deleted contexts held (10 events, 5 payloads, 5 checkpoints)',
    rows: (tag, count, { deleted }) => [
      context(`d_${tag}`, count / 20, `, deleted_at = ${deleted}, purge_at = ${deleted + 365 * DAY_MS}`),
      `INSERT INTO context_events
           (team_id, context_id, sequence, kind, role, size, provenance, redaction_status, created_at)
       SELECT :team, 'd_${tag}' || n.i, r.i, '', '', 1, '', '', 0
         FROM ${numbers(count / 20)} AS n, ${numbers(10)} AS r`,
      `INSERT INTO context_payloads
           (team_id, context_id, ref, sha256, size, is_source, created_at)
       SELECT :team, 'd_${tag}' || n.i, 'r' || r.i, '', 1, 1, 0
         FROM ${numbers(count / 20)} AS n, ${numbers(5)} AS r`,
      `INSERT INTO context_checkpoints
           (team_id, context_id, durable_revision, id, session_revision, source_start, source_end,
            turn_id, algorithm, schema_version, provider, model, generation, sha256, size,
            created_at)
       SELECT :team, 'd_${tag}' || n.i, r.i, 'x' || r.i, 1, 0, r.i, 1, 'a', 1, 'p', 'm', 1, '', 1, 0
         FROM ${numbers(count / 20)} AS n, ${numbers(5)} AS r`,
    ],
    due: (at) => ({ deleted: at - 365 * DAY_MS }),
    live: { deleted: FAR_MS },
  },
  {
    name: 'worktrees (1 route each)',
    rows: (tag, count, { updated }) => [
      `INSERT INTO worktrees
           (team_id, workspace, instance_id, worktree, path, state, adopted, created_at, updated_at)
       SELECT :team, 'default', '${tag}' || i, '${tag}' || i, '/p', 'deleted', 0, 0, ${updated}
         FROM ${numbers(count)}`,
      `INSERT INTO worktree_routes
           (team_id, workspace, subject_id, worktree, instance_id, dir, created_at, updated_at)
       SELECT :team, 'default', 'user_1', '${tag}' || i, '${tag}' || i, '/p', 0, 0
         FROM ${numbers(count)}`,
    ],
    due: (at) => ({ updated: at - 30 * DAY_MS }),
    live: { updated: FAR_MS },
  },
  {
    name: 'operations of contexts',
    rows: (tag, count, { created }) => [
      `INSERT INTO context_operations
           (team_id, context_id, operation_id, kind, fingerprint, session_revision,
            durable_revision, source_revision, created_at)
       SELECT :team, 'c', '${tag}' || i, 'commit', x'00', 1, 1, 1, ${created}
         FROM ${numbers(count)}`,
    ],
    due: (at) => ({ created: at - 30 * DAY_MS }),
    live: { created: FAR_MS },
  },
  {
    name: 'usage records',
    rows: (tag, count, { created }) => [
      `INSERT INTO usage_records
           (team_id, workspace, principal_id, kind, provider, model, session_id, input_tokens,
            created_at)
       SELECT :team, 'default', 'user_1', 'token_usage', 'p', 'm', '${tag}' || (i % 50), 1, ${created}
         FROM ${numbers(count)}`,
    ],
    due: (at) => ({ created: at - 400 * DAY_MS }),
    live: { created: FAR_MS },
  },
  ...['uploads', 'captures', 'blobs'].map((walk) => ({
    name: `walk ${walk}`,
    stored: 0, // All that the other kinds left; the newest captures have ten parts each.
    removes: walk === 'captures' ? SMALL / 10 : REMOVES,
    rows: () => [],
    queue: (_, count) => {
      const table = walk === 'blobs' ? 'artifact_blobs' : walk;
      return [
        `UPDATE maintain_backfill
            SET done = 0, after_rowid = (SELECT max(rowid) - ${count} FROM ${table})
          WHERE name = '${walk}'`,
      ];
    },
  })),
  {
    name: 'a whole team',
    stored: 0, // The other team is beside it.
    rows: (tag, count) => [
      `INSERT INTO teams (id, name, epoch, created_at) VALUES (:team, 'Gone', '00000000', ${START_MS})`,
      ...wholeSessions(`team_${tag}`, count, FAR_MS),
    ],
    team: `team_${'0'.repeat(32)}`,
    queue: () => [`UPDATE teams SET removing = 'delete' WHERE id = :team`],
  },
];

function upload(tag, count, state, at) {
  return `INSERT INTO uploads
              (team_id, id, source_id, media_type, size, sha256, chunk_size, state, committed_at, created_at)
          SELECT :team, '${tag}' || i, 'source_1', 'a/b', 1, '', 65536, '${state}',
                 ${state === 'committed' ? at : null}, ${at}
            FROM ${numbers(count)}`;
}

/** Chunks whose blob another upload names too, so that it stays. */
function chunks(tag, uploads, each) {
  return `INSERT INTO artifact_chunk_refs (team_id, upload_id, chunk_index, sha256, size, source_id)
          SELECT :team, '${tag}' || (i / ${each}), i % ${each}, 'shared' || (i % 100), 1, 'source_1'
            FROM ${numbers(uploads * each)}`;
}

function blobs(tag, count, bytes) {
  return `INSERT INTO artifact_blobs (team_id, sha256, size, bytes)
          SELECT :team, '${tag}' || i, ${bytes}, zeroblob(${bytes}) FROM ${numbers(count)}`;
}

function queuedBlobs(tag, count) {
  return [
    `INSERT INTO blob_prune_queue (team_id, sha256)
     SELECT :team, '${tag}' || i FROM ${numbers(count)}`,
  ];
}

/** The id of the `i`-th thing of a kind that a step makes an event of. */
function id(kind, tag, i = 'i') {
  return `'${kind}_' || printf('%08x%024x', ${numberOf(tag)}, ${i})`;
}

/** How the ids of these things begin. */
function idsOf(kind, tag) {
  return `${kind}_${numberOf(tag).toString(16).padStart(8, '0')}`;
}

function numberOf(tag) {
  return [...tag].reduce((sum, char) => (sum * 31 + char.charCodeAt(0)) % 0xffff_fffb, 7);
}

function session(tag, count, { at, revision }) {
  return [
    `INSERT INTO sessions
         (team_id, id, revision, harness, title, message_count, created_at, updated_at)
     SELECT :team, ${id('session', tag)}, ${revision}, 'codex', 'title', 10, ${at}, ${at}
       FROM ${numbers(count)}`,
    `INSERT INTO origins (team_id, source_id, harness, native_id, session_id)
     SELECT :team, 'source_1', 'codex', '${tag}' || i, ${id('session', tag)} FROM ${numbers(count)}`,
  ];
}

function version(tag, count, revision, at) {
  return `INSERT INTO session_versions
              (team_id, session_id, revision, source_id, message_count, created_at)
          SELECT :team, ${id('session', tag)}, ${revision}, '${SOURCE}', 10, ${at}
            FROM ${numbers(count)}`;
}

function messages(tag, count, { revision, until = '9007199254740991', perSession = 10 }) {
  return `INSERT INTO messages
              (team_id, session_id, ordinal, revision, until_revision, role, digest, value_json)
          SELECT :team, ${id('session', tag, `i / ${perSession}`)}, i % ${perSession}, ${revision},
                 ${until}, 'user', '', '{"role":"user"}'
            FROM ${numbers(count)}`;
}

function deadMessages(tag, sessions) {
  return [
    `INSERT INTO message_prune_queue (team_id, session_id, revision, after_until)
     SELECT :team, ${id('session', tag)}, 1, 1 FROM ${numbers(sessions)}`,
  ];
}

function wholeSessions(tag, count, updated) {
  return [
    ...session(tag, count / 10, { at: updated, revision: 1 }),
    version(tag, count / 10, 1, START_MS),
    messages(tag, count, { revision: 1 }),
  ];
}

function operations(tag, count, state, at, settled) {
  return `INSERT INTO operations
              (team_id, id, principal_id, kind, state, input_json, created_at, updated_at, settled_at)
          SELECT :team, ${id('operation', tag)}, 'user_1', 'prompt', '${state}', '{}', ${at}, ${at},
                 ${settled}
            FROM ${numbers(count)}`;
}

function effects(tag, count, state, at) {
  return `INSERT INTO native_effects
              (team_id, id, operation_id, machine_id, state, request_json, created_at)
          SELECT :team, ${id('effect', tag)}, ${id('operation', tag)}, '${MACHINE}', '${state}', '{}', ${at}
            FROM ${numbers(count)}`;
}

/** When a kind's turn comes, by its place in the list. */
export const minuteOf = (index) => START_MS + (index + 10) * MINUTE_MS;

const begins = (column, text) => `+${column} GLOB '${text}*'`;

/**
 * The rows of a kind that a pass deletes, for those that retention would otherwise delete by plain
 * statements: `[table, key, condition]`, children first. The condition reads the whole table: with
 * its `+` it uses no index.
 */
export const GOES = {
  idempotency: (tag) => [['idempotency', 'rowid', begins('key', tag)]],
  codes: (tag) => [['app_install_codes', 'rowid', begins('CAST(code_hash AS TEXT)', tag)]],
  expiries: (tag) => [['capture_expiries', 'rowid', begins('id', tag)]],
  'cursors (10 pins each)': (tag) => [['cursors', 'id', begins('id', tag)]],
  journal: (tag) => [['journal', 'rowid', begins('target_id', tag)]],
  'captures in flight': (tag) => [['captures', 'rowid', begins('id', `flight_${tag}`)]],
  'uploads in flight (2 chunks each)': (tag) => uploadRows(`flight_${tag}`),
  'captures, settled': (tag) => [['captures', 'rowid', begins('id', `settled_${tag}`)]],
  'versions (one of two)': (tag) => [
    ['session_versions', 'rowid', `${begins('session_id', idsOf('session', `versions_${tag}`))} AND revision = 1`],
  ],
  'messages, 500 of one session': (tag) => [messageRows(`m1_${tag}`)],
  'messages, 10 of each session': (tag) => [messageRows(`m10_${tag}`)],
  'sessions, aged (10 messages each)': (tag) => sessionRows(`aged_${tag}`),
  'sessions, deleted (10 messages each)': (tag) => sessionRows(`deleted_${tag}`),
  'parts (10 a capture)': (tag) => [['capture_parts', 'rowid', begins('capture_id', `parts_${tag}`)]],
  'uploads (4 chunks each)': (tag) => uploadRows(`whole_${tag}`),
  'blobs of 16 bytes': (tag) => [['artifact_blobs', 'rowid', begins('sha256', `blob_${tag}`)]],
  'blobs of 64 KiB': (tag) => [['artifact_blobs', 'rowid', begins('sha256', `large_${tag}`)]],
  events: (tag) => [['org_events', 'rowid', begins('resource_id', tag)]],
  'presence events': (tag) => [
    ['machine_presence_events', 'rowid', begins('machine_id', `machine_${tag}`)],
  ],
  'deliveries (1 attempt each)': (tag) => [
    ['app_webhook_attempts', 'delivery_id', begins('delivery_id', tag)],
    ['app_webhook_deliveries', 'rowid', begins('id', tag)],
  ],
  'operations (1 effect each)': (tag) => [
    ['native_effects', 'rowid', begins('id', idsOf('effect', `settled_${tag}`))],
    ['operations', 'rowid', begins('id', idsOf('operation', `settled_${tag}`))],
  ],
  attachments: (tag) => [['attachments', 'rowid', begins('id', tag)]],
  'continuations, settled': (tag) => [['continuations', 'rowid', begins('id', `settled_${tag}`)]],
  credentials: (tag) => [['credentials', 'id', begins('id', tag)]],
  'operations of contexts': (tag) => [['context_operations', 'rowid', begins('operation_id', tag)]],
  'usage records': (tag) => [['usage_records', 'rowid', begins('session_id', tag)]],
};

function uploadRows(tag) {
  return [
    ['artifact_chunk_refs', 'rowid', begins('upload_id', tag)],
    ['uploads', 'rowid', begins('id', tag)],
  ];
}

function messageRows(tag) {
  return ['messages', 'id', begins('session_id', idsOf('session', tag))];
}

function sessionRows(tag) {
  return [
    messageRows(tag),
    ['session_versions', 'rowid', begins('session_id', idsOf('session', tag))],
    ['sessions', 'rowid', begins('id', idsOf('session', tag))],
  ];
}

/** Makes a team that keeps sessions for a year. Resolves with where its passes run. */
export async function makeTeam(plane) {
  const { team, token } = await plane.createTeam('Acme', { now: START_MS });
  const settings = { retention: { sessions_days: SESSIONS_DAYS } };
  await plane.api('PATCH', `/v1/teams/${team.id}`, { token, now: START_MS, body: settings });
  const where = { plane, team, token };
  // What making the team wrote would stand in front of what is older.
  await run(where, ['DELETE FROM org_events', 'DELETE FROM event_resources', 'DELETE FROM journal']);
  await run(where, [
    `INSERT OR IGNORE INTO artifact_chunk_refs (team_id, upload_id, chunk_index, sha256, size, source_id)
     SELECT :team, 'forever', i, 'shared' || i, 1, 'source_1' FROM ${numbers(100)}`,
  ]);
  return where;
}

/** Runs statements on the team's store, past the core. */
export async function run({ plane, team }, statements, teamId = team.id) {
  const object = plane.team(team.id);
  for (const sql of statements) await object.query(sql.replaceAll(':team', `'${teamId}'`));
}

/** Rows of each kind that are due when its turn comes; then `stored` rows a table that stay. */
export async function fill(where, stored) {
  for (const [index, kind] of KINDS.entries()) {
    // Those without a time are beyond anybody's reach until they are queued.
    const due = kind.due?.(minuteOf(index)) ?? {};
    await run(where, kind.rows('due', kind.removes ?? REMOVES, due), kind.team);
  }
  for (const kind of KINDS) {
    if (kind.stored !== 0) await run(where, kind.rows('live', stored, kind.live ?? {}), kind.team);
  }
  return maintainAll(where, START_MS);
}

/**
 * Has each kind's turn come, and says what its rows cost: `figures` by the kind's name, and what a
 * pass with nothing to do costs before (`idle`) and after (`last`). `before` is called for each.
 */
export async function removeEach(where, before) {
  const idle = await maintain(where, START_MS);
  assert.deepEqual([idle.removed, idle.backlog], [{}, false]);
  const figures = new Map();
  for (const [index, kind] of KINDS.entries()) {
    await before?.(kind);
    if (kind.queue) await run(where, kind.queue('due', kind.removes ?? REMOVES), kind.team);
    const { removed, units, passes } = await maintainAll(where, minuteOf(index));
    const rows = sum(removed);
    figures.set(kind.name, { removed, rows, units: (units - passes * idle.cost.units) / rows });
  }
  const last = await maintain(where, minuteOf(KINDS.length));
  return { figures, idle, last };
}

/** Contexts without anything. */
function context(prefix, count, more = '') {
  const set = more
    .split(', ')
    .filter(Boolean)
    .map((part) => part.split(' = '));
  const names = set.map(([name]) => `, ${name}`).join('');
  const values = set.map(([, value]) => `, ${value}`).join('');
  return `INSERT INTO contexts
              (team_id, id, workspace, subject_id, capability_hash, provider, model, generation,
               created_at, updated_at${names})
          SELECT :team, '${prefix}' || i, 'default', 'user_1', x'00', 'p', 'm', 1, 0, 0${values}
            FROM ${numbers(count)}`;
}

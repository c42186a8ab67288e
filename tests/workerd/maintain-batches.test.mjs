// However large a thing is, it goes in batches of a few rows: one transaction never holds the object
// up. And what brings an older store up to date costs the same at any size.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { startPlane } from './harness.mjs';
import { undo, versionBefore } from './migrations.mjs';
import { maintain, maintainAll, numbers, sum } from './retention.mjs';

const START_MS = 1_900_000_000_000;
const DAY_MS = 86_400_000;
const SESSION = `session_${'0'.repeat(32)}`;
const SOURCE = `source_${'0'.repeat(32)}`;
const ID = `'session_' || printf('%032x', i)`;
const BATCH_UNITS_MAX = 500;
const SLICE_UNITS_MAX = 5_000;
const PASS_UNITS_MAX = 100_000;

let plane;
before(async () => {
  plane = await startPlane();
});
after(() => plane?.stop());

const units = ({ rowsRead, rowsWritten, statements }) => rowsRead + rowsWritten + 5 * statements;

/** A team whose object holds what `statements` store; `:team` is its id. */
async function teamWith(statements) {
  const made = await plane.createTeam('Acme', { now: START_MS });
  const object = plane.team(made.team.id);
  const run = async (statements) => {
    for (const sql of statements) await object.query(sql.replaceAll(':team', `'${made.team.id}'`));
  };
  await run(statements);
  return { plane, object, run, ...made };
}

const wholeSession = (messages) => [
  `INSERT INTO sessions (team_id, id, revision, harness, message_count, created_at, updated_at)
   VALUES (:team, '${SESSION}', 1, 'codex', ${messages}, ${START_MS}, ${START_MS})`,
  `INSERT INTO session_versions (team_id, session_id, revision, source_id, message_count, created_at)
   VALUES (:team, '${SESSION}', 1, '${SOURCE}', ${messages}, ${START_MS})`,
  `INSERT INTO messages (team_id, session_id, ordinal, revision, role, digest, value_json)
   SELECT :team, '${SESSION}', i, 1, 'user', '', '{"ordinal":' || i || ',"role":"user","text":"word"}'
     FROM ${numbers(messages)}`,
  `INSERT INTO message_search (rowid, text) SELECT id, 'word' FROM messages`,
];

const LARGE = [
  {
    name: 'a run that 5,000 takeovers passed on',
    rows: [
      `INSERT INTO run_fences (team_id, run_id, fence, settled_at)
       VALUES (:team, 'run', 5001, ${START_MS - 30 * DAY_MS})`,
      `INSERT INTO fenced_holders (team_id, run_id, holder, fenced_at)
       SELECT :team, 'run', 'holder' || i, 0 FROM ${numbers(5_000)}`,
    ],
    removed: { claim_history: 5_001 },
  },
  {
    name: 'runs with a displaced holder each',
    rows: [
      `INSERT INTO run_fences (team_id, run_id, fence, settled_at)
       SELECT :team, 'run' || i, 2, ${START_MS - 30 * DAY_MS} FROM ${numbers(500)}`,
      `INSERT INTO fenced_holders (team_id, run_id, holder, fenced_at)
       SELECT :team, 'run' || i, 'holder', 0 FROM ${numbers(500)}`,
    ],
    removed: { claim_history: 1_000 },
  },
  {
    name: 'a cursor of 500 pins',
    rows: [
      `INSERT INTO cursors (id, team_id, principal_id, kind, filters_hash, snapshot_json, expires_at)
       SELECT 'cursor_1', :team, 'user_1', 'list', '',
              (SELECT json_group_array(json_array('session_' || i, 1)) FROM ${numbers(500)}), ${START_MS}`,
    ],
    removed: { cursors: 1, cursor_pins: 500 },
  },
  {
    name: 'an upload of 4,096 chunks with their blobs',
    rows: [
      `INSERT INTO artifact_blobs (team_id, sha256, size, bytes)
       SELECT :team, 'blob' || i, 1024, zeroblob(1024) FROM ${numbers(4096)}`,
      `INSERT INTO uploads
           (team_id, id, source_id, media_type, size, sha256, chunk_size, state, committed_at, created_at)
       VALUES (:team, 'upload_1', '${SOURCE}', 'a/b', 1, '', 65536, 'committed', ${START_MS - DAY_MS}, 0)`,
      `INSERT INTO artifact_chunk_refs (team_id, upload_id, chunk_index, sha256, size, source_id)
       SELECT :team, 'upload_1', i, 'blob' || i, 1024, '${SOURCE}' FROM ${numbers(4096)}`,
    ],
    removed: { uploads: 1, chunk_refs: 4096, blobs: 4096 },
  },
  {
    name: 'an upload of 4,096 chunks that was never committed',
    rows: [
      `INSERT INTO uploads (team_id, id, source_id, media_type, size, sha256, chunk_size, state, created_at)
       VALUES (:team, 'upload_1', '${SOURCE}', 'a/b', 1, '', 65536, 'pending', ${START_MS - DAY_MS})`,
      `INSERT INTO artifact_chunk_refs (team_id, upload_id, chunk_index, sha256, size, source_id)
       SELECT :team, 'upload_1', i, 'blob' || i, 1024, '${SOURCE}' FROM ${numbers(4096)}`,
    ],
    removed: { uploads_in_flight: 1, chunk_refs: 4096 },
  },
  {
    name: 'a capture of 2,000 parts',
    rows: [
      `INSERT INTO captures (team_id, id, source_id, state, begin_json, created_at)
       VALUES (:team, 'capture_1', '${SOURCE}', 'staging', '{}', ${START_MS - DAY_MS})`,
      `INSERT INTO capture_parts
           (team_id, capture_id, part_index, digest, messages_json, digests_json, created_at)
       SELECT :team, 'capture_1', i, '', printf('%.*c', 8192, 'x'), '{}', ${START_MS} FROM ${numbers(2000)}`,
    ],
    removed: { captures: 1, parts: 2000 },
  },
  {
    name: 'a deleted session of 100,000 messages',
    rows: [...wholeSession(100_000), `UPDATE sessions SET deleted_at = ${START_MS}`],
    removed: { sessions: 1 },
    rowsRemoved: 100_000,
  },
  {
    name: 'a context deleted a year ago, of 20,000 events, 2,000 payloads and 1,000 checkpoints',
    rows: [
      `INSERT INTO contexts
           (team_id, id, workspace, subject_id, capability_hash, provider, model, generation,
            deleted_at, purge_at, created_at, updated_at)
       VALUES (:team, 'c', 'default', 'u', x'00', 'p', 'm', 1, 0, ${START_MS}, 0, 0)`,
      `INSERT INTO context_events
           (team_id, context_id, sequence, kind, role, size, provenance, redaction_status, created_at)
       SELECT :team, 'c', i, '', '', 1, '', '', 0 FROM ${numbers(20_000)}`,
      `INSERT INTO context_payloads
           (team_id, context_id, ref, sha256, size, body_id, is_source, created_at)
       SELECT :team, 'c', 'r' || i, '', 1, 'body_p' || i, 1, 0 FROM ${numbers(2_000)}`,
      `INSERT INTO context_checkpoints
           (team_id, context_id, durable_revision, id, session_revision, source_start, source_end,
            turn_id, algorithm, schema_version, provider, model, generation, body_id, sha256, size,
            created_at)
       SELECT :team, 'c', i, 'x' || i, 1, 0, i, 1, 'a', 1, 'p', 'm', 1, 'body_k' || i, '', 1, 0
         FROM ${numbers(1_000)}`,
      `INSERT INTO body_chunks (team_id, body_id, chunk_index, bytes)
       SELECT :team, 'body_p' || (i / 3), i % 3, zeroblob(100000) FROM ${numbers(600)}`,
    ],
    removed: {
      contexts: 1, context_events: 20_000, payloads: 2_000, checkpoints: 1_000, bodies: 3_000,
      body_chunks: 600,
    },
  },
  {
    name: 'a worktree under which 500 of everything was left',
    rows: [
      `INSERT INTO worktrees
           (team_id, workspace, instance_id, worktree, path, state, adopted, created_at, updated_at)
       VALUES (:team, 'default', 'i', 'w', '/p', 'deleted', 0, 0, 0)`,
      `INSERT INTO worktree_routes
           (team_id, workspace, subject_id, worktree, instance_id, dir, created_at, updated_at)
       SELECT :team, 'default', 'u' || i, 'w', 'i', '/p', 0, 0 FROM ${numbers(500)}`,
      `INSERT INTO contexts
           (team_id, id, workspace, worktree, instance_id, subject_id, capability_hash, provider,
            model, generation, listed_at, dir, created_at, updated_at)
       SELECT :team, 'c' || i, 'default', 'w', 'i', 'u' || i, x'00', 'p', 'm', 1, 0, '/p', 0, 0
         FROM ${numbers(500)}`,
      `INSERT INTO context_snapshots
           (team_id, workspace, instance_id, subject_id, name, turns, tokens, message_count, body_id,
            size, created_at, updated_at)
       SELECT :team, 'default', 'i', 'u' || i, 's', 1, 1, 1, 'body_s' || i, 1, 0, 0
         FROM ${numbers(500)}`,
      `INSERT INTO snapshot_admissions
           (team_id, workspace, instance_id, subject_id, name, value_json, updated_at)
       SELECT :team, 'default', 'i', 'u' || i, 's', '{}', 0 FROM ${numbers(500)}`,
    ],
    removed: {
      worktrees: 1, worktree_routes: 500, snapshots: 500, admissions: 500, contexts_ended: 500,
      bodies: 500,
    },
  },
  {
    name: '2,000 versions of one session that nobody needs',
    rows: [
      ...wholeSession(20).slice(0, 1),
      'UPDATE sessions SET revision = 2001',
      `INSERT INTO session_versions (team_id, session_id, revision, source_id, message_count, created_at)
       SELECT :team, '${SESSION}', i + 1, '${SOURCE}', 20, ${START_MS} FROM ${numbers(2001)}`,
      // Each version replaced 20 messages of the one before.
      `INSERT INTO messages (team_id, session_id, ordinal, revision, until_revision, role, digest, value_json)
       SELECT :team, '${SESSION}', i % 20, i / 20 + 1, i / 20 + 2, 'user', '', '{}' FROM ${numbers(40_000)}`,
    ],
    removed: { versions: 2000, messages: 40_000 },
  },
];

for (const { name, rows, removed, rowsRemoved } of LARGE) {
  test(`${name}: no transaction exceeds 500 units`, { timeout: 120_000 }, async (t) => {
    const where = await teamWith(rows);
    await where.object.resetCounts();
    const all = { removed: {}, passes: 0, units: 0 };
    for (let backlog = true; backlog; all.passes += 1) {
      const outcome = await maintain(where, START_MS);
      for (const [kind, count] of Object.entries(outcome.removed)) {
        all.removed[kind] = (all.removed[kind] ?? 0) + count;
      }
      const { cost } = outcome;
      all.units += cost.units;
      assert.ok(cost.units <= PASS_UNITS_MAX + BATCH_UNITS_MAX, `a pass of ${cost.units} units`);
      assert.ok(cost.units / cost.slices <= SLICE_UNITS_MAX, `${cost.units} units in ${cost.slices} slices`);
      assert.deepEqual(outcome.failed, []);
      backlog = outcome.backlog;
    }
    const { largest } = await where.object.counts();

    for (const [kind, count] of Object.entries(removed)) assert.equal(all.removed[kind], count, kind);
    if (rowsRemoved) assert.ok(all.removed.session_rows >= rowsRemoved);
    const total = sum(all.removed);
    t.diagnostic(
      `${name}: ${total} rows, ${(all.units / total).toFixed(2)} units a row, ${all.passes} passes, ` +
        `largest transaction ${units(largest)} units: ${JSON.stringify(largest)}`,
    );
    assert.ok(units(largest) <= BATCH_UNITS_MAX, `a transaction of ${units(largest)} units`);
  });
}

// What each holds before the retention migration.
const olderStore = (count) => [
  `INSERT INTO sessions (team_id, id, revision, harness, message_count, created_at, updated_at)
   SELECT :team, ${ID}, 1, 'codex', 1, ${START_MS}, ${START_MS} FROM ${numbers(count)}`,
  `INSERT INTO session_versions (team_id, session_id, revision, source_id, message_count, created_at)
   SELECT :team, ${ID}, 1, '${SOURCE}', 1, ${START_MS} FROM ${numbers(count)}`,
  `INSERT INTO messages (team_id, session_id, ordinal, revision, role, digest, value_json)
   SELECT :team, ${ID}, 0, 1, 'user', '', '{}' FROM ${numbers(count)}`,
  `INSERT INTO session_artifacts (team_id, session_id, revision, bundle_id, upload_id, name, provenance)
   SELECT :team, ${ID}, 1, 'b', 'upload_' || i, 'n', 'capture' FROM ${numbers(count)}`,
  `INSERT INTO continuations (team_id, id, session_id, state, value_json, created_at, updated_at, settled_at)
   SELECT :team, 'c' || i, ${ID}, 'completed', '{}', 0, ${START_MS}, ${START_MS} FROM ${numbers(count)}`,
  `INSERT INTO captures (team_id, id, source_id, state, begin_json, created_at)
   SELECT :team, 'capture_' || i, '${SOURCE}', 'staging', '{}', ${START_MS} FROM ${numbers(count)}`,
  `INSERT INTO uploads
       (team_id, id, source_id, media_type, size, sha256, chunk_size, state, committed_at, created_at)
   SELECT :team, 'upload_' || i, '${SOURCE}', 'a/b', 1, '', 65536, 'committed', ${START_MS}, 0 FROM ${numbers(count)}`,
  `INSERT INTO artifact_chunk_refs (team_id, upload_id, chunk_index, sha256, size, source_id)
   SELECT :team, 'upload_' || i, 0, 'blob' || i, 1, '${SOURCE}' FROM ${numbers(count)}`,
  `INSERT INTO artifact_blobs (team_id, sha256, size, bytes)
   SELECT :team, 'blob' || i, 1, x'00' FROM ${numbers(count)}`,
  `INSERT INTO cursors (id, team_id, principal_id, kind, filters_hash, snapshot_json, expires_at)
   SELECT 'cursor_' || i, :team, 'user_1', 'list', '', '[["${SESSION}",1]]', ${START_MS} FROM ${numbers(count)}`,
];

/** Takes the retention migration back, restarts, and answers what the first request costs. */
async function upgradeCost(count) {
  const where = await teamWith([]);
  await where.run([...undo(versionBefore('retention')), ...olderStore(count)]);
  await plane.restart();
  const beganMs = performance.now();
  const answer = await plane.api('GET', `/v1/teams/${where.team.id}`, { token: where.token });
  const ms = performance.now() - beganMs;
  assert.equal(answer.status, 200);
  const { statements, rowsRead, rowsWritten } = await where.object.counts();
  return { where, ms, cost: { statements, rowsRead, rowsWritten } };
}

test('the retention migration costs the same on a large store, which passes then walk', { timeout: 300_000 }, async (t) => {
  const small = await upgradeCost(1_000);
  const large = await upgradeCost(100_000);
  t.diagnostic(`upgrade: ${JSON.stringify(small.cost)}; ${small.ms.toFixed(0)} and ${large.ms.toFixed(0)} ms`);
  assert.deepEqual(large.cost, small.cost);
  assert.ok(small.cost.statements > 50, 'the migration ran');

  for (const [name, { where }, count] of [['small', small, 1_000], ['large', large, 100_000]]) {
    const all = await maintainAll(where, START_MS + 1);
    t.diagnostic(`${name}: ${all.removed.walked} rows walked in ${all.passes} passes, ${all.units} units`);
    const [{ open }] = await where.object.query('SELECT count(*) AS open FROM maintain_backfill WHERE done = 0');
    assert.equal(open, 0);
    for (const [table, rows] of [
      ['version_sources', count],
      ['captured_versions', count],
      ['upload_refs', count],
      ['staging_captures', count],
      ['upload_prune_queue', count],
      ['blob_prune_queue', 0],
      ['version_prune_queue', 0],
    ]) {
      assert.deepEqual(await where.object.query(`SELECT count(*) AS rows FROM ${table}`), [{ rows }], table);
    }
  }
});

// What retention costs in the runtime that bills it: exact units (a row read or written, five for a
// statement, 4 KiB of a large value) for each row that goes, the same on a small store and on a
// large one, in batches of at most 500.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { expectStatus, startPlane } from './harness.mjs';

const DAY = 86_400_000;
const START = 1_800_000_000_000;
const BATCH_UNITS_MAX = 500;
const SIZES = [1_000, 20_000];

let plane;
before(async () => { plane = await startPlane(); });
after(() => plane?.stop());

const numbers = (count) =>
  `WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ${count})`;

class Store {
  static async make() {
    const { team, token } = await plane.createTeam('Acme', { now: START });
    const store = Object.assign(new Store(), { id: team.id, token, now: START });
    store.object = await plane.team(team.id);
    await store.settle();
    return store;
  }

  sql(text) {
    return this.object.query(text.replaceAll('$team', `'${this.id}'`).replaceAll('$now', this.now));
  }

  async pass() {
    const { token, now } = this;
    const answer = await plane.api('POST', `/v1/teams/${this.id}/maintain`, { token, now, body: {} });
    expectStatus(200, answer, 'POST maintain');
    return answer.body.data;
  }

  /** Passes until nothing is left: what they removed and cost all together. */
  async settle() {
    await this.object.resetCounts();
    const removed = {};
    let units = 0;
    for (let backlog = true; backlog; ) {
      const outcome = await this.pass();
      assert.deepEqual(outcome.failed, []);
      assert.ok(outcome.cost.units <= 100_000 + BATCH_UNITS_MAX, `a pass of ${outcome.cost.units} units`);
      units += outcome.cost.units;
      for (const [kind, count] of Object.entries(outcome.removed)) removed[kind] = (removed[kind] ?? 0) + count;
      backlog = outcome.backlog;
    }
    const { statements, rowsRead, rowsWritten } = (await this.object.counts()).largest;
    const largest = 5 * statements + rowsRead + rowsWritten;
    assert.ok(largest <= BATCH_UNITS_MAX, `a batch of ${largest} units: ${JSON.stringify(removed)}`);
    return { removed, units, largest };
  }
}

const session = (store, revision) => store.sql(
  `INSERT INTO sessions (team_id, id, revision, harness, message_count, created_at, updated_at)
   VALUES ($team, 's', ${revision}, 'h', 1, $now, $now)`);

const versions = (store, from, count, source = `'source'`) => store.sql(
  `${numbers(count)} INSERT INTO session_versions
       (team_id, session_id, revision, source_id, message_count, created_at)
   SELECT $team, 's', ${from} + i, ${source}, 1, $now FROM n`);

const uploads = (store, count, chunks, state) => store.sql(
  `${numbers(count)} INSERT INTO uploads
       (team_id, id, source_id, media_type, size, sha256, chunk_size, state, committed_at, created_at)
   SELECT $team, 'u' || i, 's', 'x/y', 1, 'x', 65536, '${state}', $now, $now FROM n`,
).then(() => store.sql(
  `${numbers(count * chunks)} INSERT INTO artifact_chunk_refs
       (team_id, upload_id, chunk_index, sha256, size, source_id)
   SELECT $team, 'u' || (1 + i % ${count}), i, 'b' || i, 65536, 's' FROM n`));

/** What goes: how it comes about, how much time passes then, and the most that a row may cost. */
const CASES = {
  'kept answers': {
    kind: 'idempotency', most: 4, wait: DAY,
    seed: (store, count) => store.sql(
      `${numbers(count)} INSERT INTO idempotency
           (team_id, principal_id, key, request_hash, status, response_json, created_at, expires_at)
       SELECT $team, 'p', 'k' || i, x'00', 200, '{}', $now, $now + ${DAY} FROM n`),
  },
  journal: {
    kind: 'journal', most: 4, wait: 90 * DAY,
    seed: (store, count) => store.sql(
      `${numbers(count)} INSERT INTO journal
           (team_id, principal_id, action, target_id, request_id, created_at)
       SELECT $team, 'p', 'a', 't', 'r', $now FROM n`),
  },
  'cursors of 20 pins': {
    kind: 'cursor_pins', most: 6, wait: DAY,
    seed: (store, count) => store.sql(
      `${numbers(Math.floor(count / 20))} INSERT INTO cursors
           (id, team_id, principal_id, kind, filters_hash, snapshot_json, expires_at)
       SELECT 'c' || i, $team, 'p', 'list', '',
              '[' || substr(replace(printf('%020d', 0), '0', ',["s' || i || '",0]'), 2) || ']', $now + 1
         FROM n`).then(() => store.sql(
      `${numbers(Math.floor(count / 20) * 20)} INSERT INTO cursor_pins
       SELECT $team, 'x' || i, i, $now + 1, 'c' || (1 + i / 20) FROM n`)),
  },
  'staging captures': {
    kind: 'captures', most: 36, wait: DAY,
    seed: (store, count) => store.sql(
      `${numbers(count)} INSERT INTO captures (team_id, id, source_id, state, begin_json, created_at)
       SELECT $team, 'c' || i, 's', 'staging', '{}', $now FROM n`),
  },
  'settled captures': {
    kind: 'captures', most: 6, wait: DAY,
    seed: (store, count) => store.sql(
      `${numbers(count)} INSERT INTO captures
           (team_id, id, source_id, state, begin_json, created_at, settled_at)
       SELECT $team, 'c' || i, 's', 'committed', '{}', $now, $now FROM n`),
  },
  'pending uploads without chunks': {
    kind: 'uploads_in_flight', most: 62, wait: DAY,
    seed: (store, count) => uploads(store, count, 0, 'pending'),
  },
  versions: {
    kind: 'versions', most: 27, wait: 0,
    seed: (store, count) => session(store, count + 1).then(() => versions(store, 0, count + 1)),
  },
  'versions beside 1,000 sources and 10,000 messages': {
    kind: 'versions', most: 27, wait: 0, sizes: [5_000],
    seed: async (store, count) => {
      await session(store, 1_001 + count);
      await versions(store, 0, 1_000, `'source' || i`);
      await store.settle();
      await store.sql(
        `${numbers(10_000)} INSERT INTO messages
             (team_id, session_id, ordinal, revision, role, digest, value_json)
         SELECT $team, 's', i, 1001, 'user', 'd', '{}' FROM n`);
      await versions(store, 1_000, count + 1);
    },
  },
  'versions with a dead message each': {
    kind: 'versions', most: 33, wait: 0,
    seed: async (store, count) => {
      await session(store, count + 1);
      await versions(store, 0, count + 1);
      await store.sql(
        `${numbers(count)} INSERT INTO messages
             (team_id, session_id, ordinal, revision, until_revision, role, digest, value_json)
         SELECT $team, 's', 0, i, i + 1, 'user', 'd', '{}' FROM n`);
    },
  },
  'dead messages of one version': {
    kind: 'messages', most: 5, wait: 0,
    seed: async (store, count) => {
      await session(store, 2);
      await versions(store, 0, 2);
      await store.sql(
        `${numbers(count)} INSERT INTO messages
             (team_id, session_id, ordinal, revision, until_revision, role, digest, value_json)
         SELECT $team, 's', i, 1, 2, 'user', 'd', '{}' FROM n`);
    },
  },
  'messages of a deleted session': {
    kind: 'session_rows', most: 6, wait: 0,
    seed: async (store, count) => {
      await session(store, 1);
      await store.sql(
        `${numbers(count)} INSERT INTO messages
             (team_id, session_id, ordinal, revision, role, digest, value_json)
         SELECT $team, 's', i, 1, 'user', 'd', '{}' FROM n`);
      await store.sql(`INSERT INTO message_search (rowid, text) SELECT id, 'word' FROM messages`);
      await store.sql(`UPDATE sessions SET deleted_at = $now`);
    },
  },
  'versions of a deleted session': {
    kind: 'session_rows', most: 14, wait: 0,
    seed: async (store, count) => {
      await session(store, count);
      await versions(store, 0, count);
      await store.sql(`UPDATE sessions SET deleted_at = $now`);
    },
  },
  parts: {
    kind: 'parts', most: 5, wait: 0,
    seed: async (store, count) => {
      await store.sql(
        `INSERT INTO captures (team_id, id, source_id, state, begin_json, created_at)
         VALUES ($team, 'c', 's', 'staging', '{}', $now)`);
      await store.sql(
        `${numbers(count)} INSERT INTO capture_parts
             (team_id, capture_id, part_index, digest, messages_json, digests_json, created_at)
         SELECT $team, 'c', i, 'd', '[]', '{}', $now FROM n`);
      await store.sql(`UPDATE captures SET state = 'aborted', settled_at = $now`);
    },
  },
  'uploads of one chunk': {
    kind: 'uploads', most: 80, wait: DAY, sizes: [500, 5_000],
    seed: (store, count) => uploads(store, count, 1, 'committed'),
  },
  'chunks of one upload, and their blobs': {
    kind: 'chunk_refs', most: 16, wait: DAY,
    seed: (store, count) => uploads(store, 1, count, 'committed').then(() => store.sql(
      `${numbers(count)} INSERT INTO artifact_blobs (team_id, sha256, size, bytes)
       SELECT $team, 'b' || i, 1, x'00' FROM n`)),
  },
  events: {
    kind: 'events', most: 6, wait: 7 * DAY,
    seed: (store, count) => store.sql(
      `${numbers(count)} INSERT INTO org_events
           (team_id, resource_kind, resource_id, type, value_json, created_at)
       SELECT $team, 'x', 'r' || i, 'x', '{}', $now FROM n`),
  },
  'presence events': {
    kind: 'presence_events', most: 5, wait: 7 * DAY,
    seed: (store, count) => store.sql(
      `${numbers(count)} INSERT INTO machine_presence_events (team_id, machine_id, linked, created_at)
       SELECT $team, 'm', 1, $now FROM n`),
  },
  deliveries: {
    kind: 'deliveries', most: 6, wait: 7 * DAY,
    seed: (store, count) => store.sql(
      `${numbers(count)} INSERT INTO app_webhook_deliveries
           (id, team_id, app_id, event_type, body, state, next_at, created_at, settled_at)
       SELECT 'd' || i, $team, 'a', 'x', 'b', 'delivered', 0, 0, $now FROM n`),
  },
  attachments: {
    kind: 'settled', most: 5, wait: 30 * DAY,
    seed: (store, count) => store.sql(
      `${numbers(count)} INSERT INTO attachments
           (team_id, id, session_id, machine_id, binding_id, principal_id, state, created_at, settled_at)
       SELECT $team, 'a' || i, 's', 'm', 'b', 'p', 'closed', 0, $now FROM n`),
  },
  'operations with an effect': {
    kind: 'settled', most: 14, wait: 30 * DAY,
    seed: (store, count) => store.sql(
      `${numbers(count)} INSERT INTO operations
           (team_id, id, principal_id, kind, state, input_json, created_at, updated_at, settled_at)
       SELECT $team, 'o' || i, 'p', 'message', 'succeeded', '{}', 0, 0, $now FROM n`).then(() => store.sql(
      `${numbers(count)} INSERT INTO native_effects
           (team_id, id, operation_id, machine_id, state, request_json, created_at)
       SELECT $team, 'e' || i, 'o' || i, 'm', 'succeeded', '{}', 0 FROM n`)),
  },
};

for (const [name, { kind, most, wait, sizes = SIZES, seed }] of Object.entries(CASES)) {
  test(`${name} cost at most ${most} units each, however many there are`, async (t) => {
    const costs = [];
    for (const size of sizes) {
      const store = await Store.make();
      await seed(store, size);
      store.now += wait;
      const { removed, units, largest } = await store.settle();
      assert.ok(removed[kind] >= size - 20, JSON.stringify(removed));
      costs.push(units / removed[kind]);
      t.diagnostic(`${size}: ${costs.at(-1).toFixed(2)} units each, largest batch ${largest}`);
    }
    assert.ok(Math.max(...costs) <= most, `${costs}`);
    assert.ok(Math.max(...costs) <= Math.min(...costs) * 1.1 + 0.5, `not flat: ${costs}`);
  });
}

test('what may be large goes in batches too', async () => {
  const store = await Store.make();
  const ids = JSON.stringify(Array.from({ length: 50 }, (_, n) => `u${n + 1}`));
  await uploads(store, 50, 1, 'committed');
  await store.sql(
    `${numbers(10)} INSERT INTO captures
         (team_id, id, source_id, state, begin_json, upload_ids_json, created_at)
     SELECT $team, 'c' || i, 's', 'staging', '{}', '${ids}', $now FROM n`);
  await store.sql(
    `${numbers(10)} INSERT INTO continuations
         (team_id, id, session_id, state, value_json, upload_ids_json, created_at, updated_at, settled_at)
     SELECT $team, 'k' || i, 's', 'failed', '{}', '${ids}', 0, 0, $now FROM n`);
  await session(store, 12);
  await versions(store, 0, 12);
  await store.sql(
    `${numbers(12)}, b (j) AS (SELECT 1 UNION ALL SELECT j + 1 FROM b WHERE j < 32)
     INSERT INTO session_artifacts
         (team_id, session_id, revision, bundle_id, upload_id, name, provenance)
     SELECT $team, 's', i, 'b' || j, 'u' || j, 'N', 'capture' FROM n, b`);
  await store.sql(
    `INSERT INTO cursors (id, team_id, principal_id, kind, filters_hash, snapshot_json, expires_at)
     SELECT 'c', $team, 'p', 'list', '', json_group_array(json_array('s' || value, 1)), $now + 1
       FROM json_each('[' || substr(replace(printf('%0500d', 0), '0', ',1'), 2) || ']')`);
  await store.sql(`INSERT INTO cursor_pins SELECT $team, 'z' || i, 1, $now + 1, 'c' FROM (
    ${numbers(500)} SELECT i FROM n)`);
  store.now += 30 * DAY;
  await store.settle();
  const [{ left }] = await store.sql(
    `SELECT (SELECT count(*) FROM captures) + (SELECT count(*) FROM continuations)
          + (SELECT count(*) FROM cursor_pins) + (SELECT count(*) FROM session_versions) - 1 AS left`);
  assert.equal(left, 0);
});

test('a team is deleted in batches', async () => {
  const store = await Store.make();
  await session(store, 1);
  await versions(store, 0, 300);
  await uploads(store, 10, 30, 'committed');
  await store.sql(
    `${numbers(500)} INSERT INTO messages
         (team_id, session_id, ordinal, revision, role, digest, value_json)
     SELECT $team, 's', i, 1, 'user', 'd', '{}' FROM n`);
  await store.sql(`UPDATE teams SET removing = 'wipe'`);
  await store.settle();
  assert.equal((await store.sql('SELECT count(*) AS n FROM messages'))[0].n, 0);
});

test('an idle pass reads at most 60 rows and writes none, at any size', async () => {
  const store = await Store.make();
  await session(store, 1);
  await store.sql(
    `${numbers(50_000)} INSERT INTO messages
         (team_id, session_id, ordinal, revision, role, digest, value_json)
     SELECT $team, 's', i, 1, 'user', 'd', '{}' FROM n`);
  await store.sql(
    `${numbers(500)} INSERT INTO teams (id, name, epoch, created_at)
     SELECT 't' || i, 'T', '00000000', $now FROM n`);
  await store.sql(
    `${numbers(500)} INSERT INTO org_events
         (team_id, resource_kind, resource_id, type, value_json, created_at)
     SELECT 't' || i, 'x', 'r', 'x', '{}', $now FROM n`);
  await store.settle();
  store.now += 60_000;
  // The token's hourly mark is written before the pass begins.
  await store.pass();
  await store.object.resetCounts();
  const outcome = await store.pass();
  assert.deepEqual(outcome.removed, {});
  assert.equal(outcome.backlog, false);
  assert.ok(outcome.cost.rows_read <= 60, `read ${outcome.cost.rows_read} rows`);
  assert.equal(outcome.cost.rows_written, 0);
  assert.equal((await store.object.counts()).rowsWritten, 0);
});

// Contexts in the real runtime: 64 MiB of working context go in, are committed by reference and
// come back while the object's memory stays small; and a turn is whole or not there at all,
// whatever ends its connection or its object.

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { after, before, test } from 'node:test';
import { expectStatus, startPlane } from './harness.mjs';

const MIB = 1 << 20;
const CAPABILITY = Buffer.alloc(32, 1).toString('base64url');
const BINDING = { provider: 'anthropic', model: 'm', generation: 1 };
const EVENT = { kind: 'message', role: 'user', size: 1, provenance: 'user', redaction_status: 'none' };

let plane;
let token;
let base;
let teamId;

before(async () => {
  plane = await startPlane();
  const made = await plane.createTeam('Acme');
  ({ token } = made);
  teamId = made.team.id;
  base = `/v1/teams/${teamId}/contexts`;
});
after(() => plane?.stop());

const headers = { 'x-context-capability': CAPABILITY };
const api = (method, path, body) => plane.api(method, `${base}${path}`, { token, headers, body });
const sha256 = (bytes) => createHash('sha256').update(bytes).digest('hex');

function turn(operation, [session, durable, source], context, events = [EVENT]) {
  return {
    operation_id: operation,
    expected: { session, durable, source },
    binding: BINDING,
    events,
    checkpoint: {
      turn_id: session + 1, algorithm: 'full', schema_version: 1, source_start: 0, ...context,
    },
  };
}

async function ensure(id) {
  expectStatus(200, await api('PUT', `/${id}`, { binding: BINDING }), 'ensure');
}

/** `size` bytes, made and sent a piece at a time; with their digest once they are sent. */
function stream(size, { breakAt } = {}) {
  const piece = Buffer.alloc(MIB, 'conversation ');
  const hash = createHash('sha256');
  let sent = 0;
  const body = new ReadableStream({
    pull(controller) {
      if (breakAt !== undefined && sent >= breakAt) return controller.error(new Error('gone'));
      if (sent >= size) return controller.close();
      const bytes = piece.subarray(0, Math.min(MIB, size - sent));
      sent += bytes.length;
      hash.update(bytes);
      controller.enqueue(bytes);
    },
  });
  return { body, digest: () => hash.digest('hex') };
}

function put(id, name, body) {
  return fetch(new URL(`${base}/${id}/payloads/${name}`, plane.url), {
    method: 'PUT',
    duplex: 'half',
    body,
    headers: { ...headers, authorization: `Bearer ${token}` },
  });
}

test('64 MiB of working context are committed by reference and read again', async (t) => {
  await ensure('large');
  const team = await plane.team(teamId);
  const { body, digest } = stream(64 * MIB);
  const answer = await put('large', 'w', body);
  assert.equal(answer.status, 204, await answer.text());
  const sent = digest();

  const committed = await api('POST', '/large/commit', turn('op1', [0, 0, 0], { active_context_ref: 'w' }));
  expectStatus(200, committed, 'commit');
  const loaded = await api('GET', '/large');
  expectStatus(200, loaded, 'load');
  const { checkpoint } = loaded.body.data;
  assert.deepEqual(
    [checkpoint.size, checkpoint.sha256, checkpoint.active_context_ref],
    [64 * MIB, sent, 'w'],
  );
  const content = await plane.fetch('GET', `${base}/large/payloads/w`, { token, headers });
  assert.equal(content.headers.get('content-length'), String(64 * MIB));
  const hash = createHash('sha256');
  let size = 0;
  for await (const piece of content.body) {
    hash.update(piece);
    size += piece.length;
  }
  assert.deepEqual([size, hash.digest('hex')], [64 * MIB, sent]);
  const rows = await team.query('SELECT count(*) AS n, max(length(bytes)) AS largest FROM body_chunks');
  t.diagnostic(`${rows[0].n} chunks of at most ${rows[0].largest} bytes`);
  assert.ok(rows[0].largest <= 256 << 10);
  expectStatus(200, await api('GET', '/large/first-user-message'), 'first message of no JSON');
  assert.equal((await put('large', 'too-large', stream(64 * MIB + 1).body)).status, 413);
});

test('an upload that breaks off leaves nothing to name', async () => {
  await ensure('broken');
  await put('broken', 'w', stream(8 * MIB, { breakAt: 5 * MIB }).body).then(
    (answer) => assert.ok(answer.status >= 400),
    () => {},
  );
  const commit = await api('POST', '/broken/commit', turn('op1', [0, 0, 0], { active_context_ref: 'w' }));
  assert.deepEqual([commit.status, commit.body.error.code], [404, 'payload_not_found']);
  expectStatus(200, await api('GET', '/broken'), 'load');
});

test('a turn of 15 MiB in its body is committed, and read as a stream', async () => {
  await ensure('inline');
  const context = [{ role: 'user', content: 'ä'.repeat((15 * MIB) / 2) }];
  const body = turn('op1', [0, 0, 0], { active_context: context });
  expectStatus(200, await api('POST', '/inline/commit', body), 'commit');
  const loaded = await api('GET', '/inline');
  expectStatus(200, loaded, 'load');
  assert.equal(sha256(JSON.stringify(loaded.body.data.checkpoint.active_context)), sha256(JSON.stringify(context)));
  const again = await api('POST', '/inline/commit', body);
  assert.equal(again.body.data.replayed, true);
  const large = turn('op2', [1, 1, 1], { active_context: ['x'.repeat(16 * MIB)] });
  expectStatus(413, await api('POST', '/inline/commit', large), 'a larger one');
  const snapshot = `/v1/teams/${teamId}/snapshots/inline`;
  expectStatus(200, await plane.api('PUT', snapshot, { token, body: { messages: context } }), 'snapshot');
  const read = await plane.api('GET', snapshot, { token });
  assert.deepEqual(read.body.data.messages, context);
});

test('of callers that race for a head one wins, and its repetition is told so', async () => {
  await ensure('race');
  const race = Array.from({ length: 12 }, (_, n) => turn(`op${n % 6}`, [0, 0, 0], { active_context: [n % 6] }));
  const answers = await Promise.all(race.map((body) => api('POST', '/race/commit', body)));
  const won = answers.filter(({ status }) => status === 200);
  assert.equal(won.length, 2, 'the winner and its repetition');
  assert.deepEqual(won.map(({ body }) => body.data.replayed).sort(), [false, true]);
  assert.equal(new Set(won.map(({ body }) => body.data.checkpoint_id)).size, 1);
  for (const { status, body } of answers.filter((answer) => answer.status !== 200)) {
    assert.deepEqual([status, body.error.code], [409, 'stale_revision']);
  }
  const team = await plane.team(teamId);
  const [{ n }] = await team.query("SELECT count(*) AS n FROM context_events WHERE context_id = 'race'");
  assert.equal(n, 1);
});

test('a turn that fails at its last statement leaves nothing, and then goes through', async () => {
  await ensure('crash');
  const team = await plane.team(teamId);
  await team.query(`CREATE TRIGGER broken BEFORE INSERT ON context_operations
                    BEGIN SELECT RAISE(ABORT, 'the disk broke'); END`);
  const bytes = Buffer.from('abc');
  const body = {
    ...turn('op1', [0, 0, 0], { active_context: ['x'] }, [{ ...EVENT, payload_ref: 'p' }]),
    payloads: [{ ref: 'p', sha256: sha256(bytes), size: 3, retention: 'session', bytes: bytes.toString('base64') }],
  };
  const before = await api('GET', '/crash');
  const failed = await api('POST', '/crash/commit', body);
  assert.deepEqual([failed.status, failed.body.error.code], [500, 'internal']);
  await team.query('DROP TRIGGER broken');
  assert.deepEqual((await api('GET', '/crash')).body.data, before.body.data);
  for (const table of ['context_events', 'context_payloads', 'context_checkpoints', 'context_operations']) {
    const [{ n }] = await team.query(`SELECT count(*) AS n FROM ${table} WHERE context_id = 'crash'`);
    assert.equal(n, 0, table);
  }
  expectStatus(200, await api('POST', '/crash/commit', body), 'the same again');
  expectStatus(200, await api('POST', '/crash/commit', body), 'and again');
});

// The Worker starts, answers, and says what it is.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { startPlane } from './harness.mjs';

let plane;
before(async () => {
  plane = await startPlane();
});
after(() => plane.stop());

test('health answers without a token', async () => {
  const answer = await plane.api('GET', '/v1/health');

  assert.equal(answer.status, 200);
  assert.equal(answer.body.status, 'ok');
  assert.ok(answer.body.version);
  assert.ok(answer.body.schema >= 1);
  assert.equal(answer.body.backlog_age_ms, 0);
});

test('health says how long the oldest of what retention should remove has waited', async () => {
  const shared = await startPlane({ bindings: { SHARDING: 'server' } });
  try {
    const age = async () => (await shared.api('GET', '/v1/health')).body.backlog_age_ms;
    assert.equal(await age(), 0);
    assert.deepEqual(await shared.team('server').query('SELECT name FROM sqlite_schema'), []);

    const now = 1_900_000_000_000;
    const { team, token } = await shared.createTeam('Acme', { now });
    const pass = (now) => shared.api('POST', `/v1/teams/${team.id}/maintain`, { token, now });
    await pass(now);
    assert.equal(await age(), 0);
    const object = shared.team('server');
    await object.query(
      `INSERT INTO capture_expiries (team_id, source_id, id, expired_at) VALUES (?, 'source_1', 'c', ?)`,
      team.id,
      now - 30 * 86_400_000 - 90_000,
    );
    assert.equal(await age(), 90_000);
    // What waits in a queue without a time waits for the pass after the last one.
    await pass(now);
    assert.equal(await age(), 0);
    await object.query(`INSERT INTO blob_prune_queue (team_id, sha256) VALUES (?, 'blob')`, team.id);
    await shared.api('GET', `/v1/teams/${team.id}`, { token, now: now + 150_000 });
    assert.equal(await age(), 90_000);
  } finally {
    await shared.stop();
  }
});

test('health is degraded while the object that it asks fails, and says so with 503', async () => {
  await plane.createTeam();
  await plane.directory('directory').fail('exception');
  const { status, body } = await plane.api('GET', '/v1/health');
  assert.equal(status, 503);
  assert.deepEqual([body.status, body.backlog_age_ms], ['degraded', null]);
  assert.ok(body.version);

  assert.equal((await plane.api('GET', '/v1/health')).body.status, 'ok');
});

test('the build answers by itself, without the wrapper of the tests', async () => {
  const plain = await startPlane({ plain: true });
  const answer = await plain.api('GET', '/v1/health');
  await plain.stop();

  assert.equal(answer.status, 200);
});

test('requests from inside workerd reach it too', async () => {
  const requests = Array.from({ length: 20 }, () => ({ method: 'GET', path: '/v1/health' }));
  const { results } = await plane.load(requests, { concurrency: 4 });

  assert.deepEqual(new Set(results.map((result) => result.status)), new Set([200]));
});

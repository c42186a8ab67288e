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

// What src/entry.mjs promises when the core fails: every caller gets an answer, and only those that
// have to fail do. The core here is one made to fail, since the real one should not.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';
import { Miniflare } from 'miniflare';

const path = (name) => fileURLToPath(new URL(name, import.meta.url));

let miniflare;
before(async () => {
  const { outputFiles } = await build({
    entryPoints: [path('../../src/entry.mjs')],
    alias: { 'teamplane-core': path('failing-core.mjs') },
    bundle: true,
    format: 'esm',
    external: ['cloudflare:*'],
    write: false,
  });
  miniflare = new Miniflare({
    host: '127.0.0.1',
    modules: [{ type: 'ESModule', path: 'index.js', contents: outputFiles[0].text }],
    compatibilityDate: '2026-04-01',
    durableObjects: {
      TEAM: { className: 'Team', useSQLite: true },
      DIRECTORY: { className: 'Directory', useSQLite: true },
    },
    // The failures are logged, as they should be: not among the results of the tests.
    handleRuntimeStdio: (...streams) => streams.forEach((stream) => stream.resume()),
  });
});
after(() => miniflare.dispose());

async function send(what, headers = {}) {
  const response = await miniflare.dispatchFetch(`http://127.0.0.1/${what}`, { headers });
  const text = await response.text();
  return { status: response.status, headers: response.headers, text };
}

function assertInternal(answer) {
  assert.equal(answer.status, 500, answer.text);
  const { version, error } = JSON.parse(answer.text);
  assert.equal(version, 1);
  assert.equal(error.code, 'internal');
  assert.equal(error.request_id, answer.headers.get('x-request-id'));
}

for (const where of ['a', 'edge']) {
  for (const failure of ['reject', 'throw', 'escape', 'trap']) {
    test(`${where}: after a "${failure}" the caller gets 500 and the next call works`, async () => {
      assertInternal(await send(`${where}/${failure}`));
      assert.equal((await send(`${where}/ok`)).text, 'ok');
    });
  }
}

test('the answer carries the id that the request came with', async () => {
  const id = `request_${'0123456789abcdef'.repeat(2)}`;
  const answer = await send('a/escape', { 'x-request-id': id });

  assert.equal(JSON.parse(answer.text).error.request_id, id);
});

test('the answer carries a new id if the request came with another kind of id', async () => {
  const answer = await send('a/escape', { 'x-request-id': 'mine' });

  assert.match(JSON.parse(answer.text).error.request_id, /^request_[0-9a-f]{32}$/);
});

test('an exception that escapes leaves other objects and requests alone', async () => {
  const others = ['b/slow', 'edge/slow'].map((what) => send(what));
  assertInternal(await send('a/escape'));

  assert.deepEqual((await Promise.all(others)).map(({ text }) => text), ['ok', 'ok']);
});

test('a trap fails every call of the lost instance, and all at once', async () => {
  const others = ['a/slow', 'b/slow', 'edge/slow'].map((what) => send(what));
  await send('edge/ok');
  const beganMs = performance.now();
  assertInternal(await send('a/trap'));
  (await Promise.all(others)).forEach(assertInternal);

  assert.ok(performance.now() - beganMs < 1000);
});

test('an object that lost its instance is built anew by the next call', async () => {
  const before = Number((await send('a/builds')).text);
  await send('a/trap');

  assert.equal(Number((await send('a/builds')).text), before + 1);
});

test('what a lost instance left behind fails no later call', async () => {
  const slow = send('a/slow');
  assertInternal(await send('a/stale'));

  assert.equal((await send('a/slow')).text, 'ok');
  await slow;
});

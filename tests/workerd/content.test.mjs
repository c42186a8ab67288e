// Bodies that are taken in as a stream, through the edge to the object and out again.

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { after, before, test } from 'node:test';
import { startPlane } from './harness.mjs';

const MIB = 1024 * 1024;
const CONTENT_BYTES_MAX = 32 * MIB;
const CHUNK_BYTES = 256 * 1024;
const HOUR_MS = 3_600_000;

let plane;
let team;
let token;
let object;
before(async () => {
  plane = await startPlane();
  ({ team, token } = await plane.createTeam());
  object = plane.team(team.id);
});
after(() => plane?.stop());

/** Bytes in which no two chunks are alike. */
function file(bytes) {
  const content = Buffer.alloc(bytes);
  for (let at = 0; at + 4 <= bytes; at += 4096) content.writeUInt32LE(at, at);
  return content;
}

const nameOf = (bytes) => `sha256:${createHash('sha256').update(bytes).digest('hex')}`;
const path = (name) => `/v1/teams/${team.id}/content/${name}`;
const count = async (table) => (await object.query(`SELECT count(*) AS n FROM ${table}`))[0].n;

/** A body of unknown length, so that it has no Content-Length. */
async function* pieces(bytes, size = 50_000) {
  for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size);
}

/** Sends a body as it comes. */
const stream = (name, body, { signal } = {}) =>
  fetch(new URL(path(name), plane.url), {
    method: 'PUT',
    body: ReadableStream.from(body),
    duplex: 'half',
    headers: { authorization: `Bearer ${token}` },
    signal,
  });

test('32 MiB go in and come out, with and without a length', async () => {
  const bytes = file(CONTENT_BYTES_MAX);
  const name = nameOf(bytes);
  const sent = await plane.api('PUT', path(name), { token, body: bytes });
  assert.equal(sent.status, 204, JSON.stringify(sent.body));
  const got = await plane.fetch('GET', path(name), { token });
  assert.equal(got.headers.get('content-length'), String(bytes.length));
  assert.ok(Buffer.from(await got.arrayBuffer()).equals(bytes));

  const headers = { range: `bytes=${CHUNK_BYTES - 1}-${CHUNK_BYTES}` };
  const part = await plane.fetch('GET', path(name), { token, headers });
  assert.equal(part.status, 206);
  assert.ok(Buffer.from(await part.arrayBuffer()).equals(bytes.subarray(CHUNK_BYTES - 1, CHUNK_BYTES + 1)));

  const shorter = bytes.subarray(0, 20 * MIB + 1);
  const streamed = await stream(nameOf(shorter), pieces(shorter));
  assert.equal(streamed.status, 204, await streamed.text());
  const head = await plane.fetch('HEAD', path(nameOf(shorter)), { token });
  assert.deepEqual([head.status, head.headers.get('content-length')], [200, String(shorter.length)]);
});

test('a transaction stores one chunk', async () => {
  const bytes = file(3 * CHUNK_BYTES + 1);
  await object.resetCounts();
  const sent = await plane.api('PUT', path(nameOf(bytes)), { token, body: bytes });
  assert.equal(sent.status, 204);
  const { largest, rowsWritten } = await object.counts();
  assert.ok(largest.rowsWritten <= 12, JSON.stringify(largest));
  assert.ok(rowsWritten <= 30, `${rowsWritten} rows written`);
});

test('a body that is too large is refused, also without a length', async () => {
  const bytes = file(CONTENT_BYTES_MAX + 1);
  const known = await plane.api('PUT', path(nameOf(bytes)), { token, body: bytes });
  assert.deepEqual([known.status, known.body.error.code], [413, 'too_large']);
  const streamed = await stream(nameOf(bytes), pieces(bytes));
  assert.equal(streamed.status, 413);
  assert.equal((await streamed.json()).error.code, 'too_large');
  assert.equal(await count('staged_bodies'), 0);
});

test('what is refused is not read', async () => {
  const refused = await plane.api('PUT', path('md5:00'), { token, body: file(MIB) });
  assert.deepEqual([refused.status, refused.body.error.details.field], [400, 'ref']);
  const strange = await plane.api('PUT', path(nameOf(file(9))), { body: file(MIB) });
  assert.equal(strange.status, 401);
});

test('a body that breaks off leaves what retention removes', async () => {
  const bytes = file(2 * MIB);
  const abort = new AbortController();
  async function* broken() {
    yield bytes.subarray(0, MIB);
    // Its first chunks are there.
    while ((await count('staged_bodies')) === 0) await new Promise(setImmediate);
    abort.abort();
    yield bytes.subarray(MIB);
  }
  await assert.rejects(stream(nameOf(bytes), broken(), { signal: abort.signal }));
  assert.equal((await plane.api('GET', path(nameOf(bytes)), { token })).status, 404);
  assert.equal(await count('staged_bodies'), 1);
  const now = Date.now() + HOUR_MS + 60_000;
  const pass = await plane.api('POST', `/v1/teams/${team.id}/maintain`, { token, now });
  assert.equal(pass.body.data.removed.bodies >= 1, true, JSON.stringify(pass.body.data));
  assert.equal(await count('staged_bodies'), 0);
});

test('of two writers at once one publishes, and both are told so', async () => {
  const bytes = file(3 * MIB);
  const name = nameOf(bytes);
  const writers = Array.from({ length: 8 }, () => stream(name, pieces(bytes)));
  const statuses = (await Promise.all(writers)).map(({ status }) => status);
  assert.deepEqual(statuses, Array(8).fill(204));
  assert.equal((await object.query('SELECT count(*) AS n FROM content WHERE ref = ?', name))[0].n, 1);
  const got = await plane.fetch('GET', path(name), { token });
  assert.ok(Buffer.from(await got.arrayBuffer()).equals(bytes));
});

test('an object that dies while a body comes in publishes nothing', async () => {
  const bytes = file(2 * MIB);
  async function* dying() {
    yield bytes.subarray(0, MIB);
    while ((await count('staged_bodies')) === 0) await new Promise(setImmediate);
    await object.abort();
    yield bytes.subarray(MIB);
  }
  const answer = await stream(nameOf(bytes), dying()).catch(() => undefined);
  assert.notEqual(answer?.status, 204);
  assert.equal((await plane.api('GET', path(nameOf(bytes)), { token })).status, 404);
  const again = await plane.api('PUT', path(nameOf(bytes)), { token, body: bytes });
  assert.equal(again.status, 204);
});

// Captures where only the platform can show it: at the same time, over restarts, again after a
// lost answer.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { expectStatus, startPlane } from './harness.mjs';

let plane;
let team;
let laptop;
before(async () => {
  plane = await startPlane();
  const made = await plane.createTeam();
  ({ team } = made);
  laptop = await plane.enrollMachine(team.id, made.token);
});
after(() => plane?.stop());

const call = (method, rest, body, headers) =>
  plane.api(method, `/v1/teams/${team.id}${rest}`, { token: laptop.token, body, headers });

async function begin(nativeId, more = {}) {
  const answer = await call('POST', '/captures', { harness: 'codex', native_id: nativeId, ...more });
  expectStatus(201, answer, 'begin');
  return answer.body.data.id;
}

const messages = (from, to, word = 'message') =>
  Array.from({ length: to - from }, (_, n) => ({ ordinal: from + n, role: 'user', text: `${word} ${from + n}` }));
const put = (id, index, part) => call('PUT', `/captures/${id}/parts/${index}`, { messages: part });
const commit = (id, parts) => call('POST', `/captures/${id}/commit`, { parts });

test('a capture goes on after a restart behind any of its steps', async () => {
  const id = await begin('restarted');
  await plane.restart();
  expectStatus(204, await put(id, 1, messages(2, 4)), 'part 1');
  await plane.restart();
  assert.deepEqual((await call('GET', `/captures/${id}`)).body.data.parts, [1]);
  expectStatus(204, await put(id, 0, messages(0, 2)), 'part 0');
  await plane.restart();
  const first = await commit(id, 2);
  assert.equal(first.body.data.message_count, 4);
  await plane.restart();
  assert.deepEqual((await commit(id, 2)).body.data, first.body.data);
  const read = await call('GET', `/sessions/${first.body.data.session_id}/messages`);
  assert.deepEqual(read.body.items, messages(0, 4));
});

test('parts may arrive all at once, in any order and twice', async () => {
  const id = await begin('parallel');
  const parts = Array.from({ length: 12 }, (_, n) => messages(n * 5, n * 5 + 5));
  const order = [...parts.keys(), ...parts.keys()].sort((a, b) => ((a * 7) % 12) - ((b * 7) % 12));
  const answers = await Promise.all(order.map((index) => put(id, index, parts[index])));
  assert.deepEqual(new Set(answers.map(({ status }) => status)), new Set([204]));
  assert.equal((await commit(id, 12)).body.data.message_count, 60);
});

test('of two contents for one part at the same time one wins', async () => {
  const id = await begin('raced');
  const [a, b] = await Promise.all([put(id, 0, messages(0, 1, 'a')), put(id, 0, messages(0, 1, 'b'))]);
  assert.deepEqual([a.status, b.status].sort(), [204, 409]);
});

test('twenty begins at once with one key make one capture', async () => {
  const key = { 'idempotency-key': 'one' };
  const body = { harness: 'codex', native_id: 'keyed' };
  const answers = await Promise.all(Array.from({ length: 20 }, () => call('POST', '/captures', body, key)));
  assert.deepEqual(new Set(answers.map(({ status }) => status)), new Set([201]));
  assert.equal(new Set(answers.map(({ body: { data } }) => data.id)).size, 1);
  const replayed = answers.filter(({ headers }) => headers.get('idempotent-replayed') === 'true');
  assert.equal(replayed.length, 19);
});

test('of commits at the same time on one base one wins, and the others leave nothing', async () => {
  const first = await begin('based');
  await put(first, 0, messages(0, 2));
  const { session_id: session } = (await commit(first, 1)).body.data;
  const ids = await Promise.all(
    Array.from({ length: 5 }, () => begin('based', { base: { revision: 1, keep: 2 } })),
  );
  await Promise.all(ids.map((id, n) => put(id, 0, messages(2, 3 + n, `by ${n}`))));
  const answers = await Promise.all(ids.map((id) => commit(id, 1)));
  const won = answers.filter(({ status }) => status === 200);
  assert.equal(won.length, 1);
  for (const { status, body } of answers) {
    if (status !== 200) assert.deepEqual([status, body.error.code], [409, 'revision_mismatch']);
  }
  const now = (await call('GET', `/sessions/${session}`)).body.data;
  assert.deepEqual([now.revision, now.message_count], [2, won[0].body.data.message_count]);
});

test('a capture of 10,000 messages in parts of a megabyte goes in whole', async () => {
  const id = await begin('large');
  const filler = 'lorem ipsum '.repeat(8);
  const all = messages(0, 10_000, filler);
  const parts = Array.from({ length: 10 }, (_, n) => all.slice(n * 1000, n * 1000 + 1000));
  for (const [index, part] of parts.entries()) expectStatus(204, await put(id, index, part), 'part');
  const { body } = await commit(id, 10);
  assert.equal(body.data.message_count, 10_000);
  const last = await call('GET', `/sessions/${body.data.session_id}/messages?after=9998`);
  assert.deepEqual(last.body.items, [all[9999]]);
});

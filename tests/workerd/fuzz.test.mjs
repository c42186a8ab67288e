// Requests that nobody would send, at the real runtime: those of the vectors, broken in their
// structure and in their bytes, several at a time. No answer is a fault of ours, none stays out,
// and the objects go on. tests/it/fuzz.rs sends more of them to the core alone.
//
//   FUZZ_SEED=2 node --test tests/workerd/fuzz.test.mjs    other ones

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { conversations, converse } from './conversations.mjs';
import { startPlane } from './harness.mjs';

const SEED = Number(process.env.FUZZ_SEED ?? 1);
const REQUESTS = 10_000;
const AT_ONCE = 8;

const METHODS = ['GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'HEAD', 'OPTIONS', 'PROPFIND'];
const HEADERS = [
  'accept', 'content-digest', 'content-type', 'idempotency-key', 'if-match', 'if-none-match',
  'if-range', 'range', 'upgrade', 'x-request-id',
];
const TEXTS = [
  '', ' ', '0', '-1', '+5', '1e400', '9007199254740993', 'null', '*', '"7"', 'W/"7"', 'bytes=0-',
  'bytes=-0', 'bytes=9007199254740993-', 'sha-256=:AAAA:', 'websocket', '../..', '%', '%00', '%ff%fe',
  '%2e%2e%2f', 'upload_0123456789abcdef0123456789abcdef', '00000000.1', "' OR 1=1 --", '"unclosed NEAR(',
];
/** JSON as it may come, and values that JSON.stringify would not write. */
const RAW = [
  '', 'null', '[]', '{}', '"', '1e400', '-0', '123456789012345678901234567890', '"\\ud83d"', '"\\u0000"',
  '{"a":1,"a":2}', '{"\\udc00":1}', `${'['.repeat(200)}${']'.repeat(200)}`, `"${'x'.repeat(70_000)}"`,
];

let plane;
before(async () => {
  plane = await startPlane();
});
after(() => plane?.stop());

test(`${REQUESTS} broken requests are answered, none by a fault of ours`, { timeout: 600_000 }, async (t) => {
  const random = randomFrom(SEED);
  const each = Math.ceil(REQUESTS / conversations.length);
  const statuses = new Map();
  for (const { steps } of conversations) {
    const { team, known, sent } = await converse(plane, steps);
    const requests = Array.from({ length: each }, () => broken(random, random.pick(sent), sent, known));
    const { results } = await plane.load(requests, { concurrency: AT_ONCE, keepBodies: true });
    for (const [index, { status, body, brokeOff }] of results.entries()) {
      const what = () => `seed ${SEED}: ${JSON.stringify(requests[index])} answered ${status} ${body}`;
      assert.ok(status < 500 || status === 503, what());
      // Another request may have ended the reader's credential, or what it reads.
      assert.ok([undefined, 'unauthenticated', 'not_found'].includes(brokeOff), `${what()}: ${brokeOff}`);
      if (status >= 400 && body !== '') assert.ok(JSON.parse(body).error.code, what());
      statuses.set(status, (statuses.get(status) ?? 0) + 1);
    }
    const { status } = await plane.api('GET', `/v1/teams/${team.id}/me`, { token: known.owner });
    assert.ok(status === 200 || status === 401, `the team answered ${status} afterwards`);
  }
  t.diagnostic(JSON.stringify(Object.fromEntries(statuses)));
  for (const status of [200, 201, 400, 404, 409]) assert.ok(statuses.has(status), `none was ${status}`);
});

function broken(random, original, all, known) {
  const sent = { ...original, headers: { ...original.headers } };
  let body = sent.body;
  for (let count = 0; count <= random.below(2); count++) {
    switch (random.below(8)) {
      case 0: sent.method = random.pick(METHODS); break;
      case 1: sent.path = brokenPath(random, sent.path, known); break;
      case 2: sent.headers[random.pick(HEADERS)] = random.pick(TEXTS); break;
      case 3: sent.token = random.pick(Object.values(known).filter((text) => text.startsWith('tp_'))); break;
      case 4: body = random.pick(all).body; break;
      default: body = brokenBody(random, body, known);
    }
  }
  // A GET has no body here: the runtime refuses to send one.
  sent.body = ['GET', 'HEAD'].includes(sent.method) ? undefined : body;
  delete sent.now;
  return sent;
}

function brokenPath(random, path, known) {
  const value = encodeURI(random.pick(TEXTS)).replaceAll('%25', '%');
  const names = ['limit', 'cursor', 'after', 'q', 'state', 'revision', 'x', ''];
  if (random.below(3) === 0) return `${path}${path.includes('?') ? '&' : '?'}${random.pick(names)}=${value}`;
  const segments = path.split('/');
  // The team stays, so that the request comes as far as its object.
  const at = 4 + random.below(Math.max(1, segments.length - 4));
  segments[at] = random.below(2) === 0 ? value : encodeURIComponent(random.pick(Object.values(known)));
  return segments.join('/');
}

function brokenBody(random, body, known) {
  const text = typeof body === 'string' ? body : JSON.stringify(body ?? {});
  const at = random.below(text.length + 1);
  switch (random.below(4)) {
    case 0: return random.pick(RAW);
    case 1: return text.slice(0, at);
    case 2: return text.slice(0, at) + random.pick(['{', '"', ',', '\\', '\0', '9', 'é']) + text.slice(at + 1);
    default: {
      // One value, wherever it stands, becomes another.
      const values = [...text.matchAll(/:("(?:[^"\\]|\\.)*"|[0-9.]+|true|false|null|\[|\{)/g)];
      if (values.length === 0) return random.pick(RAW);
      const { index, 0: found } = random.pick(values);
      const other = random.below(2) === 0 ? random.pick(RAW) : JSON.stringify(random.pick(Object.values(known)));
      return `${text.slice(0, index + 1)}${other}${text.slice(index + found.length)}`;
    }
  }
}

/** Random numbers of which the seed decides: mulberry32. */
function randomFrom(seed) {
  let state = seed;
  const below = (n) => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return Math.floor((((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296) * n);
  };
  return { below, pick: (all) => all[below(all.length)] };
}

// What a request costs must follow what it asks for, never what the store holds: exact counters of
// rows read and written, on a small store and on one with 50,000 sessions and 1,000,000 messages.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { expectStatus, startPlane } from './harness.mjs';

const SESSIONS = 50_000;
const MESSAGES_PER_SESSION = 20;

let plane;
let team;
let token;
let object;
let machine;
const path = (rest) => `/v1/teams/${team.id}${rest}`;

before(async () => {
  plane = await startPlane();
  ({ team, token } = await plane.createTeam());
  machine = await plane.enrollMachine(team.id, token, { visibility: 'team' });
  object = await plane.team(team.id);
});
after(() => plane?.stop());

/** What `requests` cost the object, all together, and the last one's answer. */
async function cost(requests) {
  await object.resetCounts();
  let answer;
  for (const request of requests) answer = await request();
  return { ...(await object.counts()), answer };
}

const messages = (from, to) =>
  Array.from({ length: to - from }, (_, n) => ({ ordinal: from + n, role: 'user', text: `message ${from + n}` }));

/** One capture, request by request. */
function capture(begin, parts) {
  let id;
  const send = async (status, method, rest, body) => {
    const answer = await plane.api(method, path(`/captures${rest}`), { token: machine.token, body });
    expectStatus(status, answer, `${method} ${rest}`);
    return answer.body?.data;
  };
  return [
    async () => ({ id } = await send(201, 'POST', '', { harness: 'claude-code', native_id: 'long', ...begin })),
    ...parts.map((part, index) => () => send(204, 'PUT', `/${id}/parts/${index}`, { messages: part })),
    () => send(200, 'POST', `/${id}/commit`, { parts: parts.length }),
  ];
}

test('appending 3 messages to a session of 10,000 costs what it appends', async () => {
  const parts = Array.from({ length: 20 }, (_, n) => messages(n * 500, n * 500 + 500));
  const { answer: long } = await cost(capture({}, parts));
  assert.equal(long.message_count, 10_000);

  const { rowsRead, rowsWritten, answer } = await cost(
    capture({ base: { revision: 1, keep: 10_000 } }, [messages(10_000, 10_003)]),
  );
  assert.deepEqual([answer.message_count, answer.revision], [10_003, 2]);
  assert.ok(rowsWritten <= 60, `wrote ${rowsWritten} rows`);
  assert.ok(rowsRead <= 200, `read ${rowsRead} rows`);
});

test('a large store costs no more to open, list and search than a small one', async (t) => {
  await seed();

  await t.test('opening reads at most 30 rows', async () => {
    await object.abort();
    await plane.api('GET', path('/me'), { token });
    object = await plane.team(team.id);
    const { rowsRead, rowsWritten } = await object.counts();
    assert.ok(rowsRead <= 30, `read ${rowsRead} rows`);
    assert.equal(rowsWritten, 0);
  });

  await t.test('a first page reads at most 1,200 rows and a later one 200', async () => {
    const first = await cost([() => plane.api('GET', path('/sessions'), { token })]);
    assert.equal(first.answer.body.items.length, 50);
    assert.ok(first.rowsRead <= 1_200, `read ${first.rowsRead} rows`);

    const cursor = first.answer.body.next_cursor;
    const later = await cost([() => plane.api('GET', path(`/sessions?cursor=${cursor}`), { token })]);
    assert.equal(later.answer.body.items.length, 50);
    assert.ok(later.rowsRead <= 200, `read ${later.rowsRead} rows`);
    assert.equal(later.rowsWritten, 0);
  });

  for (const [word, found] of [['needle', 1], ['common', 5], ['absent', 0]]) {
    await t.test(`a search for the word "${word}" reads at most 1,200 rows`, async () => {
      const search = await cost([() => plane.api('GET', path(`/sessions?q=${word}`), { token })]);
      assert.ok(search.answer.body.items.length >= found, `found ${search.answer.body.items.length}`);
      assert.ok(search.rowsRead <= 1_200, `read ${search.rowsRead} rows`);
    });
  }

  await t.test('a page of messages reads what it holds', async () => {
    const { id } = (await plane.api('GET', path('/sessions?limit=1'), { token })).body.items[0];
    const page = await cost([() => plane.api('GET', path(`/sessions/${id}/messages`), { token })]);
    assert.equal(page.answer.body.items.length, MESSAGES_PER_SESSION);
    assert.ok(page.rowsRead <= 200, `read ${page.rowsRead} rows`);
  });
});

/** Sessions as commits leave them, written past the API: through it they would take minutes. */
async function seed() {
  const source = machine.source.id;
  const numbers = (count) =>
    `WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < ${count - 1})`;
  const session = (number) => `'session_' || printf('%032x', ${number})`;
  const at = Date.now() - SESSIONS;
  const scope = `t${team.id.split('_')[1]} s${source.split('_')[1]}`;
  const run = (sql, ...bindings) => object.query(sql, team.id, ...bindings);
  await run(
    `${numbers(SESSIONS)}
     INSERT INTO sessions
         (team_id, id, revision, harness, title, message_count, created_at, updated_at, origins_json)
     SELECT ?1, ${session('i')}, 1, 'codex', 'Session ' || i, ${MESSAGES_PER_SESSION}, ${at} + i, ${at} + i,
            json_array(json_array(?2, 'codex', 'n' || i))
       FROM n`,
    source,
  );
  await run(
    `${numbers(SESSIONS)}
     INSERT INTO origins (team_id, source_id, harness, native_id, session_id)
     SELECT ?1, ?2, 'codex', 'n' || i, ${session('i')} FROM n`,
    source,
  );
  await run(
    `${numbers(SESSIONS)}
     INSERT INTO session_versions (team_id, session_id, revision, source_id, title, message_count, created_at)
     SELECT ?1, ${session('i')}, 1, ?2, 'Session ' || i, ${MESSAGES_PER_SESSION}, ${at} + i FROM n`,
    source,
  );
  await run(
    `${numbers(SESSIONS * MESSAGES_PER_SESSION)}
     INSERT INTO messages (team_id, session_id, ordinal, revision, role, digest, value_json)
     SELECT ?1, ${session(`i / ${MESSAGES_PER_SESSION}`)}, i % ${MESSAGES_PER_SESSION}, 1, 'user', printf('%032x', i),
            '{"ordinal":' || (i % ${MESSAGES_PER_SESSION}) || ',"role":"user","text":"common word ' || i ||
            CASE i WHEN 500000 THEN ' needle' ELSE '' END || '"}'
       FROM n`,
  );
  await object.query(
    `INSERT INTO message_search (rowid, text, scope)
     SELECT id, value_json ->> 'text', '${scope}' FROM messages WHERE digest = printf('%032x', id - (SELECT min(id) FROM messages WHERE session_id = ${session('0')}))`,
  );
}

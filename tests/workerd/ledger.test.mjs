// The run ledger in the real runtime: many callers at once, and what a reader's page costs.

import assert from 'node:assert/strict';
import { request } from 'node:http';
import { after, before, test } from 'node:test';
import { expectStatus, startPlane } from './harness.mjs';
import { numbers } from './retention.mjs';

let plane;
let team;
let token;
before(async () => {
  plane = await startPlane();
  ({ team, token } = await plane.createTeam());
});
after(() => plane?.stop());

const path = (rest) => `/v1/teams/${team.id}${rest}`;
const event = (id, sequence, rest = {}) => ({ id, sequence, kind: 'step', payload: { id }, ...rest });

async function call(status, method, rest, body) {
  const answer = await plane.api(method, path(rest), { token, body });
  expectStatus(status, answer, `${method} ${rest}`);
  return answer.body?.data ?? answer.body;
}

/** Sends them all at once from inside workerd; answers with each one's status and body. */
async function atOnce(requests) {
  const sent = requests.map(([rest, body]) => ({ method: 'POST', path: path(rest), token, body }));
  const { results } = await plane.load(sent, { concurrency: requests.length, keepBodies: true });
  return results.map(({ status, body }) => ({ status, body: body && JSON.parse(body) }));
}

const code = ({ body }) => body.error?.code;

async function allEvents(run) {
  const items = [];
  for (let after = ''; ; ) {
    const page = await call(200, 'GET', `/runs/${run}/events?limit=200${after}`);
    if (page.items.length === 0) return items;
    items.push(...page.items);
    after = `&after=${page.last}`;
  }
}

async function metric(name) {
  const text = await call(200, 'GET', '/metrics');
  return Number(new RegExp(`^teamplane_${name} (\\d+)$`, 'm').exec(text)[1]);
}

test('200 callers append at once, each to its run, and none is lost', async () => {
  const runs = Array.from({ length: 200 }, (_, n) => `many-${n}`);
  const results = await atOnce(
    runs.map((run, n) => [`/runs/${run}/events`, { events: [event(`${run}.1`, 1), event(`${run}.2`, 2 + n)] }]),
  );
  assert.deepEqual(new Set(results.map(({ status }) => status)), new Set([200]));
  const rows = results.flatMap(({ body }) => body.data.events.map((one) => one.row_id));
  assert.equal(new Set(rows).size, 400, 'each has a row of its own');
  for (const { body } of results) {
    assert.equal(body.data.events[1].row_id, body.data.events[0].row_id + 1, 'a batch stays together');
  }
  const seen = {};
  for (let after = ''; ; ) {
    const data = await call(200, 'GET', `/run-changes?limit=60${after}`);
    if (Object.keys(data.runs).length === 0) break;
    Object.assign(seen, data.runs);
    after = `&after=${data.last}`;
  }
  assert.deepEqual(seen, Object.fromEntries(runs.map((run, n) => [run, 2 + n])));
  assert.equal(await metric('appends_committed_total'), 200);
});

test('the same append sent by 15 callers at once is stored once', async () => {
  const body = { events: [event('same.1', 1), event('same.2', 2)] };
  const results = await atOnce(Array.from({ length: 15 }, () => ['/runs/same/events', body]));
  assert.deepEqual(new Set(results.map(({ status }) => status)), new Set([200]));
  const fresh = results.filter(({ body }) => body.data.events.every((one) => !one.duplicate));
  assert.equal(fresh.length, 1);
  assert.equal((await allEvents('same')).length, 2);
});

test('of 50 callers that open one run, or claim it, one wins', async () => {
  const opened = await atOnce(
    Array.from({ length: 50 }, (_, n) => ['/runs', { run_id: 'one', events: [event(`one.${n}`, 1)] }]),
  );
  assert.equal(opened.filter(({ status }) => status === 201).length, 1);
  assert.deepEqual(new Set(opened.filter(({ status }) => status !== 201).map(code)), new Set(['duplicate_event']));

  const claimed = await atOnce(Array.from({ length: 50 }, (_, n) => ['/runs/one/claim', { holder: `h${n}` }]));
  const winners = claimed.filter(({ status }) => status === 200);
  assert.equal(winners.length, 1);
  assert.deepEqual(new Set(claimed.filter(({ status }) => status !== 200).map(code)), new Set(['claim_held']));
  assert.deepEqual(await call(200, 'GET', '/runs/one/claim'), winners[0].body.data);
});

test('a takeover cuts eight writers off at one point', async () => {
  const { fence } = await call(200, 'POST', '/runs/cut/claim', { holder: 'old' });
  const claim = { holder: 'old', fence };
  const requests = [];
  for (let n = 0; n < 15; n += 1) {
    requests.push(['/runs/cut/events', { events: [event(`cut.${n}`, n)], claim }]);
    if (n === 8) requests.push(['/runs/cut/claim', { holder: 'new', mode: 'takeover' }]);
  }
  const sent = requests.map(([rest, body]) => ({ method: 'POST', path: path(rest), token, body }));
  const { results } = await plane.load(sent, { concurrency: 8, keepBodies: true });
  const answers = results.map(({ status, body }) => ({ status, body: JSON.parse(body) }));
  const [takeover] = answers.splice(9, 1);
  assert.equal(takeover.body.data.fence, fence + 1);
  const refused = answers.filter(({ status }) => status !== 200);
  assert.deepEqual(new Set(refused.map(code)), new Set(['claim_held']));
  const stored = await allEvents('cut');
  const accepted = answers.flatMap(({ status, body }) => (status === 200 ? body.data.events : []));
  assert.deepEqual(new Set(stored.map(({ id }) => id)), new Set(accepted.map(({ id }) => id)));

  const later = await call(200, 'POST', '/runs/cut/events', {
    events: [event('cut.new', 100)],
    claim: { holder: 'new', fence: fence + 1 },
  });
  assert.ok(stored.every(({ row_id: row }) => row < later.events[0].row_id));
  await call(409, 'POST', '/runs/cut/events', { events: [event('cut.old', 101)], claim });
});

test('what moved among 100,000 events of 1,000 runs is read with 60 rows', async () => {
  const { team: large, token: owner } = await plane.createTeam('Large');
  const object = plane.team(large.id);
  await object.query(
    `INSERT INTO run_events (team_id, id, run_id, sequence, kind, created_at, payload_json)
     SELECT '${large.id}', 'e' || i, 'run' || (i % 1000), i, 'step', 0, '1' FROM ${numbers(100_000)}`,
  );
  await object.query(
    `INSERT INTO runs (team_id, run_id, events, tombstones, last_sequence, last_row_id, newest_row_id)
     SELECT team_id, run_id, count(*), 0, max(sequence), max(row_id), max(row_id)
       FROM run_events GROUP BY 1, 2`,
  );
  const send = (method, rest, body) =>
    plane.api(method, `/v1/teams/${large.id}${rest}`, { token: owner, body });
  for (let n = 0; n < 10; n += 1) {
    const events = Array.from({ length: 50 }, (_, m) => event(`n${n}.${m}`, 200_000 + m));
    expectStatus(200, await send('POST', `/runs/run${n}/events`, { events }), 'append');
  }
  for (const [rest, rows] of [
    ['/run-changes?after=100000', 60],
    ['/run-changes?limit=10', 60],
    ['/runs?limit=10', 60],
    ['/runs/run7/events?limit=10', 60],
  ]) {
    await object.resetCounts();
    expectStatus(200, await send('GET', rest), rest);
    const { rowsRead, rowsWritten } = await object.counts();
    assert.ok(rowsRead <= rows, `${rest} read ${rowsRead} rows`);
    assert.equal(rowsWritten, 0, rest);
  }
  await object.resetCounts();
  const events = Array.from({ length: 500 }, (_, m) => event(`b.${m}`, 300_000 + m));
  expectStatus(200, await send('POST', '/runs/run5/events', { events }), 'append');
  const { statements, rowsWritten } = await object.counts();
  assert.ok(statements <= 30 && rowsWritten <= 500 * 3 + 20, `${statements} statements, ${rowsWritten} rows written`);
});

test('an object that ends in the middle of appends has all of each or nothing', async () => {
  const { team: mortal, token: owner } = await plane.createTeam('Mortal');
  const object = plane.team(mortal.id);
  const send = (method, rest, body) =>
    plane.api(method, `/v1/teams/${mortal.id}${rest}`, { token: owner, body });
  for (let n = 0; n < 5; n += 1) {
    const body = { events: [event(`m${n}.1`, n * 2), event(`m${n}.2`, n * 2 + 1)] };
    await object.fail(n % 2 === 0 ? 'abort' : 'panic', n > 2 ? 1 : 0);
    await send('POST', '/runs/m/events', body);
    // Whatever became of it: sent again, it is there once.
    for (let again = 0; ; again += 1) {
      const { status } = await send('POST', '/runs/m/events', body);
      if (status === 200) break;
      assert.ok(status >= 500 && again < 3, `${status}`);
    }
  }
  const { body } = await send('GET', '/runs/m/events');
  assert.deepEqual(body.items.map(({ sequence }) => sequence), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
  assert.deepEqual((await send('GET', '/runs')).body.items.map((run) => run.events), [10]);
});

test('a claim and its fence outlive a restart', async () => {
  await call(200, 'POST', '/runs/kept/claim', { holder: 'a' });
  const first = await call(200, 'POST', '/runs/kept/claim', { holder: 'b', mode: 'takeover' });
  await plane.restart();
  assert.deepEqual(await call(200, 'GET', '/runs/kept/claim'), first);
  assert.deepEqual(await call(200, 'GET', '/runs/kept/fenced/a'), { fenced: true });
  await call(204, 'DELETE', '/runs/kept/claim?holder=b&fence=2');
  assert.equal((await call(200, 'POST', '/runs/kept/claim', { holder: 'b' })).fence, 3);
});

/** An append whose body is yet to come: `finish` sends it. Resolves with the status. */
function slowAppend(run, body, bearer = token) {
  const bytes = Buffer.from(JSON.stringify(body));
  let finish;
  const answered = new Promise((resolve, reject) => {
    const sent = request(new URL(path(`/runs/${run}/events`), plane.url), {
      method: 'POST',
      agent: false,
      headers: {
        authorization: `Bearer ${bearer}`,
        'content-type': 'application/json',
        'content-length': bytes.length,
      },
    });
    sent.on('response', (response) => {
      response.resume();
      response.on('end', () => resolve(response.statusCode));
    });
    sent.on('error', reject);
    sent.write(bytes.subarray(0, 1));
    finish = () => sent.end(bytes.subarray(1));
  });
  return { answered, finish };
}

test('a run has 16 appends waiting; the next is told to come again, and nothing is lost', async () => {
  const before = await metric('appends_submitted_total');
  const rejected = await metric('appends_rejected_total');
  // Those without a good token take nobody's place.
  const strangers = Array.from({ length: 4 }, (_, n) =>
    slowAppend('full', { events: [event(`stranger.${n}`, 90 + n)] }, token.replace(/.$/, (c) => (c === '0' ? '1' : '0'))),
  );
  const waiting = Array.from({ length: 16 }, (_, n) => slowAppend('full', { events: [event(`full.${n}`, n)] }));
  while ((await metric('appends_submitted_total')) < before + 16);

  const refused = await plane.api('POST', path('/runs/full/events'), { token, body: { events: [event('over', 99)] } });
  assert.deepEqual([refused.status, refused.body.error.code], [503, 'overloaded']);
  assert.equal(refused.headers.get('retry-after'), '1');
  assert.equal(await metric('appends_rejected_total'), rejected + 1);
  // Another run's have room, and so has all that is no append.
  await call(200, 'POST', '/runs/free/events', { events: [event('free.1', 1)] });
  await call(200, 'POST', '/runs/full/claim', { holder: 'h' });
  await call(204, 'DELETE', '/runs/full/claim?holder=h');

  for (const one of [...waiting, ...strangers]) one.finish();
  assert.deepEqual(new Set(await Promise.all(waiting.map((one) => one.answered))), new Set([200]));
  assert.deepEqual(new Set(await Promise.all(strangers.map((one) => one.answered))), new Set([401]));
  assert.equal((await allEvents('full')).length, 16);
  await call(200, 'POST', '/runs/full/events', { events: [event('over', 99)] });
});

test('any sequence of claims and appends, with objects that end, lets one holder write at a time', async (t) => {
  const seed = Number(process.env.LEDGER_SEED ?? 1);
  t.diagnostic(`LEDGER_SEED=${seed}`);
  let state = seed;
  const below = (n) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * n);
  };
  const start = (await call(200, 'GET', '/run-changes?limit=200')).last;
  const runs = new Map(['p', 'q', 'r'].map((run) => [run, { fence: 0, claim: null, believed: {}, rows: [], sequence: 0 }]));
  const reader = { position: start, seen: [] };
  async function read() {
    const data = await call(200, 'GET', `/run-changes?limit=2&after=${reader.position}`);
    for (const run of Object.keys(data.runs).filter((name) => runs.has(name))) {
      const rows = (await allEvents(run)).map((one) => one.row_id);
      reader.seen.push(...rows.filter((row) => !reader.seen.includes(row)));
    }
    const moved = data.last !== reader.position;
    reader.position = data.last;
    return moved;
  }
  for (let n = 0; n < 300; n += 1) {
    const name = ['p', 'q', 'r'][below(3)];
    const run = runs.get(name);
    const holder = ['x', 'y', 'z'][below(3)];
    const what = below(12);
    if (what < 3) {
      const mode = ['claim', 'takeover'][below(2)];
      const { status, body } = await plane.api('POST', path(`/runs/${name}/claim`), { token, body: { holder, mode } });
      const refused = mode === 'claim' && run.claim && run.claim !== holder;
      assert.equal(status, refused ? 409 : 200);
      if (!refused) {
        const same = mode === 'claim' && run.claim === holder;
        assert.equal(body.data.fence, same ? run.fence : run.fence + 1);
        Object.assign(run, { claim: holder, fence: body.data.fence });
        run.believed[holder] = run.fence;
      }
    } else if (what === 3) {
      const { status } = await plane.api('DELETE', path(`/runs/${name}/claim?holder=${holder}`), { token });
      assert.equal(status, run.claim === holder ? 204 : 409);
      if (status === 204) run.claim = null;
    } else if (what === 4) {
      await plane.team(team.id).abort();
      while ((await plane.api('GET', path('/me'), { token })).status !== 200);
    } else if (what === 5) {
      await read();
    } else {
      const fence = run.believed[holder] ?? 1;
      const body = { events: [event(`${name}.${n}`, run.sequence + 1)], claim: { holder, fence } };
      const answer = await plane.api('POST', path(`/runs/${name}/events`), { token, body });
      assert.equal(answer.status, run.claim === holder && run.fence === fence ? 200 : 409, `${n}`);
      if (answer.status === 200) {
        run.sequence += 1;
        run.rows.push(answer.body.data.events[0].row_id);
      }
    }
  }
  while (await read());
  const rows = [...runs.values()].flatMap((run) => run.rows);
  assert.deepEqual(reader.seen.toSorted((a, b) => a - b), rows.toSorted((a, b) => a - b));
});

test('what moves is streamed as it does, and a reader that comes back goes on where it was', async () => {
  const { team, token } = await plane.createTeam('Streams');
  const at = (rest) => `/v1/teams/${team.id}${rest}`;
  const append = async (run, n) => {
    const body = { events: [event(`${run}.${n}`, n)] };
    expectStatus(200, await plane.api('POST', at(`/runs/${run}/events`), { token, body }), 'append');
  };
  const stream = await plane.stream(at('/run-changes'), { token });
  await append('a', 1);
  await append('b', 7);
  const [first, second] = await stream.take(2);
  assert.deepEqual([first.event, first.data.run_id, first.data.sequence], ['moved', 'a', 1]);
  assert.deepEqual([second.data.run_id, second.data.sequence], ['b', 7]);
  assert.equal(second.id, second.data.position);
  stream.break();

  await append('a', 2);
  const headers = { 'last-event-id': second.id };
  const resumed = await plane.stream(at('/run-changes'), { token, headers });
  const third = await resumed.next();
  assert.deepEqual([third.data.run_id, third.data.sequence], ['a', 2]);
  resumed.break();
});

// What a team's object does beside the core: its store, its clock, its failures.

import assert from 'node:assert/strict';
import { request } from 'node:http';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { startPlane } from './harness.mjs';
import { undo } from './migrations.mjs';

const START_MS = 1_700_000_000_000;
const DAY_MS = 86_400_000;
const COUNTERS = ['x-test-rows-read', 'x-test-rows-written', 'x-test-statements'];

let plane;
before(async () => {
  plane = await startPlane();
});
after(() => plane.stop());

const read = (plane, { team, token }, options) =>
  plane.api('GET', `/v1/teams/${team.id}`, { token, ...options });

/** As `read`, with another host; `fetch` would not send it. */
function readFromHost(plane, { team, token }, host, headers) {
  const options = { headers: { host, authorization: `Bearer ${token}`, ...headers } };
  return new Promise((resolve, reject) => {
    request(new URL(`/v1/teams/${team.id}`, plane.url), options, (response) => {
      response.resume().on('end', () => resolve(response));
    })
      .on('error', reject)
      .end();
  });
}

test('a new team is read back with its owner\'s token', async () => {
  const made = await plane.createTeam('Acme');
  const { status, headers, body } = await read(plane, made);

  assert.equal(status, 200);
  assert.equal(headers.get('etag'), '"1"');
  assert.equal(headers.get('cache-control'), 'no-store');
  assert.deepEqual(body.data, made.team);
});

test('an object that nobody made answers 401 and writes nothing', async () => {
  const hex = 'f'.repeat(32);
  const token = `tp_user_${hex}_${hex}_${hex.repeat(2)}`;
  const answers = [
    await plane.api('GET', `/v1/teams/team_${hex}`, { token }),
    await plane.api('POST', `/v1/teams/team_${hex}/members`, { token, body: { name: 'x' } }),
  ];

  for (const answer of answers) {
    assert.equal(answer.status, 401);
    assert.equal(answer.headers.get('x-test-rows-written'), '0');
  }
  assert.deepEqual(await plane.team(`team_${hex}`).query('SELECT name FROM sqlite_schema'), []);
  assert.equal(await plane.team(`team_${hex}`).alarmAt(), null);
});

test('an up-to-date store costs two rows more to open: its own, and how many links it held', async () => {
  const made = await plane.createTeam();
  const rows = async () => Number((await read(plane, made)).headers.get('x-test-rows-read'));
  await rows(); // Notes that the token was used.
  const warm = await rows();
  await plane.restart();

  assert.equal(await rows(), warm + 2);
});

test('what was stored is there after a restart', async () => {
  const made = await plane.createTeam('Lasting');
  await plane.restart();

  assert.equal((await read(plane, made)).body.data.name, 'Lasting');
});

test('an older store is brought up to date by the first request', async () => {
  const made = await plane.createTeam();
  const team = plane.team(made.team.id);
  const [{ newest }] = await team.query('SELECT schema_version AS newest FROM server');
  for (const statement of undo(newest - 1)) await team.query(statement);
  await plane.restart();

  assert.equal((await read(plane, made)).status, 200);
  assert.deepEqual(await plane.team(made.team.id).query('SELECT schema_version AS v FROM server'), [
    { v: newest },
  ]);
});

for (const how of ['panic', 'exception']) {
  test(`a ${how} answers 500 within a second and harms nobody else`, async () => {
    const [made, other] = [await plane.createTeam('A'), await plane.createTeam('B')];
    const alarmAt = Date.now() + 3000;
    await plane.team(made.team.id).setAlarm(alarmAt);
    await plane.team(made.team.id).fail(how);

    const beganMs = performance.now();
    const add = (n) =>
      plane.api('POST', `/v1/teams/${made.team.id}/members`, {
        token: made.token,
        body: { name: `Member ${n}`, role: 'member' },
      });
    const mine = Array.from({ length: 8 }, (_, n) => add(n));
    const others = Array.from({ length: 8 }, () => read(plane, other));
    const answers = await Promise.all(mine);
    assert.ok(performance.now() - beganMs < 1000);

    const failed = answers.filter(({ status }) => status === 500);
    assert.equal(failed.length, 1);
    assert.equal(failed[0].body.error.code, 'internal');
    assert.equal(failed[0].body.error.request_id, failed[0].headers.get('x-request-id'));
    assert.doesNotMatch(JSON.stringify(failed[0].body), /panicked|expect|counters/);
    assert.equal(answers.filter(({ status }) => status === 201).length, 7);
    for (const { status } of await Promise.all(others)) assert.equal(status, 200);

    assert.equal((await add(8)).status, 201);
    // The alarm is kept, and runs: once it has, it is set for later.
    const armed = await plane.team(made.team.id).alarmAt();
    assert.ok(armed === alarmAt || Date.now() >= alarmAt);
    await sleep(alarmAt + 50 - Date.now());
    const ran = async () => (await plane.team(made.team.id).alarmAt()) > alarmAt;
    for (let waits = 0; !(await ran()); waits += 1) {
      assert.ok(waits < 50, 'the alarm did not run');
      await sleep(100);
    }
  });
}

test('a failure is logged once, with the request\'s id and without its token', async () => {
  const lines = [];
  const logged = await startPlane({ log: (text) => lines.push(text) });
  try {
    const made = await logged.createTeam();
    for (const how of ['panic', 'exception']) {
      await logged.team(made.team.id).fail(how);
      const answer = await logged.api('PATCH', `/v1/teams/${made.team.id}`, {
        token: made.token,
        body: { name: 'Acme' },
      });
      const id = answer.headers.get('x-request-id');
      assert.equal(answer.status, 500);
      for (let waits = 0; !lines.join('').includes(id); waits += 1) {
        assert.ok(waits < 50, `nothing about ${id} in: ${lines.join('')}`);
        await sleep(20);
      }
      assert.equal(lines.join('').split(id).length, 2, lines.join(''));
    }
    assert.ok(!lines.join('').includes(made.token.slice(-64)));
  } finally {
    await logged.stop();
  }
});

test('an object that dies under a request answers 503, or 500, in the envelope', async () => {
  const made = await plane.createTeam();
  await plane.team(made.team.id).abort();
  const answers = await Promise.all(Array.from({ length: 10 }, () => read(plane, made)));

  for (const { status, headers, body } of answers) {
    if (status === 200) continue;
    assert.match(body.error.code, /^(overloaded|internal)$/);
    assert.equal(body.error.request_id, headers.get('x-request-id'));
    if (status === 503) assert.equal(headers.get('retry-after'), '1');
  }
  assert.equal((await read(plane, made)).status, 200);
});

test('a test\'s clock begins at the first time it says and never goes back', async () => {
  const made = await plane.createTeam('Timed', { now: START_MS });
  assert.equal(made.team.created_at, START_MS);
  const ends = START_MS + 90 * DAY_MS;

  assert.equal((await read(plane, made, { now: ends - 1 })).status, 200);
  assert.equal((await read(plane, made)).status, 200);
  assert.equal((await read(plane, made, { now: ends })).status, 401);
  assert.equal((await read(plane, made, { now: START_MS })).status, 401);
  assert.equal((await read(plane, made)).status, 401);
});

test('a test\'s clock outlives the instance of the object', async () => {
  const made = await plane.createTeam('Timed', { now: START_MS });
  const ends = START_MS + 90 * DAY_MS;
  await read(plane, made, { now: ends - 1 });
  await plane.restart();

  assert.equal((await read(plane, made)).status, 200);
  assert.equal((await read(plane, made, { now: ends })).status, 401);
});

test('a clock that is no time is not set', async () => {
  const made = await plane.createTeam();
  for (const now of ['tomorrow', '-1', '1.5', '', '9007199254740993', 'NaN', 'Infinity']) {
    const { status } = await read(plane, made, { headers: { 'x-test-now-ms': now } });
    assert.equal(status, 200, now);
  }
});

test('only a request from this very machine sets the clock and sees the counters', async () => {
  const made = await plane.createTeam();
  const now = { 'x-test-now-ms': String(Date.now() + 91 * DAY_MS), 'x-teamplane-loopback': '1' };
  for (const host of ['plane.example', '127.example', '128.0.0.1', 'localhost.example']) {
    const { statusCode, headers } = await readFromHost(plane, made, host, now);
    assert.equal(statusCode, 200, host);
    for (const name of COUNTERS) assert.equal(headers[name], undefined, `${host} ${name}`);
  }
  for (const host of ['127.0.0.1', '127.8.9.1:80', 'localhost:8787', '[::1]:8787']) {
    const { headers } = await readFromHost(plane, made, host, {});
    for (const name of COUNTERS) assert.match(headers[name], /^\d+$/, `${host} ${name}`);
  }
  assert.equal((await readFromHost(plane, made, 'localhost', now)).statusCode, 401);
});

test('without test hooks the clock is the platform\'s and nothing is shown', async () => {
  for (const TEST_HOOKS of [undefined, '0', 'true']) {
    const plain = await startPlane({ bindings: { TEST_HOOKS } });
    try {
      const made = await plain.createTeam('Acme', { now: START_MS });
      assert.ok(Math.abs(made.team.created_at - Date.now()) < 60_000);
      const { status, headers } = await read(plain, made, { now: Date.now() + 91 * DAY_MS });
      assert.equal(status, 200);
      for (const name of COUNTERS) assert.equal(headers.get(name), null);
    } finally {
      await plain.stop();
    }
  }
});

test('the clock does not go back behind the mark in the store', async () => {
  const made = await plane.createTeam();
  const mark = Date.now() + 91 * DAY_MS;
  await plane.team(made.team.id).query('UPDATE server SET clock_high_at = ?', mark);
  await plane.restart();

  assert.equal((await read(plane, made)).status, 401);
});

test('the rate limit is what the operator says, and a bad value is the default', async () => {
  for (const [RATE_LIMIT_PER_S, limited] of [['1', true], ['0', false], ['many', false]]) {
    const limitedPlane = await startPlane({ bindings: { RATE_LIMIT_PER_S } });
    try {
      const made = await limitedPlane.createTeam('Acme', { now: START_MS });
      const statuses = [];
      for (let n = 0; n < 4; n += 1) {
        const { status, headers } = await read(limitedPlane, made, { now: START_MS });
        statuses.push(status);
        if (status === 429) assert.equal(headers.get('retry-after'), '1');
      }
      assert.equal(statuses.includes(429), limited, RATE_LIMIT_PER_S);
    } finally {
      await limitedPlane.stop();
    }
  }
});

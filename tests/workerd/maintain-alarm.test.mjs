// Retention wakes by itself, ends in time on any clock, lets requests in, and survives whatever
// happens to its object.
//
//   MAINTAIN_CONSTRUCTIONS=500 node --test tests/workerd/maintain-alarm.test.mjs    dies more often

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { startPlane } from './harness.mjs';
import { maintain, maintainAll, numbers } from './retention.mjs';

const MINUTE_MS = 60_000;
const HOUR_MS = 60 * MINUTE_MS;
const DAY_MS = 24 * HOUR_MS;
const BATCH_UNITS_MAX = 500;
const PASS_UNITS_MAX = 100_000;
const CONSTRUCTIONS = Number(process.env.MAINTAIN_CONSTRUCTIONS ?? 100);

let plane;
before(async () => {
  plane = await startPlane();
});
after(() => plane?.stop());

/** A team on the platform's clock, with `count` kept answers that have expired. */
async function teamWithExpired(count, on = plane) {
  const made = await on.createTeam();
  const object = on.team(made.team.id);
  const expire = (count, tag = 'k') =>
    object.query(
      `INSERT INTO idempotency
           (team_id, principal_id, key, request_hash, status, response_json, created_at, expires_at)
       SELECT '${made.team.id}', 'user_1', '${tag}' || i, x'00', 201, '{}', 0, 1 FROM ${numbers(count)}`,
    );
  if (count > 0) await expire(count);
  const left = async () => (await object.query('SELECT count(*) AS n FROM idempotency'))[0].n;
  const get = (path = '') => on.api('GET', `/v1/teams/${made.team.id}${path}`, { token: made.token });
  return { plane: on, object, expire, left, get, ...made };
}

async function until(what, isSo, triesMax = 2_000) {
  for (let tries = 0; tries < triesMax; tries += 1) {
    if (await isSo().catch(() => false)) return;
    await sleep(5);
  }
  assert.fail(`never: ${what}`);
}

/** Has the platform run the alarm, as when it is due. */
async function ring(object) {
  await object.query('UPDATE maintain_state SET pass_due_at = 0');
  await object.setAlarm(Date.now());
}

test('a write sets the alarm to within a minute', async () => {
  const { object } = await teamWithExpired(0);
  const alarmAt = await object.alarmAt();
  assert.ok(alarmAt > Date.now() - 1_000 && alarmAt <= Date.now() + MINUTE_MS, `${alarmAt - Date.now()} ms`);
});

test('10,000 requests set the alarm at most twice', async (t) => {
  const { object, team, token } = await teamWithExpired(0);
  await object.resetCounts();
  const path = `/v1/teams/${team.id}`;
  const requests = Array.from({ length: 10_000 }, (_, n) =>
    n % 10 === 0
      ? { method: 'PATCH', path, token, body: { name: `Name ${n}` } }
      : { method: 'GET', path, token },
  );
  const { results, elapsedMs } = await plane.load(requests, { concurrency: 8 });
  assert.deepEqual(new Set(results.map(({ status }) => status)), new Set([200]));
  const { alarmsSet } = await object.counts();
  t.diagnostic(`10,000 requests in ${elapsedMs} ms set the alarm ${alarmsSet} times`);
  assert.ok(alarmsSet <= 2, `${alarmsSet} times`);
});

test('an alarm that is missing is set again by the next instance', async () => {
  const { object, get } = await teamWithExpired(0);
  await object.setAlarm(null);
  await object.abort();
  await until('the object answers', async () => (await get()).status === 200);

  assert.ok((await object.alarmAt()) <= Date.now() + DAY_MS);
});

test('an object in which nothing can fall due sleeps without an alarm', async () => {
  const { object } = await teamWithExpired(0);
  for (const table of ['credentials', 'idempotency', 'journal', 'org_events', 'event_resources', 'retention_due']) {
    await object.query(`DELETE FROM ${table}`);
  }
  await object.runAlarm();

  assert.equal(await object.alarmAt(), null);
});

test('the platform rings, and passes go on by themselves until nothing is left', { timeout: 60_000 }, async () => {
  const { object, left } = await teamWithExpired(30_000);
  await ring(object);
  await until('all expired rows are gone', async () => (await left()) === 0, 4_000);
  assert.ok((await object.alarmAt()) > Date.now());
});

test('once a test has set the clock, the alarm does nothing', async () => {
  const where = await teamWithExpired(100);
  const now = Date.now() + HOUR_MS;
  const path = `/v1/teams/${where.team.id}`;
  await where.plane.api('GET', path, { token: where.token, now });
  assert.equal(await where.object.runAlarm(), true);

  assert.equal(await where.left(), 100);
  const { removed, next_alarm_at: nextAlarmAt } = await maintain(where, now);
  assert.equal(removed.idempotency, 100);
  assert.ok(nextAlarmAt > now && nextAlarmAt <= now + DAY_MS);
});

test('a pass on a clock that stands still ends by its units, and the next goes on', async (t) => {
  const where = await teamWithExpired(60_000);
  try {
    await where.object.setClock(Date.now());
    let left = 60_000;
    for (let passes = 1; left > 0; passes += 1) {
      const { removed, backlog, cost, failed } = await maintain(where);
      left -= removed.idempotency;
      t.diagnostic(`frozen: ${cost.units} units, ${cost.slices} slices, ${cost.ms} ms, ${left} left`);
      assert.deepEqual([failed, cost.ms, backlog], [[], 0, left > 0]);
      assert.ok(cost.units <= PASS_UNITS_MAX + BATCH_UNITS_MAX);
      if (backlog) assert.ok(cost.units > PASS_UNITS_MAX - 2 * BATCH_UNITS_MAX);
      assert.ok(passes < 10);
    }
    assert.equal(await where.left(), 0);
  } finally {
    await where.object.setClock();
  }
});

test('a pass on a clock that jumps an hour at each look gives each step its batch, then ends', async () => {
  const where = await teamWithExpired(10_000);
  try {
    await where.object.setClock(Date.now(), HOUR_MS);
    const { removed, backlog, cost } = await maintain(where);
    assert.ok(removed.idempotency > 0);
    assert.equal(backlog, true);
    assert.ok(cost.units < PASS_UNITS_MAX / 2, `${cost.units} units`);
    // Backwards: the object's own clock stands still until the platform's has caught up.
    await where.object.setClock(Date.now() - 30 * DAY_MS);
    const back = await maintain(where);
    assert.ok(back.removed.idempotency > 0);
    assert.ok(back.cost.ms >= 0);
    assert.ok(back.next_alarm_at > Date.now());
  } finally {
    await where.object.setClock();
  }
});

test('two requests for a pass at once get the outcome of one', async () => {
  const where = await teamWithExpired(20_000);
  const [one, other] = await Promise.all([maintain(where), maintain(where)]);

  assert.deepEqual(other, one);
  assert.ok(one.removed.idempotency > 0);
  const { body } = await where.get('/maintain');
  assert.equal(body.data.passes.length, 1);
});

test('requests are answered between the slices of a pass', async (t) => {
  const where = await teamWithExpired(100_000);
  const machine = await plane.enrollMachine(where.team.id, where.token);
  const heartbeat = { incarnation_id: 'i1', sequence: 1, bindings: [], roots: [] };
  try {
    // On a clock that stands still the pass runs to its units, however slow the machine is.
    await where.object.setClock(Date.now());
    let isOver = false;
    const pass = maintain(where).then((outcome) => {
      isOver = true;
      return outcome;
    });
    const during = { answers: 0, heartbeats: 0 };
    while (!isOver) {
      const { body } = await where.get('/maintain');
      if (!body.data.running) continue;
      during.answers += 1;
      const beat = await plane.api('POST', `/v1/teams/${where.team.id}/machines/${machine.machine.id}/heartbeat`, {
        token: machine.token,
        body: { ...heartbeat, sequence: during.answers },
      });
      assert.equal(beat.status, 200);
      if (!isOver) during.heartbeats += 1;
    }
    const { cost } = await pass;
    t.diagnostic(`${during.answers} answers and ${during.heartbeats} heartbeats during ${cost.slices} slices`);
    assert.ok(during.answers > 0, 'no request was answered during the pass');
    assert.ok(during.heartbeats > 0, 'no heartbeat was answered during the pass');
  } finally {
    await where.object.setClock();
  }
});

test('an object that dies between two slices goes on where it stopped', async () => {
  const where = await teamWithExpired(20_000);
  await where.object.fail('abort', 30);
  const answer = await plane.api('POST', `/v1/teams/${where.team.id}/maintain`, { token: where.token });
  assert.ok(answer.status >= 500, `${answer.status}`);
  const left = await where.left();
  assert.ok(left > 0 && left < 20_000, `${left} left`);

  const { removed } = await maintainAll(where);
  assert.equal(removed.idempotency, left);
  assert.equal(await where.left(), 0);
  assert.ok((await where.object.alarmAt()) > Date.now() - 1_000);
});

test('an object that dies in its alarm goes on by itself', { timeout: 90_000 }, async () => {
  const { object, left } = await teamWithExpired(20_000);
  await object.fail('abort', 30);
  await ring(object);
  // Nobody calls but for looking: the platform and the alarm itself do the rest.
  await until('all expired rows are gone', async () => (await left()) === 0, 12_000);
  assert.ok((await object.alarmAt()) > Date.now());
});

test('seven failures in a row leave an alarm, and then it works again', async () => {
  // One batch takes them, so that the pass ends nothing by the clock.
  const { object, left } = await teamWithExpired(50);
  for (let n = 0; n < 7; n += 1) {
    await object.query('UPDATE maintain_state SET pass_due_at = 0');
    await object.fail('exception', 0, 1_000_000);
    assert.equal(await object.runAlarm(), true);
    const alarmAt = await object.alarmAt();
    assert.ok(alarmAt > Date.now() && alarmAt <= Date.now() + MINUTE_MS, `failure ${n}: ${alarmAt}`);
  }
  assert.equal(await left(), 50);
  await object.fail(null);
  await object.runAlarm();
  assert.equal(await left(), 0);
});

test(`${CONSTRUCTIONS} instances that die in their first alarm leave one that works`, { timeout: 180_000 }, async (t) => {
  const { object, expire, left } = await teamWithExpired(0);
  const beganMs = performance.now();
  const before = await object.instances();
  for (let n = 0; n < CONSTRUCTIONS; n += 1) {
    // It dies at the first thing that the alarm does: setting the next one.
    await until('the hooks are set', async () => {
      await object.fail('abort');
      await object.setAlarm(Date.now());
      return true;
    });
    await until('a new instance is there', async () => (await object.instances()) > before + n, 4_000);
  }
  t.diagnostic(`${CONSTRUCTIONS} constructions in ${Math.round(performance.now() - beganMs)} ms`);
  await until('an alarm is set', async () => (await object.alarmAt()) !== null);
  await until('rows expire', async () => {
    await expire(10);
    return true;
  });
  await object.fail(null);
  await ring(object);
  await until('the alarm works', async () => (await left()) === 0);
  assert.ok((await object.alarmAt()) > Date.now());
});

test('a step that fails is named, the others run, and the alarm is set', async () => {
  const lines = [];
  const logged = await startPlane({ log: (text) => lines.push(text) });
  try {
    const where = await teamWithExpired(1_000, logged);
    await where.object.query('ALTER TABLE staging_captures RENAME TO elsewhere');
    const { failed, removed, backlog } = await maintain(where);
    assert.deepEqual(failed, ['in_flight']);
    assert.deepEqual(removed, { idempotency: 1_000 });
    assert.equal(backlog, true);

    // Of its own accord it tries again in a minute, and says what is wrong.
    await where.expire(10, 'again');
    await where.object.query('UPDATE maintain_state SET pass_due_at = 0');
    await where.object.runAlarm();
    assert.equal(await where.left(), 0);
    const alarmAt = await where.object.alarmAt();
    assert.ok(alarmAt > Date.now() && alarmAt <= Date.now() + MINUTE_MS);
    await until('the log names the step', async () => /in_flight/.test(lines.join('')), 200);

    await where.object.query('ALTER TABLE elsewhere RENAME TO staging_captures');
    const mended = await maintain(where);
    assert.deepEqual([mended.failed, mended.backlog], [[], false]);
  } finally {
    await logged.stop();
  }
});

test('a store that is full refuses what grows it, and retention makes room', async (t) => {
  const STORE_BYTES_MAX = 4_000_000;
  const full = await startPlane({ bindings: { STORE_BYTES_MAX: String(STORE_BYTES_MAX) } });
  try {
    const where = await teamWithExpired(0, full);
    const add = (name) => full.addMember(where.team.id, where.token, { name });
    await where.object.setMaxPages(Math.floor(STORE_BYTES_MAX / 4096));
    await add('Before');
    let stored = 0;
    for (; (await where.object.databaseSize()) < STORE_BYTES_MAX * 0.955; stored += 1) {
      await where.object.query(
        `INSERT INTO idempotency
             (team_id, principal_id, key, request_hash, status, response_json, created_at, expires_at)
         VALUES ('${where.team.id}', 'user_1', ?, x'00', 201, printf('%.*c', 16000, 'x'), 0, ?)`,
        String(stored),
        Date.now() + HOUR_MS,
      );
    }
    const sizeFull = await where.object.databaseSize();
    await assert.rejects(add('Refused'), /507 .*storage_full/);
    assert.equal((await where.get()).status, 200);

    await where.object.query('UPDATE idempotency SET expires_at = 1');
    const { removed } = await maintainAll(where);
    const size = await where.object.databaseSize();
    t.diagnostic(`${sizeFull} bytes before, ${size} after`);
    assert.equal(removed.idempotency, stored);
    assert.ok(size < STORE_BYTES_MAX / 2);
    await add('After');
  } finally {
    await full.stop();
  }
});

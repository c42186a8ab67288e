// A whole company on one object: 1,000 links and 1,000 watchers.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { startPlane } from './harness.mjs';

const START_MS = 1_700_000_000_000;
const MEMBERS = 10;
/** As many as a member may have. */
const MACHINES_EACH = 100;
const WATCHERS = 1_000;
const AT_ONCE = 50;
/** Over how long links that were dropped are dialled again. */
const JITTER_MS = 30_000;
const GRACE_MS = 45_000;

let plane;
let team;
let token;
let machines;
const base = () => `/v1/teams/${team.id}`;

before(async () => {
  plane = await startPlane();
  ({ team, token } = await plane.createTeam('Acme', { now: START_MS }));
  const members = [];
  for (let n = 0; n < MEMBERS; n += 1) {
    members.push(await plane.addMember(team.id, token, { name: `Member ${n}`, now: START_MS }));
  }
  const enrolments = members.flatMap((member, m) =>
    Array.from({ length: MACHINES_EACH }, (_, n) => ({
      method: 'POST',
      path: `${base()}/machines`,
      token: member.token,
      body: { name: `machine ${m}-${n}`, enrollment_key: `${n}` },
    })),
  );
  const { results } = await plane.load(enrolments, { concurrency: 8, keepBodies: true });
  machines = results.map(({ body }) => {
    const { machine, credential } = JSON.parse(body).data;
    return { id: machine.id, token: credential.token };
  });
});
after(() => plane?.stop());

/** Does something for each item, some at a time. */
async function forEach(items, work) {
  const left = items.entries();
  const worker = async () => {
    for (const [index, item] of left) await work(item, index);
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
}

async function linkAll(now) {
  const links = [];
  await forEach(machines, async (machine, index) => {
    const link = await plane.connect(`${base()}/machines/${machine.id}/link`, { token: machine.token, now: now(index) });
    assert.equal(link.status, undefined, JSON.stringify(link.body));
    links.push(link);
  });
  return links;
}

const rows = async (sql) => (await plane.team(team.id).query(sql))[0].n;
const linked = () => rows('SELECT count(*) AS n FROM machine_presence WHERE linked = 1 AND lost_at IS NULL');
const lost = () => rows('SELECT count(*) AS n FROM machine_presence WHERE lost_at IS NOT NULL');
const unlinked = () => rows("SELECT count(*) AS n FROM org_events WHERE type = 'machine.unlinked'");

async function until(holds) {
  while (!(await holds())) await new Promise(setImmediate);
}

test('one event reaches 1,000 watchers, and 1,000 links that break come back unnoticed', { timeout: 300_000 }, async (t) => {
  const links = await linkAll(() => START_MS);
  assert.equal(await linked(), machines.length);

  const { last } = (await plane.api('GET', `${base()}/events/current?limit=1`, { token })).body;
  const streams = [];
  await forEach(Array.from({ length: WATCHERS }), async () => {
    const stream = await plane.stream(`${base()}/events?after=${last}`, { token });
    assert.equal(stream.status, undefined, JSON.stringify(stream.body));
    streams.push(stream);
  });
  const beganMs = performance.now();
  const group = await plane.api('POST', `${base()}/groups`, { token, body: { name: 'all' } });
  assert.equal(group.status, 201);
  const events = await Promise.all(streams.map((stream) => stream.next()));
  t.diagnostic(`the event came to ${events.length} watchers within ${Math.round(performance.now() - beganMs)} ms`);
  assert.deepEqual(new Set(events.map(({ event }) => event)), new Set(['group.changed']));
  assert.equal(new Set(events.map(({ id }) => id)).size, 1);
  await forEach(streams, (stream) => stream.break());

  // The storm: all links break at once and are dialled again within half a minute.
  for (const link of links) link.break();
  await until(async () => (await lost()) === machines.length);
  const again = await linkAll((index) => START_MS + Math.floor((index / machines.length) * JITTER_MS));
  assert.equal(await linked(), machines.length);
  const now = START_MS + GRACE_MS + 1;
  const pass = await plane.api('POST', `${base()}/maintain`, { token, now });
  assert.deepEqual([pass.status, pass.body.data.failed], [200, []]);
  assert.equal(await unlinked(), 0, 'nobody was given up');
  for (const link of again) link.close(1000, 'done');
});

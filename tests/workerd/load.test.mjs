// A whole company on one object: 1,000 links and 1,000 watchers.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Crowd, forEach } from './crowd.mjs';
import { startPlane } from './harness.mjs';

const WATCHERS = 1_000;
/** Over how long links that were dropped are dialled again. */
const JITTER_MS = 30_000;
const GRACE_MS = 45_000;

let plane;
let crowd;
before(async () => {
  plane = await startPlane();
  crowd = await Crowd.gather(plane);
});
after(() => plane?.stop());

const rows = async (sql) => (await plane.team(crowd.team.id).query(sql))[0].n;
const linked = () => rows('SELECT count(*) AS n FROM machine_presence WHERE linked = 1 AND lost_at IS NULL');
const lost = () => rows('SELECT count(*) AS n FROM machine_presence WHERE lost_at IS NOT NULL');
const unlinked = () => rows("SELECT count(*) AS n FROM org_events WHERE type = 'machine.unlinked'");

async function until(holds) {
  while (!(await holds())) await new Promise(setImmediate);
}

test('one event reaches 1,000 watchers, and 1,000 links that break come back unnoticed', { timeout: 300_000 }, async (t) => {
  const { machines, token, base } = crowd;
  const links = await crowd.link();
  assert.equal(await linked(), machines.length);
  const streams = await crowd.watch(WATCHERS);
  const { events, ms } = await crowd.tell(streams, 'all');
  t.diagnostic(`the event came to ${events.length} watchers within ${Math.round(ms)} ms`);
  assert.deepEqual(new Set(events.map(({ event }) => event)), new Set(['group.changed']));
  assert.equal(new Set(events.map(({ id }) => id)).size, 1);
  await forEach(streams, (stream) => stream.break());

  // The storm: all links break at once and are dialled again within half a minute.
  for (const link of links) link.break();
  await until(async () => (await lost()) === machines.length);
  const again = await crowd.link((index) => Crowd.startMs + Math.floor((index / machines.length) * JITTER_MS));
  assert.equal(await linked(), machines.length);
  const now = Crowd.startMs + GRACE_MS + 1;
  const pass = await plane.api('POST', `${base}/maintain`, { token, now });
  assert.deepEqual([pass.status, pass.body.data.failed], [200, []]);
  assert.equal(await unlinked(), 0, 'nobody was given up');
  for (const link of again) link.close(1000, 'done');
});

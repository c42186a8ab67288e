// How long a request waits while a large backlog drains, against the same requests without.

import { numbers } from '../tests/workerd/retention.mjs';
import { STORES, atMost, percentile, progress, table, whole, withPlane } from './lib.mjs';
import { heart } from './heartbeats.mjs';

const BACKLOG = STORES.at(-1);
const SECONDS = Number(process.env.BENCH_SECONDS ?? 20);
const EVERY_MS = 10;
const GROWTH_MAX = 1.5;

export const title = 'Heartbeats while a backlog drains';

export async function run(print) {
  const results = await withPlane({}, measure);
  const [idle] = results;
  print(`A heartbeat every ${EVERY_MS} ms for ${SECONDS} s, by HTTP from Node, in ms; the backlog is of ${whole(BACKLOG)} rows. The`);
  print('alarm runs a pass of 250 ms and three seconds later the next; a client that asks for passes');
  print('all the time has one follow the other.\n');
  const heads = ['', 'p50', 'p99', 'longest', 'p99 to that without', 'rows drained', 'longest slice', 'longest other turn'];
  table(print, heads, results.map((one) => [
    one.name,
    one.p50.toFixed(2),
    one.p99.toFixed(2),
    one.longest.toFixed(1),
    one === idle ? '' : atMost(GROWTH_MAX, one.p99 / idle.p99),
    whole(one.drained),
    one.slice,
    one.turn,
  ]));
}

async function measure(plane) {
  const where = await plane.createTeam();
  const beats = await heart(plane, where);
  const object = plane.team(where.team.id);
  const left = async () => (await object.query('SELECT count(*) AS n FROM idempotency'))[0].n;
  const seed = () =>
    object.query(
      `INSERT OR IGNORE INTO idempotency
           (team_id, principal_id, key, request_hash, status, response_json, created_at, expires_at)
       SELECT ?, 'user_1', 'key' || i, x'00', 201, '{}', 0, 1 FROM ${numbers(BACKLOG)}`,
      where.team.id,
    );
  const during = async (name, beside) => {
    progress(name);
    const before = await left();
    await object.resetCounts();
    const times = (await Promise.all([pace(plane, beats), beside()]))[0];
    const { longestSliceMs: slice, longestTurnMs: turn } = await object.counts();
    return {
      name,
      p50: percentile(times, 0.5),
      p99: percentile(times, 0.99),
      longest: Math.max(...times),
      drained: before - (await left()),
      slice,
      turn,
    };
  };

  await pace(plane, beats, 2); // Warm.
  const idle = await during('nothing to drain', async () => {});
  await seed();
  await object.query('UPDATE maintain_state SET pass_due_at = 0');
  await object.setAlarm(Date.now());
  const alarm = await during('passes by the alarm', async () => {});
  await seed();
  const asked = await during('passes without a pause', async () => {
    const untilMs = performance.now() + SECONDS * 1000;
    while (performance.now() < untilMs) {
      await plane.api('POST', `/v1/teams/${where.team.id}/maintain`, { token: where.token });
    }
  });
  return [idle, alarm, asked];
}

/** Sends a heartbeat every few milliseconds, whether or not those before are answered. */
async function pace(plane, beats, seconds = SECONDS) {
  const beganMs = performance.now();
  const sent = [];
  for (const [n, { method, path, token, body }] of beats((seconds * 1000) / EVERY_MS).entries()) {
    const dueMs = beganMs + n * EVERY_MS;
    await new Promise((resolve) => setTimeout(resolve, dueMs - performance.now()));
    const sentMs = performance.now();
    sent.push(plane.api(method, path, { token, body }).then(({ status }) => {
      if (status !== 200) throw new Error(`a heartbeat got ${status}`);
      return performance.now() - sentMs;
    }));
  }
  return Promise.all(sent);
}

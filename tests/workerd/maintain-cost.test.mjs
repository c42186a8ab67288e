// What retention costs must follow what it removes, never what the store holds: units per removed
// row, for each step, on a store of 1,000 rows a table and on one of 100,000, in the real runtime.
//
//   MAINTAIN_ROWS=1000000 node --test tests/workerd/maintain-cost.test.mjs    a larger one

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { OPERATOR_TOKEN, startPlane } from './harness.mjs';
import { START_MS, SMALL, fill, makeTeam, removeEach } from './kinds.mjs';
import { maintain, maintainAll } from './retention.mjs';

const LARGE = Number(process.env.MAINTAIN_ROWS ?? 100_000);
const IDLE_ROWS_MAX = 60;
const GROWTH_MAX = 1.1;

let plane;
before(async () => {
  plane = await startPlane();
});
after(() => plane?.stop());

/** Fills a store with `stored` rows of each kind, then has each kind's turn come. */
async function measure(stored, t) {
  const where = await makeTeam(plane);
  const settled = await fill(where, stored);
  t.diagnostic(`${stored} rows a table: ${settled.passes} passes over what the seed queued`);
  return removeEach(where);
}

test('units per removed row do not depend on how much is stored', { timeout: 600_000 }, async (t) => {
  const small = await measure(SMALL, t);
  const large = await measure(LARGE, t);

  for (const { idle, last } of [small, large]) {
    for (const { cost, removed } of [idle, last]) {
      assert.deepEqual(removed, {});
      assert.equal(cost.rows_written, 0);
      assert.ok(cost.rows_read <= IDLE_ROWS_MAX, `an idle pass read ${cost.rows_read} rows`);
    }
  }
  t.diagnostic(`idle pass: ${small.last.cost.rows_read} and ${large.last.cost.rows_read} rows read`);
  const grown = [];
  t.diagnostic(`| what goes | rows | units a row at ${SMALL} | at ${LARGE} |`);
  for (const [name, { rows, units, removed }] of small.figures) {
    const other = large.figures.get(name);
    t.diagnostic(`| ${name} | ${rows} | ${units.toFixed(2)} | ${other.units.toFixed(2)} |`);
    assert.ok(rows > 0, `${name}: nothing went`);
    assert.deepEqual(other.removed, removed, name);
    if (other.units > units * GROWTH_MAX) grown.push(`${name}: ${units} → ${other.units}`);
  }
  assert.deepEqual(grown, []);
});

test('an idle pass over 500 teams in one object reads at most 60 rows and writes none', async (t) => {
  const shared = await startPlane({ bindings: { SHARDING: 'server' } });
  try {
    const first = await shared.createTeam('First', { now: START_MS });
    const others = Array.from({ length: 499 }, (_, n) => ({
      method: 'POST',
      path: '/v1/teams',
      token: OPERATOR_TOKEN,
      headers: { 'x-test-now-ms': String(START_MS) },
      body: { name: `Team ${n}`, owner: { name: 'Ada' } },
    }));
    const { results } = await shared.load(others, { concurrency: 4 });
    assert.deepEqual(new Set(results.map(({ status }) => status)), new Set([201]));
    assert.deepEqual(await shared.team('server').query('SELECT count(*) AS n FROM teams'), [{ n: 500 }]);

    const settled = await maintainAll({ plane: shared, ...first }, START_MS);
    const { cost, removed, backlog } = await maintain({ plane: shared, ...first }, START_MS);
    t.diagnostic(`500 teams: ${cost.rows_read} rows read, ${settled.units} units in the first pass`);
    assert.deepEqual([removed, backlog, cost.rows_written], [{}, false, 0]);
    assert.ok(cost.rows_read <= IDLE_ROWS_MAX, `read ${cost.rows_read} rows`);
  } finally {
    await shared.stop();
  }
});

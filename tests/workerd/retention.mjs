// What the tests of retention share: passes, and many rows at once.

import assert from 'node:assert/strict';
import { expectStatus } from './harness.mjs';

const PASSES_MAX = 1_000;

/** Runs one pass. Resolves with what it did. */
export async function maintain({ plane, team, token }, now) {
  const answer = await plane.api('POST', `/v1/teams/${team.id}/maintain`, { token, now });
  expectStatus(200, answer, 'POST /maintain');
  return answer.body.data;
}

/** Runs passes until nothing is left. Resolves with all that they removed and spent. */
export async function maintainAll(where, now) {
  const all = { removed: {}, units: 0, passes: 0, slices: 0 };
  for (;;) {
    assert.ok(all.passes < PASSES_MAX, `a backlog is left after ${PASSES_MAX} passes`);
    const { removed, failed, backlog, cost } = await maintain(where, now);
    assert.deepEqual(failed, []);
    for (const [kind, count] of Object.entries(removed)) {
      all.removed[kind] = (all.removed[kind] ?? 0) + count;
    }
    all.units += cost.units;
    all.slices += cost.slices;
    all.passes += 1;
    if (!backlog) return all;
  }
}

/** A table `(i)` of the numbers from 0 below `count`. */
export function numbers(count) {
  return `(WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < ${count - 1})
           SELECT i FROM n)`;
}

export function sum(removed) {
  return Object.values(removed).reduce((total, count) => total + count, 0);
}

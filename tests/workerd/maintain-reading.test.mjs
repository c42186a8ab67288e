// Whoever reads sees no difference: after retention every version that is left reads the very same
// messages as before, and so does one that somebody was reading.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { startPlane } from './harness.mjs';
import { maintainAll } from './retention.mjs';

const START_MS = 1_900_000_000_000;
const MINUTE_MS = 60_000;
const DAY_MS = 86_400_000;

let plane;
before(async () => {
  plane = await startPlane();
});
after(() => plane?.stop());

const messages = (from, to, word) =>
  Array.from({ length: to - from }, (_, n) => ({ ordinal: from + n, role: 'user', text: `${word} ${from + n}` }));

/** A session of twelve versions: each keeps a part of the one before and goes on from there. */
async function published() {
  const { team, token } = await plane.createTeam('Acme', { now: START_MS });
  const machine = await plane.enrollMachine(team.id, token, { visibility: 'team', now: START_MS });
  const where = { plane, team, token, object: plane.team(team.id) };
  const versions = [];
  let expected = [];
  for (let revision = 1; revision <= 12; revision += 1) {
    // Some appended to, some cut and rewritten, one begun anew.
    const keep = revision === 7 ? 0 : revision % 3 === 0 ? Math.floor(expected.length / 2) : expected.length;
    const sent = messages(keep, keep + 5 + revision, `version ${revision}, message`);
    expected = [...expected.slice(0, keep), ...sent];
    const commit = await plane.publish(team.id, machine.token, {
      messages: sent,
      now: START_MS + revision * MINUTE_MS,
      ...(revision === 1 ? {} : { base: { revision: revision - 1, keep } }),
    });
    assert.equal(commit.revision, revision);
    versions.push({ revision, expected });
    where.session = commit.session_id;
  }
  return { ...where, versions };
}

/** All messages of a version, page by page, or the status that refused it. */
async function read({ team, token, session }, revision, now) {
  const items = [];
  for (let after = ''; ; ) {
    const path = `/v1/teams/${team.id}/sessions/${session}/messages?limit=7&revision=${revision}${after}`;
    const { status, body } = await plane.api('GET', path, { token, now });
    if (status !== 200) return status;
    items.push(...body.items);
    if (items.length === 0 || body.items.length < 7) return items;
    after = `&after=${items.at(-1).ordinal}`;
  }
}

test('the current version reads the same before and after retention, and others are gone', async () => {
  const where = await published();
  const current = where.versions.at(-1);
  const now = START_MS + DAY_MS;
  assert.deepEqual(await read(where, current.revision, START_MS + 13 * MINUTE_MS), current.expected);

  const { removed } = await maintainAll(where, now);
  assert.equal(removed.versions, 11);
  assert.ok(removed.messages > 0);
  assert.deepEqual(await read(where, current.revision, now), current.expected);
  for (const { revision } of where.versions.slice(0, -1)) {
    assert.equal(await read(where, revision, now), 404, `version ${revision}`);
  }
  const [{ rows }] = await where.object.query('SELECT count(*) AS rows FROM messages');
  assert.equal(rows, current.expected.length);
});

test('versions that somebody is reading stay whole for a quarter of an hour', async () => {
  const where = await published();
  const read1 = START_MS + 13 * MINUTE_MS;
  const pinned = [3, 6, 8].map((revision) => where.versions[revision - 1]);
  for (const { revision, expected } of pinned) {
    assert.deepEqual(await read(where, revision, read1), expected);
  }
  await maintainAll(where, read1 + MINUTE_MS);
  const [{ versions }] = await where.object.query('SELECT count(*) AS versions FROM session_versions');
  assert.equal(versions, 4);
  for (const { revision, expected } of [...pinned, where.versions.at(-1)]) {
    assert.deepEqual(await read(where, revision, read1 + 2 * MINUTE_MS), expected, `version ${revision}`);
  }

  const { removed } = await maintainAll(where, read1 + DAY_MS);
  assert.equal(removed.versions, 3);
  assert.deepEqual(await read(where, 12, read1 + DAY_MS), where.versions.at(-1).expected);
  assert.equal(await read(where, 8, read1 + DAY_MS), 404);
});

// What a heartbeat costs, by the platform's own counters: nothing to speak of when nothing changed,
// however much the machine has open.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { startPlane } from './harness.mjs';

const ROWS_MAX = 30;
const STATEMENTS_MAX = 12;

let plane;
before(async () => {
  plane = await startPlane();
});
after(() => plane?.stop());

const list = (count, one) => Array.from({ length: count }, (_, n) => one(n));

async function enrolled() {
  const { team, token } = await plane.createTeam();
  const machine = await plane.enrollMachine(team.id, token);
  const path = `/v1/teams/${team.id}/machines/${machine.machine.id}/heartbeat`;
  const beat = async (body) => {
    const answer = await plane.api('POST', path, { token: machine.token, body });
    const number = (name) => Number(answer.headers.get(`x-test-${name}`));
    const cost = {
      rows: number('rows-read') + number('rows-written'),
      statements: number('statements'),
    };
    return { ...answer, cost };
  };
  return { team, token, machine, beat };
}

const lists = (bindings, roots, activities) => ({
  bindings: list(bindings, (n) => ({ id: `b${n}`, harness: 'codex', native_id: `n${n}` })),
  roots: list(roots, (n) => ({ id: `r${n}`, name: `root ${n}`, harnesses: ['codex'] })),
  activity: list(activities, (n) => ({ harness: 'codex', native_id: `n${n}`, turn: 'agent', since: n })),
});

for (const [name, size] of [
  ['a small machine', [1, 1, 1]],
  ['a machine with all that it may have', [256, 256, 4_096]],
]) {
  test(`a heartbeat of ${name} that changes nothing costs at most ${ROWS_MAX} rows`, async () => {
    const { team, token, beat } = await enrolled();
    const body = { incarnation_id: 'i', ...lists(...size) };
    const first = await beat({ ...body, sequence: 1 });
    assert.equal(first.status, 200, JSON.stringify(first.body));
    for (let sequence = 2; sequence <= 4; sequence += 1) {
      const { status, cost } = await beat({ ...body, sequence });
      assert.equal(status, 200);
      assert.ok(cost.rows > 0 && cost.rows <= ROWS_MAX, JSON.stringify(cost));
      assert.ok(cost.statements <= STATEMENTS_MAX, JSON.stringify(cost));
    }
    // A late one writes nothing at all, and one turn that changed is one row.
    const late = await beat({ ...body, sequence: 4 });
    assert.ok(late.cost.rows <= ROWS_MAX, JSON.stringify(late.cost));
    const [before] = await plane.team(team.id).query('SELECT total_changes() AS n');
    const changed = await beat({
      ...body,
      sequence: 5,
      activity: [...body.activity.slice(1), { ...body.activity[0], turn: 'idle' }],
    });
    assert.equal(changed.status, 200);
    const [after] = await plane.team(team.id).query('SELECT total_changes() AS n');
    assert.ok(after.n - before.n <= 4, `${after.n - before.n} rows changed`);
    const roots = await plane.api('GET', `/v1/teams/${team.id}/machines`, { token });
    assert.equal(roots.status, 200);
  });
}

test('a list above its limit is refused by name and writes nothing', async () => {
  const { beat } = await enrolled();
  const none = { incarnation_id: 'i', sequence: 1, bindings: [], roots: [] };
  for (const [field, body] of [
    ['bindings', { bindings: lists(257, 0, 0).bindings }],
    ['roots', { roots: lists(0, 257, 0).roots }],
    ['activity', { activity: lists(0, 0, 4_097).activity }],
  ]) {
    const answer = await beat({ ...none, ...body });
    assert.equal(answer.status, 400);
    assert.equal(answer.body.error.details.field, field);
  }
});

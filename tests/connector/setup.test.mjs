// From nothing to a team that reads a session: log in, enrol, import, look.

import assert from 'node:assert/strict';
import { statSync, copyFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { startPlane } from '../workerd/harness.mjs';
import { Machine, fixture, readFileSync, rowsOf } from './machine.mjs';

const ID = '1cb000fc-4a11-4fd3-a30d-65e5eccf7d56';

let plane;
let team;
const machines = [];
before(async () => {
  plane = await startPlane();
  team = await plane.createTeam();
});
after(async () => {
  for (const machine of machines) await machine.remove();
  await plane.stop();
});

function newMachine(name, options) {
  const machine = new Machine(plane, team, { name, ...options });
  machines.push(machine);
  return machine;
}

test('a session that was imported is listed, searched, shown and exported as its file has it', async () => {
  const machine = await newMachine('one').setUp();
  const path = machine.file('claude-code', '-work-shop', `${ID}.jsonl`);
  copyFileSync(fixture('claude-code/login-redirect.jsonl'), path);
  // Of a message that is there twice the last counts, where the first was.
  const all = rowsOf(path);
  const rows = all.filter((row, at) => all.findIndex(({ uuid }) => uuid && uuid === row.uuid) >= at || !row.uuid);
  const last = (row) => all.findLast(({ uuid }) => uuid === row.uuid);
  rows.forEach((row, at) => { if (row.uuid) rows[at] = last(row); });

  const imported = await machine.json('import');
  assert.equal(imported.at(-1).totals.published, 1);
  assert.deepEqual((await machine.messages(ID)).map(({ native }) => native), rows);
  assert.deepEqual(await machine.bundle(ID), readFileSync(path));

  const [listed] = await machine.json('sessions', 'list');
  assert.equal(listed.title, all.find(({ type }) => type === 'custom-title').customTitle);
  const [found] = await machine.json('sessions', 'search', 'too', 'many', 'redirects');
  assert.equal(found.id, listed.id);
  const shown = await machine.run('sessions', 'show', listed.id);
  assert.match(shown.stdout, /\[3\] user\nSince the last deploy/);
  const exported = await machine.run('sessions', 'export', listed.id);
  assert.equal(exported.stdout.trim().split('\n').length, rows.length);

  const again = await machine.json('import');
  assert.deepEqual([again.at(-1).totals.published, again.at(-1).totals.unchanged], [0, 1]);
  assert.equal((await machine.session(ID)).revision, 1);
});

test('the fixtures of every harness go up whole', async () => {
  const machine = await newMachine('all').setUp();
  const codex = 'rollout-2026-03-10T09-30-11-019cd715-1cb8-727d-90cb-9cc55e5fda8b.jsonl';
  copyFileSync(fixture('codex/rollout-2026-03-10T09-30-11-bigint-ids.jsonl'), machine.file('codex', '2026/03/10', codex));
  const gemini = machine.file('gemini', 'ledger/chats/session-2026-03-13T11-05-d6a783ed.jsonl');
  copyFileSync(fixture('gemini/session-2026-03-13T11-05-yen-rounding.jsonl'), gemini);
  const imported = await machine.json('import');
  assert.equal(imported.at(-1).totals.published, 2);

  const held = await machine.messages('019cd715-1cb8-727d-90cb-9cc55e5fda8b');
  const copies = ['user_message', 'agent_message', 'agent_reasoning'];
  const wanted = rowsOf(machine.file('codex', '2026/03/10', codex)).filter(({ payload }) => !copies.includes(payload.type));
  assert.deepEqual(held.map(({ native }) => native), wanted);
  const yen = await machine.messages('d6a783ed-17b4-4e48-8964-0a6a8a13efaa');
  assert.ok(yen.length > 3 && yen.every(({ native }) => native.id));
});

test('what is wrong is said, with what to do and an exit code', async () => {
  const machine = newMachine('wrong');
  const enroll = await machine.run('enroll');
  assert.deepEqual([enroll.code, /teamplane login --server/.test(enroll.stderr)], [3, true]);
  const badToken = await machine.run('login', '--server', plane.url, { input: 'nonsense' });
  assert.deepEqual([badToken.code, /tp_user_/.test(badToken.stderr)], [2, true]);
  const [id, rest] = [team.token.slice(0, -4), '0000'];
  const unknown = await machine.run('login', '--server', plane.url, { input: id + rest });
  assert.equal(unknown.code, 4, unknown.stderr);
  const nobody = await machine.run('login', '--server', 'http://127.0.0.1:9', { input: team.token });
  assert.deepEqual([nobody.code, /cannot be reached/.test(nobody.stderr)], [5, true]);
  const usage = await machine.run('sessions', 'show');
  assert.equal(usage.code, 2);
  const asJson = await machine.run('--json', 'enroll');
  assert.equal(JSON.parse(asJson.stdout).error.kind, 'not_set_up');

  await machine.setUp();
  for (const file of ['login.json', 'machine.json']) {
    assert.equal(statSync(join(machine.state, file)).mode & 0o777, 0o600);
  }
  const logout = await machine.json('logout');
  assert.equal(logout[0].machine_revoked, true);
  assert.equal((await machine.run('import')).code, 3);
});

// The connector that runs all day: what the plane holds equals what the files say, whatever happens
// to the files, the connector, the server and the network between them.

import assert from 'node:assert/strict';
import { rename } from 'node:fs/promises';
import { mkdtempSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { startPlane } from '../workerd/harness.mjs';
import { Machine, appendFileSync, claudeRow, jsonLines, readFileSync, readdirSync, rmSync, until, writeFileSync } from './machine.mjs';

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

let count = 0;
async function newMachine(options = {}) {
  const machine = new Machine(plane, team, { name: `laptop ${++count}`, ...options });
  machines.push(machine);
  return machine.setUp();
}

const newId = () => crypto.randomUUID();
const transcript = (machine, id, folder = '-work-shop') => machine.file('claude-code', folder, `${id}.jsonl`);

test('a session that grows is followed, and its native file comes after it', async () => {
  const machine = await newMachine();
  const id = newId();
  const daemon = await machine.start();
  const path = transcript(machine, id);
  const rows = [claudeRow('Fix the login'), claudeRow('Done.', { type: 'assistant' })];
  writeFileSync(path, jsonLines(rows));
  await machine.holds(id, rows);

  for (let turn = 0; turn < 5; turn++) {
    const row = claudeRow(`Turn ${turn}`);
    rows.push(row);
    appendFileSync(path, jsonLines([row]));
    const beganMs = Date.now();
    await machine.holds(id, rows);
    assert.ok(Date.now() - beganMs < 10_000);
  }
  await until(async () => (await machine.bundle(id)).equals(readFileSync(path)));
  const parts = await plane.team(team.team.id).query(
    `SELECT count(*) AS n FROM messages WHERE session_id = ?`, (await machine.session(id)).id);
  assert.equal(parts[0].n, rows.length, 'each message was stored once');
  const activity = (await machine.session(id)).activity;
  assert.equal(activity === null || activity.turn === 'agent', true);

  const { code, signal } = await daemon.kill('SIGTERM');
  assert.deepEqual([code, signal], [0, null]);
  assert.equal(await machine.connection(), 'unlinked', 'a goodbye is heard at once');
});

test('a row that is still being written waits for its end', async () => {
  const machine = await newMachine();
  const id = newId();
  await machine.start();
  const path = transcript(machine, id);
  const [first, second] = [claudeRow('one'), claudeRow('two')];
  const text = JSON.stringify(second);
  writeFileSync(path, jsonLines([first]) + text.slice(0, 40));
  await machine.holds(id, [first]);
  appendFileSync(path, `${text.slice(40)}\n`);
  await machine.holds(id, [first, second]);
});

test('files that are written anew, cut short or moved in are published as they are then', async () => {
  const machine = await newMachine();
  const id = newId();
  await machine.start();
  const path = transcript(machine, id);
  const rows = Array.from({ length: 50 }, (_, at) => claudeRow(`row ${at}`));
  writeFileSync(path, jsonLines(rows));
  await machine.holds(id, rows);

  writeFileSync(path, jsonLines(rows.slice(0, 20)));
  await machine.holds(id, rows.slice(0, 20));

  const others = rows.map((row, at) => (at === 3 ? claudeRow('another') : row));
  const beside = join(machine.home, 'beside');
  writeFileSync(beside, jsonLines(others));
  await rename(beside, path);
  await machine.holds(id, others);

  // The same length, another content.
  const same = jsonLines(others).replace('"row 7"', '"row X"');
  writeFileSync(path, same);
  await machine.holds(id, same.trim().split('\n').map((line) => JSON.parse(line)));
});

test('a folder that appears with files in it is found', async () => {
  const machine = await newMachine();
  await machine.start();
  const ids = [newId(), newId(), newId()];
  const rows = ids.map((id) => [claudeRow(`in ${id}`)]);
  ids.forEach((id, at) => writeFileSync(transcript(machine, id, `-new-${at}/deep`), jsonLines(rows[at])));
  for (const [at, id] of ids.entries()) await machine.holds(id, rows[at]);
});

test('killed at any point, it goes on where it was', async () => {
  const machine = await newMachine();
  const id = newId();
  const path = transcript(machine, id);
  const rows = Array.from({ length: 3_000 }, (_, at) => claudeRow(`row ${at} ${'x'.repeat(600)}`));
  writeFileSync(path, jsonLines(rows));
  // Killed after so many requests of this machine reached the plane.
  for (const parts of [0, 1, 2, 3]) {
    const daemon = machine.spawn('run', '-v');
    await until(async () => {
      const [row] = await plane.team(team.team.id).query(
        `SELECT count(*) AS n FROM captures c WHERE c.source_id = ? AND c.part_count >= ?`,
        machine.account.source_id, parts);
      return row.n > 0 || daemon.child.exitCode !== null;
    }, () => daemon.stderr);
    await daemon.kill('SIGKILL');
    const row = claudeRow(`after kill ${parts}`);
    rows.push(row);
    appendFileSync(path, jsonLines([row]));
  }
  await machine.start();
  await machine.holds(id, rows);
});

test('a commit whose answer was lost is not made twice', async () => {
  const machine = await newMachine();
  const id = newId();
  const path = transcript(machine, id);
  const rows = [claudeRow('one'), claudeRow('two')];
  writeFileSync(path, jsonLines(rows));
  const daemon = await machine.start();
  await machine.holds(id, rows);
  await daemon.kill('SIGKILL');
  const before = await machine.session(id);

  // As a connector leaves it that died between the commit and its own note of it.
  const folder = join(machine.state, 'sessions', machine.account.machine_id);
  const file = readdirSync(folder).map((name) => join(folder, name)).find((name) => readFileSync(name, 'utf8').includes(id));
  const state = JSON.parse(readFileSync(file, 'utf8'));
  const [capture] = await plane.team(team.team.id).query(
    `SELECT id, part_count FROM captures WHERE session_id = ? ORDER BY created_at DESC, id DESC LIMIT 1`, before.id);
  state.pending = { capture_id: capture.id, parts: capture.part_count, then: { ...state.published, revision: 0 } };
  state.published = null;
  state.stamp = null;
  writeFileSync(file, JSON.stringify(state));
  rows.push(claudeRow('three'));
  appendFileSync(path, jsonLines(rows.slice(2)));
  await machine.start();
  await machine.holds(id, rows);
});

test('a state that cannot be read costs a full capture, which changes nothing', async () => {
  const machine = await newMachine();
  const id = newId();
  const path = transcript(machine, id);
  const rows = [claudeRow('one'), claudeRow('two')];
  writeFileSync(path, jsonLines(rows));
  assert.equal((await machine.json('import')).at(-1).totals.published, 1);
  const folder = join(machine.state, 'sessions');
  rmSync(folder, { recursive: true });
  await machine.start();
  rows.push(claudeRow('three'));
  appendFileSync(path, jsonLines(rows.slice(2)));
  await machine.holds(id, rows);
});

test('offline for long, then back: everything that was written meanwhile goes up', async () => {
  const dir = mkdtempSync(join(tmpdir(), 'teamplane-restart-'));
  const own = await startPlane({ persistDir: dir });
  try {
    const its = await own.createTeam();
    const machine = new Machine(own, its, { name: 'roaming' });
    machines.push(machine);
    await machine.setUp();
    const [one, two] = [newId(), newId()];
    const rows = [claudeRow('before')];
    writeFileSync(transcript(machine, one), jsonLines(rows));
    // A fixed port, as a server has.
    const port = new URL(own.url).port;
    const daemon = await machine.start();
    await machine.holds(one, rows);

    await own.stop();
    rows.push(claudeRow('while it was away'));
    appendFileSync(transcript(machine, one), jsonLines(rows.slice(1)));
    const others = [claudeRow('a session that began meanwhile')];
    writeFileSync(transcript(machine, two), jsonLines(others));
    await until(() => /cannot be reached/.test(daemon.stderr), () => daemon.stderr);

    const back = await startPlane({ persistDir: dir, port: Number(port) });
    try {
      machine.plane = back;
      await machine.holds(one, rows);
      await machine.holds(two, others);
      await until(async () => (await machine.connection()) === 'online', () => daemon.stderr);
      assert.equal(daemon.child.exitCode, null);
      await daemon.kill();
    } finally {
      await back.stop();
    }
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
});

test('a machine that is revoked stops, and says what to do', async () => {
  const machine = await newMachine();
  const daemon = await machine.start();
  const path = `${machine.base}/machines/${machine.account.machine_id}`;
  const { body } = await plane.api('GET', path, { token: team.token });
  const headers = { 'if-match': `"${body.data.revision}"` };
  assert.equal((await plane.api('DELETE', path, { token: team.token, headers })).status, 204);
  const { code, stderr } = await daemon.ended;
  assert.equal(code, 4, stderr);
  assert.match(stderr, /enrol again/);
  assert.equal((await machine.run('status')).code, 4);
});

test('a session that was deleted on the plane is left alone, until it is asked for', async () => {
  const machine = await newMachine();
  const [id, other] = [newId(), newId()];
  const daemon = await machine.start();
  const rows = [claudeRow('one')];
  writeFileSync(transcript(machine, id), jsonLines(rows));
  await machine.holds(id, rows);
  const session = await machine.session(id);
  await plane.api('DELETE', `${machine.base}/sessions/${session.id}`, { token: team.token });
  appendFileSync(transcript(machine, id), jsonLines([claudeRow('two')]));
  await until(() => /deleted on the server/.test(daemon.stderr), () => daemon.stderr);
  writeFileSync(transcript(machine, other), jsonLines(rows));
  await machine.holds(other, rows);
  await daemon.kill('SIGTERM');
  assert.equal((await machine.json('status'))[0].stopped, 1);
  const again = await machine.json('import', '--restore', transcript(machine, id));
  assert.equal(again.at(-1).totals.published, 1);
  assert.equal((await machine.messages(id)).length, 2);
});

test('what a rule or this machine excludes is never published', async () => {
  const machine = await newMachine({ config: 'exclude = ["/work/own-secret"]\n[sync]\nquiet_ms = 200\n' });
  const rules = `${machine.base}/machines/${machine.account.machine_id}/rules`;
  const rule = { root_id: 'claude-code', exclude: ['/work/secret'] };
  assert.equal((await plane.api('POST', rules, { token: team.token, body: rule })).status, 201);
  const [kept, secret, own] = [newId(), newId(), newId()];
  const daemon = await machine.start();
  writeFileSync(transcript(machine, secret), jsonLines([claudeRow('x', { cwd: '/work/secret/deep' })]));
  writeFileSync(transcript(machine, own), jsonLines([claudeRow('x'), claudeRow('x', { cwd: '/work/own-secret' })]));
  const rows = [claudeRow('open')];
  writeFileSync(transcript(machine, kept), jsonLines(rows));
  await machine.holds(kept, rows);
  await until(() => daemon.stderr.match(/excluded by/g)?.length >= 2, () => daemon.stderr);
  assert.equal(await machine.session(secret), undefined);
  assert.equal(await machine.session(own), undefined);
});

test('secrets stay on the machine: in messages, in the title and in the native file', async () => {
  const machine = await newMachine();
  const id = newId();
  const secret = `sk-ant-api03-${'aB3'.repeat(20)}`;
  const rows = [claudeRow(`My key is ${secret}`), claudeRow(`\n${secret}`), claudeRow('fine')];
  writeFileSync(transcript(machine, id), jsonLines(rows));
  const imported = await machine.json('import');
  assert.equal(imported.at(-1).totals.secrets_redacted, 2);
  const held = JSON.stringify(await machine.messages(id)) + JSON.stringify(await machine.session(id));
  const bundle = (await machine.bundle(id)).toString();
  assert.ok(!held.includes('aB3aB3') && !bundle.includes('aB3aB3'));
  assert.ok(held.includes('[redacted anthropic-key]') && bundle.includes('[redacted anthropic-key]'));
  assert.equal(bundle.trim().split('\n').map((line) => JSON.parse(line)).length, 3);
});

test('two machines publish side by side, each its own', async () => {
  const [one, two] = [await newMachine(), await newMachine()];
  const id = newId();
  await Promise.all([one.start(), two.start()]);
  const rows = [[claudeRow('of one')], [claudeRow('of two')]];
  writeFileSync(transcript(one, id), jsonLines(rows[0]));
  writeFileSync(transcript(two, id), jsonLines(rows[1]));
  await Promise.all([one.holds(id, rows[0]), two.holds(id, rows[1])]);
});

test('one folder of state has one connector', async () => {
  const machine = await newMachine();
  await machine.start();
  const second = await machine.run('run');
  assert.equal(second.code, 6, second.stderr);
  assert.equal((await machine.run('import')).code, 6);
});

test('another revision than thought is answered by a full capture', async () => {
  const machine = await newMachine();
  const id = newId();
  await machine.start();
  const rows = [claudeRow('one')];
  writeFileSync(transcript(machine, id), jsonLines(rows));
  await machine.holds(id, rows);
  await until(async () => (await machine.bundle(id)).equals(readFileSync(transcript(machine, id))));
  // Somebody publishes under the same origin with the machine's token.
  await plane.publish(team.team.id, machine.account.token, {
    native_id: id, messages: [{ ordinal: 0, role: 'user', text: 'not in the file' }],
  });
  rows.push(claudeRow('two'));
  appendFileSync(transcript(machine, id), jsonLines(rows.slice(1)));
  await machine.holds(id, rows);
});

test('a bundle that retention took is left out, and made again', async () => {
  const machine = await newMachine();
  const id = newId();
  const path = transcript(machine, id);
  const rows = [claudeRow('one')];
  writeFileSync(path, jsonLines(rows));
  await machine.json('import');
  const folder = join(machine.state, 'sessions', machine.account.machine_id);
  const [file] = readdirSync(folder).map((name) => join(folder, name));
  const state = JSON.parse(readFileSync(file, 'utf8'));
  state.bundle.artifacts[0].upload_id = `upload_${'0'.repeat(32)}`;
  writeFileSync(file, JSON.stringify(state));
  rows.push(claudeRow('two'));
  appendFileSync(path, jsonLines(rows.slice(1)));
  await machine.start();
  await machine.holds(id, rows);
  await until(async () => (await machine.bundle(id)).equals(readFileSync(path)));
});

test('the token is renewed before it ends', async () => {
  const own = await startPlane();
  try {
    const its = await own.createTeam();
    const machine = new Machine(own, its, { name: 'renewing' });
    machines.push(machine);
    await machine.setUp();
    const before = machine.account.token;
    const now = Date.now() + 25 * 24 * 3_600_000;
    await own.api('GET', `/v1/teams/${its.team.id}/me`, { token: its.token, now });
    const daemon = machine.spawn('run', '-v');
    await until(() => machine.account.token !== before, () => daemon.stderr);
    const id = newId();
    const rows = [claudeRow('by the new token')];
    writeFileSync(transcript(machine, id), jsonLines(rows));
    await machine.holds(id, rows);
    assert.equal(statSync(join(machine.state, 'machine.json')).mode & 0o777, 0o600);
    await daemon.kill();
  } finally {
    await own.stop();
  }
});

// Machines' links: real WebSockets to the built Worker, and what becomes of them when the object
// sleeps, starts anew or goes away.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { startPlane } from './harness.mjs';

const START_MS = 1_700_000_000_000;
const GRACE_MS = 45_000;
const PING = '{"type":"ping"}';
const MACHINE_EVENTS = "SELECT type FROM org_events WHERE type LIKE 'machine.%' ORDER BY sequence";

let plane;
before(async () => {
  plane = await startPlane();
});
after(() => plane.stop());

/** A team with an enrolled machine, whose object has a test's clock unless `now` is null. */
async function makeTeam(on = plane, now = START_MS) {
  const time = now === null ? {} : { now };
  const made = await on.createTeam('Acme', time);
  const laptop = await on.enrollMachine(made.team.id, made.token, time);
  return new Linked(on, made, laptop);
}

class Linked {
  constructor(on, { team, token }, laptop) {
    Object.assign(this, { on, team, token, laptop, hooks: on.team(team.id) });
    this.base = `/v1/teams/${team.id}`;
  }

  async enroll(name) {
    return this.on.enrollMachine(this.team.id, this.token, { name });
  }

  /** Opens a machine's link. */
  async open({ machine, token } = this.laptop, now) {
    const socket = await this.on.connect(`${this.base}/machines/${machine.id}/link`, { token, now });
    assert.equal(socket.status, undefined, JSON.stringify(socket.body));
    return socket;
  }

  async connection({ machine } = this.laptop, now) {
    const answer = await this.on.api('GET', `${this.base}/machines/${machine.id}`, { token: this.token, now });
    return answer.body.data.connection;
  }

  /** Runs the retention pass at that time. */
  async pass(now) {
    const answer = await this.on.api('POST', `${this.base}/maintain`, { token: this.token, now, body: {} });
    assert.equal(answer.status, 200);
  }

  async events() {
    const rows = await this.hooks.query(MACHINE_EVENTS);
    return rows.map(({ type }) => type).filter((type) => type !== 'machine.enrolled');
  }

  async presence({ machine } = this.laptop) {
    const [row] = await this.hooks.query(
      'SELECT linked, lost_at FROM machine_presence WHERE machine_id = ?', machine.id);
    return row;
  }

  /** Waits until the object has heard of a close. */
  async heardOfLoss(machine) {
    await until(async () => {
      const { linked, lost_at } = (await this.presence(machine)) ?? { linked: 0 };
      return linked === 0 || lost_at !== null;
    });
  }
}

async function until(holds) {
  for (let tries = 0; tries < 400; tries++) {
    if (await holds()) return;
    await sleep(10);
  }
  assert.fail('it did not come about');
}

const heartbeat = (sequence) => ({
  type: 'heartbeat', incarnation_id: 'i1', sequence, bindings: [], roots: [],
});

test('a machine is linked from its link on, and heartbeats by it are acknowledged', async () => {
  const linked = await makeTeam();
  assert.equal(await linked.connection(), 'offline');
  const link = await linked.open();
  assert.equal(await linked.connection(), 'online');

  link.send(heartbeat(1));
  const { type, machine, watched, unbound_bindings } = await link.next();
  assert.equal(type, 'heartbeat_ack');
  assert.equal(machine.id, linked.laptop.machine.id);
  assert.equal(machine.incarnation_id, 'i1');
  assert.deepEqual([watched, unbound_bindings], [[], []]);
  assert.deepEqual(await linked.events(), ['machine.online']);
  link.break();
});

test('a request that may not open a link is answered as any other', async () => {
  const linked = await makeTeam();
  const path = `${linked.base}/machines/${linked.laptop.machine.id}/link`;
  const { token } = linked.laptop;

  const plain = await plane.api('GET', path, { token });
  assert.equal(plain.status, 426);
  assert.equal(plain.body.error.code, 'upgrade_required');
  const other = await plane.connect(path, { token: linked.token });
  assert.deepEqual([other.status, other.body.error.code], [403, 'forbidden']);
  const none = await plane.connect(path);
  assert.deepEqual([none.status, none.body.error.code], [401, 'unauthenticated']);
  // An upgrade that no route asks for is not made.
  const me = await plane.connect(`${linked.base}/me`, { token });
  assert.equal(me.status, 200);
  assert.deepEqual(await linked.events(), []);
});

test('a ping is answered without the core', async () => {
  const linked = await makeTeam();
  const link = await linked.open();
  await linked.hooks.resetCounts();
  for (let n = 0; n < 3; n++) {
    link.send(PING);
    assert.deepEqual(await link.next(), { type: 'pong' });
  }
  assert.equal((await linked.hooks.counts()).statements, 0);
  link.break();
});

test('a newer link replaces the older, whose late close changes nothing', async () => {
  const linked = await makeTeam();
  const older = await linked.open();
  const newer = await linked.open();
  assert.equal((await older.closed).code, 4001);
  newer.send(PING);
  await newer.next();
  await linked.pass(START_MS + GRACE_MS + 1_000);

  assert.deepEqual(await linked.presence(), { linked: 1, lost_at: null });
  assert.deepEqual(await linked.events(), ['machine.online']);
  newer.send(heartbeat(1));
  assert.equal((await newer.next()).type, 'heartbeat_ack');
  newer.break();
});

test('a link that broke has its grace, a goodbye none', async () => {
  const linked = await makeTeam();
  (await linked.open()).break();
  await linked.heardOfLoss();
  await linked.pass(START_MS + GRACE_MS - 1);
  assert.deepEqual(await linked.events(), ['machine.online']);
  const link = await linked.open();
  assert.deepEqual(await linked.presence(), { linked: 1, lost_at: null });

  link.close(1000, 'done');
  assert.equal((await link.closed).code, 1000);
  await linked.heardOfLoss();
  assert.deepEqual(await linked.events(), ['machine.online', 'machine.unlinked']);

  (await linked.open()).break();
  await linked.heardOfLoss();
  await linked.pass(START_MS + 2 * GRACE_MS);
  await linked.pass(START_MS + 3 * GRACE_MS);
  assert.deepEqual((await linked.events()).slice(2), ['machine.online', 'machine.unlinked']);
});

test('a frame that is malformed or too large ends the link with the reason', async () => {
  const linked = await makeTeam();
  for (const [frame, code, reason] of [
    ['{', 1007, /JSON/],
    [{ type: 'dance' }, 1007, /^type: /],
    [{ ...heartbeat(1), sequence: 0 }, 1007, /^sequence: /],
    [new Uint8Array(4), 1007, /text/],
    [' '.repeat((1 << 20) + 1), 1009, /1048576/],
    [' '.repeat((32 << 20) + 1), 1009, /./],
  ]) {
    const link = await linked.open();
    link.send(frame);
    const closed = await link.closed;
    assert.equal(closed.code, code);
    assert.match(closed.reason, reason);
    await linked.heardOfLoss();
  }
  // The grace began; the next link ended it, as before each.
  assert.deepEqual(await linked.events(), ['machine.online']);
  assert.equal(await linked.connection(), 'online');
});

test('a revoked credential closes its links before the revocation is answered', async () => {
  const linked = await makeTeam();
  const desktop = await linked.enroll('desktop');
  const [laptops, desktops] = [await linked.open(), await linked.open(desktop)];
  const list = await plane.api('GET', `${linked.base}/credentials`, { token: linked.laptop.token });
  const path = `${linked.base}/credentials/${list.body.items[0].id}`;
  assert.equal((await plane.api('DELETE', path, { token: linked.token })).status, 204);

  assert.deepEqual(await linked.presence(), { linked: 1, lost_at: START_MS });
  assert.equal((await laptops.closed).code, 4401);
  desktops.send(heartbeat(1));
  // Authority has changed, and with it what its machine works by.
  assert.equal((await desktops.next()).type, 'configuration_changed');
  assert.equal((await desktops.next()).type, 'heartbeat_ack');

  // Another change of authority leaves it alone; its machine's end does not.
  await plane.addMember(linked.team.id, linked.token);
  assert.equal((await desktops.next()).type, 'configuration_changed');
  desktops.send(PING);
  assert.equal((await desktops.next()).type, 'pong');
  const machine = `${linked.base}/machines/${desktop.machine.id}`;
  await plane.api('DELETE', machine, { token: linked.token, headers: { 'if-match': '*' } });
  assert.equal((await desktops.closed).code, 4401);
  assert.equal(await linked.presence(desktop), undefined);
});

test('enrolling a machine again closes the link of its old token', async () => {
  const linked = await makeTeam();
  const link = await linked.open();
  const body = { name: 'laptop', enrollment_key: 'key of laptop' };
  const again = await plane.api('POST', `${linked.base}/machines`, { token: linked.token, body });
  assert.equal(again.status, 200);
  assert.equal((await link.closed).code, 4401);

  const newer = await linked.open({ ...linked.laptop, token: again.body.data.credential.token });
  assert.deepEqual(await linked.presence(), { linked: 1, lost_at: null });
  newer.break();
});

test('deleting the team closes its links', async () => {
  const linked = await makeTeam();
  const link = await linked.open();
  const deleted = await plane.api('DELETE', linked.base, { token: linked.token, body: { confirm: 'Acme' } });
  assert.equal(deleted.status, 202);
  assert.equal((await link.closed).code, 4401);
});

test('an expired credential closes its link at the alarm', async () => {
  const linked = await makeTeam(plane, null);
  const expiresAt = Date.now() + 1_500;
  await linked.hooks.query(
    "UPDATE credentials SET expires_at = ? WHERE kind = 'machine' RETURNING id", expiresAt);
  const link = await linked.open();
  assert.ok((await linked.hooks.alarmAt()) <= Date.now() + 60_000);
  await linked.hooks.runAlarm();
  assert.ok((await linked.hooks.alarmAt()) <= expiresAt);

  assert.equal((await link.closed).code, 4401);
  assert.notEqual((await linked.presence()).lost_at, null);
});

test('a broken link brings the alarm forward to the end of its grace', async () => {
  const linked = await makeTeam(plane, null);
  const link = await linked.open();
  link.break();
  await linked.heardOfLoss();
  await until(async () => (await linked.hooks.alarmAt()) <= Date.now() + GRACE_MS);
  assert.deepEqual(await linked.events(), ['machine.online']);
});

test('a restart flips nobody whose link comes back in time', async () => {
  const linked = await makeTeam();
  const desktop = await linked.enroll('desktop');
  await linked.open();
  await linked.open(desktop);
  await plane.restart();

  // Whatever comes first begins the grace.
  await linked.connection(undefined, START_MS + 10_000);
  assert.deepEqual(await linked.presence(), { linked: 1, lost_at: START_MS + 10_000 });
  for (const at of [20_000, 30_000, 40_000]) {
    await linked.hooks.abort();
    await sleep(20);
    await linked.pass(START_MS + at);
  }
  assert.deepEqual(await linked.presence(), { linked: 1, lost_at: START_MS + 10_000 });
  const link = await linked.open(undefined, START_MS + 50_000);
  await linked.pass(START_MS + 10_000 + GRACE_MS + 1_000);
  await linked.pass(START_MS + 10_000 + GRACE_MS + 60_000);

  const online = 'machine.online';
  assert.deepEqual(await linked.events(), [online, online, 'machine.unlinked']);
  assert.deepEqual(await linked.presence(), { linked: 1, lost_at: null });
  assert.equal((await linked.presence(desktop)).linked, 0);
  link.break();
});

test('fifty links that break are all back without a heartbeat or an event', async () => {
  const linked = await makeTeam();
  const machines = [];
  for (let n = 0; n < 50; n++) machines.push(await linked.enroll(`machine ${n}`));
  for (const link of await Promise.all(machines.map((machine) => linked.open(machine)))) link.break();
  await Promise.all(machines.map((machine) => linked.heardOfLoss(machine)));
  const links = await Promise.all(machines.map((machine) => linked.open(machine)));
  await linked.pass(START_MS + GRACE_MS);

  const list = await plane.api('GET', `${linked.base}/machines?limit=200`, { token: linked.token });
  const online = list.body.items.filter(({ connection }) => connection === 'online');
  assert.equal(online.length, 50);
  assert.equal((await linked.events()).length, 50);
  for (const link of links) link.break();
});

test('links stay while the object sleeps, and pings do not wake it', async () => {
  const sleeper = await startPlane({ evicts: true });
  try {
    const linked = await makeTeam(sleeper);
    const link = await linked.open();
    await linked.pass(START_MS + 1_000);
    const { statements } = await linked.hooks.counts();
    await sleep(11_500);
    link.send(PING);
    assert.deepEqual(await link.next(), { type: 'pong' });
    link.send(heartbeat(1));
    assert.equal((await link.next()).type, 'heartbeat_ack');

    // The counters are a new instance's.
    assert.ok((await linked.hooks.counts()).statements < statements);
    assert.deepEqual(await linked.presence(), { linked: 1, lost_at: null });
    assert.deepEqual(await linked.events(), ['machine.online']);
    const newer = await linked.open();
    assert.equal((await link.closed).code, 4001);
    newer.break();
  } finally {
    await sleeper.stop();
  }
});

// Following a session, and what goes down the links of machines: effects, continuations, changes.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { startPlane } from './harness.mjs';

const START_MS = 1_700_000_000_000;
const DAY_MS = 86_400_000;
const PING = '{"type":"ping"}';

let plane;
before(async () => {
  plane = await startPlane();
});
after(() => plane.stop());

/** A team with an enrolled machine that has published a session. */
async function world(on = plane) {
  const { team, token } = await on.createTeam('Acme', { now: START_MS });
  const laptop = await on.enrollMachine(team.id, token);
  const w = Object.assign(new World(), { on, team, token, laptop, base: `/v1/teams/${team.id}` });
  w.hooks = on.team(team.id);
  w.session = (await w.publish('Fix it')).session_id;
  return w;
}

class World {
  sequence = 0;

  publish(text) {
    return this.on.publish(this.team.id, this.laptop.token, {
      native_id: 'n1', messages: [{ ordinal: 0, role: 'user', text }],
    });
  }

  async call(method, path, body, { token = this.token, status, ...options } = {}) {
    const answer = await this.on.api(method, `${this.base}${path}`, { token, body, ...options });
    if (status) assert.equal(answer.status, status, JSON.stringify(answer.body));
    return answer.body?.data ?? answer.body;
  }

  async link(machine = this.laptop) {
    const path = `${this.base}/machines/${machine.machine.id}/link`;
    const socket = await this.on.connect(path, { token: machine.token });
    assert.equal(socket.status, undefined, JSON.stringify(socket.body));
    return socket;
  }

  follow(token = this.token, session = this.session) {
    return this.on.stream(`${this.base}/sessions/${session}/follow`, { token });
  }

  heartbeat(more = {}) {
    return {
      type: 'heartbeat', incarnation_id: 'i1', sequence: ++this.sequence, bindings: [], roots: [], ...more,
    };
  }

  ask(input = { text: 'Go on' }, machine = this.laptop) {
    return this.call('POST', `/machines/${machine.machine.id}/operations`, { kind: 'message', input }, { status: 202 });
  }
}

/** All that the server has sent on a link before now. */
async function sent(link) {
  link.send(PING);
  const frames = [];
  for (let frame; (frame = await link.next()).type !== 'pong'; ) frames.push(frame);
  return frames;
}

async function until(holds) {
  for (let tries = 0; tries < 500; tries++) {
    if (await holds()) return;
    await sleep(10);
  }
  assert.fail('it did not come about');
}

test('a follower hears of versions, activity and what the agent says', async () => {
  const w = await world();
  const link = await w.link();
  const stream = await w.follow();
  assert.deepEqual(await stream.next(), { event: 'version', data: { session_id: w.session, revision: 1 } });
  const watch = { type: 'watch', harness: 'claude-code', native_id: 'n1' };
  assert.deepEqual(await link.next(), { ...watch, on: true });

  const at = { harness: 'claude-code', native_id: 'n1' };
  link.send({ type: 'live', ...at, turn: 'assistant', text: 'Looking ' });
  link.send({ type: 'live', ...at, native_id: 'other', text: 'not theirs' });
  link.send({ type: 'live', ...at, text: 'around\n' });
  assert.deepEqual(await stream.next(), { event: 'live', data: { text: 'Looking ' } });
  assert.deepEqual(await stream.next(), { event: 'live', data: { text: 'around\n' } });

  link.send(w.heartbeat({ activity: [{ ...at, turn: 'assistant', since: 5 }] }));
  const acknowledged = await link.next();
  assert.deepEqual(acknowledged.watched, [at]);
  assert.deepEqual(await stream.next(), { event: 'activity', data: { turn: 'assistant', since: 5 } });
  link.send(w.heartbeat({ activity: [] }));
  assert.deepEqual(await stream.next(), { event: 'activity', data: { turn: null, since: null } });
  await link.next();

  const { revision } = await w.publish('Fixed');
  assert.deepEqual(await stream.next(), { event: 'version', data: { session_id: w.session, revision } });
  // What is said is kept nowhere: the next follower hears nothing of it.
  const second = await w.follow();
  assert.deepEqual(await second.next(), { event: 'version', data: { session_id: w.session, revision } });
  second.break();
  stream.break();
  for (let n = 0; (await w.hooks.sockets()) > 1; n++) link.send({ type: 'live', ...at, text: `${n}` });
  const frames = await sent(link);
  assert.deepEqual(frames, [{ ...watch, on: false }]);
  const beaten = await w.call('POST', `/machines/${w.laptop.machine.id}/heartbeat`,
    { ...w.heartbeat(), type: undefined }, { token: w.laptop.token, status: 200 });
  assert.deepEqual(beaten.watched, []);
  link.break();
});

test('a machine that links later is told what is followed', async () => {
  const w = await world();
  const stream = await w.follow();
  const desktop = await plane.enrollMachine(w.team.id, w.token, { name: 'desktop' });
  assert.deepEqual(await sent(await w.link(desktop)), []);
  assert.deepEqual(await sent(await w.link()), [
    { type: 'watch', harness: 'claude-code', native_id: 'n1', on: true },
  ]);
  stream.break();
});

test('following ends with the session, the access and the credential', async () => {
  const w = await world();
  const grace = await plane.addMember(w.team.id, w.token);
  const hidden = await w.follow(grace.token);
  assert.deepEqual([hidden.status, hidden.body.error.code], [404, 'not_found']);
  const json = await plane.stream(`${w.base}/sessions/${w.session}/follow`,
    { token: w.token, headers: { accept: 'application/json' } });
  assert.deepEqual([json.status, json.body.error.code], [406, 'not_acceptable']);

  const grant = `/sessions/${w.session}/grants/principal/${grace.member.principal_id}`;
  const end = { event: 'end', data: { session_id: w.session } };
  await w.call('PUT', grant, { access: 'read' }, { status: 200 });
  const shared = await w.follow(grace.token);
  const own = await w.follow();
  await Promise.all([shared.next(), own.next()]);
  await w.call('DELETE', grant, undefined, { status: 204 });
  assert.deepEqual(await shared.next(), end);
  await shared.ended;

  await w.call('PUT', grant, { access: 'read' }, { status: 200 });
  const again = await w.follow(grace.token);
  await again.next();
  await w.call('DELETE', `/members/${grace.member.principal_id}`, undefined, { status: 204 });
  await again.ended;
  assert.equal(again.unread, 0);

  await w.call('DELETE', `/sessions/${w.session}`, undefined, { status: 204 });
  assert.deepEqual(await own.next(), end);
  await own.ended;
});

test('an effect goes down the link, and its answer counts once', async () => {
  const w = await world();
  const events = await plane.stream(`${w.base}/events`, { token: w.token });
  const link = await w.link();
  const input = { text: 'Go on', big: 1.5 };
  const operation = await w.ask(input);
  const { created_at, ...effect } = await link.next();
  assert.deepEqual(effect, {
    type: 'effect', effect_id: operation.effects[0].id, operation_id: operation.id,
    kind: 'message', binding_id: null, input,
  });
  assert.equal(created_at, operation.created_at);
  const { effect_id } = effect;

  link.send({ type: 'effect_result', effect_id, state: 'succeeded', result: { done: true } });
  // Again, otherwise, and of an effect that is none of its own: nothing comes of it.
  link.send({ type: 'effect_result', effect_id, state: 'succeeded', result: { done: true } });
  link.send({ type: 'effect_result', effect_id, state: 'failed', error: { message: 'no' } });
  link.send({ type: 'effect_result', effect_id: `effect_${'0'.repeat(32)}`, state: 'failed' });
  assert.deepEqual(await sent(link), []);
  const path = `/machines/${w.laptop.machine.id}/effects/${effect_id}`;
  await w.call('POST', path, { state: 'succeeded', result: { done: true } }, { token: w.laptop.token, status: 200 });
  await w.call('POST', path, { state: 'failed' }, { token: w.laptop.token, status: 409 });

  const { state, effects } = await w.call('GET', `/operations/${operation.id}`);
  assert.deepEqual([state, effects[0].state, effects[0].result], ['succeeded', 'succeeded', { done: true }]);
  const states = [];
  while (states.at(-1) !== 'succeeded') {
    const event = await events.next();
    if (event.event === 'operation.changed') states.push(event.data.data.state);
  }
  assert.deepEqual(states, ['pending', 'succeeded']);
  events.break();

  link.send({ type: 'effect_result', effect_id, state: 'done' });
  assert.match((await link.closed).reason, /^state/);
});

test('effects wait for a link, for a day, and are sent again until they are answered', async () => {
  const w = await world();
  const operations = [];
  for (let n = 0; n < 40; n++) operations.push(await w.ask({ n }));
  const link = await w.link();
  const first = await sent(link);
  assert.deepEqual(first.map(({ type }) => type), Array(16).fill('effect'));
  // One that is asked now comes after those that wait, which follow the link's next frames.
  operations.push(await w.ask({ n: 40 }));
  const all = [...first];
  while (all.length < 41) {
    link.send({ type: 'effect_result', effect_id: all.at(-1).effect_id, state: 'succeeded' });
    all.push(...(await sent(link)));
  }
  assert.deepEqual(new Set(all.map(({ effect_id }) => effect_id)).size, 41);
  operations.push(await w.ask({ n: 41 }));
  assert.equal((await sent(link))[0].input.n, 41);
  link.break();

  const answered = await w.hooks.query("SELECT count(*) AS n FROM native_effects WHERE state = 'succeeded'");
  const again = await w.link();
  const rest = await sent(again);
  while (rest.length < 42 - answered[0].n) {
    again.send(w.heartbeat());
    rest.push(...(await sent(again)).filter(({ type }) => type === 'effect'));
  }
  assert.equal(new Set(rest.map(({ effect_id }) => effect_id)).size, 42 - answered[0].n);
  again.break();

  await w.call('POST', '/maintain', {}, { now: START_MS + DAY_MS + 1_000, status: 200 });
  assert.deepEqual((await sent(await w.link())).filter(({ type }) => type === 'effect'), []);
  assert.equal((await w.call('GET', `/operations/${operations.at(-1).id}`)).state, 'unknown');
});

test('a machine hears of continuations for it and of what it works by', async () => {
  const w = await world();
  const [desktop, member] = await Promise.all([
    plane.enrollMachine(w.team.id, w.token, { name: 'desktop' }),
    plane.addMember(w.team.id, w.token),
  ]);
  const [laptops, desktops] = [await w.link(), await w.link(desktop)];
  const { id } = await w.call('POST', `/sessions/${w.session}/continuations`,
    { machine_id: desktop.machine.id }, { status: 201 });
  assert.deepEqual(await sent(desktops), [{ type: 'continuation', id }]);
  assert.deepEqual(await sent(laptops), []);
  await w.call('POST', `/sessions/${w.session}/continuations`, {}, { status: 201 });
  assert.deepEqual(await sent(desktops), []);

  const changed = [{ type: 'configuration_changed' }];
  const rules = `/machines/${w.laptop.machine.id}/rules`;
  const rule = await w.call('POST', rules, { root_id: 'r' }, { status: 201 });
  assert.deepEqual([await sent(laptops), await sent(desktops)], [changed, []]);
  await w.call('PATCH', `${rules}/${rule.id}`, { state: 'paused' }, { status: 200 });
  assert.deepEqual(await sent(laptops), changed);
  await w.call('PATCH', `${rules}/${rule.id}`, { state: 'paused' }, { status: 200 });
  assert.deepEqual(await sent(laptops), []);
  await w.call('DELETE', `${rules}/${rule.id}`, undefined, { status: 204 });
  assert.deepEqual(await sent(laptops), changed);

  await w.call('PATCH', `/sources/${w.laptop.source.id}`, { state: 'paused' }, { status: 200 });
  assert.deepEqual([await sent(laptops), await sent(desktops)], [changed, []]);
  await w.call('PATCH', `/members/${member.member.principal_id}`, { role: 'viewer' }, { status: 200 });
  assert.deepEqual([await sent(laptops), await sent(desktops)], [changed, changed]);

  // What it has not heard it hears when it links.
  desktops.break();
  const again = await w.link(desktop);
  assert.deepEqual(await sent(again), [{ type: 'continuation', id }]);
  await w.call('POST', `/continuations/${id}/accept`, {}, { token: desktop.token, status: 200 });
  assert.deepEqual(await sent(again), []);
});

test('followers and links go on after the object has slept', async () => {
  const sleeper = await startPlane({ evicts: true });
  try {
    const w = await world(sleeper);
    const link = await w.link();
    const stream = await w.follow();
    await Promise.all([stream.next(), link.next()]);
    const before = await w.hooks.instances();
    await sleep(11_500);
    link.send({ type: 'live', harness: 'claude-code', native_id: 'n1', text: 'Awake' });
    assert.deepEqual(await stream.next(), { event: 'live', data: { text: 'Awake' } });
    assert.equal(await w.hooks.instances(), before + 1);
    await w.ask();
    assert.equal((await link.next()).type, 'effect');
    const { revision } = await w.publish('More');
    assert.deepEqual((await stream.next()).data.revision, revision);
    stream.break();
    await until(async () => {
      link.send({ type: 'live', harness: 'claude-code', native_id: 'n1', text: 'x' });
      return (await w.hooks.sockets()) === 1;
    });
    assert.equal((await sent(link)).at(-1).on, false);
    link.break();
  } finally {
    await sleeper.stop();
  }
});

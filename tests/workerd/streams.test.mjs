// Streams of server-sent events: the Worker holds their responses, the object sleeps meanwhile.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { startPlane } from './harness.mjs';

const START_MS = 1_700_000_000_000;

let plane;
before(async () => {
  plane = await startPlane();
});
after(() => plane.stop());

class Watched {
  static async make(on = plane, now = START_MS) {
    const time = now === null ? {} : { now };
    const { team, token } = await on.createTeam('Acme', time);
    return Object.assign(new Watched(), {
      on, team, token, base: `/v1/teams/${team.id}`, hooks: on.team(team.id),
    });
  }

  async stream(query = '', { token = this.token, headers, path = '/events' } = {}) {
    const stream = await this.on.stream(`${this.base}${path}${query}`, { token, headers });
    assert.equal(stream.status, undefined, JSON.stringify(stream.body));
    return stream;
  }

  /** Makes one event, and answers the name of its group. */
  async group(name) {
    const answer = await this.on.api('POST', `${this.base}/groups`, { token: this.token, body: { name } });
    assert.equal(answer.status, 201, JSON.stringify(answer.body));
    return answer.body.data;
  }

  async get(path, options) {
    const answer = await this.on.api('GET', `${this.base}${path}`, { token: this.token, ...options });
    return answer.body;
  }

  async last() {
    return (await this.get('/events?limit=200')).last;
  }
}

async function until(holds) {
  for (let tries = 0; tries < 500; tries++) {
    if (await holds()) return;
    await sleep(10);
  }
  assert.fail('it did not come about');
}

/** The next group event of a stream. */
async function nextGroup(stream) {
  for (;;) {
    const event = await stream.next();
    if (event === undefined || event.event === 'group.changed') return event;
  }
}

test('a stream replays the log and goes on with what comes, each event once', async () => {
  const watched = await Watched.make();
  for (let n = 0; n < 150; n++) await watched.group(`before ${n}`);
  const stream = await watched.stream();
  assert.equal(stream.headers.get('content-type'), 'text/event-stream');
  assert.equal(stream.headers.get('cache-control'), 'no-store');
  // While it replays, more comes.
  for (let n = 0; n < 20; n++) await watched.group(`after ${n}`);

  const all = [];
  for (let after = '0'; ; ) {
    const page = await watched.get(`/events?limit=200&after=${after}`);
    if (page.items.length === 0) break;
    all.push(...page.items);
    after = page.last;
  }
  const events = await stream.take(all.length);
  assert.deepEqual(events.map(({ data }) => data), all);
  assert.deepEqual(events.map(({ id }) => id), all.map(({ position }) => position));
  assert.deepEqual(events.map(({ event }) => event), all.map(({ type }) => type));
  assert.equal(stream.unread, 0);
  stream.break();
});

test('a stream goes on behind its position, and the header is where its reader was', async () => {
  const watched = await Watched.make();
  await watched.group('one');
  const after = await watched.last();
  await watched.group('two');
  const [epoch] = after.split('.');

  const stream = await watched.stream(`?after=${after}`);
  assert.equal((await stream.next()).data.data.name, 'two');
  const second = stream.lastId;
  await watched.group('three');
  assert.equal((await stream.next()).data.data.name, 'three');
  stream.break();

  // A browser's reader opens the same address again.
  const again = await watched.stream(`?after=${after}`, { headers: { 'last-event-id': second } });
  assert.equal((await again.next()).data.data.name, 'three');
  again.break();
  const newest = await watched.stream(`?after=${await watched.last()}`);
  await watched.group('four');
  assert.equal((await newest.next()).data.data.name, 'four');
  newest.break();

  const open = (query, headers) => plane.stream(`${watched.base}/events${query}`, { token: watched.token, headers });
  const future = await open(`?after=${epoch}.999999`);
  assert.deepEqual([future.status, future.body.error.code], [400, 'invalid_cursor']);
  const malformed = await open('', { 'last-event-id': 'x' });
  assert.deepEqual([malformed.status, malformed.body.error.details.field], [400, 'Last-Event-ID']);
  const ofOther = await open('?after=00000000.1');
  assert.deepEqual([ofOther.status, ofOther.body.error.code], [410, 'events_pruned']);
  assert.equal(ofOther.body.error.details.resume_from, `${epoch}.0`);
  const html = await open('', { accept: 'text/html' });
  assert.deepEqual([html.status, html.body.error.code], [406, 'not_acceptable']);
});

test('presence is streamed too, and each topic wakes only its own watchers', async () => {
  const watched = await Watched.make();
  const laptop = await plane.enrollMachine(watched.team.id, watched.token);
  const presence = await watched.stream('', { path: '/machines/events' });
  const link = await plane.connect(`${watched.base}/machines/${laptop.machine.id}/link`, { token: laptop.token });
  const { event, id, data } = await presence.next();
  assert.deepEqual([event, data.machine_id, data.linked], ['machine.online', laptop.machine.id, true]);
  assert.equal(id, data.position);
  await watched.group('of no interest');
  link.close(1000);
  assert.equal((await presence.next()).event, 'machine.unlinked');
  assert.equal(presence.unread, 0);
  presence.break();
});

test('a watcher sees what it may, asked again as that changes', async () => {
  const watched = await Watched.make();
  const grace = await plane.addMember(watched.team.id, watched.token);
  const laptop = await plane.enrollMachine(watched.team.id, watched.token);
  const stream = await watched.stream(`?after=${await watched.last()}`, { token: grace.token });
  const publish = (text) =>
    plane.publish(watched.team.id, laptop.token, { messages: [{ ordinal: 0, role: 'user', text }] });
  const { session_id } = await publish('secret');
  await watched.group('for all');
  assert.equal((await stream.next()).event, 'group.changed');

  const grant = `${watched.base}/sessions/${session_id}/grants/principal/${grace.member.principal_id}`;
  const given = await plane.api('PUT', grant, { token: watched.token, body: { access: 'read' } });
  assert.equal(given.status, 200, JSON.stringify(given.body));
  await publish('shared');
  const taken = await plane.api('DELETE', grant, { token: watched.token });
  assert.equal(taken.status, 204);
  await publish('secret again');
  await watched.group('the end');
  const seen = [];
  for (let event; event?.data.data.name !== 'the end'; seen.push(event.event)) event = await stream.next();
  assert.equal(seen.filter((type) => type === 'session.updated').length, 1, seen.join());
  stream.break();
});

test('a stream ends with the credential, within the request that ends it', async () => {
  const watched = await Watched.make();
  const names = ['revoked', 'removed', 'inactive', 'stays'];
  const members = await Promise.all(
    names.map((name) => plane.addMember(watched.team.id, watched.token, { name })));
  const streams = [];
  for (const { token } of members) streams.push(await watched.stream(`?after=${await watched.last()}`, { token }));
  const over = (index) =>
    Promise.race([streams[index].ended.then(() => true), sleep(3_000).then(() => false)]);
  const list = await watched.get('/credentials', { token: members[0].token });
  const call = (method, path, body) => plane.api(method, `${watched.base}${path}`, { token: watched.token, body });

  assert.equal((await call('DELETE', `/credentials/${list.items[0].id}`)).status, 204);
  assert.ok(await over(0));
  assert.equal((await call('DELETE', `/members/${members[1].member.principal_id}`)).status, 204);
  assert.ok(await over(1));
  const inactive = await call('PATCH', `/members/${members[2].member.principal_id}`, { active: false });
  assert.equal(inactive.status, 200);
  assert.ok(await over(2));

  await watched.group('still here');
  assert.equal((await nextGroup(streams[3])).data.data.name, 'still here');
  await call('DELETE', '', { confirm: 'Acme' });
  assert.ok(await over(3));
});

test('an expired credential ends its streams at the alarm', async () => {
  const watched = await Watched.make(plane, null);
  const grace = await plane.addMember(watched.team.id, watched.token);
  const expiresAt = Date.now() + 1_500;
  await watched.hooks.query('UPDATE credentials SET expires_at = ? WHERE principal_id = ? RETURNING id',
    expiresAt, grace.member.principal_id);
  const stream = await watched.stream('', { token: grace.token });
  await until(async () => (await watched.hooks.alarmAt()) <= expiresAt);
  await stream.ended;
});

test('a wipe ends the streams of the old epoch', async () => {
  const watched = await Watched.make();
  const stream = await watched.stream();
  const wiped = await plane.api('POST', `${watched.base}/wipe`, { token: watched.token, body: { confirm: 'Acme' } });
  assert.equal(wiped.status, 200);
  await stream.ended;
  const headers = { 'last-event-id': stream.lastId };
  const again = await plane.stream(`${watched.base}/events`, { token: watched.token, headers });
  assert.deepEqual([again.status, again.body.error.code], [410, 'events_pruned']);
});

test('a watcher that goes away is let go of', async () => {
  const watched = await Watched.make();
  const after = await watched.last();
  const [goes, stays] = [await watched.stream(`?after=${after}`), await watched.stream(`?after=${after}`)];
  goes.break();
  let made = 0;
  await until(async () => {
    await watched.group(`group ${made++}`);
    return (await watched.hooks.sockets()) === 1;
  });
  assert.equal((await stays.take(made)).at(-1).data.data.name, `group ${made - 1}`);
  stays.break();
});

test('a watcher that stops reading is cut off, others are not, and it goes on where it was', async () => {
  const watched = await Watched.make();
  const after = await watched.last();
  const slow = await watched.stream(`?after=${after}`);
  const stays = await watched.stream(`?after=${after}`);
  await watched.group('first');
  await slow.next();
  slow.pause();
  // Connections hold some megabytes before they stall.
  let made = 1;
  while ((await watched.hooks.sockets()) === 2 && made < 40_000) {
    await watched.hooks.query(`INSERT INTO org_events
      (team_id, resource_kind, resource_id, type, value_json, created_at)
      SELECT ?, 'group', 'group_' || value, 'group.changed', json_object('name', ?), ?
        FROM json_each(?) RETURNING 1`, watched.team.id, 'x'.repeat(1_000), START_MS,
      JSON.stringify(Array.from({ length: 90 }, (_, n) => made + n)));
    await watched.group(`group ${made}`);
    made += 91;
  }
  assert.equal(await watched.hooks.sockets(), 1);
  slow.resume();
  await slow.ended;
  const read = 1 + slow.unread;
  assert.ok(read < made, `${read} of ${made}`);
  const again = await watched.stream('', { headers: { 'last-event-id': slow.lastId } });
  const rest = await again.take(made - read);
  const [{ newest }] = await watched.hooks.query('SELECT max(sequence) AS newest FROM org_events');
  assert.ok(rest.at(-1).id.endsWith(`.${newest}`));
  assert.equal((await stays.take(made)).at(-1).id, rest.at(-1).id);
  again.break();
  stays.break();
});

test('a hundred streams stay open while the object sleeps, and comments come meanwhile', async () => {
  const sleeper = await startPlane({ evicts: true });
  try {
    const watched = await Watched.make(sleeper);
    const after = await watched.last();
    const streams = await Promise.all(
      Array.from({ length: 100 }, () => watched.stream(`?after=${after}`)));
    await watched.group('before');
    await Promise.all(streams.map((stream) => stream.next()));
    const before = await watched.hooks.instances();
    await sleep(16_000);
    assert.ok(streams.every(({ comments }) => comments === 1), streams.map((s) => s.comments).join());

    await watched.group('after');
    assert.equal(await watched.hooks.instances(), before + 1);
    const events = await Promise.all(streams.map((stream) => stream.next()));
    assert.ok(events.every(({ data }) => data.data.name === 'after'));
    for (const stream of streams) {
      assert.equal(stream.unread, 0);
      stream.break();
    }
  } finally {
    await sleeper.stop();
  }
});

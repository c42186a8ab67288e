// Webhooks against receivers on loopback. The clock is the test's unless a test says otherwise:
// then POST /maintain sends what is due and waits for the answers.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Webhook } from 'standardwebhooks';
import { expectStatus, startPlane } from './harness.mjs';
import { startReceiver } from './receiver.mjs';

const MINUTE_MS = 60_000;
const DAY_MS = 24 * 60 * MINUTE_MS;
const TIMEOUT_MS = 300;

let plane;
const stops = [];
before(async () => {
  plane = await startPlane({ bindings: { TEST_WEBHOOK_TIMEOUT_MS: String(TIMEOUT_MS) } });
});
after(async () => {
  await plane?.stop();
  stops.forEach((stop) => stop());
});

async function receiver(answer) {
  const made = await startReceiver(answer);
  stops.push(made.stop);
  return made;
}

/** A team whose requests carry its clock, `team.now`, unless that is undefined. */
async function newTeam({ now } = {}) {
  const { team, token } = await plane.createTeam('Acme', { now });
  const self = { id: team.id, token, now };
  self.call = (method, rest, body, headers) =>
    plane.api(method, `/v1/teams/${team.id}${rest}`, { token, body, headers, now: self.now });
  self.post = async (rest, body, status = 201) => {
    const answer = await self.call('POST', rest, body);
    expectStatus(status, answer, rest);
    return answer.body.data;
  };
  self.pass = () => self.post('/maintain', {}, 200);
  self.event = () => self.post('/members', { name: 'Grace', role: 'viewer' });
  self.install = async (url, more = {}) => {
    const body = { name: 'app', webhook_url: url, events: ['member.added'], ...more };
    const app = await self.post('/apps', body);
    const { code } = await self.post(`/apps/${app.id}/install-codes`);
    const answer = await plane.api('POST', '/v1/apps/install', { body: { code }, now: self.now });
    expectStatus(201, answer, 'install');
    return { ...answer.body.data.app, secret: answer.body.data.webhook_secret };
  };
  self.deliveries = async (app) =>
    (await self.call('GET', `/apps/${app.id}/deliveries?limit=200`)).body.items;
  self.app = async (app) => (await self.call('GET', `/apps/${app.id}`)).body.data;
  return self;
}

const verified = (app, { body, headers }) => new Webhook(app.secret).verify(body, headers);

test('an event arrives at once, by the real clock, and the official library verifies it', async () => {
  const team = await newTeam();
  const hook = await receiver();
  const app = await team.install(hook.url);
  const { member } = await team.event();
  const delivery = await hook.next();
  assert.deepEqual(verified(app, delivery), JSON.parse(delivery.body.toString()));
  const { type, timestamp, data } = JSON.parse(delivery.body.toString());
  assert.equal(type, 'member.added');
  assert.ok(Math.abs(Date.parse(timestamp) - Date.now()) < MINUTE_MS);
  assert.equal(data.resource_id, member.principal_id);
  assert.equal(data.team_id, team.id);
  assert.match(delivery.headers['webhook-id'], /^delivery_[0-9a-f]{32}$/);
  assert.equal(delivery.headers['content-type'], 'application/json');
});

/** A team whose clock the test sets, beginning now so that the library takes its timestamps. */
const frozen = () => newTeam({ now: Date.now() });

test('what arrives is byte for byte what is stored and signed, also the fifth time', async () => {
  const team = await frozen();
  let failures = 4;
  const hook = await receiver((_, response) => response.writeHead(failures-- > 0 ? 500 : 200).end());
  const app = await team.install(hook.url);
  await team.event();
  await team.pass();
  const big = JSON.stringify({ type: 'x', text: `₹ മലയാളം 🧑‍🚀 \u2028 " \\ \ud83d` }).replace('}', ' }');
  const body = big + ' '.repeat(256 * 1024 - Buffer.byteLength(big));
  const [{ id }] = await team.deliveries(app);
  await plane.team(team.id).query('UPDATE app_webhook_deliveries SET body = ? WHERE id = ?', body, id);
  while (failures >= 0) {
    team.now += DAY_MS / 2;
    await team.pass();
  }
  assert.equal(hook.got.length, 5);
  for (const delivery of hook.got) {
    assert.equal(delivery.headers['webhook-id'], id);
    const at = new Date(Number(delivery.headers['webhook-timestamp']) * 1000);
    const key = new Webhook(app.secret);
    assert.equal(key.sign(id, at, delivery.body.toString()), delivery.headers['webhook-signature']);
  }
  for (const delivery of hook.got.slice(1)) assert.deepEqual(delivery.body, Buffer.from(body));
  const times = hook.got.map(({ headers }) => Number(headers['webhook-timestamp']));
  assert.deepEqual(times, [...new Set(times)].sort(), 'a fresh timestamp each');
  assert.equal((await team.deliveries(app))[0].state, 'delivered');
});

const endless = (_, response) => {
  const more = () => {
    while (response.write('y'.repeat(16 * 1024)));
    response.once('drain', more);
  };
  more();
};
const outcomes = [
  ['200', (_, response) => response.end('ok'), { state: 'delivered', last_status: 200, last_error: null }],
  ['204', (_, response) => response.writeHead(204).end(), { state: 'delivered', last_status: 204 }],
  ['a huge answer', (_, response) => response.end('z'.repeat(8 << 20)), { state: 'delivered', last_status: 200 }],
  ['an endless answer', endless, { state: 'delivered', last_status: 200 }],
  ['200 and no end', (_, response) => response.write('yes'), { state: 'delivered', last_status: 200 }],
  ['500 and no end', (_, response) => response.writeHead(500).write('no'), { state: 'pending', last_status: 500, last_error: 'answered 500' }],
  ['404', (_, response) => response.writeHead(404).end(), { state: 'pending', last_status: 404, last_error: 'answered 404' }],
  ['never an answer', () => {}, { state: 'pending', last_status: null, last_error: `no answer within ${TIMEOUT_MS} ms` }],
  ['a reset connection', (request) => request.socket.resetAndDestroy(), { state: 'pending', last_status: null }],
  ['no HTTP', (request) => request.socket.end('hello\r\n\r\n'), { state: 'pending', last_status: null }],
];
for (const [name, answer, expected] of outcomes) {
  test(`an attempt that meets ${name}`, async () => {
    const team = await frozen();
    const hook = await receiver(answer);
    const app = await team.install(hook.url);
    await team.event();
    await team.pass();
    assert.equal(hook.got.length, 1);
    const [delivery] = await team.deliveries(app);
    for (const [field, value] of Object.entries(expected)) assert.equal(delivery[field], value, field);
    assert.equal(delivery.attempts, 1);
    if (delivery.state === 'pending') {
      assert.ok(delivery.last_error);
      const wait = delivery.next_at - team.now;
      assert.ok(wait >= 4_000 && wait <= 6_000, `${wait}`);
    }
    const [kept] = await plane.team(team.id).query('SELECT length(answer) AS n FROM app_webhook_attempts');
    assert.ok((kept.n ?? 0) <= 2048, `${kept.n}`);
  });
}

test('a redirect is a failure and is not followed', async () => {
  const team = await frozen();
  const target = await receiver();
  for (const status of [301, 302, 303, 307, 308]) {
    const hook = await receiver((_, response) => response.writeHead(status, { location: target.url }).end());
    const app = await team.install(hook.url);
    await team.event();
    await team.pass();
    const [delivery] = await team.deliveries(app);
    assert.deepEqual([delivery.state, delivery.last_status], ['pending', status]);
    expectStatus(204, await team.call('DELETE', `/apps/${app.id}`), 'delete');
  }
  assert.equal(target.got.length, 0);
});

test('429 is tried again when its Retry-After says', async () => {
  const team = await frozen();
  const hook = await receiver((_, response) => response.writeHead(429, { 'retry-after': '9' }).end());
  const app = await team.install(hook.url);
  await team.event();
  await team.pass();
  assert.equal((await team.deliveries(app))[0].next_at, team.now + 9_000);
  team.now += 8_999;
  await team.pass();
  assert.equal(hook.got.length, 1);
  team.now += 1;
  const { next_alarm_at: nextAlarmAt } = await team.pass();
  assert.equal(hook.got.length, 2);
  assert.ok(nextAlarmAt > team.now);
});

test('410 disables the webhook; what is held goes out once it is enabled', async () => {
  const team = await frozen();
  let status = 410;
  const hook = await receiver((_, response) => response.writeHead(status).end());
  const app = await team.install(hook.url);
  await team.event();
  await team.pass();
  assert.equal((await team.app(app)).disabled_at, team.now);
  assert.equal((await team.deliveries(app))[0].state, 'pending');
  team.now += DAY_MS;
  expectStatus(201, await team.call('POST', '/members', { name: 'Missed', role: 'viewer' }), 'event');
  await team.pass();
  assert.equal(hook.got.length, 1);
  expectStatus(409, await team.call('POST', `/apps/${app.id}/test`), 'test');
  status = 200;
  await team.post(`/apps/${app.id}/deliveries/recover`, { since: 0 }, 200);
  await team.post(`/apps/${app.id}/enable`, {}, 200);
  await team.pass();
  assert.equal(hook.got.length, 3);
  const ids = hook.got.map(({ headers }) => headers['webhook-id']);
  assert.equal(ids.filter((id) => id === ids[0]).length, 2, 'the one answered 410 kept its id');
  hook.got.slice(1).forEach((delivery) => assert.ok(JSON.parse(delivery.body)));
});

test('rotation: the library verifies with the old secret and the new one for a day', async () => {
  const team = await frozen();
  const hook = await receiver();
  const old = await team.install(hook.url);
  const { webhook_secret: secret } = await team.post(`/apps/${old.id}/rotate-secret`, {}, 200);
  await team.post(`/apps/${old.id}/test`);
  await team.pass();
  const delivery = await hook.next();
  assert.equal(verified(old, delivery).type, 'webhook.test');
  assert.equal(verified({ secret }, delivery).type, 'webhook.test');
  assert.equal(delivery.headers['webhook-signature'].split(' ').length, 2);
});

test('a sender that dies before it knows sends again, under the same id', async () => {
  const team = await frozen();
  let silent = true;
  const hook = await receiver((_, response) => silent || response.end());
  const app = await team.install(hook.url);
  await team.event();
  const first = await hook.next();
  await plane.team(team.id).abort();
  silent = false;
  await team.pass().catch(() => {});
  assert.equal(hook.got.length, 1, 'it is leased');
  team.now += 30_000;
  await team.pass();
  const second = await hook.next();
  assert.equal(second.headers['webhook-id'], first.headers['webhook-id']);
  assert.deepEqual(second.body, first.body);
  assert.deepEqual((await team.deliveries(app)).map(({ state }) => state), ['delivered']);
});

test('a team whose other endpoints are dead or slow has its event delivered meanwhile', async () => {
  const team = await frozen();
  const held = [];
  const dead = await receiver((_, response) => held.push(response));
  for (let n = 0; n < 3; n++) await team.install(dead.url);
  for (let n = 0; n < 5; n++) await team.event();
  const hook = await receiver();
  await team.install(hook.url, { events: ['group.changed'] });
  await team.post('/groups', { name: 'g' });
  const delivery = await hook.next();
  assert.equal(JSON.parse(delivery.body).type, 'group.changed');
  assert.ok(dead.inFlightMax <= 5, `${dead.inFlightMax} in flight`);
  await team.pass();
  assert.ok(dead.inFlightMax <= 5, `${dead.inFlightMax} in flight`);
  held.forEach((response) => response.destroy());
});

test('six are in flight at most, and a backlog of many drains', async () => {
  const team = await frozen();
  const hooks = [];
  const busy = { now: 0, max: 0 };
  for (let n = 0; n < 8; n++) {
    hooks.push(
      await receiver((_, response) => {
        busy.max = Math.max(busy.max, ++busy.now);
        setImmediate(() => response.end('ok', () => busy.now--));
      }),
    );
    await team.install(hooks[n].url);
  }
  await Promise.all(Array.from({ length: 10 }, () => team.event()));
  await team.pass();
  for (const hook of hooks) {
    assert.equal(new Set(hook.got.map(({ headers }) => headers['webhook-id'])).size, 10);
    assert.equal(hook.got.length, 10);
    assert.ok(hook.inFlightMax <= 2, `${hook.inFlightMax}`);
  }
  assert.ok(busy.max <= 6, `${busy.max}`);
});

test('the alarm sends what is due again, by the real clock', async () => {
  const team = await newTeam();
  let status = 500;
  const hook = await receiver((_, response) => response.writeHead(status).end());
  const app = await team.install(hook.url);
  await team.event();
  await hook.next();
  const object = plane.team(team.id);
  let delivery;
  do [delivery] = await team.deliveries(app);
  while (delivery.attempts === 0);
  assert.ok((await object.alarmAt()) <= delivery.next_at, 'the alarm comes for it');
  status = 200;
  await object.setClock(delivery.next_at);
  try {
    await object.runAlarm();
    await hook.next();
    assert.equal(hook.got[1].headers['webhook-id'], hook.got[0].headers['webhook-id']);
  } finally {
    await object.setClock();
  }
});

test('an app is made, let in and refused through the edge as the contract says', async () => {
  const team = await frozen();
  const install = (body, more = {}) => plane.api('POST', '/v1/apps/install', { body, now: team.now, ...more });
  expectStatus(405, await plane.api('GET', '/v1/apps/install'), 'GET');
  expectStatus(415, await install('x', { headers: { 'content-type': 'text/plain' } }), 'type');
  expectStatus(413, await install({ code: 'x'.repeat(5_000) }), 'size');
  expectStatus(400, await install('{'), 'JSON');
  expectStatus(400, await install({}), 'no code');
  expectStatus(400, await install({ code: 'tpi_x' }), 'form');
  const unknown = `tpi_${'0'.repeat(32)}_${'0'.repeat(32)}`;
  expectStatus(401, await install({ code: unknown }), 'a team that nobody made');
});

test('a server without APP_ROOT_SECRET says that it makes no webhooks', async () => {
  const bare = await startPlane({ bindings: { APP_ROOT_SECRET: undefined } });
  try {
    const { team, token } = await bare.createTeam();
    const path = `/v1/teams/${team.id}/apps`;
    const made = await bare.api('POST', path, { token, body: { name: 'a', webhook_url: 'https://example.com/' } });
    expectStatus(503, made, 'with a webhook');
    assert.equal(made.body.error.code, 'not_configured');
    expectStatus(201, await bare.api('POST', path, { token, body: { name: 'a' } }), 'without');
  } finally {
    await bare.stop();
  }
});

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

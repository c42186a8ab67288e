// Deleting a team to its end: its object gives its storage back, and the registry forgets it.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { OPERATOR_TOKEN, startPlane } from './harness.mjs';

const DAY_MS = 86_400_000;

let plane;
before(async () => {
  plane = await startPlane();
});
after(() => plane?.stop());

const directory = () => plane.directory('directory');

async function listed(id) {
  const answer = await plane.api('GET', '/v1/teams?limit=200', { token: OPERATOR_TOKEN });
  return answer.body.items.find((team) => team.id === id)?.state;
}

const tables = async (object) =>
  (await object.query("SELECT count(*) AS n FROM sqlite_schema WHERE name = 'teams'"))[0].n;

/** Lets alarms come, by a clock that goes on between them, until the object is empty. */
async function alarms(object, isOver) {
  let now = Date.now();
  try {
    for (let tries = 0; tries < 50; tries += 1) {
      if (await isOver()) return;
      now += 5_000;
      await object.setClock(now);
      await object.runAlarm();
    }
  } finally {
    await object.setClock();
  }
  assert.fail('it never ends');
}

async function filled() {
  const { team, token } = await plane.createTeam('Acme');
  const machine = await plane.enrollMachine(team.id, token);
  const messages = Array.from({ length: 200 }, (_, n) => ({ ordinal: n, role: 'user', text: `m${n}` }));
  await plane.publish(team.id, machine.token, { messages });
  return { id: team.id, token, machine, object: plane.team(team.id) };
}

for (const who of ['owner', 'operator']) {
  test(`a team that its ${who} deletes is gone in the end, with its object and its line`, async () => {
    const { id, token, machine, object } = await filled();
    const by = who === 'owner' ? token : OPERATOR_TOKEN;
    const remove = (confirm) =>
      plane.api('DELETE', `/v1/teams/${id}`, { token: by, body: { confirm } });
    assert.equal((await remove('Other')).body.error.details.field, 'confirm');
    assert.equal(await listed(id), 'active');
    const answer = await remove('Acme');
    assert.equal(answer.status, 202, JSON.stringify(answer.body));
    assert.deepEqual(answer.body.data, { id, state: 'deleting' });
    for (const tried of [token, machine.token]) {
      const me = await plane.api('GET', `/v1/teams/${id}/me`, { token: tried });
      assert.equal(me.status, 401);
    }
    assert.equal(await listed(id), 'deleting');
    await directory().runAlarm();
    assert.equal(await listed(id), 'deleting', 'it is still being emptied');

    await alarms(object, async () => (await tables(object)) === 0);
    assert.equal(await object.alarmAt(), null);
    assert.ok((await object.databaseSize()) <= 8_192);
    await directory().runAlarm();
    assert.equal(await listed(id), undefined);
    assert.equal((await plane.api('DELETE', `/v1/teams/${id}`, {
      token: OPERATOR_TOKEN,
      body: { confirm: 'Acme' },
    })).status, 404);
    assert.equal((await plane.api('GET', `/v1/teams/${id}/me`, { token })).status, 401);
  });
}

test('a team whose making failed can be made again, and leaves nothing', async () => {
  await filled();
  const make = (key) =>
    plane.api('POST', '/v1/teams', {
      token: OPERATOR_TOKEN,
      body: { name: 'Twice', owner: { name: 'Ada' } },
      headers: { 'idempotency-key': key },
    });
  const twice = async () =>
    directory().query("SELECT id, state FROM registry WHERE name = 'Twice' ORDER BY state");
  // Written down as creating and then cut off, whoever has asked.
  await directory().fail('panic', 1);
  assert.equal((await make('again')).status, 500);
  const [lost] = await twice();
  assert.equal(lost.state, 'creating');
  const made = await make('again');
  assert.equal(made.status, 201, JSON.stringify(made.body));
  const now = Date.now() + 2 * DAY_MS;
  await directory().query("UPDATE registry SET state = 'creating' WHERE name = 'Twice'");
  try {
    await directory().setClock(now);
    await directory().runAlarm();
    const left = await twice();
    assert.deepEqual(left.map(({ id, state }) => [id, state]), [[made.body.data.team.id, 'deleting']]);
    const token = made.body.data.credential.token;
    const me = await plane.api('GET', `/v1/teams/${made.body.data.team.id}/me`, { token });
    assert.equal(me.status, 401);
    const object = plane.team(made.body.data.team.id);
    await alarms(object, async () => (await tables(object)) === 0);
    await directory().runAlarm();
    assert.deepEqual(await twice(), []);
  } finally {
    await directory().setClock();
  }
});

test('one of the teams of one object goes, and the others stay', async () => {
  const server = await startPlane({ bindings: { SHARDING: 'server' } });
  try {
    const [gone, stays] = [await server.createTeam('Gone'), await server.createTeam('Stays')];
    const answer = await server.api('DELETE', `/v1/teams/${gone.team.id}`, {
      token: gone.token,
      body: { confirm: 'Gone' },
    });
    assert.equal(answer.status, 202);
    const object = server.team('server');
    const left = async () => (await object.query('SELECT id FROM teams')).map(({ id }) => id);
    await alarms(object, async () => (await left()).length === 1);
    assert.deepEqual(await left(), [stays.team.id]);
    await server.directory('directory').runAlarm();
    const { body } = await server.api('GET', '/v1/teams', { token: OPERATOR_TOKEN });
    assert.deepEqual(body.items.map(({ id, state }) => [id, state]), [[stays.team.id, 'active']]);
    const me = await server.api('GET', `/v1/teams/${stays.team.id}/me`, { token: stays.token });
    assert.equal(me.status, 200);
  } finally {
    await server.stop();
  }
});

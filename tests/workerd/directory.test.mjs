// The Directory: making teams once, whatever happens in between, and listing them.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { OPERATOR_TOKEN, startPlane } from './harness.mjs';

const START_MS = 1_700_000_000_000;
const DAY_MS = 86_400_000;

let plane;
before(async () => {
  plane = await startPlane();
  await plane.api('GET', '/v1/teams', { token: OPERATOR_TOKEN });
});
after(() => plane.stop());

const make = (key, body = { name: 'Acme', owner: { name: 'Ada' } }, options = {}) =>
  plane.api('POST', '/v1/teams', {
    token: OPERATOR_TOKEN,
    body,
    ...options,
    headers: { ...(key === undefined ? {} : { 'idempotency-key': key }), ...options.headers },
  });

const read = (id, token) => plane.api('GET', `/v1/teams/${id}`, { token });
const registry = () =>
  plane.directory('directory').query('SELECT id, name, state FROM registry ORDER BY created_at');

test('a team is made with its owner and the owner\'s only token', async () => {
  const body = { name: 'Acme', owner: { name: 'Ada', email: 'ada@example.com' } };
  const answer = await make(undefined, body);

  assert.equal(answer.status, 201);
  const { context, data } = answer.body;
  assert.match(context.server_id, /^server_[0-9a-f]{32}$/);
  assert.equal(context.team_id, data.team.id);
  assert.equal(context.principal_id, null);
  assert.equal(data.team.name, 'Acme');
  assert.equal(data.member.name, 'Ada');
  assert.equal(data.member.email, 'ada@example.com');
  assert.equal(data.member.role, 'owner');
  assert.match(data.credential.token, /^tp_user_[0-9a-f_]+$/);

  const team = await read(data.team.id, data.credential.token);
  assert.equal(team.body.context.server_id, context.server_id);
  assert.equal(team.body.context.principal_id, data.member.principal_id);
});

test('a request that does not fit is refused, names its field and makes nothing', async () => {
  const before = await registry();
  const owner = { name: 'Ada' };
  const cases = [
    ['{"name":', 'invalid_json', undefined],
    [{ name: 'Acme' }, 'invalid_request', 'owner'],
    [{ name: 'Acme', owner, color: 'red' }, 'invalid_request', 'color'],
    [{ name: 'Acme', owner: { ...owner, role: 'admin' } }, 'invalid_request', 'owner.role'],
    [{ name: '', owner }, 'invalid_request', 'name'],
    [{ name: 'x'.repeat(129), owner }, 'invalid_request', 'name'],
    [{ name: 1, owner }, 'invalid_request', 'name'],
    [{ name: 'Acme', owner: { name: ' ' } }, 'invalid_request', 'owner.name'],
    [{ name: 'Acme', owner: { name: 'Ada', email: '' } }, 'invalid_request', 'owner.email'],
  ];
  for (const [body, code, field] of cases) {
    const answer = await make(undefined, body, { headers: { 'content-type': 'application/json' } });
    assert.equal(answer.status, 400, JSON.stringify(body));
    assert.equal(answer.body.error.code, code, JSON.stringify(body));
    assert.equal(answer.body.error.details?.field, field, JSON.stringify(body));
  }
  const keyless = await make('k'.repeat(129));
  assert.equal(keyless.body.error.details.field, 'Idempotency-Key');
  const asked = await plane.api('POST', '/v1/teams?x=1', {
    token: OPERATOR_TOKEN,
    body: { name: 'Acme', owner },
  });
  assert.equal(asked.body.error.details.field, 'x');
  const text = await make(undefined, '{}', { headers: { 'content-type': 'text/plain' } });
  assert.equal(text.status, 415);
  assert.deepEqual(await registry(), before);
});

test('the same key and body make one team, whose token is shown once', async () => {
  const first = await make('once');
  const again = await make('once');

  assert.equal(again.status, 201);
  assert.equal(first.headers.get('idempotent-replayed'), null);
  assert.equal(again.headers.get('idempotent-replayed'), 'true');
  const { token, ...credential } = first.body.data.credential;
  assert.deepEqual(again.body.data, {
    ...first.body.data,
    credential: { ...credential, token: null, replayed: true },
  });
  const [kept] = await plane
    .directory('directory')
    .query('SELECT response_json FROM global_idempotency WHERE key = ?', 'once');
  assert.ok(!kept.response_json.includes(token.slice(-64)));

  const other = await make('once', { name: 'Other', owner: { name: 'Ada' } });
  assert.equal(other.status, 409);
  assert.equal(other.body.error.code, 'idempotency_mismatch');
});

test('a key is good for another team after a day', async () => {
  const first = await make('daily', undefined, { now: START_MS });
  const last = await make('daily', undefined, { now: START_MS + DAY_MS - 1 });
  const next = await make('daily', undefined, { now: START_MS + DAY_MS });

  assert.equal(last.body.data.team.id, first.body.data.team.id);
  assert.equal(next.headers.get('idempotent-replayed'), null);
  assert.notEqual(next.body.data.team.id, first.body.data.team.id);
});

test('twenty requests at once with one key make one team', async () => {
  const count = (await registry()).length;
  const answers = await Promise.all(Array.from({ length: 20 }, () => make('race')));

  const made = answers.filter(({ status }) => status === 201);
  const ids = new Set(made.map(({ body }) => body.data.team.id));
  assert.equal(ids.size, 1);
  assert.equal(made.filter(({ body }) => body.data.credential.token).length, 1);
  for (const { status, headers, body } of answers.filter(({ status }) => status !== 201)) {
    assert.equal(status, 409);
    assert.equal(body.error.code, 'conflict');
    assert.equal(headers.get('retry-after'), '1');
  }
  assert.equal((await registry()).length, count + 1);
});

test('a Directory that fails before it can answer goes on with the same team', async () => {
  await plane.directory('directory').fail('panic', 1);
  const failed = await make('resumed', { name: 'Resumed', owner: { name: 'Ada' } });
  assert.equal(failed.status, 500);
  const [{ id, state }] = (await registry()).filter(({ name }) => name === 'Resumed');
  assert.equal(state, 'creating');

  const answer = await make('resumed', { name: 'Resumed', owner: { name: 'Ada' } });
  assert.equal(answer.status, 201);
  assert.equal(answer.body.data.team.id, id);
  assert.equal((await read(id, answer.body.data.credential.token)).status, 200);
  const teams = (await registry()).filter(({ name }) => name === 'Resumed');
  assert.deepEqual(teams, [{ id, name: 'Resumed', state: 'active' }]);
  const live = await plane
    .team(id)
    .query('SELECT count(*) AS n FROM credentials WHERE revoked_at IS NULL');
  assert.deepEqual(live, [{ n: 1 }]);
});

test('a Directory that dies before it can answer goes on after its restart', async () => {
  const first = await make('restarted');
  const { id } = first.body.data.team;
  // As it is left behind by one that died after the team's object had answered.
  const directory = plane.directory('directory');
  await directory.query(`UPDATE registry SET state = 'creating' WHERE id = ?`, id);
  await directory.query(
    `UPDATE global_idempotency SET status = 0, response_json = ? WHERE key = 'restarted'`,
    JSON.stringify({ team_id: id }),
  );
  await plane.restart();

  const again = await make('restarted');
  assert.equal(again.status, 201);
  assert.equal(again.headers.get('idempotent-replayed'), null);
  assert.equal(again.body.data.team.id, id);
  assert.equal((await read(id, again.body.data.credential.token)).status, 200);
  assert.equal((await read(id, first.body.data.credential.token)).status, 401);
});

test('a team that cannot be made leaves its key free', async () => {
  const full = await startPlane({ bindings: { STORE_BYTES_MAX: '1000' } });
  try {
    const send = (name) =>
      full.api('POST', '/v1/teams', {
        token: OPERATOR_TOKEN,
        headers: { 'idempotency-key': 'free' },
        body: { name, owner: { name: 'Ada' } },
      });
    const refused = await send('Acme');
    assert.equal(refused.status, 507);
    assert.equal(refused.body.error.code, 'storage_full');
    assert.equal(refused.body.error.request_id, refused.headers.get('x-request-id'));
    assert.equal((await send('Another')).status, 507);
  } finally {
    await full.stop();
  }
});

test('the teams of a server are listed in pages', async () => {
  const wanted = (await registry()).map(({ id }) => id).sort();
  const found = [];
  let cursor = '';
  do {
    const query = `limit=2${cursor && `&cursor=${cursor}`}`;
    const { status, body } = await plane.api('GET', `/v1/teams?${query}`, { token: OPERATOR_TOKEN });
    assert.equal(status, 200);
    assert.ok(body.items.length <= 2);
    found.push(...body.items);
    cursor = body.next_cursor;
  } while (cursor);
  assert.deepEqual(found.map(({ id }) => id), wanted);
  assert.deepEqual(Object.keys(found[0]).sort(), ['created_at', 'id', 'name', 'state']);

  for (const [query, field] of [['limit=0', 'limit'], ['limit=x', 'limit'], ['all=1', 'all']]) {
    const { status, body } = await plane.api('GET', `/v1/teams?${query}`, { token: OPERATOR_TOKEN });
    assert.equal(status, 400);
    assert.equal(body.error.details.field, field);
  }
  const { body } = await plane.api('GET', '/v1/teams?cursor=abc', { token: OPERATOR_TOKEN });
  assert.equal(body.error.code, 'invalid_cursor');
});

test('the server keeps its id over a restart', async () => {
  const id = async () =>
    (await plane.api('GET', '/v1/teams', { token: OPERATOR_TOKEN })).body.context.server_id;
  const before = await id();
  await plane.restart();

  assert.equal(await id(), before);
});

test('one object may hold all teams, and keeps them apart', async () => {
  const server = await startPlane({ bindings: { SHARDING: 'server' } });
  try {
    const [a, b] = [await server.createTeam('A'), await server.createTeam('B')];
    const get = (team, token) => server.api('GET', `/v1/teams/${team.id}`, { token });
    assert.equal((await get(a.team, a.token)).body.data.name, 'A');
    assert.equal((await get(b.team, b.token)).body.data.name, 'B');
    assert.equal((await get(a.team, b.token)).status, 404);
    const teams = await server.team('server').query('SELECT count(*) AS n FROM teams');
    assert.deepEqual(teams, [{ n: 2 }]);
  } finally {
    await server.stop();
  }
});

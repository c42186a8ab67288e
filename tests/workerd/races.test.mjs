// Callers at once, from inside workerd: of those who change what all have read, exactly one wins.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { startPlane } from './harness.mjs';

let plane, base, owner;
before(async () => {
  plane = await startPlane();
  const { team, token } = await plane.createTeam();
  [base, owner] = [`/v1/teams/${team.id}`, token];
});
after(() => plane?.stop());

async function make(path, body, token = owner) {
  const answer = await plane.api('POST', `${base}${path}`, { token, body });
  assert.ok(answer.status < 300, JSON.stringify(answer.body));
  return answer.body.data;
}

/** Sends them at once; resolves with their statuses and bodies. */
async function race(requests) {
  const sent = requests.map(({ path, headers, ...rest }) => ({
    method: 'PATCH',
    token: owner,
    ...rest,
    path: `${base}${path}`,
    headers: { 'content-type': 'application/json', ...headers },
  }));
  const { results } = await plane.load(sent, { concurrency: sent.length, keepBodies: true });
  return results.map(({ status, body }) => ({
    status,
    body: typeof body === 'string' && body !== '' ? JSON.parse(body) : body,
  }));
}

const times = (count, one) => Array.from({ length: count }, (_, n) => one(n));

function oneWins(results, won, lost, code) {
  const statuses = results.map(({ status }) => status).sort();
  assert.deepEqual(statuses, [won, ...times(results.length - 1, () => lost)].sort(), JSON.stringify(results));
  for (const { status, body } of results) {
    if (status === lost) assert.equal(body.error.code, code);
  }
}

test('one of twenty changes a group, a rule, the team, a source under the revision that all read', async () => {
  const group = await make('/groups', { name: 'g' });
  const machine = await make('/machines', { name: 'laptop', enrollment_key: 'k' });
  const rules = `/machines/${machine.machine.id}/rules`;
  const rule = await make(rules, { root_id: 'r', harnesses: [], include: [], exclude: [] });
  const tag = { 'if-match': '"1"' };
  for (const [path, body] of [
    [`/groups/${group.id}`, (n) => ({ name: `g${n}` })],
    [`${rules}/${rule.id}`, (n) => ({ include: [`${n}`] })],
    [`/sources/${machine.source.id}`, (n) => ({ name: `s${n}` })],
    ['', (n) => ({ name: `t${n}` })],
  ]) {
    const results = await race(times(20, (n) => ({ path, body: body(n), headers: tag })));
    oneWins(results, 200, 409, 'revision_mismatch');
    const now = await plane.api('GET', `${base}${path}`, { token: owner });
    const won = results.find(({ status }) => status === 200);
    assert.deepEqual(now.body.data, won.body.data);
  }
});

test('of two owners who leave at once one stays', async () => {
  const { team, token } = await plane.createTeam('Two');
  const second = await plane.addMember(team.id, token, { role: 'owner' });
  const me = await plane.api('GET', `/v1/teams/${team.id}/me`, { token });
  const leave = (id, who) => ({ method: 'DELETE', path: `/v1/teams/${team.id}/members/${id}`, token: who });
  const { results } = await plane.load(
    [leave(me.body.data.principal.id, token), leave(second.member.principal_id, second.token)],
    { concurrency: 2, keepBodies: true },
  );
  assert.deepEqual(results.map(({ status }) => status).sort(), [204, 409]);
  const [{ owners }] = await plane
    .team(team.id)
    .query("SELECT count(*) AS owners FROM memberships WHERE role = 'owner' AND active = 1");
  assert.equal(owners, 1);
});

test('one of ten machines takes a continuation, and says once what became of it', async () => {
  const machines = [];
  for (const n of times(10, (n) => n)) {
    machines.push(await make('/machines', { name: `m${n}`, enrollment_key: `k${n}`, visibility: 'team' }));
  }
  const [first] = machines;
  const id = base.split('/').at(-1);
  const published = await plane.publish(id, first.credential.token, {
    messages: [{ ordinal: 0, role: 'user', text: 'hello' }],
  });
  const made = await make(`/sessions/${published.session_id}/continuations`, {});
  const accept = machines.map(({ credential }) => ({
    method: 'POST',
    path: `/continuations/${made.id}/accept`,
    token: credential.token,
  }));
  const results = await race(accept);
  oneWins(results, 200, 409, 'conflict');
  const winner = machines[results.findIndex(({ status }) => status === 200)];
  const ends = await race(
    ['completed', 'failed'].map((state) => ({
      method: 'POST',
      path: `/continuations/${made.id}/complete`,
      token: winner.credential.token,
      body: { state },
    })),
  );
  oneWins(ends, 200, 409, 'conflict');
});

test('one of ten captures on the same base becomes the next version', async () => {
  const { credential } = await make('/machines', { name: 'base', enrollment_key: 'base' });
  const { token } = credential;
  const id = base.split('/').at(-1);
  const messages = [{ ordinal: 0, role: 'user', text: 'hello' }];
  await plane.publish(id, token, { native_id: 'base', messages });
  const begin = { harness: 'claude-code', native_id: 'base', base: { revision: 1, keep: 1 } };
  const captures = await Promise.all(times(10, () => make('/captures', begin, token)));
  for (const [n, capture] of captures.entries()) {
    const part = { messages: [{ ordinal: 1, role: 'user', text: `by ${n}` }] };
    const put = await plane.api('PUT', `${base}/captures/${capture.id}/parts/0`, { token, body: part });
    assert.equal(put.status, 204);
  }
  const commit = captures.map(({ id }) => ({
    method: 'POST',
    path: `/captures/${id}/commit`,
    token,
    body: { parts: 1 },
  }));
  oneWins(await race(commit), 200, 409, 'revision_mismatch');
});

test('twenty requests with one key make one group, and are answered alike', async () => {
  const count = async () => (await plane.api('GET', `${base}/groups?limit=200`, { token: owner })).body.items.length;
  const before = await count();
  const send = (key, name, token = owner) => ({
    method: 'POST',
    path: '/groups',
    body: { name },
    token,
    headers: { 'idempotency-key': key },
  });
  const results = await race(times(20, () => send('k', 'once')));
  assert.deepEqual([...new Set(results.map(({ status }) => status))], [201], JSON.stringify(results));
  assert.equal(new Set(results.map(({ body }) => body.data.id)).size, 1);
  assert.equal(await count(), before + 1);
  const [other] = await race([send('k', 'another')]);
  assert.deepEqual([other.status, other.body.error.code], [409, 'idempotency_mismatch']);
  const id = base.split('/').at(-1);
  const admin = await plane.addMember(id, owner, { role: 'admin' });
  const [own] = await race([send('k', 'once', admin.token)]);
  assert.equal(own.status, 201);
  assert.equal(await count(), before + 2);
  // A failure before the effect leaves the key free; one after it is followed by a replay.
  await plane.team(id).fail('panic');
  const [failed] = await race([send('free', 'free')]);
  assert.equal(failed.status, 500);
  assert.equal(await count(), before + 2);
  const [made] = await race([send('free', 'free')]);
  assert.equal(made.status, 201);
  assert.equal(await count(), before + 3);
  await plane.team(id).fail('abort');
  const [cut] = await race([send('cut', 'cut')]).catch(() => [{ status: 500 }]);
  const [replayed] = await race([send('cut', 'cut')]);
  assert.equal(replayed.status, 201, JSON.stringify([cut, replayed]));
  assert.equal(await count(), before + 4);
});

// Moving a team: export in pages, import into another team, in both ways of sharding.

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { test } from 'node:test';
import { startPlane } from './harness.mjs';

const MIB = 1 << 20;

async function exportTeam(plane, id, token) {
  const pages = [];
  let cursor = null;
  do {
    const query = cursor === null ? '' : `?cursor=${cursor}`;
    const response = await plane.fetch('GET', `/v1/teams/${id}/export${query}`, { token });
    assert.equal(response.status, 200);
    const text = await response.text();
    assert.ok(Buffer.byteLength(text) <= 16 * MIB);
    pages.push({ query, text });
    cursor = JSON.parse(text.trimEnd().split('\n').at(-1)).next_cursor;
  } while (cursor !== null);
  return pages;
}

const rows = (pages, id) =>
  pages
    .flatMap(({ text }) => text.split('\n').filter((line) => line.startsWith('{"table"')))
    // Places among the appends are the object's.
    .map((line) => line.replace(/"row_id":\d+,?/, ''))
    .map((line) => line.replaceAll(id, 'TEAM').replace(/principal_[0-9a-f]{32}/g, 'PRINCIPAL'))
    .filter((line) => !line.includes('"resource_id":"TEAM"'))
    .sort();

async function fill(plane, team, token) {
  const machine = await plane.enrollMachine(team.id, token, { visibility: 'team' });
  const base = `/v1/teams/${team.id}`;
  const bytes = Buffer.alloc(3 * MIB, 'chunk by chunk, ');
  const hash = (algorithm, part) => createHash('sha256').update(part).digest(algorithm);
  const upload = await plane.api('POST', `${base}/uploads`, {
    token: machine.token,
    body: { size: bytes.length, sha256: hash('hex', bytes), media_type: 'a/b', chunk_size: MIB },
  });
  const { id } = upload.body.data;
  for (let index = 0; index < 3; index += 1) {
    const part = bytes.subarray(index * MIB, (index + 1) * MIB);
    const answer = await plane.api('PUT', `${base}/uploads/${id}/chunks/${index}`, {
      token: machine.token,
      body: part,
      headers: { 'content-digest': `sha-256=:${hash('base64', part)}:` },
    });
    assert.equal(answer.status, 204);
  }
  const commit = await plane.api('POST', `${base}/uploads/${id}/commit`, { token: machine.token });
  assert.equal(commit.status, 200);
  const text = 'word '.repeat(20_000);
  const messages = (from) =>
    [0, 1, 2, 3, 4].map((n) => ({ ordinal: n, role: 'user', text: `${from}x${n} ${text}` }));
  const ids = [];
  for (let n = 0; n < 40; n += 1) {
    const made = await plane.publish(team.id, machine.token, {
      native_id: `session-${n}`,
      messages: messages(`about${n}`),
      ...(n === 0 ? { artifacts: [{ bundle_id: 'b', upload_id: id, name: 'bundle' }] } : {}),
    });
    ids.push(made.session_id);
  }
  await append(plane, base, token);
  return { ids, upload: id, bytes };
}

const RUNS = ['run-1', 'a\0b', 'run-2'];

/** 300 events of three runs in turn; one is deleted in between, one is taken over. */
async function append(plane, base, token) {
  const post = async (path, body) => {
    const answer = await plane.api('POST', `${base}${path}`, { token, body });
    assert.equal(answer.status, 200, JSON.stringify(answer.body));
  };
  const event = (n) => ({
    run_id: RUNS[n % 3], id: `event-${n}`, sequence: n, kind: 'k', payload: `${n} ${'x'.repeat(2_000)}`,
  });
  for (let from = 0; from < 300; from += 50) {
    await post('/run-events', { events: Array.from({ length: 50 }, (_, n) => event(from + n)) });
    if (from === 100) await post('/runs/run-2/delete', { tombstone: { id: 't', sequence: 1_000, payload: {} } });
    if (from === 250) for (const holder of ['h1', 'h2']) await post('/runs/run-1/claim', { holder, mode: 'takeover' });
  }
}

/** What a reader of runs sees, without the places. */
async function readRuns(plane, id, token) {
  const get = async (path) => (await plane.api('GET', `/v1/teams/${id}${path}`, { token })).body;
  const { items } = await get('/runs');
  const { runs } = (await get('/run-changes')).data;
  const events = [];
  for (const run of RUNS) {
    const page = await get(`/runs/${encodeURIComponent(run)}/events?limit=200`);
    events.push(page.items.map(({ row_id, ...event }) => event));
  }
  return { items, runs: Object.entries(runs), events, claim: (await get('/runs/run-1/claim')).data };
}

for (const sharding of ['team', 'server']) {
  test(`a team moves, page by page, with SHARDING=${sharding}`, async () => {
    const plane = await startPlane({ bindings: { SHARDING: sharding } });
    try {
      const old = await plane.createTeam('Old');
      const { ids, upload, bytes } = await fill(plane, old.team, old.token);
      const pages = await exportTeam(plane, old.team.id, old.token);
      assert.ok(pages.length > 1, `${pages.length} pages`);
      const fresh = await plane.createTeam('New');
      const base = `/v1/teams/${fresh.team.id}`;
      const { token } = fresh;
      for (const { query, text } of pages) {
        // Three times, two of them at once.
        const send = () => plane.api('POST', `${base}/import${query}`, { token, body: text });
        const answers = [...(await Promise.all([send(), send()])), await send()];
        for (const { status, body } of answers) assert.equal(status, 200, JSON.stringify(body));
      }
      const moved = rows(await exportTeam(plane, fresh.team.id, token), fresh.team.id);
      const missing = rows(pages, old.team.id).filter((line) => !moved.includes(line));
      assert.deepEqual(missing, []);
      for (const id of [ids[0], ids[39]]) {
        const read = (team, who) =>
          plane.api('GET', `/v1/teams/${team}/sessions/${id}/messages`, { token: who });
        const [before, after] = [await read(old.team.id, old.token), await read(fresh.team.id, token)];
        assert.deepEqual(after.body.items, before.body.items);
      }
      assert.deepEqual(
        await readRuns(plane, fresh.team.id, token),
        await readRuns(plane, old.team.id, old.token),
      );
      const found = await plane.api('GET', `${base}/sessions?q=about7x2`, { token });
      assert.deepEqual(found.body.items.map(({ id }) => id), [ids[7]]);
      const content = await plane.fetch('GET', `${base}/uploads/${upload}/content`, { token });
      assert.ok(Buffer.from(await content.arrayBuffer()).equals(bytes));
    } finally {
      await plane.stop();
    }
  });
}

test('an import that its object does not survive goes on with the same page', async () => {
  const plane = await startPlane();
  try {
    const old = await plane.createTeam('Old');
    const machine = await plane.enrollMachine(old.team.id, old.token);
    const messages = Array.from({ length: 900 }, (_, n) => ({ ordinal: n, role: 'user', text: `m${n}` }));
    await plane.publish(old.team.id, machine.token, { messages });
    const [page] = await exportTeam(plane, old.team.id, old.token);
    const { team, token } = await plane.createTeam('New');
    const path = `/v1/teams/${team.id}/import`;
    await plane.team(team.id).fail('abort', 1);
    const cut = await plane.api('POST', path, { token, body: page.text }).catch(() => ({ status: 0 }));
    assert.notEqual(cut.status, 200);
    const whole = await plane.api('POST', path, { token, body: page.text });
    assert.equal(whole.status, 200, JSON.stringify(whole.body));
    const [{ count }] = await plane.team(team.id).query('SELECT count(*) AS count FROM messages');
    assert.equal(count, 900);
    const [{ indexed }] = await plane
      .team(team.id)
      .query('SELECT count(*) AS indexed FROM message_search_docsize');
    assert.equal(indexed, 900);
  } finally {
    await plane.stop();
  }
});

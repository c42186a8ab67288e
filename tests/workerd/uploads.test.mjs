// Uploads in workerd: at the same time, across restarts, and streamed.

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { after, before, test } from 'node:test';
import { expectStatus, startPlane } from './harness.mjs';

const CHUNK = 256 << 10;

let plane;
let base;
let teamId;
let token;
before(async () => {
  plane = await startPlane();
  const made = await plane.createTeam();
  teamId = made.team.id;
  base = `/v1/teams/${teamId}/uploads`;
  ({ token } = await plane.enrollMachine(teamId, made.token));
});
after(() => plane.stop());

const sha256 = (bytes, encoding = 'hex') => createHash('sha256').update(bytes).digest(encoding);

/** Bytes that differ from file to file and from chunk to chunk. */
function fileOf(length, seed) {
  const file = new Uint8Array(length);
  for (let at = 0; at < length; at += 1) file[at] = (at * 7 + seed + Math.floor(at / CHUNK)) % 251;
  return file;
}

const chunksOf = (file) =>
  Array.from({ length: Math.ceil(file.length / CHUNK) }, (_, index) =>
    file.subarray(index * CHUNK, (index + 1) * CHUNK));

async function begin(file, sha = sha256(file)) {
  const body = { size: file.length, sha256: sha, media_type: 'application/zip' };
  const answer = await plane.api('POST', base, { token, body });
  expectStatus(201, answer, 'POST /uploads');
  return answer.body.data.id;
}

function put(id, index, bytes, digest = sha256(bytes, 'base64')) {
  const headers = { 'content-digest': `sha-256=:${digest}:` };
  return plane.api('PUT', `${base}/${id}/chunks/${index}`, { token, body: bytes, headers });
}

const commit = (id) => plane.api('POST', `${base}/${id}/commit`, { token });

async function count(table) {
  const team = await plane.team(teamId);
  const [{ n }] = await team.query(`SELECT count(*) AS n FROM ${table}`);
  return n;
}

test('the same chunk sent twenty times at once is stored once', async () => {
  const file = fileOf(CHUNK + 5, 1);
  const id = await begin(file);
  const [first, last] = chunksOf(file);
  const blobs = await count('artifact_blobs');

  const answers = await Promise.all(Array.from({ length: 20 }, () => put(id, 0, first)));
  assert.deepEqual(new Set(answers.map(({ status }) => status)), new Set([204]));
  assert.equal(await count('artifact_blobs'), blobs + 1);

  // Of several contents one wins, and only that is there afterwards.
  const contents = [last, fileOf(5, 2), fileOf(5, 3)];
  const raced = await Promise.all(contents.map((bytes) => put(id, 1, bytes)));
  const won = raced.filter(({ status }) => status === 204);
  assert.equal(won.length, 1);
  for (const { status, body } of raced) {
    if (status !== 204) assert.deepEqual([status, body.error.code], [409, 'conflict']);
  }
  assert.equal(await count('artifact_blobs'), blobs + 2);
});

test('an upload goes on after a restart between any two steps', async () => {
  const file = fileOf(2 * CHUNK + 9, 4);
  const chunks = chunksOf(file);
  const id = await begin(file);
  await plane.restart();
  for (const index of [2, 0, 1]) {
    expectStatus(204, await put(id, index, chunks[index]), `chunk ${index}`);
    await plane.restart();
  }
  const held = await plane.api('GET', `${base}/${id}`, { token });
  assert.deepEqual(held.body.data.missing, []);
  const committed = await commit(id);
  expectStatus(200, committed, 'commit');
  await plane.restart();
  assert.deepEqual((await commit(id)).body, committed.body);
  const content = await plane.fetch('GET', `${base}/${id}/content`, { token });
  assert.equal(sha256(new Uint8Array(await content.arrayBuffer())), sha256(file));
});

test('commits at once end alike, and requests are answered between their slices', async () => {
  const file = fileOf(20 << 20, 5);
  const id = await begin(file);
  for (const [index, bytes] of chunksOf(file).entries()) {
    expectStatus(204, await put(id, index, bytes), `chunk ${index}`);
  }
  let settled = false;
  const commits = Promise.all([commit(id), commit(id), commit(id)]).finally(() => { settled = true; });
  const states = new Set();
  while (!settled) states.add((await plane.api('GET', `${base}/${id}`, { token })).body.data.state);
  const answers = await commits;
  for (const answer of answers) {
    expectStatus(200, answer, 'commit');
    assert.deepEqual(answer.body, answers[0].body);
  }
  assert.ok(states.has('verifying'), `seen meanwhile: ${[...states]}`);

  const whole = await plane.fetch('GET', `${base}/${id}/content`, { token });
  assert.equal(whole.headers.get('content-length'), String(file.length));
  assert.equal(whole.headers.get('content-type'), 'application/zip');
  assert.equal(sha256(new Uint8Array(await whole.arrayBuffer())), sha256(file));
});

test('a range is streamed, and a reader that leaves early harms nobody', async () => {
  const file = fileOf(3 * CHUNK, 6);
  const id = await begin(file);
  for (const [index, bytes] of chunksOf(file).entries()) await put(id, index, bytes);
  expectStatus(200, await commit(id), 'commit');
  const range = (value) =>
    plane.fetch('GET', `${base}/${id}/content`, { token, headers: { range: value } });

  const part = await range(`bytes=${CHUNK - 1}-${2 * CHUNK}`);
  assert.equal(part.status, 206);
  assert.equal(part.headers.get('content-range'), `bytes ${CHUNK - 1}-${2 * CHUNK}/${file.length}`);
  const bytes = new Uint8Array(await part.arrayBuffer());
  assert.deepEqual(bytes, file.slice(CHUNK - 1, 2 * CHUNK + 1));

  const beyond = await range(`bytes=${file.length}-`);
  assert.equal(beyond.status, 416);
  assert.equal(beyond.headers.get('content-range'), `bytes */${file.length}`);
  await beyond.text();

  const left = await range('bytes=0-');
  const reader = left.body.getReader();
  await reader.read();
  await reader.cancel();
  expectStatus(200, await plane.api('GET', `${base}/${id}`, { token }), 'GET afterwards');
});

test('a body whose upload goes meanwhile breaks off, and the object goes on', async () => {
  const file = fileOf(16 << 20, 9);
  const id = await begin(file);
  for (const [index, bytes] of chunksOf(file).entries()) await put(id, index, bytes);
  expectStatus(200, await commit(id), 'commit');

  const content = await plane.fetch('GET', `${base}/${id}/content`, { token });
  const reader = content.body.getReader();
  await reader.read();
  const team = await plane.team(teamId);
  await team.query(`UPDATE uploads SET state = 'removing' WHERE id = ?`, id);
  await assert.rejects(async () => {
    while (!(await reader.read()).done);
  });
  const gone = await plane.api('GET', `${base}/${id}`, { token });
  assert.equal(gone.status, 404);
});

test('the empty file and the largest chunk go through', async () => {
  const empty = await begin(new Uint8Array(0));
  expectStatus(200, await commit(empty), 'commit of nothing');
  const content = await plane.fetch('GET', `${base}/${empty}/content`, { token });
  assert.deepEqual([content.status, (await content.arrayBuffer()).byteLength], [200, 0]);

  const file = fileOf(1 << 20, 7);
  const body = {
    size: file.length, sha256: sha256(file), media_type: 'a/b', chunk_size: 1 << 20,
  };
  const answer = await plane.api('POST', base, { token, body });
  expectStatus(201, answer, 'POST /uploads');
  const { id } = answer.body.data;
  expectStatus(204, await put(id, 0, file), 'chunk of 1 MiB');
  expectStatus(200, await commit(id), 'commit');
  const tooLarge = await put(id, 0, new Uint8Array((1 << 20) + 1));
  assert.deepEqual([tooLarge.status, tooLarge.body.error.code], [413, 'too_large']);
});

test('refusals store nothing', async () => {
  const file = fileOf(CHUNK, 8);
  const id = await begin(file);
  const refs = await count('artifact_chunk_refs');
  const wrong = await put(id, 0, file, sha256('else', 'base64'));
  assert.deepEqual([wrong.status, wrong.body.error.code], [409, 'digest_mismatch']);
  const short = await put(id, 0, file.subarray(1));
  assert.deepEqual([short.status, short.body.error.details.field], [400, 'body']);
  const none = await plane.api('PUT', `${base}/${id}/chunks/0`, { token, body: file });
  assert.deepEqual([none.status, none.body.error.details.field], [400, 'Content-Digest']);
  assert.equal(await count('artifact_chunk_refs'), refs);
  const early = await commit(id);
  assert.deepEqual(early.body.error.details.missing, [0]);
});

test('asking what a large upload misses reads its chunks once', async () => {
  const body = { size: 256 << 20, sha256: '0'.repeat(64), media_type: 'a/b', chunk_size: 64 << 10 };
  const answer = await plane.api('POST', base, { token, body });
  expectStatus(201, answer, 'POST /uploads');
  const { id } = answer.body.data;
  const team = await plane.team(teamId);
  await team.query(
    `INSERT INTO artifact_chunk_refs (team_id, upload_id, chunk_index, sha256, size, source_id)
     WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 4094)
     SELECT u.team_id, u.id, i, 'x', 65536, u.source_id FROM uploads u, n WHERE u.id = ?`,
    id,
  );
  await team.resetCounts();
  const held = await plane.api('GET', `${base}/${id}`, { token });
  assert.deepEqual(held.body.data.missing, [4095]);
  const { rowsRead, rowsWritten } = await team.counts();
  assert.ok(rowsRead < 5_000 && rowsWritten === 0, `${rowsRead} read, ${rowsWritten} written`);
});

// What the edge does by itself: ids, CORS, refusals that need no object, limits on bodies.

import assert from 'node:assert/strict';
import { connect } from 'node:net';
import { after, before, test } from 'node:test';
import { OPERATOR_TOKEN, startPlane } from './harness.mjs';

const CONSOLE = 'https://console.example';
const JSON_BYTES_MAX = 1 << 20;
const unknownTeam = `team_${'0'.repeat(32)}`;

let plane, team, token;
before(async () => {
  plane = await startPlane({ bindings: { CONSOLE_ORIGIN: CONSOLE } });
  ({ team, token } = await plane.createTeam());
});
after(() => plane.stop());

/**
 * Sends bytes as they are and resolves with `{ status, text }` as soon as the answer has begun,
 * with the connection still open: whoever waits for the rest of the request never answers.
 */
function sendRaw(text) {
  const { hostname, port } = new URL(plane.url);
  return new Promise((resolve, reject) => {
    let answer = '';
    const socket = connect(Number(port), hostname, () => socket.write(text));
    const timer = setTimeout(() => socket.destroy(new Error(`no whole answer: ${answer}`)), 5000);
    socket.on('error', reject);
    socket.on('close', () => clearTimeout(timer));
    socket.setEncoding('utf8').on('data', (data) => {
      answer += data;
      const status = Number(/^HTTP\/1\.1 (\d+)/.exec(answer)?.[1]);
      if (!answer.includes('\r\n\r\n') || (status >= 400 && !answer.includes('"error"'))) return;
      resolve({ status, text: answer });
      socket.destroy();
    });
  });
}

const head = (line, headers) =>
  [line, 'Host: 127.0.0.1', ...headers, '', ''].join('\r\n');

test('health says the version, the schema and the age of the backlog, and nothing else', async () => {
  const { status, headers, body } = await plane.api('GET', '/v1/health');

  assert.equal(status, 200);
  assert.equal(headers.get('content-type'), 'application/json');
  assert.deepEqual(Object.keys(body).sort(), ['backlog_age_ms', 'schema', 'status', 'version']);
  assert.equal(body.status, 'ok');
});

test('every answer has an id of its own, which no client chooses', async () => {
  const ids = new Set();
  const asked = [
    ['GET', '/v1/health', {}],
    ['GET', '/nothing', {}],
    ['GET', `/v1/teams/${team.id}`, {}],
    ['GET', `/v1/teams/${team.id}`, { token }],
    ['GET', '/v1/teams', { token: OPERATOR_TOKEN }],
    ['OPTIONS', '/v1/teams', { headers: { origin: CONSOLE, 'access-control-request-method': 'GET' } }],
  ];
  for (const [method, path, options] of asked) {
    const headers = { ...options.headers, 'x-request-id': 'mine' };
    const answer = await plane.api(method, path, { ...options, headers });
    const id = answer.headers.get('x-request-id');
    assert.match(id, /^request_[0-9a-f]{32}$/, path);
    if (answer.body?.error) assert.equal(answer.body.error.request_id, id, path);
    ids.add(id);
  }
  assert.equal(ids.size, asked.length);
});

test('the refusals that need no object come in their order', async () => {
  const cases = [
    ['GET', '/', {}, 404, 'not_found'],
    ['GET', '/v1', {}, 404, 'not_found'],
    ['GET', '/v1/health/', {}, 404, 'not_found'],
    ['POST', '/v1/health', {}, 405, 'method_not_allowed', 'GET'],
    ['GET', '/v1/health?deep=1', {}, 400, 'invalid_request'],
    ['GET', '/v1/teams/', { token: OPERATOR_TOKEN }, 404, 'not_found'],
    ['PATCH', '/v1/teams', {}, 405, 'method_not_allowed', 'GET, POST'],
    ['GET', '/v1/teams', {}, 401, 'unauthenticated'],
    ['GET', '/v1/teams', { token: 'wrong' }, 401, 'unauthenticated'],
    ['GET', '/v1/teams', { token }, 401, 'unauthenticated'],
    ['POST', '/internal/teams', { token, body: {} }, 404, 'not_found'],
    ['GET', `/v1/teams/${team.id}/nothing`, {}, 404, 'not_found'],
    ['PROPFIND', `/v1/teams/${team.id}/journal`, {}, 405, 'method_not_allowed', 'GET'],
    ['HEAD', `/v1/teams/${team.id}/journal`, {}, 405, undefined, 'GET'],
    ['GET', `/v1/teams/${team.id}`, {}, 401, 'unauthenticated'],
    ['GET', `/v1/teams/${team.id}`, { token: OPERATOR_TOKEN }, 401, 'unauthenticated'],
    ['GET', `/v1/teams/${unknownTeam}`, { token }, 404, 'not_found'],
    ['GET', '/v1/teams/acme', { token }, 404, 'not_found'],
  ];
  for (const [method, path, options, status, code, allow] of cases) {
    const answer = await plane.api(method, path, options);
    const what = `${method} ${path}: ${JSON.stringify(answer.body)}`;
    assert.equal(answer.status, status, what);
    assert.equal(answer.body?.error.code, code, what);
    assert.equal(answer.headers.get('allow'), allow ?? null, what);
    if (status === 401) assert.equal(answer.headers.get('www-authenticate'), 'Bearer', what);
  }
});

test('without the operator\'s secret its addresses are not configured', async () => {
  const other = await startPlane({ bindings: { OPERATOR_TOKEN: undefined } });
  const answer = await other.api('GET', '/v1/teams', { token: OPERATOR_TOKEN });
  await other.stop();

  assert.equal(answer.status, 503);
  assert.equal(answer.body.error.code, 'not_configured');
});

test('the console and the server itself may read answers, other pages may not', async () => {
  const own = new URL(plane.url).origin;
  for (const [origin, allowed] of [[CONSOLE, true], [own, true], ['https://evil.example', false], ['null', false]]) {
    const answer = await plane.api('GET', `/v1/teams/${team.id}`, { token, headers: { origin } });
    assert.equal(answer.status, 200);
    assert.equal(answer.headers.get('access-control-allow-origin'), allowed ? origin : null);
    assert.match(answer.headers.get('vary'), /Origin/);
    const shown = answer.headers.get('access-control-expose-headers') ?? '';
    for (const name of ['ETag', 'X-Request-Id', 'Retry-After', 'Idempotent-Replayed', 'Location']) {
      assert.equal(shown.includes(name), allowed, name);
    }
  }
});

test('a refusal may be read by the console, too', async () => {
  const answer = await plane.api('GET', '/nothing', { headers: { origin: CONSOLE } });

  assert.equal(answer.headers.get('access-control-allow-origin'), CONSOLE);
});

test('a preflight is answered before anything is asked of the request', async () => {
  const ask = (origin) =>
    plane.api('OPTIONS', `/v1/teams/${team.id}`, {
      headers: {
        origin,
        'access-control-request-method': 'PATCH',
        'access-control-request-headers': 'authorization,if-match',
      },
    });
  const answer = await ask(CONSOLE);
  assert.equal(answer.status, 204);
  assert.equal(answer.headers.get('access-control-allow-origin'), CONSOLE);
  assert.match(answer.headers.get('access-control-allow-methods'), /PATCH/);
  assert.match(answer.headers.get('access-control-allow-headers'), /Authorization.*If-Match.*If-Range.*X-Context-Capability/);
  assert.ok(Number(answer.headers.get('access-control-max-age')) > 0);

  const refused = await ask('https://evil.example');
  assert.equal(refused.headers.get('access-control-allow-origin'), null);
  assert.equal(refused.headers.get('access-control-allow-methods'), null);
});

test('a body of the largest size is read, one byte more is refused', async () => {
  const address = `/v1/teams/${team.id}/members`;
  const body = (bytes) => {
    const text = JSON.stringify({ name: 'Grace', role: 'member' });
    return text + ' '.repeat(bytes - text.length);
  };
  const headers = { 'content-type': 'application/json' };
  const most = await plane.api('POST', address, { token, headers, body: body(JSON_BYTES_MAX) });
  assert.equal(most.status, 201);

  const more = await plane.api('POST', address, { token, headers, body: body(JSON_BYTES_MAX + 1) });
  assert.equal(more.status, 413);
  assert.equal(more.body.error.code, 'too_large');
  assert.equal(more.body.error.details.limit, JSON_BYTES_MAX);
});

const large = ['Content-Type: application/json', 'Content-Length: 2000000000'];
const streamed = ['Content-Type: application/json', 'Transfer-Encoding: chunked'];
const chunk = `${(64 << 10).toString(16)}\r\n${' '.repeat(64 << 10)}\r\n`;

for (const [address, bearer] of [['/v1/teams', () => OPERATOR_TOKEN], ['/members', () => token]]) {
  const path = () => (address === '/v1/teams' ? address : `/v1/teams/${team.id}${address}`);

  test(`${address}: a length that is too large is refused before the body is read`, async () => {
    const headers = [`Authorization: Bearer ${bearer()}`, ...large];
    const { status, text } = await sendRaw(head(`POST ${path()} HTTP/1.1`, headers));

    assert.equal(status, 413);
    assert.match(text, /too_large/);
  });

  test(`${address}: a body without a length is refused where it passes the limit`, async () => {
    const headers = [`Authorization: Bearer ${bearer()}`, ...streamed];
    const { status } = await sendRaw(head(`POST ${path()} HTTP/1.1`, headers) + chunk.repeat(17));

    assert.equal(status, 413);
  });

  test(`${address}: whoever is refused for another reason does not learn the limit`, async () => {
    const line = `POST ${path()} HTTP/1.1`;
    assert.equal((await sendRaw(head(line, large))).status, 401);

    const text = ['Content-Type: text/plain', 'Content-Length: 2000000000'];
    const headers = [`Authorization: Bearer ${bearer()}`, ...text];
    assert.equal((await sendRaw(head(line, headers))).status, 415);
  });
}

test('a body without a length is read where it keeps to the limit', async () => {
  const body = JSON.stringify({ name: 'Mary', role: 'viewer' });
  const headers = [`Authorization: Bearer ${token}`, ...streamed];
  const request = head(`POST /v1/teams/${team.id}/members HTTP/1.1`, headers);
  const { status } = await sendRaw(`${request}${body.length.toString(16)}\r\n${body}\r\n0\r\n\r\n`);

  assert.equal(status, 201);
});

test('a body whose chunks are broken is refused as the caller\'s', async () => {
  const headers = [`Authorization: Bearer ${token}`, ...streamed];
  const request = head(`POST /v1/teams/${team.id}/members HTTP/1.1`, headers);
  const { status, text } = await sendRaw(`${request}5\r\n{"a":\r\nzz\r\n`);

  assert.equal(status, 400, text);
});

test('no header from outside passes for one of the edge', async () => {
  const headers = {
    'x-teamplane-too-large': '1',
    'x-teamplane-loopback': '1',
    'content-type': 'application/json',
  };
  const answer = await plane.api('POST', `/v1/teams/${team.id}/members`, {
    token,
    headers: { ...headers, host: 'plane.example' },
    body: { name: 'Joan', role: 'member' },
  });

  assert.equal(answer.status, 201);
});

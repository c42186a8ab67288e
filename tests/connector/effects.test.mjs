// What the team asks a machine to do, from a stand-in for the plane: the built Worker sends no
// effects yet.

import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { WebSocketServer } from 'ws';
import { Machine, claudeRow, jsonLines, until } from './machine.mjs';

const ID = '5f0c2b4e-1111-4222-8333-444455556666';
const HEX = '0123456789abcdef'.repeat(2);
const machines = [];
const servers = [];
after(async () => {
  for (const machine of machines) await machine.remove();
  for (const { http, sockets } of servers) {
    for (const socket of sockets.clients) socket.terminate();
    http.close();
    http.closeAllConnections();
  }
});

/** Answers as the plane would to what a connector needs, and keeps what it was told. */
async function standIn() {
  const told = { heartbeats: [], results: new Map(), links: [], closes: [] };
  const answers = [
    [/configuration$/, 200, () => ({ source: { state: 'active' }, rules: [] })],
    [/captures$/, 201, () => ({ id: 'capture_1' })],
    [/captures\/.*\/commit$/, 200, () => ({ session_id: 'session_1', revision: 1 })],
    [/uploads$/, 201, () => ({ id: 'upload_1' })],
    [/uploads\/.*\/chunks$/, 200, () => ({ attached: [0], missing: [] })],
    [/uploads\/.*\/commit$/, 200, () => ({ id: 'upload_1' })],
    [/heartbeat$/, 200, (body) => (told.heartbeats.push(body), { machine: { last_seen_at: Date.now() } })],
    [/effects\/(.*)$/, 200, (body, [, id]) => (told.results.set(id, body), {})],
  ];
  const http = createServer(async (request, response) => {
    let text = '';
    for await (const piece of request) text += piece;
    const found = answers.find(([pattern]) => pattern.test(request.url));
    if (!found) return response.writeHead(204).end();
    const [pattern, status, answer] = found;
    const data = answer(text === '' ? null : JSON.parse(text), request.url.match(pattern));
    response.writeHead(status, { 'content-type': 'application/json' });
    response.end(JSON.stringify({ version: 1, data }));
  });
  const sockets = new WebSocketServer({ server: http });
  sockets.on('connection', (socket) => {
    told.links.push(socket);
    socket.on('close', (code) => told.closes.push(code));
    socket.on('message', (text) => {
      const frame = JSON.parse(text);
      if (frame.type !== 'heartbeat') return;
      told.heartbeats.push(frame);
      socket.send(JSON.stringify({ type: 'heartbeat_ack', machine: { last_seen_at: Date.now() }, watched: [] }));
    });
  });
  await new Promise((done) => http.listen(0, '127.0.0.1', done));
  servers.push({ http, sockets });
  return { told, url: `http://127.0.0.1:${http.address().port}/` };
}

async function start(config) {
  const { told, url } = await standIn();
  const plane = { url };
  const machine = new Machine(plane, { team: { id: `team_${HEX}` }, token: '' }, { config });
  machines.push(machine);
  const account = {
    server: url, token: `tp_machine_${HEX}_${HEX}_${HEX}${HEX}`, expires_at: Date.now() + 1e10,
    machine_id: `machine_${HEX}`, source_id: `source_${HEX}`, name: 'laptop',
  };
  writeFileSync(join(machine.state, 'machine.json'), JSON.stringify(account), { mode: 0o600 });
  const path = machine.file('claude-code', '-work', `${ID}.jsonl`);
  mkdirSync(join(machine.home, 'work'));
  writeFileSync(path, jsonLines([claudeRow('hi', { cwd: join(machine.home, 'work') })]));
  const daemon = machine.spawn('run', '-v');
  await until(() => told.links.length > 0 && told.heartbeats.length > 0, () => daemon.stderr);
  return { told, machine, daemon };
}

/** The session's binding, as a heartbeat after it was published says it. */
async function binding(told, daemon) {
  // Heartbeats are fifteen seconds apart; a new link sends one at once.
  await until(() => /: 1 messages/.test(daemon.stderr), () => daemon.stderr);
  const before = told.links.length;
  told.links.at(-1).terminate();
  await until(() => told.links.length > before, () => daemon.stderr);
  const frame = await until(() => told.heartbeats.find(({ bindings }) => bindings.length > 0), () => daemon.stderr);
  assert.deepEqual(frame.activity[0].turn, 'agent');
  return frame.bindings[0].id;
}

async function ask(told, effect) {
  told.links.at(-1).send(JSON.stringify({ type: 'effect', operation_id: 'operation_1', created_at: 1, ...effect }));
  return until(() => told.results.get(effect.effect_id));
}

const ALLOWED = `[effects]
allow = ["message", "interrupt"]
[effects.commands]
claude-code = ["sh", "-c", "if [ \\"$1\\" = wait ]; then exec sleep 60; fi; pwd; printf '%s|' \\"$@\\"", "sh", "{text}", "{native_id}"]
[sync]
quiet_ms = 200
`;

test('nothing is done that the configuration does not allow', async () => {
  const { told, daemon } = await start('');
  const binding_id = await binding(told, daemon);
  for (const kind of ['message', 'interrupt', 'reboot']) {
    const result = await ask(told, { effect_id: `effect_${kind}`, kind, binding_id, input: { text: 'x' } });
    assert.deepEqual([result.state, result.error.code], ['failed', 'unsupported']);
  }
});

test('a message goes to the agent as one argument, once; an interrupt ends it', async () => {
  const { told, machine, daemon } = await start(ALLOWED);
  const binding_id = await binding(told, daemon);
  const text = 'a "b" $(touch x) ; é';
  const said = await ask(told, { effect_id: 'effect_1', kind: 'message', binding_id, input: { text } });
  assert.deepEqual(said, { state: 'succeeded', result: { output: `${join(machine.home, 'work')}\n${text}|${ID}|` } });

  told.results.clear();
  const again = await ask(told, { effect_id: 'effect_1', kind: 'message', binding_id, input: { text } });
  assert.equal(again.error.code, 'interrupted', 'not done a second time');

  const other = await ask(told, { effect_id: 'effect_2', kind: 'reboot', input: {} });
  assert.equal(other.error.code, 'unsupported');

  const waiting = ask(told, { effect_id: 'effect_3', kind: 'message', binding_id, input: { text: 'wait' } });
  await until(async () => {
    const effect_id = `effect_${crypto.randomUUID()}`;
    const { state } = await ask(told, { effect_id, kind: 'interrupt', binding_id, input: {} });
    return state === 'succeeded';
  });
  assert.equal((await waiting).error.code, 'interrupted');

  const { code } = await daemon.kill('SIGTERM');
  assert.equal(code, 0);
  await until(() => told.closes.includes(1000), () => String(told.closes));
});

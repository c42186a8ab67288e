// Starts the built Worker in workerd, the runtime that serves it when deployed, and talks to it.
//
//   const plane = await startPlane();
//   const { team, token } = await plane.createTeam('Acme');
//   const answer = await plane.api('GET', `/v1/teams/${team.id}/me`, { token });
//   await plane.stop();
//
// Both object classes run inside a wrapper (objects.mjs) with hooks that no route has, such as
// `await plane.team(team.id).query('SELECT …')`. A second Worker (driver.mjs) calls them; it also
// sends many requests from inside workerd, since each one from Node costs some milliseconds.

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Log, LogLevel, Miniflare } from 'miniflare';
import { WebSocket } from 'ws';

const here = dirname(fileURLToPath(import.meta.url));
const buildDir = resolve(here, '../../build');

export const OPERATOR_TOKEN = 'operator-token-of-the-tests';
export const APP_ROOT_SECRET = 'app-root-secret-of-the-tests';

const HOOKS = [
  'query', 'alarmAt', 'runAlarm', 'setMaxPages', 'databaseSize', 'abort', 'counts', 'resetCounts',
  'fail', 'setAlarm', 'setClock', 'instances', 'record', 'execEach', 'costOf', 'wasmBytes', 'sockets',
];

const DEFAULT_BINDINGS = {
  TEST_HOOKS: '1',
  RATE_LIMIT_PER_S: '0',
  SHARDING: 'team',
  OPERATOR_TOKEN,
  APP_ROOT_SECRET,
  WEBHOOK_ALLOW_LOCAL: '1',
};

/**
 * Starts the Worker. `bindings` override the defaults; one set to undefined is left out.
 * `persistDir` keeps the storage after `stop`; without it the storage is deleted then.
 * `plain` runs the build as it is deployed: without hooks, counters and driver.
 * `counts: false` leaves out only the counters, so that nothing slows the core down.
 * `entry` is served instead of the build: one file with the same classes and hooks.
 * `evicts` lets objects be put to sleep after some ten seconds, as they are when deployed.
 * `port` is one that was free before, for a server that comes back; any free one otherwise.
 * `log` is called with what the Worker prints, piece by piece; it is dropped otherwise.
 */
export async function startPlane(options = {}) {
  const { persistDir, plain = false, counts = true, evicts = false, entry, port = 0, log } = options;
  const bindings = { ...(counts ? {} : { TEST_COUNTS: '0' }), ...options.bindings };
  const storageDir = persistDir ?? mkdtempSync(join(tmpdir(), 'teamplane-test-'));
  const plane = new Plane(miniflareOptions({ bindings, storageDir, plain, evicts, entry, port, log }));
  await plane.start();
  plane.onStopped = () => {
    if (!persistDir) rmSync(storageDir, { recursive: true, force: true });
  };
  return plane;
}

function miniflareOptions({ bindings, storageDir, plain, evicts, entry, port, log }) {
  const built = [
    { type: 'ESModule', path: join(buildDir, 'index.js') },
    { type: 'CompiledWasm', path: join(buildDir, 'index_bg.wasm') },
  ];
  const hooked = ['objects.mjs', 'wasm-memory.mjs'].map((name) => join(here, name));
  const served = [
    ...(entry ? [entry] : plain ? [] : hooked).map((path) => ({ type: 'ESModule', path })),
    ...(entry ? [] : built),
  ];
  const all = { ...DEFAULT_BINDINGS, ...bindings };
  const shared = { compatibilityDate: '2026-04-01' };
  const object = { useSQLite: true, unsafePreventEviction: !evicts };
  const plane = {
    ...shared,
    name: 'plane',
    modulesRoot: resolve(here, '../..'),
    modules: served,
    // `setMaxPageCountForTest`, which fills a database up, is an experimental method.
    compatibilityFlags: plain ? [] : ['experimental'],
    bindings: Object.fromEntries(Object.entries(all).filter(([, value]) => value !== undefined)),
    durableObjects: {
      TEAM: { className: 'Team', ...object },
      DIRECTORY: { className: 'Directory', ...object },
    },
  };
  const driver = {
    ...shared,
    name: 'driver',
    modules: [{ type: 'ESModule', path: join(here, 'driver.mjs') }],
    modulesRoot: here,
    serviceBindings: { PLANE: 'plane' },
    durableObjects: {
      TEAM: { className: 'Team', scriptName: 'plane', ...object },
      DIRECTORY: { className: 'Directory', scriptName: 'plane', ...object },
    },
  };
  return {
    host: '127.0.0.1',
    port,
    log: new Log(LogLevel.ERROR),
    workers: plain ? [plane] : [plane, driver],
    durableObjectsPersist: storageDir,
    handleRuntimeStdio(...streams) {
      for (const stream of streams) stream.setEncoding('utf8').on('data', (text) => log?.(text));
    },
  };
}

class Plane {
  #options;
  #miniflare;

  constructor(options) {
    this.#options = options;
  }

  async start() {
    this.#miniflare = new Miniflare(this.#options);
    /** Where the Worker listens, with a `/` at the end. */
    this.url = (await this.#miniflare.ready).href;
  }

  /** Stops workerd and starts it on the same storage: what was only in memory is gone. */
  async restart() {
    await this.#miniflare.dispose();
    await this.start();
  }

  async stop() {
    await this.#miniflare.dispose();
    this.onStopped?.();
  }

  /**
   * Sends one request. `body` is sent as it is if it is a string or bytes, as JSON otherwise.
   * `now` is the object's clock in milliseconds, which TEST_HOOKS lets a request set.
   * Resolves with `{ status, headers, body }`, the body parsed if it is JSON, null if empty.
   */
  async api(method, path, { token, body, headers = {}, now } = {}) {
    const response = await this.fetch(method, path, { token, body, headers, now });
    const text = await response.text();
    const isJson = /^application\/json(;|$)/.test(response.headers.get('content-type') ?? '');
    return {
      status: response.status,
      headers: response.headers,
      body: text === '' ? null : isJson ? JSON.parse(text) : text,
    };
  }

  /** As `api`, but resolves with the Response, its body unread: for streams and bytes. */
  fetch(method, path, { token, body, headers = {}, now, signal } = {}) {
    const raw = body === undefined || typeof body === 'string' || ArrayBuffer.isView(body);
    const send = () =>
      fetch(new URL(path, this.url), {
        method,
        body: raw ? body : JSON.stringify(body),
        headers: {
          ...(raw && typeof body !== 'string' ? {} : { 'content-type': 'application/json' }),
          ...(token ? { authorization: `Bearer ${token}` } : {}),
          ...(now === undefined ? {} : { 'x-test-now-ms': String(now) }),
          ...headers,
        },
        redirect: 'manual',
        signal,
      });
    // A refusal that leaves the body unread ends its connection; the pool may still hand it out.
    return send().catch((error) => {
      if (!['UND_ERR_SOCKET', 'ECONNRESET', 'EPIPE'].includes(error.cause?.code)) throw error;
      return send();
    });
  }

  /**
   * Opens a WebSocket. Resolves with a `Socket`, or with `{ status, body }` where it is refused.
   */
  connect(path, { token, now, headers = {} } = {}) {
    const socket = new WebSocket(new URL(path, this.url.replace('http', 'ws')), {
      headers: {
        ...(token ? { authorization: `Bearer ${token}` } : {}),
        ...(now === undefined ? {} : { 'x-test-now-ms': String(now) }),
        ...headers,
      },
      perMessageDeflate: false,
    });
    return new Promise((resolve, reject) => {
      const wrapped = new Socket(socket);
      socket.on('open', () => resolve(wrapped));
      socket.on('error', reject);
      socket.on('unexpected-response', async (_, response) => {
        let text = '';
        for await (const piece of response.setEncoding('utf8')) text += piece;
        resolve({ status: response.statusCode, body: text && JSON.parse(text) });
      });
    });
  }

  /**
   * Opens a stream of server-sent events. Resolves with a `Stream`, or with `{ status, body }`
   * where it is refused.
   */
  async stream(path, { token, now, headers = {} } = {}) {
    const controller = new AbortController();
    const response = await this.fetch('GET', path, {
      token, now, headers: { accept: 'text/event-stream', ...headers }, signal: controller.signal,
    });
    if (response.status === 200) return new Stream(response, controller);
    return { status: response.status, body: await response.json() };
  }

  /** Creates a team. Resolves with `{ team, member, token }`; the token is its owner's. */
  async createTeam(name = 'Acme', { owner = { name: 'Ada' }, now } = {}) {
    const data = await this.#create('/v1/teams', { token: OPERATOR_TOKEN, body: { name, owner }, now });
    return { team: data.team, member: data.member, token: data.credential.token };
  }

  /** Enrols a machine. Resolves with `{ machine, source, token }`; the token is the machine's. */
  async enrollMachine(teamId, token, { name = 'laptop', now, ...body } = {}) {
    body = { name, enrollment_key: `key of ${name}`, ...body };
    const data = await this.#create(`/v1/teams/${teamId}/machines`, { token, body, now });
    return { machine: data.machine, source: data.source, token: data.credential.token };
  }

  /** Adds a member. Resolves with `{ member, token }`. */
  async addMember(teamId, token, { name = 'Grace', role = 'member', now, ...body } = {}) {
    body = { name, role, ...body };
    const data = await this.#create(`/v1/teams/${teamId}/members`, { token, body, now });
    return { member: data.member, token: data.credential.token };
  }

  /** Publishes messages as one capture. Resolves with the commit's answer. */
  async publish(teamId, token, { messages, now, ...capture }) {
    const base = `/v1/teams/${teamId}/captures`;
    const begin = { harness: 'claude-code', native_id: 'session-1', ...capture };
    const { id } = await this.#create(base, { token, body: begin, now });
    const part = await this.api('PUT', `${base}/${id}/parts/0`, { token, body: { messages }, now });
    expectStatus(204, part, 'PUT part');
    const commit = await this.api('POST', `${base}/${id}/commit`, { token, body: { parts: 1 }, now });
    expectStatus(200, commit, 'POST commit');
    return commit.body.data;
  }

  async #create(path, options) {
    const answer = await this.api('POST', path, options);
    expectStatus(201, answer, `POST ${path}`);
    return answer.body.data;
  }

  /** The hooks of the object of this name: for a team its id, unless SHARDING says otherwise. */
  team(name) {
    return this.#hooks('TEAM', name);
  }

  /** The hooks of the Directory's object of this name. */
  directory(name) {
    return this.#hooks('DIRECTORY', name);
  }

  #hooks(binding, name) {
    const call = (hook, args) => this.#call({ binding, name, hook, args });
    const hooks = HOOKS.map((hook) => [hook, async (...args) => (await call(hook, args)).value]);
    /** Calls any hook. Resolves with `{ value, ms }`: how long it took, seen from inside workerd. */
    return { ...Object.fromEntries(hooks), timed: (hook, ...args) => call(hook, args) };
  }

  async #call(input) {
    const answer = await this.#drive('hook', input);
    if (answer.error) throw new Error(answer.error);
    return answer;
  }

  /**
   * Sends requests from inside workerd, `concurrency` at a time. Each is
   * `{ method, path, token?, body?, headers? }`, its body a value for JSON or a string.
   * Resolves with `{ results: [{ status, ms, brokeOff? }], elapsedMs }`; `keepBodies` adds `body` to
   * each. `brokeOff` says why a body came to no end.
   */
  load(requests, { concurrency = 1, keepBodies = false } = {}) {
    return this.#drive('load', { requests, concurrency, keepBodies });
  }

  async #drive(what, input) {
    const driver = await this.#miniflare.getWorker('driver');
    const body = JSON.stringify(input);
    const response = await driver.fetch(`http://driver/${what}`, { method: 'POST', body });
    return response.json();
  }
}

/** Server-sent events as they come: `{ id?, event?, data }`, the data parsed. */
class Stream {
  #controller;
  #unread = [];
  #waiting = [];
  #paused = null;
  #resume;

  constructor(response, controller) {
    this.headers = response.headers;
    this.#controller = controller;
    /** Comments so far. */
    this.comments = 0;
    /** The last event's id. */
    this.lastId = undefined;
    /** Resolves once the stream is over. */
    this.ended = this.#read(response.body).catch(() => {});
  }

  async #read(body) {
    let text = '';
    for await (const piece of body.pipeThrough(new TextDecoderStream())) {
      text += piece;
      const blocks = text.split('\n\n');
      text = blocks.pop();
      for (const block of blocks) this.#take(block);
      if (this.#paused) await this.#paused;
    }
    for (const resolve of this.#waiting) resolve(undefined);
  }

  #take(block) {
    if (block.startsWith(':')) {
      this.comments += 1;
      return;
    }
    const fields = block.split('\n').map((line) => line.split(/: (.*)/s));
    const event = Object.fromEntries(fields.map(([name, value]) => [name, value]));
    event.data = JSON.parse(event.data);
    if (event.id !== undefined) this.lastId = event.id;
    const next = this.#waiting.shift();
    if (next) next(event);
    else this.#unread.push(event);
  }

  /** The next event that came or comes; undefined once the stream is over. */
  next() {
    if (this.#unread.length > 0) return Promise.resolve(this.#unread.shift());
    return Promise.race([
      new Promise((resolve) => this.#waiting.push(resolve)),
      this.ended.then(() => undefined),
    ]);
  }

  /** The next `count` events. */
  async take(count) {
    const events = [];
    while (events.length < count) events.push(await this.next());
    return events;
  }

  /** How many events came that nobody has read. */
  get unread() {
    return this.#unread.length;
  }

  /** Stops taking what comes. */
  pause() {
    this.#paused ??= new Promise((resolve) => (this.#resume = resolve));
  }

  resume() {
    this.#resume?.();
    this.#paused = null;
  }

  /** Goes away. */
  break() {
    this.resume();
    this.#controller.abort();
  }
}

/** A WebSocket whose frames are JSON texts. */
class Socket {
  #socket;
  #unread = [];
  #waiting = [];

  constructor(socket) {
    this.#socket = socket;
    /** Resolves with `{ code, reason }` once the server has ended it or the connection broke. */
    this.closed = new Promise((resolve) => {
      const ended = (code, reason) => resolve({ code, reason: reason.toString() });
      socket.on('close', ended);
      // workerd leaves the connection open after a close, and ws waits half a minute for its end.
      socket.on('open', () => socket._receiver.on('conclude', ended));
    });
    socket.on('message', (data) => {
      const frame = JSON.parse(data.toString());
      const next = this.#waiting.shift();
      if (next) next(frame);
      else this.#unread.push(frame);
    });
  }

  /** Sends a text or bytes as they are, anything else as JSON. */
  send(frame) {
    const raw = typeof frame === 'string' || ArrayBuffer.isView(frame);
    this.#socket.send(raw ? frame : JSON.stringify(frame));
  }

  /** The next frame that came or comes. */
  next() {
    if (this.#unread.length > 0) return Promise.resolve(this.#unread.shift());
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  /** How many frames came that nobody has read. */
  get unread() {
    return this.#unread.length;
  }

  close(code, reason) {
    this.#socket.close(code, reason);
  }

  /** Breaks the connection, without a close. */
  break() {
    this.#socket.terminate();
  }
}

export function expectStatus(status, answer, what) {
  if (answer.status === status) return;
  throw new Error(`${what}: ${answer.status} instead of ${status}: ${JSON.stringify(answer.body)}`);
}

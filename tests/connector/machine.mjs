// A developer's machine: a home folder with transcripts and the built connector, against a plane.
//
//   const machine = new Machine(plane, { team, token });
//   await machine.setUp();
//   machine.write('claude-code', 'shop', id, rows);
//   await machine.run('import');

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { appendFileSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { setTimeout as wait } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

const root = resolve(dirname(fileURLToPath(import.meta.url)), '../..');
export const BINARY = process.env.TEAMPLANE_BINARY ?? join(root, 'target/connector/teamplane');
export const fixture = (...parts) => join(root, 'tests/fixtures', ...parts);

const WAIT_MS_MAX = 30_000;
const POLL_MS = 25;

/** Resolves with the first true value of `holds`; fails with what `describe` says when it is late. */
export async function until(holds, describe = () => String(holds)) {
  const deadline = Date.now() + WAIT_MS_MAX;
  for (;;) {
    const value = await holds();
    if (value) return value;
    if (Date.now() > deadline) throw new Error(`It never came to be: ${await describe()}`);
    await wait(POLL_MS);
  }
}

export class Machine {
  #running = new Set();

  constructor(plane, { team, token }, { name = 'laptop', config = '[sync]\nquiet_ms = 200\n' } = {}) {
    Object.assign(this, { plane, team, token, name });
    this.base = `/v1/teams/${team.id}`;
    this.home = mkdtempSync(join(tmpdir(), 'teamplane-machine-'));
    this.state = join(this.home, 'teamplane');
    mkdirSync(this.state);
    writeFileSync(join(this.state, 'config.toml'), config);
    mkdirSync(this.folder('claude-code'), { recursive: true });
  }

  /** Logs in and enrols. */
  async setUp() {
    const login = await this.run('login', '--server', this.plane.url, { input: `${this.token}\n` });
    assert.equal(login.code, 0, login.stderr);
    const enroll = await this.run('enroll', '--name', this.name);
    assert.equal(enroll.code, 0, enroll.stderr);
    return this;
  }

  /** Ends what runs and removes the home folder. */
  async remove() {
    for (const running of this.#running) await running.kill();
    rmSync(this.home, { recursive: true, force: true });
  }

  get account() {
    return JSON.parse(readFileSync(join(this.state, 'machine.json'), 'utf8'));
  }

  folder(harness) {
    const folders = { 'claude-code': '.claude/projects', codex: '.codex/sessions', gemini: '.gemini/tmp' };
    return join(this.home, folders[harness]);
  }

  file(harness, ...parts) {
    const path = join(this.folder(harness), ...parts);
    mkdirSync(dirname(path), { recursive: true });
    return path;
  }

  spawn(...args) {
    const env = { PATH: process.env.PATH, HOME: this.home, TEAMPLANE_HOME: this.state, RUST_BACKTRACE: '1' };
    const child = spawn(BINARY, args, { env, stdio: ['pipe', 'pipe', 'pipe'] });
    const running = { child, stdout: '', stderr: '' };
    child.stdout.setEncoding('utf8').on('data', (text) => (running.stdout += text));
    child.stderr.setEncoding('utf8').on('data', (text) => (running.stderr += text));
    running.ended = new Promise((done) => {
      child.once('close', (code, signal) => {
        this.#running.delete(running);
        done({ code, signal, stdout: running.stdout, stderr: running.stderr });
      });
    });
    running.kill = (signal = 'SIGKILL') => {
      child.kill(signal);
      return running.ended;
    };
    this.#running.add(running);
    return running;
  }

  /** Runs a command to its end. The last argument may be `{ input }`. */
  run(...args) {
    const last = args.at(-1);
    const { input = '' } = typeof last === 'object' ? args.pop() : {};
    const running = this.spawn(...args);
    running.child.stdin.on('error', () => {});
    running.child.stdin.end(input);
    return running.ended;
  }

  /** Runs a command with `--json`: the values that it printed. */
  async json(...args) {
    const { code, stdout, stderr } = await this.run('--json', ...args);
    assert.equal(code, 0, stdout + stderr);
    return stdout.split('\n').filter(Boolean).map((line) => JSON.parse(line));
  }

  /** Starts the daemon; resolves once it is linked. */
  async start() {
    const daemon = this.spawn('run', '-v');
    await until(
      async () => daemon.child.exitCode !== null || (await this.connection()) === 'online',
      () => daemon.stderr,
    );
    assert.equal(daemon.child.exitCode, null, daemon.stderr);
    return daemon;
  }

  async connection() {
    const path = `${this.base}/machines/${this.account.machine_id}`;
    const answer = await this.plane.api('GET', path, { token: this.token }).catch(() => null);
    return answer?.body?.data?.connection;
  }

  async get(path) {
    const answer = await this.plane.api('GET', this.base + path, { token: this.token });
    assert.equal(answer.status, 200, `${path}: ${JSON.stringify(answer.body)}`);
    return answer.body;
  }

  /** This machine's session of that native id, or undefined. */
  async session(nativeId) {
    const rows = await this.plane
      .team(this.team.id)
      .query('SELECT session_id FROM origins WHERE native_id = ? AND source_id = ?', nativeId, this.account.source_id);
    if (rows.length === 0 || rows[0].session_id === null) return undefined;
    return (await this.get(`/sessions/${rows[0].session_id}`)).data;
  }

  /** What the plane holds of a session, message by message. */
  async messages(nativeId) {
    const session = await this.session(nativeId);
    if (!session) return undefined;
    const messages = [];
    for (;;) {
      const after = messages.length > 0 ? `&after=${messages.at(-1).ordinal}` : '';
      const page = await this.get(`/sessions/${session.id}/messages?limit=200${after}`);
      messages.push(...page.items);
      if (page.items.length === 0 || messages.length >= session.message_count) return messages;
    }
  }

  /** The bytes of the newest bundle of a session. */
  async bundle(nativeId) {
    const session = await this.session(nativeId);
    const { items } = await this.get(`/sessions/${session.id}/artifacts`);
    const pieces = [];
    for (const { upload_id } of items) {
      const path = `${this.base}/uploads/${upload_id}/content`;
      const response = await this.plane.fetch('GET', path, { token: this.token });
      pieces.push(Buffer.from(await response.arrayBuffer()));
    }
    return Buffer.concat(pieces);
  }

  /** Resolves once the plane holds exactly these rows of a session. */
  async holds(nativeId, rows) {
    const wanted = JSON.stringify(rows);
    let held;
    await until(
      async () => {
        held = (await this.messages(nativeId).catch(() => undefined))?.map(({ native }) => native);
        return JSON.stringify(held) === wanted;
      },
      () => `${nativeId} holds ${held?.length} of ${rows.length}: ${JSON.stringify(held?.at(-1))?.slice(0, 300)}`,
    );
  }
}

let count = 0;
/** A row of Claude Code. */
export function claudeRow(text, fields = {}) {
  count += 1;
  const uuid = `00000000-0000-4000-8000-${String(count).padStart(12, '0')}`;
  const role = fields.type ?? 'user';
  return {
    parentUuid: null, isSidechain: false, cwd: '/work/shop', version: '2.1.98', type: role,
    message: { role, content: text }, uuid, timestamp: '2026-03-09T08:13:03.728Z', ...fields,
  };
}

export const jsonLines = (rows) => rows.map((row) => `${typeof row === 'string' ? row : JSON.stringify(row)}\n`).join('');
export const rowsOf = (path) => readFileSync(path, 'utf8').split('\n').filter(Boolean).map((line) => JSON.parse(line));
export { appendFileSync, readFileSync, readdirSync, rmSync, writeFileSync };

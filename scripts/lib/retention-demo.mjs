// What retention does to a month of work, in a moment: a server of its own, in a temporary folder and
// with TEST_HOOKS, is told what time it is. The server that `npm start` leaves running never has them.

import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { inRoot } from './paths.mjs';
import { send } from './send.mjs';

const DAYS = 30;
const SESSIONS = 4;
const CAPTURES_PER_SESSION = 8;
/** Each capture rewrites the last messages of the one before, as an agent's transcript may. */
const NEW_MESSAGES = 20;
const REWRITTEN_MESSAGES = 5;
const DAY_MS = 86_400_000;
const PASSES_MAX = 1_000;

/** Resolves with one line about what went and what it cost. */
export async function retentionDemo() {
  const folder = mkdtempSync(join(tmpdir(), 'teamplane-demo-'));
  const operatorToken = randomBytes(32).toString('hex');
  const server = await startServer(folder, operatorToken);
  try {
    const url = (await server.ready).origin;
    const beganAt = Date.now() - DAYS * DAY_MS;
    const { base, token } = await work(url, operatorToken, beganAt);
    return describe(await removeAll(url, base, token, beganAt + DAYS * DAY_MS));
  } finally {
    await server.dispose();
    rmSync(folder, { recursive: true, force: true });
  }
}

async function startServer(folder, operatorToken) {
  const { Miniflare } = await import('miniflare');
  return new Miniflare({
    host: '127.0.0.1',
    port: 0,
    modules: [
      { type: 'ESModule', path: inRoot('build/index.js') },
      { type: 'CompiledWasm', path: inRoot('build/index_bg.wasm') },
    ],
    modulesRoot: inRoot('build'),
    compatibilityDate: '2026-04-01',
    bindings: { TEST_HOOKS: '1', RATE_LIMIT_PER_S: '0', OPERATOR_TOKEN: operatorToken },
    durableObjects: {
      TEAM: { className: 'Team', useSQLite: true },
      DIRECTORY: { className: 'Directory', useSQLite: true },
    },
    durableObjectsPersist: folder,
  });
}

/** A member's sessions, published as they grow, spread over the days. */
async function work(url, operatorToken, beganAt) {
  const owner = { name: 'Demo', owner: { name: 'Ada' } };
  const made = await send(url, operatorToken, 'POST', '/v1/teams', owner, beganAt);
  const base = `/v1/teams/${made.team.id}`;
  const token = made.credential.token;
  const machine = { name: 'laptop', enrollment_key: 'demo' };
  const { credential } = await send(url, token, 'POST', `${base}/machines`, machine, beganAt);
  const sessions = Array.from({ length: SESSIONS }, (_, n) => ({ nativeId: `session-${n}`, count: 0 }));
  for (let capture = 0; capture < CAPTURES_PER_SESSION; capture += 1) {
    const now = beganAt + Math.floor((capture * (DAYS - 2) * DAY_MS) / CAPTURES_PER_SESSION);
    const call = (method, path, body) => send(url, credential.token, method, base + path, body, now);
    await Promise.all(sessions.map((session) => publish(call, session)));
  }
  return { base, token };
}

/** Publishes a session's next version. */
async function publish(call, session) {
  const { nativeId, count, revision } = session;
  const keep = Math.max(0, count - REWRITTEN_MESSAGES);
  const { id } = await call('POST', '/captures', {
    harness: 'codex',
    native_id: nativeId,
    ...(revision === undefined ? {} : { base: { revision, keep } }),
  });
  session.count = count + NEW_MESSAGES;
  const messages = Array.from({ length: session.count - keep }, (_, n) => ({
    ordinal: keep + n,
    role: n % 2 === 0 ? 'user' : 'assistant',
    text: `Message ${keep + n} as of ${session.count}`,
  }));
  await call('PUT', `/captures/${id}/parts/0`, { messages });
  ({ revision: session.revision } = await call('POST', `/captures/${id}/commit`, { parts: 1 }));
}

/** Runs passes until nothing is left to remove. */
async function removeAll(url, base, token, now) {
  const all = { removed: {}, units: 0, passes: 0 };
  for (let backlog = true; backlog && all.passes < PASSES_MAX; all.passes += 1) {
    const outcome = await send(url, token, 'POST', `${base}/maintain`, undefined, now);
    all.units += outcome.cost.units;
    for (const [kind, rows] of Object.entries(outcome.removed)) {
      all.removed[kind] = (all.removed[kind] ?? 0) + rows;
    }
    ({ backlog } = outcome);
  }
  return all;
}

function describe({ removed, units, passes }) {
  const kinds = Object.entries(removed).sort(([, a], [, b]) => b - a);
  const rows = kinds.reduce((sum, [, count]) => sum + count, 0);
  const list = kinds.map(([kind, count]) => `${count} ${kind.replaceAll('_', ' ')}`).join(', ');
  return (
    `Retention after ${DAYS} simulated days, in a throw-away server: ${rows} rows went (${list}) ` +
    `in ${passes === 1 ? 'one pass' : `${passes} passes`} of ${units} units, ${(units / rows).toFixed(1)} a row`
  );
}

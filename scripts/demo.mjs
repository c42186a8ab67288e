// The demo that `npm start` shows: a team, a machine, and the sessions its connector published.
//
// The first start makes it; what a later one needs is kept in demo.json. The sessions come from
// tests/fixtures. Each is published as a connector would while the agent works: the file is read a
// few times as it grows, and each capture sends only what came after the last. What retention does
// to weeks of that is shown beside it, in a server of its own.

import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { inRoot } from './lib/paths.mjs';
import { retentionDemo } from './lib/retention-demo.mjs';
import { send } from './lib/send.mjs';
import { messageJson, messagesOf, readRows } from './lib/transcripts.mjs';
import { webhookDemo } from './lib/webhook-demo.mjs';

const SESSIONS = [
  { harness: 'claude-code', file: 'login-redirect.jsonl', title: 'Login redirect loop' },
  { harness: 'claude-code', file: 'invoice-export.jsonl', title: 'Slow invoice export' },
  { harness: 'codex', file: 'rollout-2026-03-10T09-30-11-bigint-ids.jsonl', title: 'Payments ids to bigint' },
  { harness: 'codex', file: 'rollout-2026-03-12T16-44-50-flaky-retry.jsonl', title: 'Flaky retry test' },
  { harness: 'gemini', file: 'session-2026-03-13T11-05-yen-rounding.jsonl', title: 'Yen has no decimals' },
];

/** How much of the file is there at each capture. The last is always all of it. */
const GROWTH = [0.4, 0.75, 1];
const PART_MESSAGES = 10;

/** Makes the demo, or finds it again, and says how to look at it. */
export async function demo({ url, operatorToken, stateDir, say }) {
  const file = join(stateDir, 'demo.json');
  let state = existsSync(file) ? JSON.parse(readFileSync(file, 'utf8')) : null;
  if (state && !(await isThere(url, state))) state = null;
  if (!state) {
    state = await create({ url, operatorToken, say });
    writeFileSync(file, `${JSON.stringify(state, null, 2)}\n`, { mode: 0o600 });
  }
  explain({ url, state, file, say });
}

async function isThere(url, { teamId, userToken }) {
  const response = await fetch(`${url}/v1/teams/${teamId}/me`, {
    headers: { authorization: `Bearer ${userToken}` },
  });
  return response.ok;
}

async function create({ url, operatorToken, say }) {
  say('Making the demo team');
  const { team, credential: user } = await send(url, operatorToken, 'POST', '/v1/teams', {
    name: 'Demo',
    owner: { name: 'Ada' },
  });
  const base = `/v1/teams/${team.id}`;
  const { machine, credential } = await send(url, user.token, 'POST', `${base}/machines`, {
    name: 'laptop',
    enrollment_key: 'demo',
    visibility: 'team',
  });

  const sessions = [];
  for (const sample of SESSIONS) {
    const sessionId = await publish(url, credential.token, base, sample);
    say(`Published ${sample.harness}: ${sample.title}`);
    sessions.push({ id: sessionId, title: sample.title });
  }
  say(await webhookDemo(url, user.token, base));
  say(await retentionDemo());
  return {
    teamId: team.id,
    machineId: machine.id,
    userToken: user.token,
    machineToken: credential.token,
    sessions,
  };
}

async function publish(url, token, base, { harness, file, title }) {
  const rows = readRows(inRoot('tests/fixtures', harness, file));
  const nativeId = file.replace(/\.jsonl$/, '');
  let sent = [];
  let revision;
  let sessionId;

  for (const share of GROWTH) {
    const messages = messagesOf(harness, rows.slice(0, Math.ceil(rows.length * share))).map(messageJson);
    const firstNew = messages.findIndex((message, index) => message !== sent[index]);
    if (firstNew < 0 && messages.length === sent.length) continue;
    const keep = firstNew < 0 ? messages.length : firstNew;

    const capture = await send(url, token, 'POST', `${base}/captures`, {
      harness,
      native_id: nativeId,
      title,
      ...(revision === undefined ? {} : { base: { revision, keep } }),
    });
    let parts = 0;
    for (let from = keep; from < messages.length; from += PART_MESSAGES) {
      const part = messages.slice(from, from + PART_MESSAGES).join(',');
      await send(url, token, 'PUT', `${base}/captures/${capture.id}/parts/${parts}`, `{"messages":[${part}]}`);
      parts += 1;
    }
    const commit = await send(url, token, 'POST', `${base}/captures/${capture.id}/commit`, { parts });
    ({ session_id: sessionId, revision } = commit);
    sent = messages;
  }
  return sessionId;
}

function explain({ url, state, file, say }) {
  const curl = (path) => `  curl -H "Authorization: Bearer $TOKEN" '${url}/v1/teams/${state.teamId}${path}'`;
  say(
    [
      `teamplane is running at ${url}`,
      '',
      `team           ${state.teamId}`,
      `user token     ${state.userToken}`,
      `machine token  ${state.machineToken}`,
      `(kept in ${file})`,
      '',
      'List the sessions, search them, read one:',
      `  TOKEN=${state.userToken}`,
      curl('/sessions'),
      curl('/sessions?q=redirect'),
      curl(`/sessions/${state.sessions[0].id}/messages?limit=5`),
      '',
      'Watch machines come and go, and have the demo machine do so:',
      `${curl('/machines/events')} -N -H 'Accept: text/event-stream'`,
      '  node scripts/link.mjs',
      '',
      'Publish the sessions of this machine (its agents\' folders are only read):',
      '  cargo install --path connector --profile connector',
      `  echo ${state.userToken} | teamplane login --server ${url}`,
      '  teamplane enroll && teamplane run',
      '',
      'Ctrl-C stops it; what is stored stays.',
    ].join('\n'),
  );
}

// How fast a long capture goes in, against bare inserts of the same messages, and what an append costs.

import { fileURLToPath } from 'node:url';
import { atLeast, inTurn, median, ROUNDS, sendAll, table, whole, withPlane } from './lib.mjs';

const MESSAGES = 10_000;
const MESSAGES_A_PART = 1_000;
const SEARCHED_MIN = 0.6;
const PLAIN_MIN = 0.12;
const WORDS = 'the agent reads a file then edits one line and runs all tests again to see what fails'.split(' ');

export const bare = fileURLToPath(new URL('bare.mjs', import.meta.url));
export const title = 'Intake';

export async function run(print) {
  const [ms, searchedMs, plainMs] = await withPlane({ counts: false }, (plane) =>
    withPlane({ entry: bare }, (other) => measure(plane, other)),
  );
  print(`A capture of ${whole(MESSAGES)} messages in parts of ${whole(MESSAGES_A_PART)}, begin to commit:\n`);
  table(print, ['', 'ms', 'messages/s', 'what a capture reaches of it'], [
    ['as a capture', ms, whole((MESSAGES * 1000) / ms), ''],
    ['the same rows bare, with a primary key and full-text search', searchedMs,
      whole((MESSAGES * 1000) / searchedMs), atLeast(SEARCHED_MIN, searchedMs / ms)],
    ['one bare insert with a primary key', plainMs,
      whole((MESSAGES * 1000) / plainMs), atLeast(PLAIN_MIN, plainMs / ms)],
  ]);

  const { appendMs, rowsRead, rowsWritten } = await withPlane({}, append);
  print(`Appending 3 messages to a session of ${whole(MESSAGES)}, three requests: ${appendMs} ms, ${rowsRead} rows`);
  print(`read, ${rowsWritten} written.\n`);
}

async function measure(plane, other) {
  const publish = await publisher(plane);
  await other.team('bare').timed('makeTables');
  const insert = (name) => async (round) => {
    const path = `/part/${name}/session_${round}`;
    const parts = name === 'plain' ? [messages(0, MESSAGES)] : inParts();
    const { ms } = await sendAll(other, parts.map((part) => ({ method: 'PUT', path, body: { messages: part } })));
    return ms;
  };
  return inTurn([(round) => publish(`session ${round}`, {}, inParts()), insert('searched'), insert('plain')]);
}

async function append(plane) {
  const publish = await publisher(plane);
  await publish('long', {}, inParts());
  const object = plane.team(publish.teamId);
  await object.resetCounts();
  const times = [];
  for (let round = 0; round < ROUNDS; round += 1) {
    const keep = MESSAGES + 3 * round;
    times.push(await publish('long', { base: { revision: round + 1, keep } }, [messages(keep, keep + 3)]));
  }
  const { rowsRead, rowsWritten } = await object.counts();
  return {
    appendMs: median(times),
    rowsRead: Math.round(rowsRead / ROUNDS),
    rowsWritten: Math.round(rowsWritten / ROUNDS),
  };
}

/** A function that publishes a capture and resolves with the milliseconds that took. */
async function publisher(plane) {
  const { team, token } = await plane.createTeam();
  const machine = await plane.enrollMachine(team.id, token);
  const path = `/v1/teams/${team.id}/captures`;
  const request = (method, rest, body) => ({ method, path: path + rest, token: machine.token, body });
  async function publish(native_id, begin, parts) {
    const begun = await sendAll(plane, [
      request('POST', '', { harness: 'claude-code', native_id, ...begin }),
    ]);
    const { id } = begun.data;
    const rest = await sendAll(plane, [
      ...parts.map((part, index) => request('PUT', `/${id}/parts/${index}`, { messages: part })),
      request('POST', `/${id}/commit`, { parts: parts.length }),
    ]);
    return begun.ms + rest.ms;
  }
  return Object.assign(publish, { teamId: team.id });
}

function inParts() {
  return Array.from({ length: MESSAGES / MESSAGES_A_PART }, (_, n) =>
    messages(n * MESSAGES_A_PART, (n + 1) * MESSAGES_A_PART),
  );
}

function messages(from, to) {
  return Array.from({ length: to - from }, (_, n) => ({
    ordinal: from + n,
    role: n % 2 ? 'assistant' : 'user',
    text: Array.from({ length: 20 }, (_, word) => WORDS[((from + n) * 7 + word * (n % 5 + 1)) % WORDS.length]).join(' '),
  }));
}

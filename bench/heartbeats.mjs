// How many heartbeats an object takes, against one that runs the same statements and nothing else.

import { atLeast, inTurn, sendAll, table, whole, withPlane } from './lib.mjs';
import { bare } from './intake.mjs';

const HEARTBEATS = Number(process.env.BENCH_HEARTBEATS ?? 2_000);
const CONCURRENCY = 4;
const SHARE_MIN = 0.7;

export const title = 'Heartbeats';

export async function run(print) {
  const seen = await withPlane({}, record);
  const { ms, bareMs, replayed } = await withPlane({ counts: false }, (plane) =>
    withPlane({ entry: bare }, (other) => measure(plane, other, seen)),
  );
  const { rowsRead, rowsWritten, statements } = seen.counts;
  print(`${whole(HEARTBEATS)} heartbeats, ${CONCURRENCY} at a time, each through a Worker to its object. One that changes`);
  print(`nothing runs ${statements} statements, reads ${rowsRead} rows and writes ${rowsWritten};`);
  print(`run again bare they read ${replayed.rowsRead} and write ${replayed.rowsWritten}.\n`);
  table(print, ['', 'heartbeats/s', 'what heartbeats reach of it'], [
    ['as heartbeats', whole((HEARTBEATS * 1000) / ms), ''],
    ['the same statements bare', whole((HEARTBEATS * 1000) / bareMs), atLeast(SHARE_MIN, bareMs / ms)],
  ]);
}

/** Resolves with a function that makes the next heartbeats of a machine. */
export async function heart(plane, { team, token }) {
  const machine = await plane.enrollMachine(team.id, token);
  const path = `/v1/teams/${team.id}/machines/${machine.machine.id}/heartbeat`;
  let sequence = 0;
  const beat = () => {
    sequence += 1;
    const body = { incarnation_id: 'incarnation-1', sequence, bindings: [], roots: [] };
    return { method: 'POST', path, token: machine.token, body };
  };
  return (count) => Array.from({ length: count }, beat);
}

/** What two heartbeats ran, and the store that they ran in. */
async function record(plane) {
  const where = await plane.createTeam();
  const beats = await heart(plane, where);
  const object = plane.team(where.team.id);
  await sendAll(plane, beats(10));
  const seen = [];
  for (let n = 0; n < 2; n += 1) {
    await object.record();
    const { data } = await sendAll(plane, beats(1));
    const { recorded, ...counts } = await object.counts();
    seen.push({ data, recorded, counts });
  }
  return { seen, counts: seen[1].counts, store: await contents(object) };
}

const SCHEMA = `SELECT type, name, sql FROM sqlite_master
                 WHERE sql IS NOT NULL AND name NOT GLOB '_cf_*' AND name NOT GLOB '*_search*'
                   AND name NOT GLOB 'sqlite_*' AND sql NOT GLOB '*_search*'`;

/** A store as text, without its search. */
export async function contents(object) {
  const schema = await object.query(SCHEMA);
  const tables = {};
  for (const { name } of schema.filter(({ type }) => type === 'table')) {
    const columns = await object.query(`SELECT name FROM pragma_table_info('${name}')`);
    const quoted = columns.map((column) => `quote("${column.name}")`).join(" || ',' || ");
    tables[name] = (await object.query(`SELECT ${quoted} AS line FROM "${name}"`)).map(({ line }) => line);
  }
  return { schema, tables };
}

/** The bare object with such a store. */
export async function cloned(other, store) {
  const object = other.team('bare');
  const of = (wanted) => store.schema.filter(({ type }) => wanted.includes(type));
  for (const { sql } of of(['table'])) await object.query(sql);
  for (const [name, lines] of Object.entries(store.tables)) {
    for (const line of lines) await object.query(`INSERT INTO "${name}" VALUES (${line})`);
  }
  for (const { sql } of of(['index', 'trigger'])) await object.query(sql);
  return object;
}

async function measure(plane, other, { seen, store }) {
  const object = await cloned(other, store);
  const [first, second] = seen;
  const replay = { statements: first.recorded, next: second.recorded, answer: { data: second.data } };
  await object.timed('setReplay', replay);

  const beats = await heart(plane, await plane.createTeam());
  const send = (to, requests) => sendAll(to, requests, { concurrency: CONCURRENCY });
  const bareBeats = (count) => beats(count).map((request) => ({ ...request, path: '/replay' }));
  await send(plane, beats(HEARTBEATS));
  await send(other, bareBeats(HEARTBEATS));
  const [ms, bareMs] = await inTurn([
    async () => (await send(plane, beats(HEARTBEATS))).ms,
    async () => (await send(other, bareBeats(HEARTBEATS))).ms,
  ]);
  return { ms, bareMs, replayed: await object.counts() };
}

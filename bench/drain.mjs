// How fast passes drain a backlog, against raw deletes of the same rows by their keys.

import { GOES, KINDS, REMOVES, makeTeam, minuteOf, run as runSql } from '../tests/workerd/kinds.mjs';
import { maintainAll, sum } from '../tests/workerd/retention.mjs';
import { BACKLOG, ROUNDS, atLeast, inTurn, progress, sendAll, table, whole, withPlane } from './lib.mjs';

const KEYS_AT_ONCE = 500;
const SHARE_MIN = 0.5;
/** What the aim is for; the others are only told. */
const AIMED = /^(idempotency|codes|expiries|cursors|journal|events|presence events|blobs of 16|messages|sessions)/;

export const title = 'Retention: how fast a backlog drains';

export async function run(print) {
  const rows = await withPlane({ counts: false }, measure);
  print(`Backlogs of ${whole(BACKLOG)} rows and their like, drained by passes, against loops that delete the same rows by`);
  print(`their keys, with nothing to decide, all in one transaction: a row a statement, and ${KEYS_AT_ONCE} rows.\n`);
  const heads = ['what goes', 'rows', 'rows/s by passes', 'raw', 'ratio', `raw, ${KEYS_AT_ONCE} at once`, 'ratio'];
  table(print, heads, rows);
}

const kinds = KINDS.filter(({ name }) => name in GOES);

async function measure(plane) {
  const where = await makeTeam(plane);
  // Logs are read from their front, so all that is to go comes first.
  const slots = kinds.flatMap((kind) => {
    const count = Math.ceil((BACKLOG * (kind.removes ?? REMOVES)) / REMOVES);
    return Array.from({ length: 3 * ROUNDS }, (_, n) => ({ kind, count, tag: `set${10 + n}x` }));
  });
  for (const [index, slot] of slots.entries()) {
    slot.now = minuteOf(index);
    progress(`${slot.kind.name}, ${slot.tag}`);
    await runSql(where, slot.kind.rows(slot.tag, slot.count, slot.kind.due?.(slot.now) ?? {}));
  }
  await maintainAll(where, minuteOf(-1));

  const rows = [];
  for (const kind of kinds) {
    progress(kind.name);
    const own = slots.filter((slot) => slot.kind === kind);
    let removed;
    const drained = async () => {
      const slot = own.shift();
      await queue(where, slot);
      const { ms, count } = await drain(where, slot.now);
      removed = count;
      return ms;
    };
    const deleted = (keysAtOnce) => async () => {
      const slot = own.shift();
      const ms = await deleteRaw(where, slot, keysAtOnce);
      // What the triggers queued is none of the next backlog.
      await maintainAll(where, slot.now);
      return ms;
    };
    const [ms, rawMs, manyMs] = await inTurn([drained, deleted(1), deleted(KEYS_AT_ONCE)]);
    const share = rawMs / ms;
    rows.push([
      kind.name,
      whole(removed),
      whole((removed * 1000) / ms),
      whole((removed * 1000) / rawMs),
      AIMED.test(kind.name) ? atLeast(SHARE_MIN, share) : share.toFixed(2),
      whole((removed * 1000) / manyMs),
      (manyMs / ms).toFixed(2),
    ]);
  }
  return rows;
}

async function queue(where, { kind, tag, count }) {
  if (kind.queue) await runSql(where, kind.queue(tag, count));
}

async function drain({ plane, team, token }, now) {
  const path = `/v1/teams/${team.id}/maintain`;
  const headers = { 'x-test-now-ms': String(now) };
  const all = { ms: 0, count: 0 };
  for (;;) {
    const { ms, data } = await sendAll(plane, [{ method: 'POST', path, token, headers }]);
    all.ms += ms;
    all.count += sum(data.removed);
    if (!data.backlog) return all;
  }
}

async function deleteRaw({ plane, team }, { kind, tag }, keysAtOnce) {
  const object = plane.team(team.id);
  let all = 0;
  for (const [from, key, which] of GOES[kind.name](tag)) {
    const keys = (await object.query(`SELECT ${key} AS key FROM ${from} WHERE ${which}`)).map((row) => row.key);
    const one = keysAtOnce === 1;
    const sql = `DELETE FROM ${from} WHERE ${key} ${one ? '= ?1' : 'IN (SELECT value FROM json_each(?1))'}`;
    const lists = [];
    for (let at = 0; at < keys.length; at += keysAtOnce) {
      lists.push([one ? keys[at] : JSON.stringify(keys.slice(at, at + keysAtOnce))]);
    }
    const { ms } = await object.timed('execEach', sql, lists);
    all += ms;
  }
  return all;
}

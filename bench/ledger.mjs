// How many appends and claims of runs an object takes, against one that runs the same statements and
// nothing else.

import { bare } from './intake.mjs';
import { cloned, contents } from './heartbeats.mjs';
import { inTurn, sendAll, table, whole, withPlane } from './lib.mjs';

const REQUESTS = Number(process.env.BENCH_APPENDS ?? 500);
const BATCH = 100;
const CONCURRENCY = 4;
/** Eight digits that stand in every id of the request whose statements are recorded. */
const MARK = 12_345_678;

export const title = 'The run ledger';

const KINDS = [
  { name: 'appends of one event', events: 1, request: (base, n) => append(base, n, 1) },
  { name: `appends of ${BATCH} events`, events: BATCH, request: (base, n) => append(base, n, BATCH) },
  {
    name: 'claims',
    events: 0,
    request: (base, n) => ({ path: `${base}/runs/run-${n}/claim`, body: { holder: `holder-${n}` } }),
  },
];

function append(base, n, count) {
  const event = (_, at) => ({ id: `event-${n}-${at}`, sequence: at + 1, kind: 'step', payload: { at, said: 'x'.repeat(200) } });
  return { path: `${base}/runs/run-${n}/events`, body: { events: Array.from({ length: count }, event) } };
}

export async function run(print) {
  const rows = [];
  for (const kind of KINDS) {
    const recorded = await withPlane({}, (plane) => record(plane, kind));
    const { ms, bareMs } = await withPlane({ counts: false }, (plane) =>
      withPlane({ entry: bare }, (other) => measure(plane, other, kind, recorded)),
    );
    const { statements, rowsRead, rowsWritten } = recorded.counts;
    const perSecond = (ms) => whole((REQUESTS * 1000) / ms);
    rows.push([kind.name, statements, rowsRead, rowsWritten, perSecond(ms), perSecond(bareMs), (bareMs / ms).toFixed(2)]);
  }
  print(`${whole(REQUESTS)} requests, ${CONCURRENCY} at a time, each to a run of its own.\n`);
  table(print, ['', 'statements', 'rows read', 'written', 'requests/s', 'bare', 'of it'], rows);
}

const requests = (kind, { team, token }, from) =>
  Array.from({ length: REQUESTS }, (_, n) => ({
    method: 'POST', token, ...kind.request(`/v1/teams/${team.id}`, from + n),
  }));

async function record(plane, kind) {
  const where = await plane.createTeam();
  const object = plane.team(where.team.id);
  await sendAll(plane, requests(kind, where, 20_000_000).slice(0, 10));
  const store = await contents(object);
  await object.record();
  const { data } = await sendAll(plane, requests(kind, where, MARK).slice(0, 1));
  const { recorded, ...counts } = await object.counts();
  return { recorded, counts, data, store };
}

async function measure(plane, other, kind, { recorded, data, store }) {
  const object = await cloned(other, store);
  await object.timed('setReplay', { statements: recorded, answer: { data }, mark: String(MARK) });
  const where = await plane.createTeam();
  let from = 30_000_000;
  const own = () => requests(kind, where, (from += REQUESTS));
  const send = async (to, all) => (await sendAll(to, all, { concurrency: CONCURRENCY })).ms;
  const [ms, bareMs] = await inTurn([
    () => send(plane, own()),
    () => send(other, own().map((request) => ({ ...request, path: '/replay' }))),
  ]);
  return { ms, bareMs };
}

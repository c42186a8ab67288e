// What the sections share: tables, medians, aims, and planes whose wasm memory is looked at.

import { startPlane } from '../tests/workerd/harness.mjs';

const numbersOf = (name, otherwise) => (process.env[name] ?? otherwise).split(',').map(Number);

/** How many rows a table the stores hold, the smallest first. */
export const STORES = numbersOf('BENCH_ROWS', '1000,100000,1000000');
/** How many rows of each kind are drained, and how often what is timed is repeated. */
export const [BACKLOG] = numbersOf('BENCH_BACKLOG', '20000');
export const [ROUNDS] = numbersOf('BENCH_ROUNDS', '5');

/** Says on the error output how far a section is; the tables go to the other. */
export const progress = (text) => process.stderr.write(`  ${text}\n`);

export function table(print, heads, rows) {
  print(`| ${heads.join(' | ')} |`);
  print(`|${heads.map((_, n) => (n === 0 ? ' --- ' : ' ---: ')).join('|')}|`);
  for (const row of rows) print(`| ${row.join(' | ')} |`);
  print('');
}

/** A figure with its aim, and with `missed` where it misses it. */
export function atLeast(aim, value, digits = 2) {
  return `${value.toFixed(digits)}${value >= aim ? '' : ' **missed**'} (≥ ${aim})`;
}

export function atMost(aim, value, digits = 2) {
  return `${value.toFixed(digits)}${value <= aim ? '' : ' **missed**'} (≤ ${aim})`;
}

export const whole = (value) => Math.round(value).toLocaleString('en-US');

export function percentile(values, share) {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))];
}

export const median = (values) => percentile(values, 0.5);

/** Runs the variants in turn, `ROUNDS` times. Resolves with each one's median. */
export async function inTurn(variants) {
  const results = variants.map(() => []);
  for (let round = 0; round < ROUNDS; round += 1) {
    // Every other round backwards, so that none always follows the same one.
    const order = [...variants.keys()];
    for (const index of round % 2 ? order.reverse() : order) {
      results[index].push(await variants[index](round));
    }
  }
  return results.map(median);
}

/** The largest wasm memory of the planes that ended since this was last asked, in bytes; 0: none. */
export function takeMemory() {
  const bytes = memoryMax;
  memoryMax = 0;
  return bytes;
}
let memoryMax = 0;

/** Runs `body` with a plane, which is stopped then. */
export async function withPlane(options, body) {
  const plane = await startPlane(options);
  try {
    const result = await body(plane);
    if (!options.plain && !options.entry) {
      memoryMax = Math.max(memoryMax, await plane.directory('directory').wasmBytes());
    }
    return result;
  } finally {
    await plane.stop();
  }
}

/** Sends requests one after the other. Resolves with the milliseconds that all took, and the last answer. */
export async function sendAll(plane, requests, { concurrency = 1 } = {}) {
  const { results, elapsedMs } = await plane.load(requests, { concurrency, keepBodies: true });
  const refused = results.find(({ status }) => status >= 300);
  if (refused) throw new Error(`${refused.status}: ${refused.body}`);
  const last = results.at(-1).body;
  return { ms: elapsedMs, data: last === '' ? null : JSON.parse(last).data };
}

// What retention costs in rows read and written, which are exact, in small and large stores.

import { GOES, removeEach } from '../tests/workerd/kinds.mjs';
import { STORES, atMost, progress, table, whole } from './lib.mjs';
import { withStore } from './stores.mjs';

const GROWTH_MAX = 1.1;
const IDLE_ROWS_MAX = 60;

export const title = 'Retention: what a removed row costs, by how many are stored';

export async function run(print) {
  const measured = [];
  for (const rows of STORES) {
    progress(`${rows} rows a table`);
    measured.push(await withStore(rows, measure));
  }
  const sizes = STORES.map(whole);
  const [first, last] = [measured[0], measured.at(-1)];

  print('Units (one for a row read or written and for 4 KiB freed, five for a statement) for each removed row, at');
  print(`${sizes.join(', ')} rows a table; beside it the rows that a plain \`DELETE … WHERE\` without an`);
  print('index reads and writes for each of the same rows.\n');
  const heads = ['what goes', ...sizes, `ratio (≤ ${GROWTH_MAX})`, ...sizes.map((size) => `scan, ${size}`)];
  table(print, heads, [...first.figures].map(([name, { units }]) => [
    name,
    ...measured.map(({ figures }) => figures.get(name).units.toFixed(2)),
    grown(last.figures.get(name).units / units),
    ...measured.map(({ scans }) => (scans.has(name) ? whole(scans.get(name)) : '–')),
  ]));

  print('A pass with nothing to do:\n');
  table(print, ['stored', 'rows read', 'rows written'], measured.map(({ last: { cost } }, n) => [
    sizes[n],
    atMost(IDLE_ROWS_MAX, cost.rows_read, 0),
    atMost(0, cost.rows_written, 0),
  ]));
}

const grown = (ratio) => `${ratio.toFixed(2)}${ratio <= GROWTH_MAX ? '' : ' **missed**'}`;

async function measure(where) {
  const object = where.plane.team(where.team.id);
  const scanned = new Map();
  const result = await removeEach(where, async ({ name }) => {
    const statements = GOES[name]?.('due').map(([from, , which]) => `DELETE FROM ${from} WHERE ${which}`);
    if (statements) scanned.set(name, await object.costOf(statements));
  });
  const scans = new Map();
  for (const [name, { rowsRead, rowsWritten }] of scanned) {
    scans.set(name, (rowsRead + rowsWritten) / result.figures.get(name).rows);
  }
  return { ...result, scans };
}

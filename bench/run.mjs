// Measures the built Worker in workerd and prints Markdown tables.
//
//   npm run bench                     all sections, some minutes; the first run fills the stores
//   npm run bench -- drain intake     some
//   BENCH_ROWS=1000,10000 BENCH_BACKLOG=2000 BENCH_ROUNDS=3 npm run bench      a quick look
//
// A section is a file here that exports `title` and `run(print)`; its name goes into SECTIONS.
// Timings mean something on an idle machine only. What is compared runs in turn, and the tables give
// medians; counts of rows are exact. An aim that is missed is marked, and fails nothing.

import { readFileSync } from 'node:fs';
import { cpus } from 'node:os';
import { build } from '../scripts/build.mjs';
import { Stop, main, seconds } from '../scripts/lib/log.mjs';
import { inRoot } from '../scripts/lib/paths.mjs';
import { atMost, progress, takeMemory } from './lib.mjs';

const SECTIONS = ['retention', 'drain', 'beside', 'intake', 'heartbeats', 'ledger', 'live', 'start'];
const MEMORY_MIB_MAX = 32;

const print = (line) => process.stdout.write(`${line}\n`);

await main(async () => {
  const wanted = process.argv.slice(2);
  const unknown = wanted.filter((name) => !SECTIONS.includes(name));
  if (unknown.length > 0) {
    throw new Stop(`No section is called ${unknown.join(', ')}. Sections: ${SECTIONS.join(', ')}`);
  }
  await build();
  print(`\n${machine()}\n`);
  for (const name of wanted.length > 0 ? wanted : SECTIONS) {
    const beganMs = performance.now();
    progress(`── ${name}`);
    const section = await import(`./${name}.mjs`);
    print(`### ${section.title}\n`);
    await section.run(print);
    const bytes = takeMemory();
    if (bytes > 0) print(`wasm memory afterwards, in MiB: ${atMost(MEMORY_MIB_MAX, bytes / 2 ** 20, 1)}\n`);
    progress(`${name} took ${seconds(beganMs)}`);
  }
});

function machine() {
  const version = (name) => {
    const file = inRoot(`node_modules/${name}/package.json`);
    return JSON.parse(readFileSync(file, 'utf8')).version;
  };
  const date = new Date().toISOString().slice(0, 10);
  const { length, 0: cpu } = cpus();
  return (
    `${date}; ${cpu.model.trim()}, ${length} cores; node ${process.versions.node}, ` +
    `workerd ${version('workerd')}`
  );
}

// Runs every check, in order, and stops at the first that fails, with its exit code.
//
//   npm test               all stages
//   npm test -- workerd    one stage or several, by name

import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { build } from './build.mjs';
import { Stop, main, say, seconds } from './lib/log.mjs';
import { inRoot } from './lib/paths.mjs';
import { run } from './lib/run.mjs';
import { WASM_TARGET_DIR, rustEnv } from './lib/rust.mjs';
import { setup } from './setup.mjs';

const WASM = 'wasm32-unknown-unknown';

const stages = {
  // What the other stages need: they call it themselves, so that each runs alone too.
  setup: () => setup(),

  async format() {
    await cargo('host', ['fmt', '--all', '--check']);
  },

  async lint() {
    await cargo('host', ['clippy', '--all-targets', '--locked', '--', '-D', 'warnings']);
  },

  // The files that only workerd runs are compiled for no other target. Profile and flags are those
  // of worker-build, so that the standard library is compiled once for both.
  async 'lint-wasm'() {
    const args = ['clippy', '--lib', '--release', '--locked', '--target', WASM];
    const std = ['-Z', 'build-std=std,panic_unwind'];
    await cargo('wasm', [...args, ...std, '--', '-D', 'warnings'], {
      RUSTC_BOOTSTRAP: '1',
      RUSTFLAGS: '-Cpanic=unwind',
      WASM_BINDGEN_USE_JS_SYS: '1',
      CARGO_TARGET_DIR: inRoot(WASM_TARGET_DIR),
    });
  },

  async native() {
    await cargo('host', ['test', '--locked']);
  },

  build: () => build(),

  // The connector is a crate of its own: nothing of it is compiled by the stages before.
  async connector() {
    const crate = ['-p', 'teamplane-connector', '--profile', 'connector', '--locked'];
    await cargo('host', ['clippy', ...crate, '--all-targets', '--', '-D', 'warnings']);
    await cargo('host', ['test', ...crate]);
    await cargo('host', ['build', ...crate]);
    await build();
    await nodeTests('tests/connector');
  },

  async workerd() {
    await build();
    await nodeTests('tests/workerd');
  },

  // What `wrangler deploy` would upload; its warnings count as failures.
  async deploy() {
    await build();
    const output = await run(inRoot('node_modules/.bin/wrangler'), ['deploy', '--dry-run'], {
      show: 'failure',
      env: { ...process.env, WRANGLER_SEND_METRICS: 'false', NO_COLOR: '1' },
    });
    process.stdout.write(output);
    if (/warning/i.test(output)) throw new Stop('wrangler deploy --dry-run warns: see above.');
  },
};

async function nodeTests(folder) {
  const files = readdirSync(inRoot(folder)).filter((name) => name.endsWith('.test.mjs'));
  await run(process.execPath, ['--test', ...files.sort().map((name) => join(folder, name))], { show: 'all' });
}

async function cargo(purpose, args, extraEnv) {
  const sysroot = (await setup())[purpose];
  await run(join(sysroot, 'bin/cargo'), args, { show: 'all', env: rustEnv(sysroot, extraEnv) });
}

await main(async () => {
  const wanted = process.argv.slice(2);
  const unknown = wanted.filter((name) => !(name in stages));
  if (unknown.length > 0) {
    throw new Stop(`No stage is called ${unknown.join(', ')}. Stages: ${Object.keys(stages).join(', ')}`);
  }

  const names = wanted.length > 0 ? wanted : Object.keys(stages);
  const timings = [];
  const beganMs = performance.now();
  for (const name of names) {
    say(`── ${name}`);
    const stageBeganMs = performance.now();
    await stages[name]();
    timings.push(`${name} ${seconds(stageBeganMs)}`);
  }
  say(`Passed in ${seconds(beganMs)}: ${timings.join(', ')}`);
});

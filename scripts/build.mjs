// Builds the Worker: `build/index.js`, its entry module, and `build/index_bg.wasm`.
//
//   1. worker-build compiles the crate to wasm, with panic=unwind, into target/worker/;
//   2. esbuild bundles src/entry.mjs with worker-build's glue into the one module.
//
// It is skipped when nothing that goes into the build has changed. `wrangler` runs it too, as the
// build command of wrangler.toml; before a deploy it refuses a configuration with TEST_HOOKS.

import { copyFileSync, existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { delimiter } from 'node:path';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';
import { refuseTestHooks } from './lib/deploy-guard.mjs';
import { hashOf } from './lib/hash.mjs';
import { main, say } from './lib/log.mjs';
import { inRoot } from './lib/paths.mjs';
import { run } from './lib/run.mjs';
import { WASM_TARGET_DIR, compiler, rustEnv } from './lib/rust.mjs';
import { setup } from './setup.mjs';

const INPUTS = [
  'Cargo.toml', 'Cargo.lock', '.cargo', 'rust-toolchain.toml', 'build.rs', 'src', 'migrations',
  'package-lock.json', 'scripts/build.mjs', 'scripts/shims',
];
const OUTPUTS = ['build/index.js', 'build/index_bg.wasm'];
const GLUE_DIR = 'target/worker';

/** Makes `build/` current. Resolves with what `setup` resolves with. */
export async function build() {
  const installed = await setup();
  const stampFile = inRoot('build/.stamp');
  const inputs = `${compiler(installed.wasm).text}\n${profile()}\n${hashOf(INPUTS)}`;
  const stamp = () => `${inputs}\n${hashOf(OUTPUTS)}\n`;
  if (existsSync(stampFile) && readFileSync(stampFile, 'utf8') === stamp()) {
    say('The build is current');
    return installed;
  }

  say('Compiling to wasm (the first time with the standard library: about two minutes)');
  await compile(installed);
  await bundle();
  writeFileSync(stampFile, stamp());
  say(`Built ${OUTPUTS.map(describe).join(' and ')}`);
  return installed;
}

/** What the environment says of the profile: a quick build for oneself is no build for others. */
function profile() {
  const names = Object.keys(process.env).filter((name) => name.startsWith('CARGO_PROFILE_'));
  return names.sort().map((name) => `${name}=${process.env[name]}`).join(' ');
}

async function compile({ wasm: sysroot, workerBuild, wasmBindgen }) {
  const env = rustEnv(sysroot, {
    TEAMPLANE_SYSROOT: sysroot,
    CARGO_TARGET_DIR: inRoot(WASM_TARGET_DIR),
    WASM_BINDGEN_BIN: wasmBindgen,
    WASM_OPT_BIN: inRoot('node_modules/.bin/wasm-opt'),
    NO_MINIFY: '1', // Readable names in stack traces; the glue is small.
    ESBUILD_BIN: inRoot('node_modules/.bin/esbuild'),
  });
  env.PATH = inRoot('scripts/shims') + delimiter + env.PATH;
  await run(workerBuild, ['--release', '--panic-unwind', '--out-dir', GLUE_DIR], { env });
}

async function bundle() {
  const { build: esbuild } = await import('esbuild');
  mkdirSync(inRoot('build'), { recursive: true });
  await esbuild({
    entryPoints: [inRoot('src/entry.mjs')],
    plugins: [glue],
    outfile: inRoot('build/.index.js'),
    bundle: true,
    format: 'esm',
    target: 'es2022',
    external: ['cloudflare:*', './index_bg.wasm'],
    logLevel: 'warning',
  });
  // By renaming, so that a server which watches the folder never reads half a file.
  copyFileSync(inRoot(GLUE_DIR, 'index_bg.wasm'), inRoot('build/.index_bg.wasm'));
  renameSync(inRoot('build/.index_bg.wasm'), inRoot('build/index_bg.wasm'));
  renameSync(inRoot('build/.index.js'), inRoot('build/index.js'));
}

// Resolves `teamplane-core` to worker-build's output, with one function more: worker-build keeps the
// one that starts a new wasm instance to itself.
const glue = {
  name: 'glue',
  setup({ onResolve, onLoad }) {
    const path = inRoot(GLUE_DIR, 'index.js');
    onResolve({ filter: /^teamplane-core$/ }, () => ({ path }));
    onLoad({ filter: /index\.js$/, namespace: 'file' }, (file) =>
      file.path === path
        ? { contents: `${readFileSync(path, 'utf8')}\nexport { __wbg_reset_state };\n` }
        : undefined,
    );
  },
};

function describe(path) {
  const content = readFileSync(inRoot(path));
  const kilobytes = (bytes) => `${Math.ceil(bytes / 1024)} KiB`;
  return `${path} (${kilobytes(content.length)}, gzip ${kilobytes(gzipSync(content).length)})`;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  await main(async () => {
    refuseTestHooks();
    await build();
  });
}

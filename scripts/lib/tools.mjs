// worker-build and the wasm-bindgen program, compiled from crates.io once for all clones.
//
// Their versions follow Cargo.lock: wasm-bindgen must match its library exactly, worker-build the
// worker crate. They are compiled without optimisation, which is four times as fast to make and no
// slower to use.

import { existsSync, mkdirSync, readdirSync, renameSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { cacheDir } from './paths.mjs';
import { lockedVersion, rustEnv } from './rust.mjs';
import { run } from './run.mjs';
import { say } from './log.mjs';

/** Resolves with the paths `{ workerBuild, wasmBindgen }`. */
export async function ensureTools(hostSysroot) {
  const workerBuild = lockedVersion('worker');
  const wasmBindgen = lockedVersion('wasm-bindgen');
  const dir = join(cacheDir, `tools-${workerBuild}-${wasmBindgen}`);
  if (!existsSync(dir)) await install(dir, { workerBuild, wasmBindgen }, hostSysroot);
  return {
    workerBuild: join(dir, 'bin/worker-build'),
    wasmBindgen: join(dir, 'bin/wasm-bindgen'),
  };
}

async function install(dir, versions, sysroot) {
  say(
    `Compiling worker-build ${versions.workerBuild} and wasm-bindgen ${versions.wasmBindgen}: ` +
      'once on this machine, a few minutes',
  );
  mkdirSync(cacheDir, { recursive: true });
  removeAbandoned();

  // The rename at the end is what makes the folder count: a killed install leaves only a partial.
  const partial = `${dir}.partial-${process.pid}`;
  await run(
    join(sysroot, 'bin/cargo'),
    [
      'install', '--debug', '--locked', '--root', partial,
      `worker-build@${versions.workerBuild}`, `wasm-bindgen-cli@${versions.wasmBindgen}`,
    ],
    { env: rustEnv(sysroot, { CARGO_TARGET_DIR: join(partial, 'target') }) },
  );
  rmSync(join(partial, 'target'), { recursive: true });
  // Another clone may have finished first: then its tools are as good.
  if (existsSync(dir)) rmSync(partial, { recursive: true });
  else renameSync(partial, dir);
}

function removeAbandoned() {
  for (const name of readdirSync(cacheDir)) {
    const pid = name.match(/\.partial-(\d+)$/)?.[1];
    if (pid && !isRunning(Number(pid))) rmSync(join(cacheDir, name), { recursive: true });
  }
}

function isRunning(pid) {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return error.code === 'EPERM';
  }
}

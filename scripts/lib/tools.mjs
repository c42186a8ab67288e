// worker-build and the wasm-bindgen program, compiled from crates.io once for all clones.
//
// Their versions follow Cargo.lock: wasm-bindgen must match its library exactly, worker-build the
// worker crate. They are compiled without optimisation and debug information, which takes a fourth
// of the time; a build with them is no slower.

import { existsSync, mkdirSync, readdirSync, renameSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { hasApt, installPackages, updateLists } from './debian.mjs';
import { Stop, say } from './log.mjs';
import { cacheDir } from './paths.mjs';
import { ask, run } from './run.mjs';
import { lockedVersion, rustEnv } from './rust.mjs';

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
  await ensureOpenssl();
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
      'install', '--debug', '--locked', '--no-default-features', '--root', partial,
      `worker-build@${versions.workerBuild}`, `wasm-bindgen-cli@${versions.wasmBindgen}`,
    ],
    { env: rustEnv(sysroot, { CARGO_TARGET_DIR: join(partial, 'target'), CARGO_PROFILE_DEV_DEBUG: '0' }) },
  );
  rmSync(join(partial, 'target'), { recursive: true });
  // Another clone may have finished first: then its tools are as good.
  if (existsSync(dir)) rmSync(partial, { recursive: true });
  else renameSync(partial, dir);
}

// worker-build links OpenSSL, on Linux, for downloads that it makes no use of here.
async function ensureOpenssl() {
  if (process.platform !== 'linux' || ask('pkg-config', ['--exists', 'openssl']) !== null) return;
  if (!hasApt()) {
    throw new Stop(
      'worker-build needs pkg-config and the headers of OpenSSL. Install both and run this again:\n' +
        '  Fedora: dnf install pkgconf openssl-devel\n' +
        '  Arch:   pacman -S pkgconf openssl',
    );
  }
  say('Installing pkg-config and the headers of OpenSSL (apt-get)');
  await updateLists();
  await installPackages('pkg-config', 'libssl-dev');
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

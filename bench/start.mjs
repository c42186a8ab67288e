// How large the build is, and how long the first request of a new process waits.

import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { inRoot } from '../scripts/lib/paths.mjs';
import { inTurn, table, whole, withPlane } from './lib.mjs';
import { bare } from './intake.mjs';

export const title = 'Size and start';

export async function run(print) {
  const wasm = readFileSync(inRoot('build/index_bg.wasm'));
  const kib = (bytes) => `${whole(bytes / 1024)} KiB`;
  print(`The wasm is ${kib(wasm.length)}, ${kib(gzipSync(wasm).length)} with gzip.\n`);

  const storageDir = mkdtempSync(join(tmpdir(), 'teamplane-bench-'));
  try {
    const { team, token } = await withPlane({ persistDir: storageDir }, (plane) => plane.createTeam());
    const first = (options, path) => () =>
      withPlane({ ...options, plain: true, persistDir: storageDir }, async (plane) => {
        const beganMs = performance.now();
        const { status } = await plane.api('GET', path, { token });
        if (status !== 200) throw new Error(`the first request got ${status}`);
        return performance.now() - beganMs;
      });
    const [ms, bareMs] = await inTurn([
      first({}, `/v1/teams/${team.id}/me`),
      first({ entry: bare }, '/'),
    ]);
    table(print, ['first request to an object', 'ms'], [
      ['teamplane, of a team that is there', ms.toFixed(1)],
      ['a minimal JavaScript object', bareMs.toFixed(1)],
    ]);
  } finally {
    rmSync(storageDir, { recursive: true, force: true });
  }
}

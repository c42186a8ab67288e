// Installs what the build and the tests need: npm packages, Rust, worker-build, wasm-bindgen.
// Does nothing, in a moment, when all of it is there.

import { fileURLToPath } from 'node:url';
import { ensurePackages } from './lib/packages.mjs';
import { ensureRust } from './lib/rust.mjs';
import { ensureTools } from './lib/tools.mjs';
import { main, say } from './lib/log.mjs';

/** Resolves with `{ host, wasm, workerBuild, wasmBindgen }`: two sysroots and two programs. */
export async function setup() {
  await ensurePackages();
  const sysroots = await ensureRust();
  const tools = await ensureTools(sysroots.host);
  return { ...sysroots, ...tools };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  await main(async () => {
    await setup();
    say('Everything the build and the tests need is installed');
  });
}

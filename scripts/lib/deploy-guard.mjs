// TEST_HOOKS lets a request set the server's clock. It must never reach a deployed Worker.

import { readFileSync, readdirSync } from 'node:fs';
import { inRoot, root } from './paths.mjs';
import { Stop } from './log.mjs';

// Any wrangler configuration counts, since `wrangler deploy --config` may name any of them.
const CONFIGURATION = /^wrangler.*\.(toml|json|jsonc)$/;
const COMMENT = /^\s*(#|\/\/)/;
const SETS_TEST_HOOKS = /\bTEST_HOOKS\b["']?\s*[=:]/;

/** Throws if `wrangler` runs this build for anything but development and a file sets TEST_HOOKS. */
export function refuseTestHooks(wranglerCommand = process.env.WRANGLER_COMMAND) {
  if (wranglerCommand === undefined || wranglerCommand === 'dev') return;

  for (const name of readdirSync(root).filter((name) => CONFIGURATION.test(name))) {
    const lines = readFileSync(inRoot(name), 'utf8').split('\n');
    const index = lines.findIndex((line) => !COMMENT.test(line) && SETS_TEST_HOOKS.test(line));
    if (index < 0) continue;
    throw new Stop(
      `wrangler ${wranglerCommand} is refused: ${name}:${index + 1} sets TEST_HOOKS.\n` +
        "It lets callers set the server's clock, and is for tests only. Remove the line " +
        '(tests set it themselves) and deploy again.',
    );
  }
}

// Stores of many rows, filled once and kept in a folder that git ignores. A section works on a copy.

import {
  constants, cpSync, existsSync, mkdirSync, readFileSync, readdirSync, renameSync, rmSync, writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { hashOf } from '../scripts/lib/hash.mjs';
import { inRoot } from '../scripts/lib/paths.mjs';
import { fill, makeTeam } from '../tests/workerd/kinds.mjs';
import { progress, withPlane } from './lib.mjs';

const root = inRoot('bench/.stores');

/** Runs `body` with what `makeTeam` resolved with, on a store of `rows` rows a table. */
export async function withStore(rows, body) {
  const kept = join(root, key(), String(rows));
  if (!existsSync(kept)) await make(kept, rows);
  const copy = join(root, `copy-${process.pid}`);
  try {
    cpSync(join(kept, 'objects'), copy, { recursive: true, mode: constants.COPYFILE_FICLONE });
    const { team, token } = JSON.parse(readFileSync(join(kept, 'team.json'), 'utf8'));
    return await withPlane({ persistDir: copy }, (plane) => body({ plane, team, token }));
  } finally {
    rmSync(copy, { recursive: true, force: true });
  }
}

async function make(kept, rows) {
  progress(`Filling a store with ${rows} rows a table`);
  for (const old of existsSync(root) ? readdirSync(root) : []) {
    if (old !== key()) rmSync(join(root, old), { recursive: true, force: true });
  }
  const unfinished = `${kept}.unfinished`;
  rmSync(unfinished, { recursive: true, force: true });
  mkdirSync(unfinished, { recursive: true });
  await withPlane({ persistDir: join(unfinished, 'objects') }, async (plane) => {
    const { team, token, ...where } = await makeTeam(plane);
    await fill({ ...where, team, token }, rows);
    writeFileSync(join(unfinished, 'team.json'), JSON.stringify({ team, token }));
  });
  renameSync(unfinished, kept);
}

/** The schema's version and a hash of what fills a store. */
function key() {
  const schema = readdirSync(inRoot('migrations')).filter((name) => name.endsWith('.sql')).length;
  const filled = hashOf(['migrations', 'tests/workerd/kinds.mjs']).slice(0, 8);
  return `schema-${schema}-${filled}`;
}

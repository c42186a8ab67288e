// One hash over files and folders: their paths and their contents, not their times.

import { createHash } from 'node:crypto';
import { existsSync, readFileSync, readdirSync, statSync } from 'node:fs';
import { join, relative } from 'node:path';
import { inRoot, root } from './paths.mjs';

/** The hash of these paths inside the repository; one that does not exist counts as absent. */
export function hashOf(paths) {
  const hash = createHash('sha256');
  for (const path of paths) addTo(hash, inRoot(path));
  return hash.digest('hex');
}

function addTo(hash, path) {
  if (!existsSync(path)) {
    hash.update(`absent ${relative(root, path)}\n`);
  } else if (statSync(path).isDirectory()) {
    for (const name of readdirSync(path).sort()) addTo(hash, join(path, name));
  } else {
    const content = readFileSync(path);
    hash.update(`file ${relative(root, path)} ${content.length}\n`).update(content);
  }
}

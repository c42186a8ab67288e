// The npm packages of package-lock.json, installed once for each change of it.

import { createHash } from 'node:crypto';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { inRoot } from './paths.mjs';
import { run } from './run.mjs';
import { Stop, say } from './log.mjs';

const NODE_MAJOR_MIN = 20;

export async function ensurePackages() {
  const nodeMajor = Number(process.versions.node.split('.')[0]);
  if (nodeMajor < NODE_MAJOR_MIN) {
    throw new Stop(`Node ${NODE_MAJOR_MIN} or newer is needed; this is ${process.version}.`);
  }

  // Written last, inside the folder that `npm ci` deletes first: a killed install leaves none.
  const stampFile = inRoot('node_modules', '.teamplane-stamp');
  const lock = readFileSync(inRoot('package-lock.json'));
  const platform = `${process.platform}-${process.arch}`;
  const stamp = `${createHash('sha256').update(lock).digest('hex')} ${platform}\n`;
  if (existsSync(stampFile) && readFileSync(stampFile, 'utf8') === stamp) return;

  say('Installing the npm packages of package-lock.json (npm ci)');
  await run('npm', ['ci', '--no-fund', '--no-audit']);
  writeFileSync(stampFile, stamp);
}

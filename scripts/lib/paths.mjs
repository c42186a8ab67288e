// Where things are. Everything the scripts make lives in the repository's ignored folders,
// except the build tools, which every clone on the machine shares.

import { homedir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

export const root = resolve(dirname(fileURLToPath(import.meta.url)), '../..');
export const inRoot = (...parts) => join(root, ...parts);

export const cacheDir = join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'teamplane');

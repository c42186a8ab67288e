// Installs packages with apt-get, on Debian and its kin.

import { Stop } from './log.mjs';
import { ask, run } from './run.mjs';

export const hasApt = () => ask('apt-get', ['--version']) !== null;

export const isAvailable = (name) => /Candidate: [^(]/.test(ask('apt-cache', ['policy', name]) ?? '');

export const updateLists = () => aptGet('update');

export const installPackages = (...names) =>
  // --no-remove: rather fail than take away what someone chose, such as Debian's rustup.
  aptGet('install', '--yes', '--no-install-recommends', '--no-remove', ...names);

async function aptGet(action, ...args) {
  const command = ['apt-get', action, '-o', 'DPkg::Lock::Timeout=300', ...args];
  if (process.getuid() !== 0) {
    if (ask('sudo', ['--version']) === null) {
      throw new Stop(`Run this as root, then try again:\n  ${command.join(' ')}`);
    }
    command.unshift('sudo');
  }
  await run(command[0], command.slice(1), {
    env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive' },
  });
}

// Runs other programs. `show` says how much of their output is seen:
//   'all'       as it comes, for tests and lints;
//   'progress'  a line now and then while it runs, everything if it fails;
//   'failure'   only if it fails.

import { spawn, spawnSync } from 'node:child_process';
import { root } from './paths.mjs';
import { Stop, say, seconds } from './log.mjs';

const PROGRESS_EVERY_MS = 15_000;
const OUTPUT_BYTES_MAX = 4 * 1024 * 1024;

/** Resolves with the program's output; throws a `Stop` with its exit code if it fails. */
export async function run(command, args, { show = 'progress', env = process.env, cwd = root } = {}) {
  const beganMs = performance.now();
  const child = spawn(command, args, {
    cwd,
    env,
    stdio: show === 'all' ? 'inherit' : ['ignore', 'pipe', 'pipe'],
  });

  let output = '';
  let lastLine = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream?.setEncoding('utf8').on('data', (text) => {
      output = (output + text).slice(-OUTPUT_BYTES_MAX);
      lastLine = text.trimEnd().split(/[\r\n]/).pop().trim() || lastLine;
    });
  }
  const ticker = setInterval(() => {
    if (show === 'progress') say(`    … ${seconds(beganMs)}: ${lastLine.slice(0, 100)}`);
  }, PROGRESS_EVERY_MS);

  const { code, signal, error } = await new Promise((done) => {
    child.once('error', (error) => done({ error }));
    child.once('close', (code, signal) => done({ code, signal }));
  });
  clearInterval(ticker);

  if (error) throw new Stop(`Cannot run ${command}: ${error.message}`, 127);
  if (code !== 0) {
    if (show !== 'all') process.stderr.write(`${output}\n`);
    const how = signal ? `was stopped by ${signal}` : `failed with exit code ${code}`;
    throw new Stop(`${[command, ...args].join(' ')} ${how}.`, code ?? 1);
  }
  return output;
}

/** The trimmed standard output of a program that answers at once, or null if it cannot. */
export function ask(command, args, env = process.env) {
  const result = spawnSync(command, args, { cwd: root, env, encoding: 'utf8' });
  return result.status === 0 ? result.stdout.trim() : null;
}

// Runs teamplane on this machine: builds it, starts it in workerd, fills in a demo.
//
//   npm start
//   npm start -- --port 9000      or PORT=9000
//   npm start -- --no-demo
//
// All it stores is under .teamplane/: delete the folder to start afresh.

import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { build } from './build.mjs';
import { demo } from './demo.mjs';
import { Stop, main, say } from './lib/log.mjs';
import { inRoot, root } from './lib/paths.mjs';

const HOST = '127.0.0.1';
const PORTS_TRIED = 20;
const START_MS_MAX = 60_000;
const STOP_MS_MAX = 5_000;

const stateDir = inRoot('.teamplane');
const secretsFile = join(stateDir, 'secrets.env');

await main(async () => {
  const { port: wantedPort, demo: withDemo } = readArguments();
  await build();
  mkdirSync(stateDir, { recursive: true, mode: 0o700 });
  const secrets = readOrMakeSecrets();
  const port = await freePort(wantedPort);
  const url = `http://${HOST}:${port}`;

  say(`Starting the Worker at ${url}`);
  const server = startWrangler(port);
  await waitUntilHealthy(url, server);
  if (withDemo) {
    await demo({ url, operatorToken: secrets.OPERATOR_TOKEN, stateDir, say });
  } else {
    say(`teamplane is running at ${url}; OPERATOR_TOKEN is in ${secretsFile}`);
  }
});

function readArguments() {
  try {
    const { values } = parseArgs({
      options: { port: { type: 'string' }, 'no-demo': { type: 'boolean' } },
    });
    const port = Number(values.port ?? process.env.PORT ?? 8787);
    if (!Number.isInteger(port) || port < 1 || port > 65535) throw new Error('The port is no port.');
    return { port, demo: !values['no-demo'] };
  } catch (error) {
    throw new Stop(`${error.message}\nUsage: npm start -- [--port 8787] [--no-demo]`, 2);
  }
}

// Made once. They are in a file that only its owner can read, not among the arguments of a program,
// where every user of the machine could.
function readOrMakeSecrets() {
  if (!existsSync(secretsFile)) {
    const secret = () => randomBytes(32).toString('hex');
    const lines = [`OPERATOR_TOKEN=${secret()}`, `APP_ROOT_SECRET=${secret()}`];
    writeFileSync(secretsFile, `${lines.join('\n')}\n`, { mode: 0o600 });
  }
  const lines = readFileSync(secretsFile, 'utf8').split('\n').filter(Boolean);
  return Object.fromEntries(lines.map((line) => line.split('=')));
}

async function freePort(wanted) {
  for (let port = wanted; port < wanted + PORTS_TRIED; port++) {
    if (!(await isFree(port))) continue;
    if (port !== wanted) say(`Port ${wanted} is taken: using ${port}`);
    return port;
  }
  throw new Stop(`No port from ${wanted} to ${wanted + PORTS_TRIED - 1} is free. Choose another with --port.`);
}

function isFree(port) {
  return new Promise((done) => {
    const probe = createServer();
    probe.once('error', () => done(false));
    probe.listen(port, HOST, () => probe.close(() => done(true)));
  });
}

function startWrangler(port) {
  const args = [
    'dev', '--ip', HOST, '--port', String(port), '--inspector-port', '0',
    '--persist-to', stateDir, '--env-file', secretsFile, '--show-interactive-dev-session=false',
    // What runs on this machine may receive webhooks of a server that runs on it.
    '--var', 'WEBHOOK_ALLOW_LOCAL:1',
  ];
  const child = spawn(inRoot('node_modules/.bin/wrangler'), args, {
    cwd: root,
    env: { WRANGLER_LOG: 'warn', ...process.env, WRANGLER_SEND_METRICS: 'false' },
    stdio: ['ignore', 'pipe', 'pipe'],
    // A group of its own, so that workerd can be stopped with it.
    detached: true,
  });

  const server = { output: '', hasEnded: false };
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text) => {
      if (server.isHealthy) process.stdout.write(text);
      else server.output += text;
    });
  }
  child.once('exit', (code) => {
    server.hasEnded = true;
    if (server.isHealthy) process.exit(server.isStopping ? 0 : (code ?? 1));
  });

  const signalGroup = (signal) => {
    try {
      process.kill(-child.pid, signal);
    } catch {
      // It has ended.
    }
  };
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) {
    process.once(signal, () => {
      say('Stopping');
      server.isStopping = true;
      signalGroup('SIGTERM');
      setTimeout(() => signalGroup('SIGKILL'), STOP_MS_MAX).unref();
      if (!server.isHealthy) process.exit(130);
    });
  }
  process.once('exit', () => signalGroup('SIGKILL'));
  return server;
}

async function waitUntilHealthy(url, server) {
  const deadline = Date.now() + START_MS_MAX;
  while (Date.now() < deadline && !server.hasEnded) {
    const response = await fetch(`${url}/v1/health`).catch(() => null);
    if (response?.status === 200) {
      server.isHealthy = true;
      return;
    }
    await new Promise((done) => setTimeout(done, 200));
  }
  throw new Stop(`The Worker did not start:\n${server.output}`);
}

// Holds the demo machine's link, as a connector does, until it is stopped: then the team sees the
// machine go. Run it beside `npm start`.
//
//   node scripts/link.mjs [URL]

import { existsSync, readFileSync } from 'node:fs';
import { randomBytes } from 'node:crypto';
import { WebSocket } from 'ws';
import { Stop, main, say } from './lib/log.mjs';
import { inRoot } from './lib/paths.mjs';

const HEARTBEAT_EVERY_MS = 15_000;
const GOODBYE = 1000;

await main(async () => {
  const url = process.argv[2] ?? 'http://127.0.0.1:8787';
  const file = inRoot('.teamplane/demo.json');
  if (!existsSync(file)) throw new Stop('There is no demo yet: run `npm start` first.');
  const { teamId, machineId, machineToken } = JSON.parse(readFileSync(file, 'utf8'));

  const path = `/v1/teams/${teamId}/machines/${machineId}/link`;
  const socket = new WebSocket(new URL(path, url.replace(/^http/, 'ws')), {
    headers: { authorization: `Bearer ${machineToken}` },
  });
  const incarnation = randomBytes(16).toString('hex');
  let sequence = 0;
  const beat = () => {
    sequence += 1;
    const body = { incarnation_id: incarnation, sequence, bindings: [], roots: [] };
    socket.send(JSON.stringify({ type: 'heartbeat', ...body }));
  };

  socket.on('message', (frame) => say(`← ${frame}`));
  for (const signal of ['SIGINT', 'SIGTERM']) process.once(signal, () => socket.close(GOODBYE, 'stopped'));
  await new Promise((resolve, reject) => {
    socket.on('open', () => {
      say('The machine is online. Ctrl-C says goodbye.');
      beat();
      setInterval(beat, HEARTBEAT_EVERY_MS).unref();
    });
    socket.on('error', (error) => reject(new Stop(`The link failed: ${error.message}`)));
    socket.on('close', (code, reason) => {
      say(`The link ended: ${code} ${reason}`);
      resolve();
    });
  });
});

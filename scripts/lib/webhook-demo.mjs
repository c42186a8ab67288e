// One event on its way to an app: a receiver on loopback takes it and checks its signature with the
// official library, as any app would.

import { createServer } from 'node:http';
import { Stop } from './log.mjs';
import { send } from './send.mjs';

const WAIT_MS_MAX = 10_000;

/** Resolves with one line about what arrived. The app is gone afterwards. */
export async function webhookDemo(url, token, base) {
  const { port, arrived, stop } = await receiver();
  try {
    const app = await send(url, token, 'POST', `${base}/apps`, {
      name: 'Demo receiver',
      webhook_url: `http://127.0.0.1:${port}/hook`,
      events: ['group.changed'],
    });
    const { code } = await send(url, token, 'POST', `${base}/apps/${app.id}/install-codes`);
    const { webhook_secret: secret } = await send(url, '', 'POST', '/v1/apps/install', { code });
    await send(url, token, 'POST', `${base}/groups`, { name: 'Reviewers' });
    const { headers, body } = await arrived;
    // Here, because the first start installs it after this file was read.
    const { Webhook } = await import('standardwebhooks');
    const { type } = new Webhook(secret).verify(body, headers);
    await send(url, token, 'DELETE', `${base}/apps/${app.id}`);
    return `A webhook arrived at http://127.0.0.1:${port}/hook: ${type} as ${headers['webhook-id']}, its signature verified`;
  } finally {
    stop();
  }
}

async function receiver() {
  let take;
  let giveUp;
  const arrived = new Promise((resolve, reject) => {
    take = resolve;
    giveUp = reject;
  });
  arrived.catch(() => {}); // It is awaited later, or the demo has failed before.
  const server = createServer((request, response) => {
    const pieces = [];
    request.on('data', (piece) => pieces.push(piece));
    request.on('end', () => {
      response.writeHead(204).end();
      take({ headers: request.headers, body: Buffer.concat(pieces) });
    });
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const timer = setTimeout(() => giveUp(new Stop('The demo failed: no webhook arrived')), WAIT_MS_MAX);
  const stop = () => {
    clearTimeout(timer);
    server.close();
    server.closeAllConnections();
  };
  return { port: server.address().port, arrived, stop };
}

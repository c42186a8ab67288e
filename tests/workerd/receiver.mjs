// A webhook's receiver on loopback: it keeps what arrived and answers as it is told.

import { createServer } from 'node:http';

/**
 * `answer(request, response, delivery)` answers; without it each delivery gets 200.
 * Resolves with a receiver whose `got` holds `{ headers, body, at }` of each delivery, oldest
 * first, and `next()` resolves with the next one that nobody has taken.
 */
export async function startReceiver(answer = (_, response) => response.end('thanks')) {
  const receiver = { got: [], inFlight: 0, inFlightMax: 0, answer };
  const waiting = [];
  let taken = 0;
  const server = createServer((request, response) => {
    receiver.inFlight++;
    receiver.inFlightMax = Math.max(receiver.inFlightMax, receiver.inFlight);
    response.on('close', () => receiver.inFlight--);
    const pieces = [];
    request.on('error', () => {});
    request.on('data', (piece) => pieces.push(piece));
    request.on('end', () => {
      const delivery = { headers: request.headers, body: Buffer.concat(pieces), url: request.url };
      receiver.got.push(delivery);
      waiting.splice(0).forEach((look) => look());
      receiver.answer(request, response, delivery);
    });
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  receiver.url = `http://127.0.0.1:${server.address().port}/hook`;
  receiver.next = async () => {
    while (receiver.got.length <= taken) await new Promise((resolve) => waiting.push(resolve));
    return receiver.got[taken++];
  };
  receiver.stop = () => {
    server.close();
    server.closeAllConnections();
  };
  return receiver;
}

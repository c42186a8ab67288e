import { Stop } from './log.mjs';

/**
 * Sends a request, its body JSON text or a value; `now` is the time in a server with test hooks.
 * Resolves with the answer's `data`.
 */
export async function send(url, token, method, path, body, now) {
  const response = await fetch(url + path, {
    method,
    headers: {
      authorization: `Bearer ${token}`,
      'content-type': 'application/json',
      ...(now === undefined ? {} : { 'x-test-now-ms': String(now) }),
    },
    body: body === undefined || typeof body === 'string' ? body : JSON.stringify(body),
  });
  const text = await response.text();
  if (!response.ok) throw new Stop(`The demo failed at ${method} ${path}: ${response.status} ${text}`);
  return text === '' ? null : JSON.parse(text).data;
}

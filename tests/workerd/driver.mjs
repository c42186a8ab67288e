// A Worker that sends requests to the plane from inside workerd, and times them.

export default {
  async fetch(request, env) {
    const { requests, concurrency, keepBodies } = await request.json();
    const results = new Array(requests.length);
    let next = 0;

    async function work() {
      while (next < requests.length) {
        const index = next++;
        results[index] = await send(env.PLANE, requests[index], keepBodies);
      }
    }
    const beganMs = Date.now();
    await Promise.all(Array.from({ length: concurrency }, work));
    return Response.json({ results, elapsedMs: Date.now() - beganMs });
  },
};

async function send(plane, { method, path, token, body, headers }, keepBody) {
  const beganMs = Date.now();
  const response = await plane.fetch(`http://127.0.0.1${path}`, {
    method,
    body: body === undefined || typeof body === 'string' ? body : JSON.stringify(body),
    headers: {
      ...(body === undefined ? {} : { 'content-type': 'application/json' }),
      ...(token ? { authorization: `Bearer ${token}` } : {}),
      ...headers,
    },
  });
  const text = await response.text();
  const result = { status: response.status, ms: Date.now() - beganMs };
  return keepBody ? { ...result, body: text } : result;
}

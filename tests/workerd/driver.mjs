// A Worker beside the plane: it calls the hooks of objects.mjs, and sends many requests at once.

export default {
  async fetch(request, env) {
    const input = await request.json();
    const what = new URL(request.url).pathname.slice(1);
    return Response.json(what === 'hook' ? await callHook(env, input) : await load(env, input));
  },
};

async function callHook(env, { binding, name, hook, args }) {
  try {
    return { value: (await env[binding].getByName(name)[hook](...args)) ?? null };
  } catch (error) {
    return { error: `${hook}: ${error.message}` };
  }
}

async function load(env, { requests, concurrency, keepBodies }) {
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
  return { results, elapsedMs: Date.now() - beganMs };
}

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
  // A stream breaks off where its reader may read no more.
  let brokeOff;
  const text = await response.text().catch((error) => {
    brokeOff = error.message;
    return '';
  });
  const result = { status: response.status, ms: Date.now() - beganMs, brokeOff };
  return keepBody ? { ...result, body: text } : result;
}

// The Worker's entry module: the Rust core behind a guard that lets no caller wait for ever.
//
// A Rust panic needs no guard: the build unwinds, and the handler's promise is rejected. Two other
// failures leave that promise pending, since they stop the task that would have settled it:
//
// * A JavaScript exception that a Rust binding does not catch ends the task. The runtime reports it
//   as an `error` event. The calls of the object or request it came from are rejected, no others.
// * A trap (unreachable code, stack overflow, no memory) ends the wasm instance, which the objects
//   and requests of this isolate share. All pending calls are rejected and a new instance starts;
//   worker-build's classes then build each object anew, from its storage.
//
// A rejected fetch answers 500 `internal`. A rejected alarm is tried again by the runtime.

import { DurableObject } from 'cloudflare:workers';
import * as core from 'teamplane-core';

/** The handler calls that have not settled. */
const pendingCalls = new Set();

let lastTrap;

addEventListener('error', ({ error }) => {
  if (isTrap(error)) return startAnew(error);
  // Timers and callbacks that a lost instance left behind: their calls were rejected with it.
  if (/previous wasm instance/i.test(error?.message)) return;
  for (const call of pendingCalls) if (isCurrent(call)) call.fail(error);
});

function isTrap(error) {
  return (
    error instanceof WebAssembly.RuntimeError ||
    (error instanceof RangeError && error.message.includes('call stack'))
  );
}

function startAnew(trap) {
  if (trap === lastTrap) return; // It comes as an event and as a rejection.
  lastTrap = trap;
  // Before anything calls the old instance again: what it would find there is undefined.
  core.__wbg_reset_state();

  const [own, others] = [[], []];
  for (const call of pendingCalls) (isCurrent(call) ? own : others).push(call);
  for (const call of others) call.fail(trap);
  // A rejection reaches another request a moment later. An answer of this object must not overtake
  // it: the request that receives the answer has lost the task that would have used it.
  setTimeout(() => own.forEach((call) => call.fail(trap)), 5);
}

/** Whether the running code belongs to the object or request that made the call. */
function isCurrent(call) {
  try {
    // The runtime lets none read a signal that another made.
    void call.controller.signal.aborted;
    return true;
  } catch {
    return false;
  }
}

/** Runs a handler. The promise it returns settles even when the handler's own never does. */
function guard(handler) {
  return new Promise((resolve, reject) => {
    const call = { controller: new AbortController(), fail };
    pendingCalls.add(call);

    function fail(error) {
      pendingCalls.delete(call);
      reject(error);
    }
    function succeed(value) {
      pendingCalls.delete(call);
      resolve(value);
    }
    (async () => handler())().then(succeed, (error) => {
      if (isTrap(error)) startAnew(error);
      else fail(error);
    });
  });
}

async function guardFetch(request, handler) {
  try {
    return await guard(handler);
  } catch (error) {
    const requestId = requestIdOf(request);
    console.error(`request ${requestId} failed:`, error);
    return Response.json(
      {
        version: 1,
        error: {
          code: 'internal',
          message: 'The server failed while it handled this request. The failure was logged; try again.',
          request_id: requestId,
        },
      },
      { status: 500, headers: { 'X-Request-Id': requestId } },
    );
  }
}

/** The id that the edge gave the request, or one for a request that has not come that far. */
function requestIdOf(request) {
  const given = request.headers.get('x-request-id');
  if (/^request_[0-9a-f]{32}$/.test(given)) return given;
  return `request_${crypto.randomUUID().replaceAll('-', '')}`;
}

function guardObject(Core) {
  class Guarded {
    #core;

    constructor(ctx, env) {
      this.ctx = ctx;
      this.env = env;
      this.#core = new Core(ctx, env);
    }

    fetch(request) {
      return guardFetch(request, () => this.#core.fetch(request));
    }
    alarm() {
      return guard(() => this.#core.alarm());
    }
    webSocketMessage(socket, message) {
      return guard(() => this.#core.webSocketMessage(socket, message));
    }
    webSocketClose(socket, code, reason, wasClean) {
      return guard(() => this.#core.webSocketClose(socket, code, reason, wasClean));
    }
    webSocketError(socket, error) {
      return guard(() => this.#core.webSocketError(socket, error));
    }
  }

  // The runtime allows RPC on classes that descend from DurableObject. This one does without
  // calling its constructor, which would refuse a `ctx` that a test has wrapped.
  Object.setPrototypeOf(Guarded, DurableObject);
  Object.setPrototypeOf(Guarded.prototype, DurableObject.prototype);
  return Guarded;
}

export const Team = guardObject(core.Team);
export const Directory = guardObject(core.Directory);

export default {
  fetch(request, env, ctx) {
    return guardFetch(request, () => new core.default(ctx, env).fetch(request));
  },
};

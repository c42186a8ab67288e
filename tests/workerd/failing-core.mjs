// Stands in for worker-build's output in guard.test.mjs: classes that fail when asked to, in the
// ways that the glue of a wasm module does. Like worker-build's, the classes build their objects
// anew once the instance was reset.

import { WorkerEntrypoint } from 'cloudflare:workers';

let instance = 0;
let builds = 0;

export function __wbg_reset_state() {
  instance += 1;
}

async function act(what) {
  // Like a task of the core: what it throws ends it, and leaves its promise pending.
  const inTask = (error) => {
    queueMicrotask(() => {
      throw error;
    });
    return new Promise(() => {});
  };
  const trap = () => new WebAssembly.RuntimeError('unreachable');

  switch (what) {
    case 'reject':
      throw new Error('a panic that unwound');
    case 'escape':
      return inTask(new Error('not caught by the binding'));
    case 'trap':
      return inTask(trap());
    case 'stale':
      setTimeout(() => {
        throw new Error('Cannot invoke closure from previous WASM instance');
      }, 50);
      return inTask(trap());
    case 'slow':
      await new Promise((done) => setTimeout(done, 300));
      return new Response('ok');
    case 'builds':
      return new Response(String(builds));
    default:
      return new Response('ok');
  }
}

class CoreObject {
  constructor() {
    this.build();
  }

  build() {
    this.instance = instance;
    builds += 1;
  }

  fetch(request) {
    if (this.instance !== instance) this.build();
    const what = new URL(request.url).pathname.split('/')[2];
    if (what === 'throw') throw new Error('before the first await');
    return act(what);
  }
}

export class Team extends CoreObject {}
export class Directory extends CoreObject {}

export default class extends WorkerEntrypoint {
  fetch(request) {
    const [, where, what] = new URL(request.url).pathname.split('/');
    if (where !== 'edge') return this.env.TEAM.getByName(where).fetch(request);
    if (what === 'throw') throw new Error('before the first await');
    return act(what);
  }
}

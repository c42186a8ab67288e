// Keeps hold of the memory of the newest wasm instance, which the build exports to nobody.

let memory;

/** In bytes; it grows, and never shrinks. */
export const wasmBytes = () => memory.buffer.byteLength;

WebAssembly.Instance = new Proxy(WebAssembly.Instance, {
  construct(Instance, args) {
    const instance = new Instance(...args);
    memory = instance.exports.memory;
    return instance;
  },
});

// What the code finds beside the language: `console`, timers, and `api` or `spec`. Runs before it, in
// the same realm; everything that it needs afterwards it keeps here, out of the code's reach.
(host, scope) => {
  "use strict";
  const { stringify, parse } = JSON;
  const { Map, Promise, TypeError, Error, Uint8Array, ArrayBuffer, Object, String } = globalThis;

  const shown = (value) => {
    if (typeof value === "string") return value;
    if (value instanceof Error) return String(value.stack ? `${value}\n${value.stack}` : value);
    if (typeof value === "function" || typeof value === "symbol") return String(value);
    try {
      const text = stringify(value);
      return text === undefined ? String(value) : text;
    } catch {
      return String(value);
    }
  };
  const writer = (stream) => (...values) => host.write(stream, values.map(shown).join(" ") + "\n");
  const [out, err] = [writer(1), writer(2)];
  globalThis.console = { log: out, info: out, debug: out, warn: err, error: err, trace: err };

  const timers = new Map();
  let lastTimer = 0;
  globalThis.setTimeout = (run, delay, ...values) => {
    if (typeof run !== "function") throw new TypeError("setTimeout: the first argument is no function");
    const wait = +delay > 0 ? +delay : 0;
    timers.set(++lastTimer, { at: host.now() + wait, run, values });
    return lastTimer;
  };
  globalThis.clearTimeout = (id) => void timers.delete(id);
  globalThis.sleep = (delay) => new Promise((resolve) => globalThis.setTimeout(resolve, delay));
  globalThis.queueMicrotask ??= (run) => void Promise.resolve().then(run);

  const waiting = new Map();
  let lastCall = 0;
  const bytesOf = (value) => {
    if (value instanceof ArrayBuffer) return new Uint8Array(value);
    if (ArrayBuffer.isView(value)) return new Uint8Array(value.buffer, value.byteOffset, value.byteLength);
    return undefined;
  };
  const latin = (bytes) => {
    let text = "";
    for (let at = 0; at < bytes.length; at += 4096) {
      text += String.fromCharCode(...bytes.subarray(at, at + 4096));
    }
    return text;
  };
  const request = (options) => {
    if (options === null || typeof options !== "object") {
      throw new TypeError("api.request takes { method, path, query?, body?, contentType?, rawBody? }");
    }
    const { method = "GET", path, query, body, contentType, rawBody } = options;
    const verb = String(method).toUpperCase();
    if (scope === "api_read" && verb !== "GET") {
      throw new Error(`execute_read only reads: ${verb} is refused; use execute_write`);
    }
    if (typeof path !== "string") throw new TypeError("api.request: path must be a string");
    if (body !== undefined && rawBody !== undefined) {
      throw new TypeError("api.request: give body or rawBody, not both");
    }
    const call = { id: ++lastCall, method: verb, path, query, contentType, body };
    const bytes = bytesOf(rawBody);
    if (bytes) call.rawBase64 = host.base64(latin(bytes));
    else if (rawBody !== undefined) call.rawBody = String(rawBody);
    return new Promise((resolve, reject) => {
      waiting.set(call.id, { resolve, reject });
      try {
        host.call(stringify({ call }));
      } catch (error) {
        waiting.delete(call.id);
        reject(error);
      }
    });
  };
  if (scope !== "spec") {
    globalThis.api = Object.freeze({ request: async (options) => request(options) });
  }

  return {
    run: async (main) => {
      if (typeof main !== "function") {
        throw new TypeError("the code must be an async arrow function: async () => { … }");
      }
      return stringify(await main()) ?? "null";
    },
    // What an exception says, whatever was thrown.
    describe: (thrown) => {
      if (!(thrown instanceof Error)) return `thrown: ${shown(thrown)}`;
      // Where it happened in the code; the frames of what is here would only puzzle its author.
      const frames = typeof thrown.stack === "string" ? thrown.stack.trimEnd().split("\n") : [];
      return [`${thrown}`, ...frames.filter((frame) => frame.includes("code:")).slice(0, 10)].join("\n");
    },
    deliver: (text) => {
      const { id, answer, refused } = parse(text);
      const call = waiting.get(id);
      if (!call) return;
      waiting.delete(id);
      if (answer) call.resolve(answer);
      else call.reject(new Error(refused));
    },
    waits: () => waiting.size,
    // Milliseconds until the next timer, or -1.
    nextTimer: () => {
      let next = -1;
      for (const { at } of timers.values()) if (next < 0 || at < next) next = at;
      return next < 0 ? -1 : Math.max(0, next - host.now());
    },
    tick: () => {
      const now = host.now();
      const due = [...timers].filter(([, timer]) => timer.at <= now).sort(([, a], [, b]) => a.at - b.at);
      for (const [id, timer] of due) {
        if (timers.delete(id)) timer.run(...timer.values);
      }
    },
  };
}

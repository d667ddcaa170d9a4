// The engine of code mode on Node: the same conversation as that of `code-runner`, which see.
"use strict";
const net = require("node:net");
const prelude = (/* PRELUDE */);

const server = net.createServer((socket) => {
  server.close();
  socket.setNoDelay(true);
  let buffered = "";
  let job;
  let hooks;
  socket.setEncoding("utf8");
  socket.on("error", () => process.exit(1));
  socket.on("close", () => process.exit(0));
  socket.on("data", (text) => {
    buffered += text;
    for (let end; (end = buffered.indexOf("\n")) >= 0; ) {
      const line = buffered.slice(0, end);
      buffered = buffered.slice(end + 1);
      take(line);
    }
  });
  const take = (line) => {
    if (!job) {
      job = JSON.parse(line);
      if (job.scope !== "spec") begin();
    } else if (!hooks) begin(line);
    else hooks.deliver(line);
  };

  const streams = { 1: "", 2: "" };
  const cut = (text, max) => (Buffer.byteLength(text) <= max ? text : Buffer.from(text).subarray(0, max).toString());
  const finish = (ended) => {
    const done = { stdout: streams[1], stderr: streams[2], ...ended };
    socket.end(JSON.stringify({ done }) + "\n");
  };

  const begin = (spec) => {
    const base64 = (text) => Buffer.from(text, "latin1").toString("base64");
    const write = (stream, text) => {
      streams[stream] += cut(text, Math.max(0, job.stream_max - Buffer.byteLength(streams[stream])));
    };
    const wait = globalThis.setTimeout;
    hooks = prelude({ base64, write, call: (line) => socket.write(line + "\n"), now: () => performance.now() }, job.scope);
    wait(() => finish({ error: `the code did not end within ${job.timeout_ms} ms` }), job.timeout_ms).unref();
    const tick = () => {
      try {
        hooks.tick();
      } catch (error) {
        finish({ error: hooks.describe(error) });
        return;
      }
      const next = hooks.nextTimer();
      wait(tick, next < 0 ? 20 : Math.min(next, 20));
    };
    tick();
    if (spec !== undefined) globalThis.spec = JSON.parse(spec);
    const failed = (error) => finish({ error: cut(hooks.describe(error), job.stream_max) });
    try {
      const { Script } = require("node:vm");
      const main = new Script(`globalThis.__main = ${job.code}\n`, { filename: "code" });
      main.runInThisContext();
      const run = globalThis.__main;
      delete globalThis.__main;
      hooks.run(run).then((text) => {
        const result = cut(text, job.result_max);
        finish({ result, truncated: result.length < text.length });
      }, failed);
    } catch (error) {
      failed(error);
    }
  };
});
server.listen(0, "127.0.0.1", () => console.log(String(server.address().port)));

// A client of sessions (docs/wire.md): starts one, talks, loses its connection in the middle of a turn, comes back,
// and goes on in a fresh sandbox. In the end it has every event of the log, each of them once.
//
//     BASTIDE_SERVER=http://127.0.0.1:8080 BASTIDE_API_KEY=… node client.mjs
//
// Node 22 has the WebSocket of browsers, which takes no headers: the token goes into the URL. The agent is `mock`,
// which needs no model.

import { deepStrictEqual } from "node:assert";
import { setTimeout as sleep } from "node:timers/promises";

const server = process.env.BASTIDE_SERVER ?? "http://127.0.0.1:8080";
const key = process.env.BASTIDE_API_KEY;

async function call(method, path, body) {
  const headers = { Authorization: `Bearer ${key}`, "Content-Type": "application/json" };
  const answer = await fetch(server + path, { method, headers, body: body && JSON.stringify(body) });
  if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${await answer.text()}`);
  return answer.json();
}

class Session {
  // All that a client has to keep.
  seen = 0;

  constructor(answer) {
    this.answer = answer;
  }

  // What happens, in order and once, over as many connections as it takes.
  async *events() {
    for (;;) {
      const { connect_url, jwt } = this.answer;
      const arrived = [];
      let wake = () => {};
      const socket = new WebSocket(`${connect_url}?from=${this.seen}&token=${jwt}`);
      socket.onmessage = ({ data }) => (arrived.push(data), wake());
      socket.onclose = ({ code }) => (arrived.push(code), wake());
      socket.onerror = () => {}; // what follows is the close
      this.socket = socket;
      for (let code; code === undefined; ) {
        while (arrived.length === 0) await new Promise((woken) => (wake = woken));
        const data = arrived.shift();
        if (typeof data === "number") code = data;
        // Another client took over, or nothing runs: resume it.
        if (code === 1011) throw new Error("closed with 1011");
        // Anything but text is an image of a display.
        const frame = typeof data === "string" ? JSON.parse(data) : {};
        // Without a sequence it is beside the log.
        if (frame.sequence === undefined) continue;
        this.seen = frame.sequence;
        yield frame;
        if (this.socket !== socket) break; // dropped
      }
      await sleep(200);
    }
  }

  say(text) {
    this.socket.send(JSON.stringify({ type: "message", message: text }));
  }

  // As when the network is gone: what still arrives on that connection is not looked at.
  drop() {
    this.socket.close();
    this.socket = undefined;
  }
}

// Whether the agent waits for a message. Agents with a model end a turn with the status `turn.completed`.
function isReady({ type, data }) {
  return type === "item.completed" && JSON.stringify(data).includes("Mock agent ready");
}

async function turn(events, log) {
  for (;;) {
    const { value: event } = await events.next();
    log.push(event);
    console.log(event.sequence, event.type);
    if (isReady(event)) return;
  }
}

const { tenant_id } = await call("GET", "/v1/tenants/me");
const started = await call("POST", "/v1/sessions", {
  agent: { kind: "mock" }, template: "standard", llm: { vendor: "openai" }, user_id: tenant_id,
});
const session = new Session(started);
const events = session.events();
const log = [];
await turn(events, log);

session.say("tool");
await turn(events, log);

session.say("demo");
log.push((await events.next()).value);
session.drop();
await turn(events, log);

session.answer = await call("POST", "/v1/sessions/resume", { chat_session_id: started.chat_session_id });
log.push((await events.next()).value); // session.started: another life
session.say("echo the same conversation");
await turn(events, log);
session.drop();

const path = `/v1/sessions/${started.chat_session_id}`;
const logged = await call("GET", `${path}/events?to=${session.seen}`);
deepStrictEqual(log, logged.events, "events were lost, or came twice");
console.log(`${log.length} events: none lost, none twice`);
await call("DELETE", path);
process.exit(0);

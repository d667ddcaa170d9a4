// The official TypeScript client against code mode: over HTTP, or over standard input and output with
// MCP_COMMAND. Exits with 1 when a check fails.
import assert from "node:assert/strict";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const { MCP_URL, MCP_KEY, MCP_COMMAND } = process.env;
const overHttp = () => {
  const requestInit = { headers: { Authorization: `Bearer ${MCP_KEY}` } };
  return new StreamableHTTPClientTransport(new URL(MCP_URL), { requestInit });
};
const overStdio = () => {
  const [command, ...args] = JSON.parse(MCP_COMMAND);
  return new StdioClientTransport({ command, args, env: process.env, stderr: "inherit" });
};

const client = new Client({ name: "smoke", version: "1" });
await client.connect(MCP_COMMAND ? overStdio() : overHttp());
assert.equal(client.getServerVersion().name, "bastide");
const { tools } = await client.listTools();
assert.deepEqual(tools.map((tool) => tool.name), ["search", "execute_read", "execute_write"]);

const call = async (name, code) => {
  const { content, isError } = await client.callTool({ name, arguments: { code } });
  const line = content[0].text.split("\n").find((line) => line.startsWith("{"));
  return { ...JSON.parse(line), isError };
};
const found = await call("search", "async () => Object.keys(spec.paths).filter((path) => path.endsWith('/exec'))");
assert.deepEqual(found.result, ["/v1/sandboxes/{id}/exec"]);
const job = `async () => {
  const made = await api.request({ method: 'POST', path: '/v1/sandboxes', body: { template: 'host' } });
  const path = '/v1/sandboxes/' + made.data.id;
  const run = await api.request({ method: 'POST', path: path + '/exec', body: { command: 'echo $((6 * 7))' } });
  const gone = await api.request({ method: 'DELETE', path });
  return { output: run.data.stdout.trim(), gone: gone.ok };
}`;
const done = await call("execute_write", job);
assert.deepEqual(done.result, { output: "42", gone: true }, JSON.stringify(done));
const refused = await call("execute_read", "async () => api.request({ method: 'DELETE', path: '/v1/sandboxes/x' })");
assert.equal(refused.isError, true);
await client.close();
console.log("all checks passed");

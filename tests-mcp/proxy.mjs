// Adds the key to every request: the conformance suite has no way to send a header. Host and Origin go on
// as they came, because what the server makes of them is among what is tested.
import http from "node:http";

const [target, port] = [new URL(process.env.MCP_URL), Number(process.env.PROXY_PORT)];
http
  .createServer((request, response) => {
    const headers = { ...request.headers, authorization: `Bearer ${process.env.MCP_KEY}` };
    const options = { host: target.hostname, port: target.port, path: request.url, method: request.method, headers };
    const onward = http.request({ ...options, setHost: false }, (answer) => {
      response.writeHead(answer.statusCode, answer.headers);
      answer.pipe(response);
    });
    onward.on("error", () => response.destroy());
    response.on("close", () => onward.destroy());
    request.pipe(onward);
  })
  .listen(port, "127.0.0.1", () => console.log("ready"));

# A page of several files, a place to tell what happened, and a WebSocket that echoes. Standard library only.
import base64, hashlib, http.server, struct, sys

PAGE = b"""<!doctype html><title>preview</title><p id=p>waiting</p>
<script src="app.js"></script>"""

APP = b"""
const told = { origin: self.origin };
const ask = async (name, what) => {
  try { told[name] = await what(); } catch (error) { told[name] = 'refused'; }
};
const socket = () => new Promise((resolve, reject) => {
  const ws = new WebSocket(location.origin.replace('http', 'ws') + '/ws');
  ws.onopen = () => ws.send('ping');
  ws.onmessage = (event) => resolve(event.data);
  ws.onerror = reject;
});
(async () => {
  document.cookie = 'own=1';
  await ask('file', async () => (await fetch('/data.txt')).text());
  await ask('socket', socket);
  await ask('cookies', async () => document.cookie);
  await ask('api', async () => (await fetch('API/v1/sandboxes')).status);
  await fetch('/result', { method: 'POST', body: JSON.stringify(told) });
})();
"""

LONELY = b"""<!doctype html><p id=p>waiting</p><script>
const told = [self.origin];
for (const what of [
  () => document.cookie, () => localStorage.length, () => navigator.serviceWorker.controller,
  () => { const x = new XMLHttpRequest(); x.open('GET', '/v1/sandboxes', false); x.send(); return x.status; },
  () => { const x = new XMLHttpRequest(); x.open('GET', '/healthz', false); x.send(); return x.status; },
]) { try { told.push('got ' + what()); } catch (error) { told.push('refused'); } }
document.getElementById('p').textContent = told.join(' ');
</script>"""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/ws":
            return self.echo()
        files = {
            "/": ("text/html", PAGE),
            "/app.js": ("text/javascript", APP.replace(b"API", sys.argv[2].encode())),
            "/data.txt": ("text/plain", b"data"),
            "/lonely": ("text/html", LONELY),
        }
        kind, body = files.get(self.path, ("text/plain", b"?"))
        self.answer(200 if self.path in files else 404, kind, body)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        with open("/tmp/result.new", "wb") as file:
            file.write(body)
        import os
        os.rename("/tmp/result.new", "/tmp/result")
        self.answer(200, "text/plain", b"ok")

    def answer(self, status, kind, body):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def echo(self):
        key = self.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.send_response(101)
        self.send_header("connection", "Upgrade")
        self.send_header("upgrade", "websocket")
        self.send_header("sec-websocket-accept", accept)
        self.end_headers()
        head = self.rfile.read(2)
        length, mask = head[1] & 0x7F, self.rfile.read(4)
        data = bytes(c ^ mask[i % 4] for i, c in enumerate(self.rfile.read(length)))
        self.wfile.write(struct.pack("!BB", 0x81, len(data)) + data)
        self.rfile.read(1)
        self.close_connection = True

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()

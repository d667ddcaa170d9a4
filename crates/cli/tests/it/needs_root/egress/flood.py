# Holds as many connections as it gets, and says how many. Argument: the port.
import socket, sys, time

held = []
for _ in range(400):
    s = socket.create_connection(("allowed.test", int(sys.argv[1])), 5)
    s.sendall(b"GET / HTTP/1.1\r\nHost: allowed.test\r\n\r\n")
    s.setblocking(False)
    held.append(s)
answered, end = set(), time.monotonic() + 8
while time.monotonic() < end:
    for s in held:
        try:
            if s.recv(100):
                answered.add(s)
        except OSError:
            pass
    time.sleep(0.05)
print(len(answered), flush=True)
sys.stdin.read()

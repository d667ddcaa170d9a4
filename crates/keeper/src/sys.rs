//! The system calls that no crate wraps for us. Each function is one call with its reason; nothing
//! else in this crate is `unsafe` (the egress sockets have their own such file).

#![expect(unsafe_code, reason = "raw system calls that rustix does not offer")]

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::process::Pid;

/// Which side of a fork this is.
pub enum Fork {
    Parent(Pid),
    Child,
}

/// Forks this process, which must be single-threaded (the keeper and its children are).
pub fn fork() -> io::Result<Fork> {
    // SAFETY: the caller is single-threaded, so the child may do anything the parent may.
    let pid = unsafe { libc::fork() };
    side_of(libc::c_long::from(pid))
}

/// Like `fork`, with new namespaces (`CLONE_NEW…`).
pub fn clone(flags: libc::c_int) -> io::Result<Fork> {
    let mut args = [0u64; 11];
    args[0] = u64::try_from(flags).map_err(|_| io::ErrorKind::InvalidInput)?;
    args[4] = u64::try_from(libc::SIGCHLD).expect("a small positive number");
    let size = size_of_val(&args);
    // SAFETY: `args` is a zeroed clone_args with only flags and exit_signal set; without CLONE_VM
    // the child runs on a copy of this stack, as after fork.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, args.as_ptr(), size) };
    side_of(pid)
}

fn side_of(pid: libc::c_long) -> io::Result<Fork> {
    match i32::try_from(pid) {
        Ok(0) => Ok(Fork::Child),
        Ok(pid) if pid > 0 => Ok(Fork::Parent(Pid::from_raw(pid).expect("positive"))),
        Ok(_) | Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Ends this process at once, without running destructors or flushing what the parent buffered.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: never returns and touches no memory.
    unsafe { libc::_exit(code) }
}

const AT_RECURSIVE: libc::c_int = 0x8000;

/// Attributes for [`mount_setattr`].
#[derive(Default)]
pub struct MountAttr<'fd> {
    pub set: u64,
    pub idmap: Option<BorrowedFd<'fd>>,
    pub recursive: bool,
}

pub const MOUNT_ATTR_RDONLY: u64 = 1;
pub const MOUNT_ATTR_NOSUID: u64 = 2;
pub const MOUNT_ATTR_NODEV: u64 = 4;
const MOUNT_ATTR_IDMAP: u64 = 0x10_0000;

/// Sets attributes of a detached tree: read-only and the like, and the id mapping of `idmap`.
pub fn mount_setattr(tree: impl AsFd, attr: &MountAttr<'_>) -> io::Result<()> {
    #[repr(C)]
    struct Raw {
        attr_set: u64,
        attr_clr: u64,
        propagation: u64,
        userns_fd: u64,
    }
    let userns = attr.idmap.map_or(0, |fd| fd.as_raw_fd());
    let raw = Raw {
        attr_set: attr.set | if attr.idmap.is_some() { MOUNT_ATTR_IDMAP } else { 0 },
        attr_clr: 0,
        propagation: 0,
        userns_fd: u64::try_from(userns).map_err(|_| io::ErrorKind::InvalidInput)?,
    };
    let flags = libc::AT_EMPTY_PATH | if attr.recursive { AT_RECURSIVE } else { 0 };
    let fd = tree.as_fd().as_raw_fd();
    // SAFETY: `raw` is a mount_attr of the size given and lives across the call; the path is a
    // NUL-terminated empty string, which AT_EMPTY_PATH asks for.
    let result = unsafe {
        libc::syscall(libc::SYS_mount_setattr, fd, c"".as_ptr(), flags, &raw, size_of::<Raw>())
    };
    done(result)
}

/// Replaces this process by the program behind `fd`; only returns on failure.
pub fn execveat(fd: BorrowedFd<'_>, argv: &[CString], envp: &[CString]) -> io::Error {
    let argv = null_terminated(argv);
    let envp = null_terminated(envp);
    // SAFETY: both arrays end with a null pointer and their strings outlive the call.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            fd.as_raw_fd(),
            c"".as_ptr(),
            argv.as_ptr(),
            envp.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    io::Error::last_os_error()
}

fn null_terminated(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect()
}

/// Installs a seccomp filter without setting `no_new_privs`, for which the caller needs
/// `CAP_SYS_ADMIN` in its user namespace.
pub fn seccomp(program: &[seccompiler::sock_filter]) -> io::Result<()> {
    #[repr(C)]
    struct Prog {
        len: u16,
        filter: *const seccompiler::sock_filter,
    }
    let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let prog = Prog { len, filter: program.as_ptr() };
    // SAFETY: `prog` describes `program`, which outlives the call; the kernel copies it.
    let result =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &prog) };
    done(result)
}

/// An ioctl whose argument is a structure that the kernel reads and may write.
///
/// `T` must be the `repr(C)` structure that `request` names.
pub fn ioctl<T>(fd: impl AsFd, request: u64, argument: &mut T) -> io::Result<()> {
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: `argument` is a live, exclusive reference to the structure of this request.
    let result = unsafe { libc::ioctl(fd, request, std::ptr::from_mut(argument)) };
    done(libc::c_long::from(result))
}

/// An ioctl whose argument is a number; gives its result.
pub fn ioctl_number(fd: impl AsFd, request: u64, argument: u64) -> io::Result<i32> {
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: these requests take no pointer.
    let result = unsafe { libc::ioctl(fd, request, argument) };
    done(libc::c_long::from(result)).map(|()| result)
}

/// Waits for any child that ended, without blocking: its pid and wait status.
pub fn reap_one() -> Option<(i32, i32)> {
    let mut status = 0;
    // SAFETY: `status` is a live int.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
    (pid > 0).then_some((pid, status))
}

/// A descriptor that becomes readable when one of `signals` (blocked by this call) arrives.
pub fn signalfd(signals: &[libc::c_int]) -> io::Result<OwnedFd> {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the whole set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    for &signal in signals {
        // SAFETY: the set was initialised above.
        unsafe { libc::sigaddset(set.as_mut_ptr(), signal) };
    }
    // SAFETY: the set is initialised; the old mask is not asked for.
    unsafe { libc::sigprocmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) };
    let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
    // SAFETY: the set is initialised and -1 asks for a new descriptor.
    let fd = unsafe { libc::signalfd(-1, set.as_ptr(), flags) };
    done(libc::c_long::from(fd))?;
    // SAFETY: the kernel just gave us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Unblocks every signal, for a child that will run another program.
pub fn unblock_signals() {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the whole set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: the set is initialised; the old mask is not asked for.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, set.as_ptr(), std::ptr::null_mut()) };
}

/// Puts `fd` at number `target` (kept across exec), whatever was there.
pub fn dup_to(fd: BorrowedFd<'_>, target: libc::c_int) -> io::Result<()> {
    if fd.as_raw_fd() == target {
        // SAFETY: clears close-on-exec of a descriptor that is ours.
        let result = unsafe { libc::fcntl(target, libc::F_SETFD, 0) };
        return done(libc::c_long::from(result));
    }
    // SAFETY: both numbers are in our own table; what was at `target` belongs to nobody here.
    let result = unsafe { libc::dup2(fd.as_raw_fd(), target) };
    done(libc::c_long::from(result))
}

/// Closes every descriptor from `first` on.
pub fn close_from(first: libc::c_uint) -> io::Result<()> {
    // SAFETY: called at the start of a program, when no value owns a descriptor yet.
    let result = unsafe { libc::close_range(first, libc::c_uint::MAX, 0) };
    done(libc::c_long::from(result))
}

/// Closes every descriptor from `first` on at the next exec.
pub fn close_from_at_exec(first: libc::c_uint) -> io::Result<()> {
    let flags = libc::c_int::try_from(libc::CLOSE_RANGE_CLOEXEC).unwrap_or_default();
    // SAFETY: only sets a flag on descriptors.
    let result = unsafe { libc::close_range(first, libc::c_uint::MAX, flags) };
    done(libc::c_long::from(result))
}

/// Makes a character device, for the `/dev` that sandboxes share.
pub fn make_char_device(path: &CStr, major: u32, minor: u32) -> io::Result<()> {
    let device = libc::makedev(major, minor);
    // SAFETY: `path` is NUL-terminated.
    let result = unsafe { libc::mknod(path.as_ptr(), libc::S_IFCHR | 0o666, device) };
    done(libc::c_long::from(result))
}

/// Leaves what `flags` name of what this process shares with others.
///
/// For descriptors the caller promises that those it goes on to use are open.
pub fn unshare(flags: rustix::thread::UnshareFlags) -> rustix::io::Result<()> {
    // SAFETY: the process has one thread; what it keeps of a descriptor table is a copy.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}

const NS_GET_PARENT: libc::c_ulong = 0xb702;

/// The user namespace that a user namespace was made in.
pub fn parent_namespace(namespace: impl AsFd) -> io::Result<OwnedFd> {
    let fd = ioctl_number(namespace, NS_GET_PARENT, 0)?;
    // SAFETY: the kernel just gave us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn done(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// How long this process may run before others have their turn, in nanoseconds: one that asks for less need not wait
/// when it is woken (Linux 6.12). With 0 as the kernel likes.
pub fn set_turn(nanos: u64) -> io::Result<()> {
    const SIZE: u32 = 48;
    #[repr(C)]
    #[derive(Default)]
    struct Attributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    let mut attributes = Attributes { size: SIZE, ..Attributes::default() };
    let address = &raw mut attributes;
    // SAFETY: the kernel fills in the structure, which has the size that is said.
    let read = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, address, SIZE, 0) };
    if read < 0 {
        return Err(io::Error::last_os_error());
    }
    attributes.runtime = nanos;
    // SAFETY: the structure is as the kernel gave it, but for one number.
    let set = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

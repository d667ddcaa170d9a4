//! The system calls of the floor that have no safe wrapper.
#![expect(unsafe_code, reason = "clone3, mount_setattr and seccomp have no safe wrapper")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::thread::UnshareFlags;

#[repr(C, align(8))]
#[derive(Default)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    userns: u64,
}

#[repr(C)]
struct Filter {
    code: u16,
    jump_true: u8,
    jump_false: u8,
    k: u32,
}

#[repr(C)]
struct FilterProgram {
    length: u16,
    filter: *const Filter,
}

pub(super) enum Side {
    Child,
    Parent(rustix::process::Pid),
}

/// A child in namespaces and a cgroup of its own, which still shares our descriptors.
pub(super) fn clone_into(cgroup: BorrowedFd<'_>) -> io::Result<Side> {
    let namespaces = libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS;
    let flags = i64::from(namespaces | libc::CLONE_FILES) | 0x2_0000_0000; // CLONE_INTO_CGROUP
    let arguments = CloneArguments {
        flags: flags.cast_unsigned(),
        exit_signal: 17, // SIGCHLD
        cgroup: u64::from(cgroup.as_raw_fd().cast_unsigned()),
        ..CloneArguments::default()
    };
    // SAFETY: no memory is shared with the child and this process has one thread, so the child is a
    // plain copy of it, as after `fork`.
    let pid = unsafe {
        libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<CloneArguments>())
    };
    match (pid, i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw)) {
        (0, _) => Ok(Side::Child),
        (_, Some(pid)) => Ok(Side::Parent(pid)),
        (_, None) => Err(io::Error::last_os_error()),
    }
}

pub(super) fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: one thread, and no descriptor is used by number after this but those handed over.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(Into::into)
}

/// A descriptor that the parent opened in the table we shared.
pub(super) fn adopt(number: i32) -> OwnedFd {
    // SAFETY: the parent opened it for us and told the number once.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// Maps the owners of a detached tree, and makes it read-only.
pub(super) fn map_owners(tree: impl AsFd, userns: impl AsFd) -> io::Result<()> {
    const READ_ONLY: u64 = 1;
    const IDMAP: u64 = 0x0010_0000;
    let attributes = MountAttributes {
        set: READ_ONLY | IDMAP,
        clear: 0,
        propagation: 0,
        userns: u64::from(userns.as_fd().as_raw_fd().cast_unsigned()),
    };
    // SAFETY: the path is empty and the structure is live and of the size given.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_fd().as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<MountAttributes>(),
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A filter that looks at the architecture and then at the number of the call, as long as ours.
pub(super) fn seccomp(refused: &[u32]) -> io::Result<()> {
    const LOAD: u16 = 0x20;
    const JUMP_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const ALLOW: u32 = 0x7fff_0000;
    const NO_SUCH_CALL: u32 = 0x0005_0000 | 38;
    let op = |code, jump_true, jump_false, k| Filter { code, jump_true, jump_false, k };
    let mut filter = vec![op(LOAD, 0, 0, 4), op(JUMP_EQUAL, 1, 0, ARCHITECTURE)];
    filter.extend([op(RETURN, 0, 0, NO_SUCH_CALL), op(LOAD, 0, 0, 0)]);
    for call in refused {
        filter.extend([op(JUMP_EQUAL, 0, 1, *call), op(RETURN, 0, 0, NO_SUCH_CALL)]);
    }
    filter.push(op(RETURN, 0, 0, ALLOW));
    let length = u16::try_from(filter.len()).map_err(io::Error::other)?;
    let program = FilterProgram { length, filter: filter.as_ptr() };
    // SAFETY: the program points to `filter`, which outlives the call; the kernel copies it.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, 1, 0, &raw const program) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

const ARCHITECTURE: u32 = if cfg!(target_arch = "aarch64") { 0xc000_00b7 } else { 0xc000_003e };

//! `clone3` with a function on a stack of its own, which libc does not offer: the only way to be
//! *born* in a cgroup. Moving there afterwards waits for an RCU grace period, milliseconds on a busy
//! host, where starting a small program takes a third of one.

#![expect(unsafe_code, reason = "clone on another stack is written in assembly")]

use std::ffi::c_void;
use std::io;
use std::os::fd::RawFd;

/// What the child runs; it must not return.
pub(super) type Entry = extern "C" fn(*mut c_void) -> i32;

/// The kernel's `struct clone_args`, version 2.
#[repr(C)]
#[derive(Default)]
struct CloneArgs {
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

const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// A vfork-like child in the cgroup of `cgroup` (a directory). Gives its pid and pidfd once it has
/// called exec or exit.
///
/// # Safety
/// `stack` is a mapping of `stack_bytes` that nobody else uses meanwhile; `entry` never returns and
/// does with `argument` only what is right while this thread stands still.
pub(super) unsafe fn into_cgroup(
    cgroup: RawFd,
    (stack, stack_bytes): (*mut c_void, usize),
    entry: Entry,
    argument: *mut c_void,
) -> io::Result<(i32, RawFd)> {
    let mut pidfd: RawFd = -1;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD;
    let number = |value: i32| u64::try_from(value).map_err(|_| io::ErrorKind::InvalidInput);
    let args = CloneArgs {
        flags: number(flags)? | CLONE_INTO_CGROUP,
        pidfd: (&raw mut pidfd).addr() as u64,
        exit_signal: number(libc::SIGCHLD)?,
        stack: stack.addr() as u64,
        stack_size: stack_bytes as u64,
        cgroup: number(cgroup)?,
        ..CloneArgs::default()
    };
    // SAFETY: passed on to our caller.
    let result = unsafe { clone3(&args, entry, argument) };
    match i32::try_from(result) {
        Ok(pid) if pid > 0 => Ok((pid, pidfd)),
        Ok(errno) => Err(io::Error::from_raw_os_error(-errno)),
        Err(_) => Err(io::ErrorKind::Other.into()),
    }
}

/// The raw call: a pid, or a negative error number.
#[cfg(target_arch = "x86_64")]
unsafe fn clone3(args: &CloneArgs, entry: Entry, argument: *mut c_void) -> i64 {
    let result: i64;
    // SAFETY: in the parent only rax, rcx and r11 change, as in any system call. The child begins
    // on its own stack, aligned as at a call, with nothing on it, and leaves by `entry`.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone3 => result,
            in("rdi") std::ptr::from_ref(args),
            in("rsi") size_of::<CloneArgs>(),
            in("r12") argument,
            in("r13") entry,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

/// Elsewhere the child moves itself.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn clone3(_: &CloneArgs, _: Entry, _: *mut c_void) -> i64 {
    -i64::from(libc::ENOSYS)
}

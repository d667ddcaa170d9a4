//! Which system calls a sandbox may make: an allow-list; everything else is `ENOSYS`.
//!
//! What is absent on purpose: new namespaces and mounts, keyrings, bpf, perf, `io_uring`,
//! userfaultfd, modules, kexec, handles by number, clocks being set. A filter cannot see the flags of
//! `clone3`, with which the guest starts a command in its cgroup: what they could ask for is refused
//! by the launcher's limit of zero user namespaces.

#[cfg(test)]
mod tests;
mod tree;

use std::collections::BTreeMap;

use anyhow::Context;
use seccompiler::{
    SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

pub(crate) type Program = Vec<seccompiler::sock_filter>;

/// The compiled filter of a sandbox; with `nesting` programs may make namespaces and mount in them,
/// by the old calls: `fsopen` and its like have had holes of their own and nobody needs them.
pub(crate) fn program(nesting: bool) -> anyhow::Result<Program> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    let more: &[i64] = if nesting { NESTING } else { &[] };
    if !nesting {
        rules.insert(libc::SYS_clone, vec![no_flags(0, NAMESPACE_FLAGS)?]);
    }
    let families = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6];
    let mut sockets = Vec::new();
    for family in families {
        sockets.push(SeccompRule::new(vec![equals(0, u64::try_from(family)?)?])?);
    }
    // Route netlink only: the C library lists interfaces with it.
    let netlink = equals(0, u64::try_from(libc::AF_NETLINK)?)?;
    sockets.push(SeccompRule::new(vec![netlink, equals(2, 0)?])?);
    rules.insert(libc::SYS_socket, sockets);
    rules.insert(libc::SYS_ioctl, ioctls()?);
    let mut personalities = Vec::new();
    for persona in [0u64, 0x0008, 0x2_0000, 0x2_0008, 0xffff_ffff, 0x4_0000] {
        personalities.push(SeccompRule::new(vec![equals(0, persona)?])?);
    }
    rules.insert(libc::SYS_personality, personalities);
    let enosys = SeccompAction::Errno(u32::try_from(libc::ENOSYS)?);
    let arch = TargetArch::try_from(std::env::consts::ARCH).context("processor architecture")?;
    let filter = SeccompFilter::new(rules, enosys, SeccompAction::Allow, arch)?;
    let numbers = ALLOWED.iter().chain(more).map(|&call| u32::try_from(call));
    let numbers = numbers.collect::<Result<Vec<_>, _>>()?;
    let mut program = tree::allow(&numbers, AUDIT_ARCH)?;
    program.extend(no_such_family()?);
    program.extend(no_typing_for_others()?);
    program.extend(Program::try_from(filter).context("compile seccomp filter")?);
    Ok(program)
}

/// The kernel's name of this architecture.
#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: u32 = 0xc000_00b7;

/// Goes before the rules about arguments and answers `EAFNOSUPPORT` for the sockets that it refuses. Programs
/// know what to do without a family, but not without `socket`: `sudo` gives up on `ENOSYS` from its
/// audit socket.
fn no_such_family() -> anyhow::Result<Program> {
    const FAMILY: u32 = 16;
    const PROTOCOL: u32 = 32;
    let refusal = libc::SECCOMP_RET_ERRNO | u32::try_from(libc::EAFNOSUPPORT)?;
    Ok(vec![
        load(NUMBER)?,
        equal(libc::SYS_socket, 0, 8)?,
        load(FAMILY)?,
        equal(libc::AF_UNIX.into(), 6, 0)?,
        equal(libc::AF_INET.into(), 5, 0)?,
        equal(libc::AF_INET6.into(), 4, 0)?,
        equal(libc::AF_NETLINK.into(), 0, 2)?,
        load(PROTOCOL)?,
        equal(libc::NETLINK_ROUTE.into(), 1, 0)?,
        instruction(libc::BPF_RET | libc::BPF_K, refusal, (0, 0))?,
    ])
}

/// Putting words into a terminal's input: whoever shares a terminal with a sandbox would run them.
fn no_typing_for_others() -> anyhow::Result<Program> {
    const REQUEST: u32 = 24;
    const TIOCLINUX: i64 = 0x541C;
    let refusal = libc::SECCOMP_RET_ERRNO | u32::try_from(libc::EPERM)?;
    Ok(vec![
        load(NUMBER)?,
        equal(libc::SYS_ioctl, 0, 4)?,
        load(REQUEST)?,
        equal(i64::try_from(libc::TIOCSTI)?, 1, 0)?,
        equal(TIOCLINUX, 0, 1)?,
        instruction(libc::BPF_RET | libc::BPF_K, refusal, (0, 0))?,
    ])
}

/// Where the number of the call is in what a filter sees.
const NUMBER: u32 = 0;

fn load(offset: u32) -> anyhow::Result<seccompiler::sock_filter> {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, (0, 0))
}

/// How many instructions to skip when equal, and when not.
fn equal(value: i64, then: u8, otherwise: u8) -> anyhow::Result<seccompiler::sock_filter> {
    let value = u32::try_from(value).context("a constant below 2^32")?;
    instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, (then, otherwise))
}

fn instruction(code: u32, k: u32, (jt, jf): (u8, u8)) -> anyhow::Result<seccompiler::sock_filter> {
    let code = u16::try_from(code).context("an instruction's code")?;
    Ok(seccompiler::sock_filter { code, jt, jf, k })
}

/// Every flag that makes a namespace.
const NAMESPACE_FLAGS: u64 = 0x7e02_0080;

/// Every request but those of btrfs, of which only cloning a file is left: a subvolume of one's own
/// would lie outside the limit of the disk. "Not that type byte" is said bit by bit, because a filter
/// can only list what it lets through.
fn ioctls() -> anyhow::Result<Vec<SeccompRule>> {
    const BTRFS: u64 = 0x94;
    const CLONE: u64 = 0x4004_9409;
    const CLONE_RANGE: u64 = 0x4020_940d;
    let mut rules = Vec::new();
    for request in [CLONE, CLONE_RANGE] {
        rules.push(SeccompRule::new(vec![equals(1, request)?])?);
    }
    for bit in 0..8 {
        let mask = 1 << (8 + bit);
        let differs = !(BTRFS << 8) & mask;
        let op = SeccompCmpOp::MaskedEq(mask);
        let condition = SeccompCondition::new(1, SeccompCmpArgLen::Dword, op, differs)?;
        rules.push(SeccompRule::new(vec![condition])?);
    }
    Ok(rules)
}

fn equals(argument: u8, value: u64) -> anyhow::Result<SeccompCondition> {
    Ok(SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)?)
}

fn no_flags(argument: u8, mask: u64) -> anyhow::Result<SeccompRule> {
    let op = SeccompCmpOp::MaskedEq(mask);
    let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Qword, op, 0)?;
    Ok(SeccompRule::new(vec![condition])?)
}

#[rustfmt::skip]
const ALLOWED: &[i64] = &[
    libc::SYS_accept, libc::SYS_accept4, libc::SYS_bind, libc::SYS_brk, libc::SYS_capget,
    libc::SYS_capset, libc::SYS_chdir, libc::SYS_chroot, libc::SYS_clone3, libc::SYS_clock_getres,
    libc::SYS_clock_gettime, libc::SYS_clock_nanosleep, libc::SYS_close, libc::SYS_close_range,
    libc::SYS_connect, libc::SYS_copy_file_range, libc::SYS_dup, libc::SYS_dup3,
    libc::SYS_epoll_create1, libc::SYS_epoll_ctl, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2, libc::SYS_execve, libc::SYS_execveat, libc::SYS_exit,
    libc::SYS_exit_group, libc::SYS_faccessat, libc::SYS_faccessat2, libc::SYS_fadvise64,
    libc::SYS_fallocate, libc::SYS_fchdir, libc::SYS_fchmod, libc::SYS_fchmodat, SYS_FCHMODAT2,
    libc::SYS_fchown, libc::SYS_fchownat, libc::SYS_fcntl, libc::SYS_fdatasync,
    libc::SYS_fgetxattr, libc::SYS_flistxattr, libc::SYS_flock, libc::SYS_fremovexattr,
    libc::SYS_fsetxattr, libc::SYS_fstat, libc::SYS_fstatfs, libc::SYS_fsync,
    libc::SYS_ftruncate, libc::SYS_futex, libc::SYS_futex_waitv, libc::SYS_getcpu,
    libc::SYS_getcwd, libc::SYS_getdents64, libc::SYS_getegid, libc::SYS_geteuid,
    libc::SYS_getgid, libc::SYS_getgroups, libc::SYS_getitimer, libc::SYS_getpeername,
    libc::SYS_getpgid, libc::SYS_getpid, libc::SYS_getppid, libc::SYS_getpriority,
    libc::SYS_getrandom, libc::SYS_getresgid, libc::SYS_getresuid, libc::SYS_getrlimit,
    libc::SYS_get_robust_list, libc::SYS_getrusage, libc::SYS_getsid, libc::SYS_getsockname,
    libc::SYS_getsockopt, libc::SYS_gettid, libc::SYS_gettimeofday, libc::SYS_getuid,
    libc::SYS_getxattr, libc::SYS_inotify_add_watch, libc::SYS_inotify_init1,
    libc::SYS_inotify_rm_watch, libc::SYS_ioprio_get, libc::SYS_ioprio_set,
    libc::SYS_kill, libc::SYS_landlock_add_rule, libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_restrict_self, libc::SYS_lgetxattr, libc::SYS_linkat, libc::SYS_listen,
    libc::SYS_listxattr, libc::SYS_llistxattr, libc::SYS_lremovexattr, libc::SYS_lseek,
    libc::SYS_lsetxattr, libc::SYS_madvise, libc::SYS_membarrier, libc::SYS_memfd_create,
    libc::SYS_mincore, libc::SYS_mkdirat, libc::SYS_mknodat, libc::SYS_mlock, libc::SYS_mlock2,
    libc::SYS_mlockall, libc::SYS_mmap, libc::SYS_mprotect, libc::SYS_mq_getsetattr,
    libc::SYS_mq_notify, libc::SYS_mq_open, libc::SYS_mq_timedreceive, libc::SYS_mq_timedsend,
    libc::SYS_mq_unlink, libc::SYS_mremap, libc::SYS_msgctl, libc::SYS_msgget, libc::SYS_msgrcv,
    libc::SYS_msgsnd, libc::SYS_msync, libc::SYS_munlock, libc::SYS_munlockall, libc::SYS_munmap,
    libc::SYS_nanosleep, libc::SYS_newfstatat, libc::SYS_openat, libc::SYS_openat2,
    libc::SYS_pidfd_open, libc::SYS_pidfd_send_signal, libc::SYS_pipe2, libc::SYS_pkey_alloc,
    libc::SYS_pkey_free, libc::SYS_pkey_mprotect, libc::SYS_ppoll, libc::SYS_prctl,
    libc::SYS_pread64, libc::SYS_preadv, libc::SYS_preadv2, libc::SYS_prlimit64,
    libc::SYS_process_vm_readv, libc::SYS_process_vm_writev, libc::SYS_pselect6,
    libc::SYS_ptrace, libc::SYS_pwrite64, libc::SYS_pwritev, libc::SYS_pwritev2, libc::SYS_read,
    libc::SYS_readahead, libc::SYS_readlinkat, libc::SYS_readv, libc::SYS_recvfrom,
    libc::SYS_recvmmsg, libc::SYS_recvmsg, libc::SYS_remap_file_pages, libc::SYS_removexattr,
    libc::SYS_renameat, libc::SYS_renameat2, libc::SYS_restart_syscall, libc::SYS_rseq,
    libc::SYS_rt_sigaction, libc::SYS_rt_sigpending, libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigqueueinfo, libc::SYS_rt_sigreturn, libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigtimedwait, libc::SYS_rt_tgsigqueueinfo, libc::SYS_sched_getaffinity,
    libc::SYS_sched_getattr, libc::SYS_sched_getparam, libc::SYS_sched_get_priority_max,
    libc::SYS_sched_get_priority_min, libc::SYS_sched_getscheduler,
    libc::SYS_sched_rr_get_interval, libc::SYS_sched_setaffinity, libc::SYS_sched_setattr,
    libc::SYS_sched_setparam, libc::SYS_sched_setscheduler, libc::SYS_sched_yield,
    libc::SYS_seccomp, libc::SYS_semctl, libc::SYS_semget, libc::SYS_semop, libc::SYS_semtimedop,
    libc::SYS_sendfile, libc::SYS_sendmmsg, libc::SYS_sendmsg, libc::SYS_sendto,
    libc::SYS_setfsgid, libc::SYS_setfsuid, libc::SYS_setgid, libc::SYS_setgroups,
    libc::SYS_setitimer, libc::SYS_setpgid, libc::SYS_setpriority, libc::SYS_setregid,
    libc::SYS_setresgid, libc::SYS_setresuid, libc::SYS_setreuid, libc::SYS_setrlimit,
    libc::SYS_set_robust_list, libc::SYS_setsid, libc::SYS_setsockopt, libc::SYS_set_tid_address,
    libc::SYS_setuid, libc::SYS_setxattr, libc::SYS_shmat, libc::SYS_shmctl, libc::SYS_shmdt,
    libc::SYS_shmget, libc::SYS_shutdown, libc::SYS_sigaltstack, libc::SYS_signalfd4,
    libc::SYS_socketpair, libc::SYS_splice, libc::SYS_statfs, libc::SYS_statx,
    libc::SYS_symlinkat, libc::SYS_sync, libc::SYS_sync_file_range, libc::SYS_syncfs,
    libc::SYS_sysinfo, libc::SYS_tee, libc::SYS_tgkill, libc::SYS_timer_create,
    libc::SYS_timer_delete, libc::SYS_timerfd_create, libc::SYS_timerfd_gettime,
    libc::SYS_timerfd_settime, libc::SYS_timer_getoverrun, libc::SYS_timer_gettime,
    libc::SYS_timer_settime, libc::SYS_times, libc::SYS_tkill, libc::SYS_truncate,
    libc::SYS_umask, libc::SYS_uname, libc::SYS_unlinkat, libc::SYS_utimensat, libc::SYS_vmsplice,
    libc::SYS_wait4, libc::SYS_waitid, libc::SYS_write, libc::SYS_writev,
    #[cfg(target_arch = "x86_64")] libc::SYS_access,
    #[cfg(target_arch = "x86_64")] libc::SYS_alarm,
    #[cfg(target_arch = "x86_64")] libc::SYS_arch_prctl,
    #[cfg(target_arch = "x86_64")] libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")] libc::SYS_chown,
    #[cfg(target_arch = "x86_64")] libc::SYS_creat,
    #[cfg(target_arch = "x86_64")] libc::SYS_dup2,
    #[cfg(target_arch = "x86_64")] libc::SYS_epoll_create,
    #[cfg(target_arch = "x86_64")] libc::SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")] libc::SYS_eventfd,
    #[cfg(target_arch = "x86_64")] libc::SYS_fork,
    #[cfg(target_arch = "x86_64")] libc::SYS_futimesat,
    #[cfg(target_arch = "x86_64")] libc::SYS_getdents,
    #[cfg(target_arch = "x86_64")] libc::SYS_getpgrp,
    #[cfg(target_arch = "x86_64")] libc::SYS_inotify_init,
    #[cfg(target_arch = "x86_64")] libc::SYS_lchown,
    #[cfg(target_arch = "x86_64")] libc::SYS_link,
    #[cfg(target_arch = "x86_64")] libc::SYS_lstat,
    #[cfg(target_arch = "x86_64")] libc::SYS_mkdir,
    #[cfg(target_arch = "x86_64")] libc::SYS_mknod,
    #[cfg(target_arch = "x86_64")] libc::SYS_open,
    #[cfg(target_arch = "x86_64")] libc::SYS_pause,
    #[cfg(target_arch = "x86_64")] libc::SYS_pipe,
    #[cfg(target_arch = "x86_64")] libc::SYS_poll,
    #[cfg(target_arch = "x86_64")] libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")] libc::SYS_rename,
    #[cfg(target_arch = "x86_64")] libc::SYS_rmdir,
    #[cfg(target_arch = "x86_64")] libc::SYS_select,
    #[cfg(target_arch = "x86_64")] libc::SYS_signalfd,
    #[cfg(target_arch = "x86_64")] libc::SYS_stat,
    #[cfg(target_arch = "x86_64")] libc::SYS_symlink,
    #[cfg(target_arch = "x86_64")] libc::SYS_time,
    #[cfg(target_arch = "x86_64")] libc::SYS_unlink,
    #[cfg(target_arch = "x86_64")] libc::SYS_utime,
    #[cfg(target_arch = "x86_64")] libc::SYS_utimes,
    #[cfg(target_arch = "x86_64")] libc::SYS_vfork,
];

const SYS_FCHMODAT2: i64 = 452;

/// What `nesting` adds.
const NESTING: &[i64] = &[
    libc::SYS_clone,
    libc::SYS_mount,
    libc::SYS_pivot_root,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_umount2,
    libc::SYS_unshare,
];

//! A child the vfork way: it shares our memory and we stand still until it has become the program.
//!
//! Compared with fork this copies no page tables, which is most of what starting a small program
//! costs. The price is that between clone and exec the child may only do raw system calls on memory
//! that was prepared before: no allocation, no locks, none of libc's wrappers that talk to other
//! threads (its `setuid` would). How far it came and why it stopped comes back through a struct on
//! the parent's stack.
//!
//! ```text
//! parent: block signals -> clone(VM|VFORK) ........ stands still ........ -> read report -> unblock
//! child:                   setsid, cgroup, oom, fds, tty, ids, chdir, signals -> execve
//! ```

#![expect(unsafe_code, reason = "clone with shared memory has no safe form")]

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_void};
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::ptr;
use std::sync::{Mutex, OnceLock, PoisonError};

use super::clone::into_cgroup;

/// The child's stack; it needs a few hundred bytes.
const STACK_BYTES: usize = 64 << 10;

/// One more than the last signal of Linux.
const SIGNALS: c_int = 65;

/// What to become.
pub(crate) struct Child<'a> {
    pub(crate) program: &'a CStr,
    pub(crate) argv: &'a [CString],
    pub(crate) env: &'a [CString],
    pub(crate) cwd: &'a CStr,
    /// Standard input, output and error. All are above 2.
    pub(crate) stdio: [BorrowedFd<'a>; 3],
    /// Standard input is a terminal that becomes the controlling one.
    pub(crate) terminal: bool,
    /// `None` keeps ours.
    pub(crate) credentials: Option<Credentials<'a>>,
    /// The cgroup to be born in.
    pub(crate) cgroup: Option<ChildCgroup<'a>>,
    /// Written to `/proc/self/oom_score_adj`; failing to is not an error.
    pub(crate) oom_score_adj: Option<&'a CStr>,
}

pub(crate) struct ChildCgroup<'a> {
    pub(crate) directory: BorrowedFd<'a>,
    /// Its `cgroup.procs`, for kernels and filters that do not let a child be born in it.
    pub(crate) procs: BorrowedFd<'a>,
}

pub(crate) struct Credentials<'a> {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: &'a [u32],
}

/// How far the child came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Clone,
    Session,
    Cgroup,
    Stdio,
    Terminal,
    Ids,
    Chdir,
    Exec,
}

#[derive(Debug)]
pub(crate) struct SpawnError {
    pub(crate) step: Step,
    pub(crate) error: io::Error,
}

/// What the child works on, prepared by the parent, and what it reports.
struct Plan<'a> {
    child: &'a Child<'a>,
    argv: *const *const c_char,
    env: *const *const c_char,
    touched: &'static [c_int],
    /// It was not born in its cgroup and moves there.
    moves: bool,
    step: Step,
    errno: c_int,
}

/// A stack that is kept between spawns; the lock also makes spawns take turns.
struct Stack(*mut c_void);

// SAFETY: the mapping belongs to whoever holds the value, like a box.
unsafe impl Send for Stack {}

static STACK: Mutex<Option<Stack>> = Mutex::new(None);

/// What is asked and made once, at the first child otherwise.
pub(crate) fn get_ready_to_spawn() {
    touched_signals();
    let mut stack = STACK.lock().unwrap_or_else(PoisonError::into_inner);
    if stack.is_none() {
        *stack = map_stack().ok();
    }
}

/// Starts the child and returns its pid, and a descriptor that becomes readable at its end, once it
/// has become the program.
pub(crate) fn spawn(child: &Child<'_>) -> Result<(i32, OwnedFd), SpawnError> {
    let argv = pointers(child.argv);
    let env = pointers(child.env);
    let (argv, env) = (argv.as_ptr(), env.as_ptr());
    let touched = touched_signals();
    let moves = child.cgroup.is_some();
    let mut plan = Plan { child, argv, env, touched, moves, step: Step::Clone, errno: 0 };

    let mut stack = STACK.lock().unwrap_or_else(PoisonError::into_inner);
    let base = match &*stack {
        Some(kept) => kept.0,
        None => stack.insert(map_stack().map_err(|error| failed(Step::Clone, error))?).0,
    };
    let blocked = block_signals();
    let cloned = clone_child(&mut plan, base);
    restore_signals(&blocked);
    drop(stack);
    let (pid, pidfd) = cloned.map_err(|error| failed(Step::Clone, error))?;
    // SAFETY: the kernel made it for us just now.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    // SAFETY: the child wrote it through the pointer above; a plain read could be optimised away.
    let errno = unsafe { ptr::read_volatile(&raw const plan.errno) };
    if errno == 0 {
        return Ok((pid, pidfd));
    }
    reap(pid);
    // SAFETY: as above.
    let step = unsafe { ptr::read_volatile(&raw const plan.step) };
    Err(failed(step, io::Error::from_raw_os_error(errno)))
}

/// The child, born in its cgroup where that can be; `stack` is ours while the caller holds its lock.
fn clone_child(plan: &mut Plan<'_>, stack: *mut c_void) -> io::Result<(i32, RawFd)> {
    if let Some(cgroup) = &plan.child.cgroup {
        let directory = cgroup.directory.as_raw_fd();
        plan.moves = false;
        let argument = ptr::from_mut(plan).cast();
        // SAFETY: the stack is ours, `run` ends its process, and `plan` outlives the child's use of
        // it, because CLONE_VFORK keeps us here until the child has called exec or exit.
        let born = unsafe { into_cgroup(directory, (stack, STACK_BYTES), run, argument) };
        if let Ok(born) = born {
            return Ok(born);
        }
        plan.moves = true;
    }
    // SAFETY: one past the end of the mapping, which is where a stack that grows down begins.
    let top = unsafe { stack.add(STACK_BYTES) };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD;
    let mut pidfd: RawFd = -1;
    let argument = ptr::from_mut(plan).cast();
    // SAFETY: as above; `pidfd` is where CLONE_PIDFD says that the descriptor goes.
    let pid = unsafe { libc::clone(run, top, flags, argument, &raw mut pidfd) };
    if pid < 0 { Err(io::Error::last_os_error()) } else { Ok((pid, pidfd)) }
}

fn failed(step: Step, error: io::Error) -> SpawnError {
    SpawnError { step, error }
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}

fn map_stack() -> io::Result<Stack> {
    let (prot, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK,
    );
    // SAFETY: a new mapping at an address of the kernel's choice.
    let base = unsafe { libc::mmap(ptr::null_mut(), STACK_BYTES, prot, flags, -1, 0) };
    if base == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Stack(base)) }
}

/// A child that failed before exec is gone at once; nobody else knows its pid.
fn reap(pid: i32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
    }
}

/// No handler of ours may run in the child, whose memory is ours.
fn block_signals() -> libc::sigset_t {
    // SAFETY: all zeroes is a valid signal set.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut before: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `all` is ours.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: both sets live on our stack.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
    before
}

fn restore_signals(before: &libc::sigset_t) {
    // SAFETY: `before` is what `block_signals` got.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, ptr::null_mut()) };
}

/// The child. Never returns to its caller's frame.
extern "C" fn run(plan: *mut c_void) -> c_int {
    // SAFETY: the parent passed its `Plan` and stands still until we are done.
    let plan = unsafe { &mut *plan.cast::<Plan<'_>>() };
    let (step, errno) = become_program(plan);
    plan.step = step;
    plan.errno = errno;
    // SAFETY: ends this process only; no destructors and no buffers of the parent are touched.
    unsafe { libc::_exit(127) }
}

/// Returns only when it failed.
fn become_program(plan: &Plan<'_>) -> (Step, c_int) {
    match prepare(plan) {
        Err(failed) => failed,
        Ok(()) => {
            let program = plan.child.program.as_ptr();
            // SAFETY: all three point at null-terminated memory of the parent.
            let result = unsafe { libc::syscall(libc::SYS_execve, program, plan.argv, plan.env) };
            (Step::Exec, checked(result).err().unwrap_or(libc::EIO))
        }
    }
}

fn prepare(plan: &Plan<'_>) -> Result<(), (Step, c_int)> {
    let Plan { child, touched, .. } = *plan;
    // SAFETY: no memory is involved.
    let session = unsafe { libc::syscall(libc::SYS_setsid) };
    checked(session).map_err(|errno| (Step::Session, errno))?;
    if let (true, Some(cgroup)) = (plan.moves, &child.cgroup) {
        write(cgroup.procs.as_raw_fd(), b"0").map_err(|errno| (Step::Cgroup, errno))?;
    }
    if let Some(adjust) = child.oom_score_adj {
        raise_oom_score(adjust);
    }
    for (target, fd) in (0..).zip(&child.stdio) {
        dup_to(fd.as_raw_fd(), target).map_err(|errno| (Step::Stdio, errno))?;
    }
    if child.terminal {
        // SAFETY: an ioctl with a number.
        let result = unsafe { libc::syscall(libc::SYS_ioctl, 0, libc::TIOCSCTTY, 0) };
        checked(result).map_err(|errno| (Step::Terminal, errno))?;
    }
    close_the_rest();
    if let Some(credentials) = &child.credentials {
        set_ids(credentials).map_err(|errno| (Step::Ids, errno))?;
    }
    // SAFETY: the path is null-terminated memory of the parent.
    let result = unsafe { libc::syscall(libc::SYS_chdir, child.cwd.as_ptr()) };
    checked(result).map_err(|errno| (Step::Chdir, errno))?;
    reset_signals(touched);
    Ok(())
}

/// At exec and not before, because the program may be one of them (`/proc/self/fd/N`).
fn close_the_rest() {
    let flag = libc::CLOSE_RANGE_CLOEXEC;
    // SAFETY: marks descriptors of this process only, whose table is its own.
    let marked = unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, flag) };
    if marked < 0 {
        // A kernel that cannot mark them closes them.
        // SAFETY: as above.
        unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
    }
}

fn raise_oom_score(adjust: &CStr) {
    let path = c"/proc/self/oom_score_adj".as_ptr();
    let flags = libc::O_WRONLY | libc::O_CLOEXEC;
    // SAFETY: the path is a constant.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags, 0) };
    let Ok(fd) = RawFd::try_from(fd) else { return };
    if fd < 0 {
        return;
    }
    let _ = write(fd, adjust.to_bytes());
    // SAFETY: just opened by us.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}

fn set_ids(credentials: &Credentials<'_>) -> Result<(), c_int> {
    let Credentials { uid, gid, groups } = credentials;
    // SAFETY: pointer and length are of one slice.
    checked(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) })?;
    // SAFETY: numbers only.
    checked(unsafe { libc::syscall(libc::SYS_setresgid, *gid, *gid, *gid) })?;
    // SAFETY: numbers only.
    checked(unsafe { libc::syscall(libc::SYS_setresuid, *uid, *uid, *uid) })?;
    Ok(())
}

/// What is not the default becomes the default (Rust ignores SIGPIPE, tokio handles SIGCHLD), then
/// nothing is blocked any more.
fn reset_signals(touched: &[c_int]) {
    for signal in touched {
        // SAFETY: `DEFAULT` is what the kernel reads; libc's wrapper would refuse its own signals.
        unsafe { sigaction(*signal, DEFAULT.as_ptr(), ptr::null_mut()) };
    }
    // SAFETY: all zeroes is the empty set.
    let none: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `none` is ours.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut()) };
}

/// The signals that are ignored or handled. Asked once, at the first command, when everything that
/// handles signals has been set up; exec itself resets what may be handled later.
fn touched_signals() -> &'static [c_int] {
    static TOUCHED: OnceLock<Vec<c_int>> = OnceLock::new();
    TOUCHED.get_or_init(|| (1..SIGNALS).filter(|signal| is_touched(*signal)).collect())
}

fn is_touched(signal: c_int) -> bool {
    let mut current = DEFAULT;
    // SAFETY: only asks; `current` is ours.
    let asked = unsafe { sigaction(signal, ptr::null(), current.as_mut_ptr()) };
    asked == 0 && current[0] != 0
}

/// The kernel's own structure: handler, flags, restorer, mask. All zeroes is the default.
const DEFAULT: [u64; 4] = [0; 4];

/// # Safety
/// Each pointer is null or points at four words.
unsafe fn sigaction(signal: c_int, new: *const u64, old: *mut u64) -> c_long {
    // SAFETY: by contract; the last argument is the size of a mask.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, new, old, 8) }
}

fn dup_to(fd: RawFd, target: RawFd) -> Result<(), c_int> {
    // SAFETY: numbers only. `target` is never `fd`, so the copy is not closed at exec.
    checked(unsafe { libc::syscall(libc::SYS_dup3, fd, target, 0) })
}

fn write(fd: RawFd, bytes: &[u8]) -> Result<(), c_int> {
    // SAFETY: pointer and length are of one slice.
    checked(unsafe { libc::syscall(libc::SYS_write, fd, bytes.as_ptr(), bytes.len()) })
}

fn checked(result: c_long) -> Result<(), c_int> {
    if result >= 0 {
        return Ok(());
    }
    // SAFETY: always a valid pointer, into this thread's own storage.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above; the parent's thread, with which it is shared, stands still.
    Err(unsafe { *errno })
}

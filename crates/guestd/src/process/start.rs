//! From a request to a running process. Nothing here waits, so that a command costs one turn of the
//! runtime.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use super::cgroup::Cgroup;
use super::pump::{Pump, Source};
use super::{Channel, Input, Output, Process, PtySize, Start, Stdin, Until, winsize};
use crate::accounts::{Account, c_string};
use crate::refusal::{Code, Refusal, Result};
use crate::state::State;
use crate::sys;

/// When nothing says where programs are.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What is kept of the output of a process of envd: a window for readers, no history.
const WINDOW_BYTES: usize = 256 << 10;

type File = Arc<AsyncFd<OwnedFd>>;

/// The ends of a process's pipes: the child's, and ours.
struct Ends {
    child: [OwnedFd; 3],
    input: Option<File>,
    sources: Vec<Source>,
    pty: Option<File>,
}

/// What the first command would wait for otherwise. Once is enough.
pub(crate) fn get_ready(state: &State) {
    if state.is_ready.swap(true, Ordering::Relaxed) {
        return;
    }
    super::let_the_answered_go_on();
    if let Ok(account) = state.account(None) {
        state.accounts.groups_of(&account);
    }
    if let Some(cgroups) = &state.cgroups
        && let Ok(cgroup) = cgroups.take()
    {
        cgroups.give_back(cgroup);
    }
    sys::get_ready_to_spawn();
}

pub(crate) fn start(state: &Arc<State>, start: Start) -> Result<Arc<Process>> {
    state.processes.check_room(start.id.as_deref())?;
    let account = state.account(start.user.as_deref())?;
    let cwd = state.resolve(start.cwd.as_deref().unwrap_or(""), &account);
    let env = environment(state, &account, &start);
    let program = find_program(&start, env.get("PATH").map_or("", String::as_str), &cwd)?;
    let ends = open_ends(&start, state, &account)?;
    // Without a cgroup of its own a command still runs; it is only harder to end as a whole.
    let cgroup = state.cgroups.as_ref().and_then(|cgroups| cgroups.take().ok());

    let groups = state.accounts.groups_of(&account);
    let credentials = sys::Credentials { uid: account.uid, gid: account.gid, groups: &groups };
    let child = sys::Child {
        program: &string(&program)?,
        argv: &start.argv.iter().map(|argument| string(argument)).collect::<Result<Vec<_>>>()?,
        env: &env
            .iter()
            .map(|(name, value)| string(&format!("{name}={value}")))
            .collect::<Result<Vec<_>>>()?,
        cwd: &string(&cwd)?,
        stdio: ends.child.each_ref().map(OwnedFd::as_fd),
        terminal: start.pty.is_some(),
        credentials: (state.is_root && state.accounts.differ()).then_some(credentials),
        cgroup: cgroup.as_ref().map(Cgroup::for_child),
        oom_score_adj: state.oom_score_adj.as_deref(),
    };
    let spawned = sys::spawn(&child);
    let (pid, pidfd) = match spawned {
        Ok(spawned) => spawned,
        Err(error) => {
            if let (Some(cgroups), Some(cgroup)) = (&state.cgroups, cgroup) {
                cgroups.give_back(cgroup);
            }
            return Err(could_not_start(&start, &cwd, &error));
        }
    };
    let exit = state.reaper.track(pid, pidfd).map_err(|error| Refusal::io("start", &error))?;
    drop(ends.child);

    let keep = if start.until == Until::Exit { guest_proto::RING_BYTES } else { WINDOW_BYTES };
    let process = Arc::new(Process {
        pid: u32::try_from(pid).unwrap_or_default(),
        output: Output::new(keep),
        input: Input::new(ends.input),
        pty: ends.pty,
        cgroup: Mutex::new(cgroup),
        reaped: watch::Sender::new(false),
        told_to_end: AtomicBool::new(false),
        timed_out: AtomicBool::new(false),
        start,
    });
    feed(state, &process);
    let key = state.processes.add(Arc::clone(&process));
    let pump = Pump::new(Arc::clone(state), Arc::clone(&process), ends.sources, key);
    state.tasks.spawn(pump.run(exit));
    Ok(process)
}

/// The account's, then the sandbox's, then what `/init` added, then the request's.
fn environment(state: &State, account: &Account, start: &Start) -> BTreeMap<String, String> {
    let mut env = BTreeMap::from([("PATH".to_owned(), PATH.to_owned())]);
    env.extend(account.env().map(|(name, value)| (name.to_owned(), value.to_owned())));
    env.extend(state.environment());
    env.extend(start.env.iter().map(|(name, value)| (name.clone(), value.clone())));
    env
}

fn find_program(start: &Start, path: &str, cwd: &str) -> Result<String> {
    let name = start.argv.first().map_or("", String::as_str);
    if name.is_empty() {
        return Err(Refusal::invalid("argv: there is no program to run"));
    }
    if name.starts_with('/') {
        return Ok(name.to_owned());
    }
    if name.contains('/') {
        return Ok(format!("{cwd}/{name}"));
    }
    let candidates = path.split(':').filter(|directory| directory.starts_with('/'));
    candidates
        .map(|directory| format!("{directory}/{name}"))
        .find(|candidate| {
            let found = fs::metadata(candidate);
            found.is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
        })
        .ok_or_else(|| Refusal::invalid(format!("no such program in PATH: {name}")))
}

fn open_ends(start: &Start, state: &State, account: &Account) -> Result<Ends> {
    let broken = |errno| Refusal::errno("open pipes", errno);
    if let Some(size) = start.pty {
        return open_pty(size, state, account).map_err(broken);
    }
    let (input, stdin) = match &start.stdin {
        Stdin::Empty => {
            (None, state.dev_null.try_clone().map_err(|e| Refusal::io("open pipes", &e))?)
        }
        Stdin::Bytes(_) | Stdin::Open => {
            let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC).map_err(broken)?;
            (Some(watched(ours)?), theirs)
        }
    };
    let (stdout, their_stdout) = pipe_with(PipeFlags::CLOEXEC).map_err(broken)?;
    let (stderr, their_stderr) = pipe_with(PipeFlags::CLOEXEC).map_err(broken)?;
    let sources = vec![
        Source::new(Channel::Stdout, watched(stdout)?),
        Source::new(Channel::Stderr, watched(stderr)?),
    ];
    Ok(Ends { child: [stdin, their_stdout, their_stderr], input, sources, pty: None })
}

fn open_pty(size: PtySize, state: &State, account: &Account) -> rustix::io::Result<Ends> {
    use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags)?;
    unlockpt(&master)?;
    let terminal = ioctl_tiocgptpeer(&master, flags)?;
    rustix::termios::tcsetwinsize(&master, winsize(size))?;
    if state.is_root {
        let owner = rustix::fs::Uid::from_raw(account.uid);
        rustix::fs::fchown(&terminal, Some(owner), None)?;
    }
    let copies = [copy(terminal.as_fd())?, copy(terminal.as_fd())?];
    let [stdout, stderr] = copies;
    let master = watched(master).map_err(|_| rustix::io::Errno::MFILE)?;
    Ok(Ends {
        child: [terminal, stdout, stderr],
        input: Some(Arc::clone(&master)),
        sources: vec![Source::new(Channel::Pty, Arc::clone(&master))],
        pty: Some(master),
    })
}

fn copy(fd: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(fd, 3)
}

/// Our end of a pipe: it never blocks and is watched by the runtime.
fn watched(fd: OwnedFd) -> Result<File> {
    let watched = sys::watched(fd).map_err(|error| Refusal::io("open pipes", &error))?;
    Ok(Arc::new(watched))
}

/// Gives the process all of its input. What its pipe does not take at once is given by a task, which
/// ends when the process has read it or has gone.
fn feed(state: &State, process: &Arc<Process>) {
    let Stdin::Bytes(bytes) = &process.start.stdin else { return };
    let bytes = Bytes::copy_from_slice(bytes);
    let process = Arc::clone(process);
    state.tasks.spawn(async move {
        let _ = process.input.write(bytes).await;
        process.input.close();
    });
}

fn string(text: &str) -> Result<CString> {
    c_string(text)
        .ok_or_else(|| Refusal::invalid("arguments and variables cannot contain a zero byte"))
}

fn could_not_start(start: &Start, cwd: &str, error: &sys::SpawnError) -> Refusal {
    let program = start.argv.first().map_or("", String::as_str);
    let kind = error.error.raw_os_error();
    match error.step {
        sys::Step::Chdir if kind == Some(libc::ENOENT) => {
            Refusal::invalid(format!("cwd '{cwd}' does not exist"))
        }
        sys::Step::Chdir if kind == Some(libc::ENOTDIR) => {
            Refusal::invalid(format!("cwd '{cwd}' is not a directory"))
        }
        sys::Step::Chdir => Refusal::io(&format!("cwd '{cwd}'"), &error.error),
        sys::Step::Exec if kind == Some(libc::ENOENT) => {
            Refusal::invalid(format!("no such program: {program}"))
        }
        sys::Step::Exec => Refusal::io(&format!("run '{program}'"), &error.error),
        sys::Step::Clone => {
            Refusal::new(Code::ResourceExhausted, format!("start a process: {}", error.error))
        }
        sys::Step::Session
        | sys::Step::Cgroup
        | sys::Step::Stdio
        | sys::Step::Terminal
        | sys::Step::Ids => {
            Refusal::internal(format!("start a process ({:?}): {}", error.step, error.error))
        }
    }
}

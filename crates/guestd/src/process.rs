//! One process that somebody asked for, from its start to its end. Both faces of the guest (envd's
//! `process.Process` and our `exec`) are made of these.
//!
//! ```text
//! start -> running --(exit)--> draining --(nothing left to read)--> ended -> forgotten by the table
//!             |  kill, timeout, gone client: the whole tree is killed, which leads to the exit
//! ```

mod cgroup;
mod input;
mod kill;
mod output;
mod pump;
mod start;
mod table;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use self::cgroup::Cgroup;
pub(crate) use self::cgroup::Cgroups;
pub(crate) use self::input::Input;
pub(crate) use self::output::{Channel, Ended, Found, Output, Reader, Status};
pub(crate) use self::start::{get_ready, start};
pub(crate) use self::table::Table;
use crate::refusal::{Code, Refusal, Result};

/// What to start. Strings are as the client sent them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Start {
    /// Ours, for commands of the extension.
    pub(crate) id: Option<String>,
    /// The client's, for processes of envd.
    pub(crate) tag: Option<String>,
    pub(crate) argv: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) cwd: Option<String>,
    pub(crate) user: Option<String>,
    pub(crate) stdin: Stdin,
    pub(crate) pty: Option<PtySize>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) until: Until,
    /// It lives on without the connection that started it.
    pub(crate) detached: bool,
}

#[derive(Debug, Clone, Default)]
pub(crate) enum Stdin {
    #[default]
    Empty,
    /// All of it at once.
    Bytes(Vec<u8>),
    /// It comes later.
    Open,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct PtySize {
    pub(crate) cols: u16,
    pub(crate) rows: u16,
}

/// When the output ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Until {
    /// With the process; what it left behind in the background writes to nobody.
    #[default]
    Exit,
    /// With the last holder of the pipes (envd), unless the process was told to end.
    Closed,
}

#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) start: Start,
    pub(crate) output: Arc<Output>,
    input: Input,
    pty: Option<Arc<AsyncFd<OwnedFd>>>,
    cgroup: Mutex<Option<Cgroup>>,
    reaped: watch::Sender<bool>,
    told_to_end: AtomicBool,
    timed_out: AtomicBool,
}

impl Process {
    pub(crate) fn input(&self) -> &Input {
        &self.input
    }

    pub(crate) fn is_pty(&self) -> bool {
        self.pty.is_some()
    }

    /// Not reaped yet.
    pub(crate) fn is_running(&self) -> bool {
        !*self.reaped.borrow()
    }

    pub(crate) fn resize(&self, size: PtySize) -> Result<()> {
        let Some(pty) = &self.pty else {
            return Err(Refusal::new(Code::FailedPrecondition, "the process has no pty"));
        };
        tcsetwinsize(pty.get_ref(), winsize(size)).map_err(|errno| Refusal::errno("resize", errno))
    }

    /// A SIGKILL goes to the whole group, which may outlive the process and hold its output open, and
    /// is answered when nothing is left of the process. Any other goes to the process alone.
    pub(crate) async fn signal(&self, signal: Signal) -> Result<()> {
        let gone = || Refusal::not_found(format!("process with pid {} not found", self.pid));
        let pid = self.raw_pid().filter(|_| self.output.ended().is_none()).ok_or_else(gone)?;
        let running = self.is_running();
        self.told_to_end.store(true, Ordering::Relaxed);
        if signal != Signal::KILL || kill_process_group(pid, signal).is_err() {
            // A pid that was reaped may be somebody else's by now.
            running.then(|| kill_process(pid, signal).ok()).flatten().ok_or_else(gone)?;
        }
        if signal == Signal::KILL {
            self.wait_reaped().await?;
        }
        Ok(())
    }

    /// The process and everything that it started, as far as the kernel can tell.
    pub(crate) fn kill_tree(&self) {
        self.told_to_end.store(true, Ordering::Relaxed);
        let cgroup = self.cgroup.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cgroup) = &*cgroup
            && cgroup.kill().is_ok()
        {
            return;
        }
        drop(cgroup);
        if let Some(pid) = self.raw_pid()
            && self.is_running()
        {
            kill::tree(pid);
        }
    }

    /// The same, and answers when nothing of it is left. What does not die hangs in the kernel; nobody
    /// waits for it for long.
    pub(crate) async fn end_tree(&self) -> Result<()> {
        let members = {
            let cgroup = self.cgroup.lock().unwrap_or_else(PoisonError::into_inner);
            cgroup.as_ref().and_then(|cgroup| cgroup.members().ok())
        };
        self.kill_tree();
        self.wait_reaped().await?;
        let Some(members) = members else { return Ok(()) };
        for wait_ms in (0..12).map(|doublings| 1 << doublings) {
            if members.are_gone() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(wait_ms)).await;
        }
        Err(Refusal::new(Code::DeadlineExceeded, "what the process started does not end"))
    }

    pub(crate) fn time_out(&self) {
        self.timed_out.store(true, Ordering::Relaxed);
        self.kill_tree();
    }

    /// A killed process that does not die hangs in the kernel; nobody waits for it for long.
    pub(crate) async fn wait_reaped(&self) -> Result<()> {
        let mut reaped = self.reaped.subscribe();
        let wait = reaped.wait_for(|reaped| *reaped);
        match tokio::time::timeout(Duration::from_secs(10), wait).await {
            Ok(_) => Ok(()),
            Err(_) => Err(Refusal::new(Code::DeadlineExceeded, "the process does not end")),
        }
    }

    fn raw_pid(&self) -> Option<Pid> {
        Pid::from_raw(i32::try_from(self.pid).ok()?)
    }
}

fn winsize(size: PtySize) -> Winsize {
    Winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 }
}

/// Whoever an answer wakes is often woken on this processor, and would wait behind what is left to do here.
fn let_the_answered_go_on() {
    std::thread::yield_now();
}

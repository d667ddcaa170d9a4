//! Learns how children ended.
//!
//! A child that somebody waits for tells its end through a descriptor. As PID 1 we reap every orphan
//! too, at SIGCHLD, which may take the status of a child before its descriptor is looked at; so both
//! ways end in one table. Elsewhere other children belong to whoever runs us, and are left alone.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, WaitOptions, WaitStatus, wait, waitpid};
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use crate::process::Status;
use crate::sys;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Orphans {
    Reap,
    Leave,
}

#[derive(Debug, Default)]
pub(crate) struct Reaper {
    children: Mutex<HashMap<i32, oneshot::Sender<Status>>>,
}

/// The end of one child, to be waited for.
#[derive(Debug)]
pub(crate) struct Exit {
    reaper: Arc<Reaper>,
    pid: i32,
    pidfd: AsyncFd<OwnedFd>,
    status: oneshot::Receiver<Status>,
}

/// What tells of orphans; `None` when they are not ours.
pub(crate) fn orphan_signal(orphans: Orphans) -> io::Result<Option<Signal>> {
    match orphans {
        Orphans::Reap => signal(SignalKind::child()).map(Some),
        Orphans::Leave => Ok(None),
    }
}

impl Reaper {
    /// Call before anything else can run after the child was made.
    pub(crate) fn track(self: &Arc<Self>, pid: i32, pidfd: OwnedFd) -> io::Result<Exit> {
        let (sender, status) = oneshot::channel();
        self.lock().insert(pid, sender);
        let pidfd = sys::watched(pidfd)?;
        Ok(Exit { reaper: Arc::clone(self), pid, pidfd, status })
    }

    /// For ever.
    pub(crate) async fn reap_orphans(self: Arc<Self>, ends: Option<Signal>) {
        let Some(mut ends) = ends else { return std::future::pending().await };
        while ends.recv().await.is_some() {
            // Of any process group: `waitpid(None)` means those of ours, and commands lead their own.
            while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
                self.tell(pid.as_raw_nonzero().get(), status);
            }
        }
    }

    fn reap(&self, pid: i32) {
        if let Ok(Some((_, status))) = waitpid(Pid::from_raw(pid), WaitOptions::NOHANG) {
            self.tell(pid, status);
        }
    }

    fn tell(&self, pid: i32, status: WaitStatus) {
        let Some(sender) = self.lock().remove(&pid) else { return };
        let status = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Status::Exited(code),
            (None, Some(signal)) => Status::Signaled(signal),
            (None, None) => Status::Exited(-1),
        };
        // Nobody asks when the process was given up.
        let _ = sender.send(status);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<i32, oneshot::Sender<Status>>> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Exit {
    /// Waits for the end, and reaps it. Can be given up and called again, but not after it answered.
    pub(crate) async fn wait(&mut self) -> Status {
        tokio::select! {
            status = &mut self.status => return status.unwrap_or(Status::Exited(-1)),
            _ = self.pidfd.readable() => self.reaper.reap(self.pid),
        }
        // It has been told, now or by the other way.
        (&mut self.status).await.unwrap_or(Status::Exited(-1))
    }
}

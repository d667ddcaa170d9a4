//! Learns how children ended. As PID 1 it reaps every orphan too; elsewhere only the children that
//! it was told of, because the others belong to whoever runs us.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, WaitOptions, WaitStatus, wait, waitpid};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use crate::process::Status;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Orphans {
    Reap,
    Leave,
}

#[derive(Debug)]
pub(crate) struct Reaper {
    orphans: Orphans,
    children: Mutex<HashMap<i32, oneshot::Sender<Status>>>,
}

impl Reaper {
    /// The signal is listened to from now on, so that no end is missed before [`Reaper::run`] runs.
    pub(crate) fn new(orphans: Orphans) -> std::io::Result<(Arc<Self>, Signal)> {
        let ends = signal(SignalKind::child())?;
        Ok((Arc::new(Self { orphans, children: Mutex::default() }), ends))
    }

    /// Call at once after the child was made.
    pub(crate) fn track(&self, pid: i32) -> oneshot::Receiver<Status> {
        let (sender, receiver) = oneshot::channel();
        self.lock().insert(pid, sender);
        if self.orphans == Orphans::Leave {
            // Its signal may have come before we knew of it.
            self.reap_one(pid);
        }
        receiver
    }

    pub(crate) async fn run(self: Arc<Self>, mut ends: Signal) {
        while ends.recv().await.is_some() {
            match self.orphans {
                Orphans::Reap => self.reap_all(),
                Orphans::Leave => self.reap_known(),
            }
        }
    }

    fn reap_all(&self) {
        // Any child: `waitpid(None)` would mean our own process group, which every child has left.
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            self.tell(pid.as_raw_nonzero().get(), status);
        }
    }

    fn reap_known(&self) {
        let known: Vec<i32> = self.lock().keys().copied().collect();
        for pid in known {
            self.reap_one(pid);
        }
    }

    fn reap_one(&self, pid: i32) {
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

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<i32, oneshot::Sender<Status>>> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! Processes that an agent started and that hid from it: with another session, no parent, and nothing of
//! its environment. A daemon that has a machine to itself becomes their parent, so that it finds them, and
//! they end with it at the latest. In a sandbox this is done by its first process.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, waitpid,
};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::tree;

/// Between two looks for those that ended.
const REAP_EVERY: Duration = Duration::from_secs(2);

/// How long what is killed may take to be gone.
const KILL_MAX: Duration = Duration::from_secs(5);

static STATE: Mutex<State> = Mutex::new(State { adopts: false, ours: BTreeSet::new() });

struct State {
    adopts: bool,
    /// Started here, and waited for by whoever did.
    ours: BTreeSet<u32>,
}

/// A child that somebody waits for. When this goes, nobody does.
#[derive(Debug)]
pub(crate) struct Ours(Option<u32>);

impl Ours {
    pub(crate) fn id(&self) -> Option<u32> {
        self.0
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        if let Some(id) = self.0 {
            state().ours.remove(&id);
        }
    }
}

/// Starts a program. While it starts nothing is reaped, so that its end is not taken for an orphan's.
pub(crate) fn spawn(command: &mut Command) -> io::Result<(Child, Ours)> {
    let mut state = state();
    let child = command.spawn()?;
    let ours = Ours(child.id());
    state.ours.extend(ours.0);
    Ok((child, ours))
}

/// From now on orphans below this process become its children.
pub(crate) fn adopt() -> io::Result<()> {
    set_child_subreaper(Some(getpid()))?;
    state().adopts = true;
    Ok(())
}

/// Takes note of the ends of orphans, until `stop`.
pub(crate) async fn reap_until(stop: CancellationToken) -> io::Result<()> {
    let mut ended = signal(SignalKind::child())?;
    while stop.run_until_cancelled(ended.recv()).await.flatten().is_some() {
        reap();
        stop.run_until_cancelled(sleep(REAP_EVERY)).await;
    }
    Ok(())
}

/// Kills orphans, if they can be nobody else's than those of who ends now.
pub(crate) fn kill_if_last(ending: Option<u32>) {
    let orphans = {
        let state = state();
        if !state.adopts || state.ours.iter().any(|id| Some(*id) != ending) {
            return;
        }
        let children = tree::children(getpid());
        children.into_iter().filter(|pid| !is_one_of(&state.ours, *pid)).collect::<Vec<_>>()
    };
    for orphan in orphans {
        for pid in tree::descendants(orphan).into_iter().chain([orphan]) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Kills everything below this process. No agent is to live on.
pub(crate) async fn end_all() {
    if !state().adopts {
        return;
    }
    let gone = async {
        loop {
            let left = tree::descendants(getpid());
            let alive: Vec<Pid> = left.into_iter().filter(|pid| tree::is_alive(*pid)).collect();
            if alive.is_empty() {
                return;
            }
            for pid in alive {
                let _ = kill_process(pid, Signal::KILL);
            }
            sleep(Duration::from_millis(5)).await;
            reap();
        }
    };
    if timeout(KILL_MAX, gone).await.is_err() {
        tracing::warn!("processes of agents are still there after being killed");
    }
}

fn reap() {
    let state = state();
    for pid in tree::children(getpid()) {
        if !is_one_of(&state.ours, pid) && !tree::is_alive(pid) {
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
    }
}

fn is_one_of(ours: &BTreeSet<u32>, pid: Pid) -> bool {
    u32::try_from(pid.as_raw_nonzero().get()).is_ok_and(|id| ours.contains(&id))
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

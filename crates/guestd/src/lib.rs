//! The guest: PID 1 of every sandbox, and the only thing in it that the host speaks to.
//!
//! It starts commands, carries their bytes, serves files, watches directories and reaches ports. It
//! speaks HTTP/1.1 over a socket that is handed in: envd's protocol, plus our extension under
//! [`guest_proto::PREFIX`]. One thread runs everything but file contents.
//!
//! What it deliberately does not do: decide who may do what (the host does), keep anything over a
//! restart, or hold any secret; root inside the sandbox can read its memory.
//!
//! As a library it serves tests in the process of the test, where it is not PID 1, reaps only its
//! own children, and runs commands as the user of the test.

mod accounts;
mod agents;
mod connect;
mod extension;
mod files;
mod http;
mod metrics;
mod paths;
mod process;
mod reaper;
mod refusal;
mod rpc;
mod state;
mod sys;
mod watch;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

pub use accounts::Accounts;
pub use http::Listener;
pub use reaper::Orphans;
pub use sys::adopt_fd;
#[cfg(target_env = "gnu")]
pub use sys::keep_memory_small;

/// What the launcher decides.
#[derive(Debug)]
pub struct Config {
    /// Echoed by `/health`, so that the host knows which incarnation answers.
    pub nonce: String,
    /// Who commands run as when nobody is named.
    pub user: String,
    /// Where commands run when no directory is named. Empty: the user's home.
    pub workdir: String,
    /// The environment of every command.
    pub env: BTreeMap<String, String>,
    /// The guest's own cgroup (version 2), if it may make others in it.
    pub cgroup: Option<OwnedFd>,
    /// Commands are sooner killed for memory than the guest.
    pub oom_score_adj: Option<i32>,
    /// The program of the agent daemon, if there is one.
    pub agents: Option<OwnedFd>,
    pub orphans: Orphans,
    pub accounts: Accounts,
}

/// Serves until `stop` is ready, then ends every command.
pub async fn serve(
    listener: Listener,
    config: Config,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let orphans = reaper::orphan_signal(config.orphans)?;
    let state = state::State::new(config)?;
    let reaping = std::sync::Arc::clone(&state.reaper).reap_orphans(orphans);
    tokio::select! {
        () = reaping => {}
        () = http::accept(&listener, &state) => {}
        () = stop => {}
    }
    for process in state.processes.running() {
        process.kill_tree();
    }
    Ok(())
}

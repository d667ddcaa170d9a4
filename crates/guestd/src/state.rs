//! What the whole guest shares. There is one of it, behind an `Arc`; what changes is behind a mutex
//! that is never held across a wait.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{Mode, OFlags};
use tokio::time::sleep_until;
use tokio_util::task::TaskTracker;

use crate::accounts::{Account, Accounts};
use crate::agents::Agents;
use crate::paths;
use crate::process::{Cgroups, Table};
use crate::reaper::Reaper;
use crate::refusal::{Code, Refusal, Result};
use crate::watch::Watchers;
use crate::{Config, metrics};

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) nonce: String,
    pub(crate) accounts: Accounts,
    pub(crate) cgroups: Option<Arc<Cgroups>>,
    pub(crate) oom_score_adj: Option<CString>,
    /// Only root can become somebody else.
    pub(crate) is_root: bool,
    pub(crate) dev_null: OwnedFd,
    pub(crate) reaper: Arc<Reaper>,
    pub(crate) processes: Table,
    pub(crate) watchers: Watchers,
    pub(crate) cpu: metrics::CpuMeter,
    pub(crate) agents: Agents,
    pub(crate) tasks: TaskTracker,
    env: BTreeMap<String, String>,
    settings: Mutex<Settings>,
    sweeping: AtomicBool,
    pub(crate) is_ready: AtomicBool,
}

/// What `/init` may change.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) user: String,
    pub(crate) workdir: String,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) token: Option<String>,
    /// RFC 3339, of the last `/init` that had one.
    pub(crate) timestamp: Option<String>,
}

impl State {
    pub(crate) fn new(config: Config) -> io::Result<Arc<Self>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let adjust = config.oom_score_adj.and_then(|adjust| CString::new(adjust.to_string()).ok());
        Ok(Arc::new(Self {
            nonce: config.nonce,
            accounts: config.accounts,
            cgroups: config.cgroup.map(Cgroups::new),
            oom_score_adj: adjust,
            is_root: rustix::process::geteuid().is_root(),
            dev_null: rustix::fs::open("/dev/null", flags, Mode::empty())?,
            reaper: Arc::default(),
            processes: Table::default(),
            watchers: Watchers::default(),
            cpu: metrics::CpuMeter::default(),
            agents: Agents::new(config.agents),
            tasks: TaskTracker::new(),
            env: config.env,
            settings: Mutex::new(Settings {
                user: config.user,
                workdir: config.workdir,
                env: BTreeMap::new(),
                token: None,
                timestamp: None,
            }),
            sweeping: AtomicBool::new(false),
            is_ready: AtomicBool::new(false),
        }))
    }

    pub(crate) fn settings(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What every command finds in its environment, beside what its account gives it.
    pub(crate) fn environment(&self) -> BTreeMap<String, String> {
        let mut env = self.env.clone();
        env.extend(self.settings().env.clone());
        env
    }

    /// The named account, or the sandbox's own.
    pub(crate) fn account(&self, name: Option<&str>) -> Result<Account> {
        let default;
        let name = match name.filter(|name| !name.is_empty()) {
            Some(name) => name,
            None => {
                default = self.settings().user.clone();
                &default
            }
        };
        let unknown = || Refusal::new(Code::Unauthenticated, format!("invalid username: '{name}'"));
        self.accounts.find(name).ok_or_else(unknown)
    }

    /// Where a path of a client leads for this account.
    pub(crate) fn resolve(&self, path: &str, account: &Account) -> String {
        paths::resolve(path, &self.settings().workdir, &account.home)
    }

    /// Remembers an ended process for as long as it should be, without waking an idle sandbox.
    pub(crate) fn process_ended(self: &Arc<Self>, key: u64) {
        self.processes.ended(key);
        if self.sweeping.swap(true, Ordering::Relaxed) {
            return;
        }
        let state = Arc::clone(self);
        self.tasks.spawn(async move {
            while let Some(due) = state.processes.sweep() {
                sleep_until(due).await;
            }
            state.sweeping.store(false, Ordering::Relaxed);
        });
    }
}

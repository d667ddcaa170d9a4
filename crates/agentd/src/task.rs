//! A one-shot task: an agent's program that runs once, beside the sessions. There is at most one in the
//! life of a sandbox.
//!
//! ```text
//! CONFIG/env.json   what it is to do, but for keys; there while it starts
//! TMP/agent.log     what it printed on standard error, and its result
//! TMP/result.txt    what it printed on standard output
//! TMP/agent.exit    its exit code, once it has ended
//! DATA/task         it was started
//! ```
//!
//! To ask for it again is to ask how it is: a server that was restarted, or that never heard an answer,
//! asks again. A daemon that died under a task, or a sandbox that was stopped, leaves it failed.

mod command;
mod files;
mod run;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::error::{Error, Result};
use crate::host::Host;

/// What a shell says of what it cannot start.
const NOT_STARTED: i32 = 127;
/// Of a task whose daemon, or sandbox, ended under it.
const CUT_OFF: i32 = 143;

/// Where a task's files are.
#[derive(Debug, Clone)]
pub struct TaskPlace {
    /// Only in memory, and the agent's alone.
    pub config: PathBuf,
    pub tmp: PathBuf,
}

impl Default for TaskPlace {
    /// As 000 has them.
    fn default() -> Self {
        Self { config: "/app/config".into(), tmp: "/tmp".into() }
    }
}

/// What an agent is to do, in the words of `env.json`.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Task {
    #[serde(rename = "AGENT_TYPE")]
    agent: String,
    #[serde(rename = "TASK")]
    task: String,
    #[serde(rename = "LLM_MODEL", default, skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    #[serde(rename = "LLM_VENDOR", default, skip_serializing_if = "Option::is_none")]
    vendor: Option<String>,
    #[serde(rename = "LLM_BASE_URL", default, skip_serializing_if = "Option::is_none")]
    base_url: Option<String>,
    #[serde(rename = "SESSION_ID", default, skip_serializing_if = "Option::is_none")]
    session_id: Option<String>,
    #[serde(rename = "AGENT_CMD", default, skip_serializing_if = "Option::is_none")]
    agent_cmd: Option<String>,
    #[serde(rename = "WIRE_VERSION", default, skip_serializing_if = "Option::is_none")]
    wire_version: Option<u32>,
    #[serde(rename = "APP_JSON", default, skip_serializing_if = "Option::is_none")]
    app_json: Option<serde_json::Value>,
    #[serde(rename = "ENV", default)]
    env: BTreeMap<String, String>,
    /// For its environment alone, never for a file.
    #[serde(rename = "SECRETS", default, skip_serializing)]
    secrets: BTreeMap<String, String>,
}

/// How the task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub(crate) enum TaskState {
    /// None was asked for.
    None,
    Running,
    Ended {
        exit_code: i32,
    },
}

/// The one task of a daemon; without a place there can be none.
pub(crate) struct Tasks {
    host: Arc<Host>,
    place: Option<TaskPlace>,
    state: watch::Sender<TaskState>,
    /// Why it should end, once somebody wants that.
    cancelled: watch::Sender<Option<String>>,
    /// One starts it.
    starting: Mutex<()>,
}

impl Tasks {
    pub(crate) fn new(host: Arc<Host>, place: Option<TaskPlace>) -> Self {
        let state = watch::Sender::new(TaskState::None);
        Self { host, place, state, cancelled: watch::Sender::new(None), starting: Mutex::new(()) }
    }

    /// Starts it unless it was started, and says how it is.
    pub(crate) fn put(&self, task: Task) -> Result<TaskState> {
        let none = || Error::invalid("this daemon runs no tasks");
        let place = self.place.clone().ok_or_else(none)?;
        let _turn = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.now();
        if known != TaskState::None {
            return Ok(known);
        }
        let files = files::Files { place, data_dir: self.host.data_dir.clone() };
        if let Some(exit_code) = files.ended() {
            return Ok(self.set(TaskState::Ended { exit_code }));
        }
        if files.was_started() {
            files.end(CUT_OFF, "it was cut off");
            return Ok(self.set(TaskState::Ended { exit_code: CUT_OFF }));
        }
        files.start().map_err(|error| Error::stream(format!("cannot begin the task: {error}")))?;
        let run = run::run(Arc::clone(&self.host), files, task, self.cancelled.subscribe());
        // First: it may end before this returns.
        let running = self.set(TaskState::Running);
        let state = self.state.clone();
        self.host.tasks.spawn(async move {
            let exit_code = run.await;
            state.send_replace(TaskState::Ended { exit_code });
        });
        Ok(running)
    }

    /// How it is once it does not run any more, or after so long.
    pub(crate) async fn wait(&self, most: Duration) -> TaskState {
        let mut states = self.state.subscribe();
        let over = states.wait_for(|state| *state != TaskState::Running);
        tokio::select! {
            _ = timeout(most, over) => {}
            () = self.host.stop.cancelled() => {}
        }
        self.now()
    }

    /// Lets it wrap up, and ends it if it does not. Whether it runs.
    pub(crate) fn cancel(&self, reason: &str) -> bool {
        let runs = self.now() == TaskState::Running;
        if runs {
            self.cancelled.send_if_modified(|known| {
                let first = known.is_none();
                known.get_or_insert_with(|| reason.to_owned());
                first
            });
        }
        runs
    }

    fn now(&self) -> TaskState {
        *self.state.borrow()
    }

    fn set(&self, state: TaskState) -> TaskState {
        self.state.send_replace(state);
        state
    }
}

//! Running a task: its program from its start to its end, what it prints to where that belongs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use super::command::command;
use super::files::Files;
use super::{CUT_OFF, NOT_STARTED, Task};
use crate::agents::codex;
use crate::host::Host;
use crate::process::{AgentProcess, Printed};

/// How long its program may take to read what it is to do.
const CONFIG_FOR: Duration = Duration::from_secs(5);
/// How long one that was cancelled may take to wrap up.
const WRAP_UP_MAX: Duration = Duration::from_secs(15);
/// For what it printed at its very end.
const LAST_WORDS_MAX: Duration = Duration::from_secs(1);

/// Its exit code, which is in its file by then.
pub(super) async fn run(
    host: Arc<Host>,
    files: Files,
    task: Task,
    cancelled: watch::Receiver<Option<String>>,
) -> i32 {
    let started = start(&host, &files, &task);
    let (exit_code, why) = match started {
        Ok(running) => running.attend(&host, &files, cancelled).await,
        Err(error) => {
            tracing::error!("the task does not start: {error}");
            if let Ok(mut log) = files.log() {
                let _ = writeln!(log, "bastide: the task does not start: {error}");
            }
            (NOT_STARTED, format!("the task does not start: {error}"))
        }
    };
    tracing::info!("the task ended with {exit_code}");
    files.end(exit_code, &why);
    exit_code
}

struct Running {
    process: AgentProcess,
    result: File,
    log: File,
}

fn start(host: &Arc<Host>, files: &Files, task: &Task) -> io::Result<Running> {
    files.write_config(task)?;
    let app = files.write_app(task)?;
    let command = command(host, task, app.as_deref())?;
    if task.agent == "codex" {
        codex::model::write_config(host, &BTreeMap::new(), task.base_url.as_deref())?;
    }
    let (result, log) = (files.result()?, files.log()?);
    let mut process = AgentProcess::start_logged(host, &command.launch, log.try_clone()?)?;
    process.feed(command.input, &host.tasks);
    Ok(Running { process, result, log })
}

impl Running {
    /// Its exit code, and what its result says if it said nothing.
    async fn attend(
        mut self,
        host: &Host,
        files: &Files,
        mut cancelled: watch::Receiver<Option<String>>,
    ) -> (i32, String) {
        let config_until = Instant::now() + CONFIG_FOR;
        let mut has_config = true;
        let mut give_up: Option<(Instant, String)> = None;
        loop {
            let until = give_up.as_ref().map_or_else(Instant::now, |(until, _)| *until);
            tokio::select! {
                printed = self.process.next_printed() => match printed {
                    Ok(Printed::Bytes(bytes)) => self.keep(&bytes),
                    Ok(Printed::Exited(status)) => return self.ended(status, give_up).await,
                    Err(error) => {
                        self.process.kill().await;
                        return (CUT_OFF, format!("the agent cannot be followed: {error}"));
                    }
                },
                () = sleep_until(config_until), if has_config => {
                    has_config = false;
                    files.forget_config();
                }
                reason = wanted(&mut cancelled), if give_up.is_none() => {
                    self.process.signal(Signal::INT);
                    give_up = Some((Instant::now() + WRAP_UP_MAX, format!("cancelled: {reason}")));
                }
                () = sleep_until(until), if give_up.is_some() => {
                    self.process.kill().await;
                    return (CUT_OFF, give_up.map(|(_, why)| why).unwrap_or_default());
                }
                () = host.stop.cancelled() => {
                    self.process.kill().await;
                    return (CUT_OFF, "the sandbox was stopped".to_owned());
                }
            }
        }
    }

    /// What it left behind ends with it.
    async fn ended(
        mut self,
        status: ExitStatus,
        cancel: Option<(Instant, String)>,
    ) -> (i32, String) {
        let rest = async {
            while let Ok(Some(bytes)) = self.process.next_block().await {
                let _ = self.result.write_all(&bytes).and_then(|()| self.log.write_all(&bytes));
            }
        };
        let _ = timeout(LAST_WORDS_MAX, rest).await;
        self.process.kill().await;
        let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
        (code.unwrap_or(CUT_OFF), cancel.map(|(_, why)| why).unwrap_or_default())
    }

    fn keep(&mut self, bytes: &[u8]) {
        let kept = self.result.write_all(bytes).and_then(|()| self.log.write_all(bytes));
        if let Err(error) = kept {
            tracing::error!("cannot keep what the agent printed: {error}");
        }
    }
}

/// Waits until somebody wants it to end, and says why.
async fn wanted(cancelled: &mut watch::Receiver<Option<String>>) -> String {
    let reason = cancelled.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
    match reason {
        Some(reason) => reason,
        None => std::future::pending().await,
    }
}

//! Amp: a process for each message, which prints Claude's stream JSON. Its thread is continued by id.
//!
//! It needs an account of its own service; without one it waits for a login in a browser, which is not
//! waited for here.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use events::{ContentPart, ItemKind, ItemRole};
use rustix::process::Signal;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use super::apply::{apply, parse};
use super::claude::decoder::Decoder;
use super::decoded::Decoded;
use super::launch::defaults_for;
use crate::adapter::{
    Adapter, AgentSession, Description, Ended, Message, Mode, Opened, Order, PermissionMode,
    SessionSpec,
};
use crate::api::AgentCapabilities;
use crate::conversion::{Conversion, Item};
use crate::error::{Error, Result};
use crate::host::Host;
use crate::process::{AgentProcess, Launch, Line};
use crate::recorder::Recorder;

/// Its first line comes when the service has answered; a login in a browser never happens here.
const FIRST_LINE_WAIT: Duration = Duration::from_secs(90);
const INTERRUPT_WAIT: Duration = Duration::from_secs(10);
const EXIT_WAIT: Duration = Duration::from_millis(1500);

static DESCRIPTION: Description = Description {
    id: "amp",
    program: Some("amp"),
    capabilities: AgentCapabilities {
        tool_calls: true,
        tool_results: true,
        text_messages: true,
        session_lifecycle: true,
        error_events: true,
        reasoning: true,
        command_execution: true,
        file_changes: true,
        ..AgentCapabilities::NONE
    },
    modes: &[Mode { id: "build", name: "Build", description: "Default build mode" }],
    modes_are_open: false,
    permission_modes: &[PermissionMode::Default, PermissionMode::Bypass],
    marks_turns: true,
    state_variable: None,
    takes_environment: false,
};

#[derive(Debug, Default)]
pub(super) struct Amp;

#[async_trait]
impl Adapter for Amp {
    fn description(&self) -> &'static Description {
        &DESCRIPTION
    }

    async fn open(
        &self,
        spec: &SessionSpec,
        host: &Arc<Host>,
        _recorder: &Recorder,
    ) -> Result<Opened> {
        let program = host
            .find_program("amp")
            .ok_or_else(|| Error::AgentNotInstalled { agent: "amp".to_owned() })?;
        let session = Session {
            host: Arc::clone(host),
            spec: spec.clone(),
            program,
            decoder: Decoder::default(),
            thread: spec.resume.clone(),
            running: None,
        };
        Ok(Opened { native_session_id: spec.resume.clone(), session: Box::new(session) })
    }
}

struct Session {
    host: Arc<Host>,
    spec: SessionSpec,
    program: PathBuf,
    decoder: Decoder,
    thread: Option<String>,
    /// Of the turn that runs.
    running: Option<Running>,
}

struct Running {
    process: AgentProcess,
    /// When it is killed unless it says something or ends.
    deadline: Option<Instant>,
    turn_over: bool,
    interrupted: bool,
}

/// What it is started with. The message is not among it: arguments are seen by everybody.
fn arguments(spec: &SessionSpec, thread: Option<&str>) -> Vec<String> {
    let mut arguments: Vec<String> = match thread {
        Some(thread) => ["threads", "continue", thread].map(str::to_owned).to_vec(),
        None => Vec::new(),
    };
    let always = ["--execute", "--stream-json", "--stream-json-thinking", "--stream-json-input"];
    arguments.extend(always.map(str::to_owned));
    if spec.permission_mode == PermissionMode::Bypass {
        arguments.push("--dangerously-allow-all".to_owned());
    }
    // Its models are chosen by its modes.
    if let Some(model) = &spec.model {
        arguments.extend(["--mode".to_owned(), model.clone()]);
    }
    arguments
}

impl Session {
    async fn begin(&mut self, message: &Message, recorder: &Recorder) {
        let id = format!("user:{}", uuid::Uuid::new_v4());
        let item = Item::new(id, ItemKind::Message, ItemRole::User)
            .with_content(vec![ContentPart::text(&message.text)]);
        recorder.record_synthetic(item.completed());
        let arguments = arguments(&self.spec, self.thread.as_deref());
        let launch = Launch {
            program: self.program.clone(),
            arguments: arguments.into_iter().map(OsString::from).collect(),
            env: defaults_for(&self.host, &self.spec, &[]),
            directory: self.spec.directory.clone(),
        };
        let mut process = match AgentProcess::start(&self.host, &launch) {
            Ok(process) => process,
            Err(error) => {
                let message = format!("cannot start amp: {error}");
                recorder.record(Conversion::error(message, Some("amp"), None));
                recorder.turn_completed(Some(json!({"status": "failed"}).to_string()), None);
                return;
            }
        };
        let line = json!({
            "type": "user",
            "message": {"role": "user", "content": [{"type": "text", "text": message.whole()}]},
        });
        // If it does not read, its end tells.
        let _ = process.write_line(&line.to_string()).await;
        process.close_stdin();
        let deadline = Some(Instant::now() + FIRST_LINE_WAIT);
        self.running = Some(Running { process, deadline, turn_over: false, interrupted: false });
    }

    fn interrupt(&mut self) {
        let Some(running) = &mut self.running else { return };
        self.decoder.interrupting();
        running.interrupted = true;
        running.process.signal(Signal::INT);
        running.deadline = Some(Instant::now() + INTERRUPT_WAIT);
    }

    fn line(&mut self, line: Line, recorder: &Recorder) {
        let Some((value, raw)) = parse(recorder, "amp", line) else { return };
        let applied = apply(recorder, self.decoder.decode(&value), Some(&raw));
        if applied.native_id.is_some() {
            self.thread = applied.native_id;
        }
        if let Some(running) = &mut self.running {
            running.turn_over |= applied.turn_over;
            if !running.interrupted {
                running.deadline = None;
            }
        }
    }

    /// The process of the turn is over, or has to be.
    async fn end(&mut self, recorder: &Recorder, late: bool) {
        let Some(mut running) = self.running.take() else { return };
        let status = match late {
            true => None,
            false => timeout(EXIT_WAIT, running.process.wait()).await.ok().and_then(|end| end.ok()),
        };
        running.process.kill().await;
        let mut left = self.decoder.close();
        if !running.turn_over {
            if !running.interrupted {
                left.push(failure(status, &running.process.stderr(), late).into());
            }
            let status = if running.interrupted { "interrupted" } else { "failed" };
            left.push(Decoded::TurnOver(json!({"status": status})));
        }
        apply(recorder, left, None);
    }
}

fn failure(status: Option<std::process::ExitStatus>, stderr: &str, late: bool) -> Conversion {
    let code = status.and_then(|status| status.code());
    let message = match (late, code) {
        (true, _) => "amp says nothing: does it wait for a login? set AMP_API_KEY".to_owned(),
        (false, Some(code)) => format!("amp exited with code {code} before its turn was over"),
        (false, None) => "amp was killed".to_owned(),
    };
    let details = json!({"exit_code": code, "stderr": stderr});
    Conversion::error(message, Some("amp"), Some(details))
}

#[async_trait]
impl AgentSession for Session {
    async fn run(
        mut self: Box<Self>,
        mut orders: mpsc::Receiver<Order>,
        recorder: Recorder,
    ) -> Ended {
        loop {
            let deadline = self.running.as_ref().and_then(|running| running.deadline);
            let until = deadline.unwrap_or_else(|| Instant::now() + INTERRUPT_WAIT);
            tokio::select! {
                order = orders.recv() => match order {
                    None | Some(Order::Terminate) => {
                        self.interrupt();
                        self.end(&recorder, false).await;
                        return Ended::Terminated;
                    }
                    Some(Order::Message(message)) => self.begin(&message, &recorder).await,
                    Some(Order::Interrupt) => self.interrupt(),
                    // It never asks.
                    Some(
                        Order::Permission { .. }
                        | Order::Question { .. }
                        | Order::Environment(_),
                    ) => {}
                },
                line = next_line(&mut self.running) => match line {
                    Some(line) => self.line(line, &recorder),
                    None => self.end(&recorder, false).await,
                },
                () = sleep_until(until), if deadline.is_some() => self.end(&recorder, true).await,
            }
        }
    }
}

/// Waits for ever between turns.
async fn next_line(running: &mut Option<Running>) -> Option<Line> {
    match running {
        Some(running) => running.process.next_line().await.ok().flatten(),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(super) use tests::documented;

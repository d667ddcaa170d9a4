//! A session's process: orders in, lines out, one loop.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use super::decoder::Decoder;
use crate::adapter::{AgentSession, Ended, Order};
use crate::agents::apply::{apply, parse};
use crate::agents::decoded::text;
use crate::agents::turn::{Left, Turn};
use crate::error::{Error, Result};
use crate::process::{AgentProcess, Line};
use crate::recorder::Recorder;

/// A loaded machine starts slowly. A version that does not know the question is used all the same.
const INITIALIZE_WAIT: Duration = Duration::from_secs(60);

/// How long a turn may go on after it was interrupted, before its process is killed.
const INTERRUPT_WAIT: Duration = Duration::from_secs(15);

/// How long the end of a turn, and the end of the process, may take when the session is terminated.
const END_WAIT: Duration = Duration::from_millis(1500);

const REQUEST_INITIALIZE: &str = "bastide-initialize";

pub(super) struct Session {
    process: AgentProcess,
    decoder: Decoder,
    turn: Turn,
    native_id: Option<String>,
    turns: u64,
    requests: u64,
}

/// Waits until the program answers, which is when it has read its settings and found them good.
pub(super) async fn initialize(process: &mut AgentProcess) -> Result<Value> {
    let request = json!({
        "type": "control_request",
        "request_id": REQUEST_INITIALIZE,
        "request": {"subtype": "initialize"},
    });
    let failed = |error: std::io::Error| Error::stream(format!("claude does not listen: {error}"));
    process.write_line(&request.to_string()).await.map_err(failed)?;
    let answer = async {
        loop {
            match process.next_line().await.map_err(failed)? {
                None => return Err(exited(process).await),
                Some(Line::TooLong) => {}
                Some(Line::Text(line)) => {
                    let Ok(line) = serde_json::from_str::<Value>(&line) else { continue };
                    let response = line.get("response").unwrap_or(&Value::Null);
                    if text(response, "request_id") == REQUEST_INITIALIZE {
                        return Ok(response.get("response").cloned().unwrap_or_default());
                    }
                }
            }
        }
    };
    timeout(INITIALIZE_WAIT, answer).await.unwrap_or(Ok(Value::Null))
}

async fn exited(process: &mut AgentProcess) -> Error {
    let status = timeout(END_WAIT, process.wait()).await;
    process.kill().await;
    let exit_code = status.ok().and_then(Result::ok).and_then(|status| status.code());
    let stderr = Some(process.stderr()).filter(|text| !text.is_empty());
    Error::AgentProcessExited { agent: "claude".to_owned(), exit_code, stderr }
}

impl Session {
    pub(super) fn new(process: AgentProcess, decoder: Decoder) -> Self {
        Self { process, decoder, turn: Turn::default(), native_id: None, turns: 0, requests: 0 }
    }

    /// `false`: the program does not read any more; its end will tell.
    async fn send(&mut self, value: &Value) -> bool {
        self.process.write_line(&value.to_string()).await.is_ok()
    }

    async fn order(&mut self, order: Order, recorder: &Recorder) {
        match order {
            Order::Message(message) => {
                self.turns += 1;
                self.turn.begin(&message.text, recorder);
                let line = json!({
                    "type": "user",
                    "message": {"role": "user", "content": message.whole()},
                    "parent_tool_use_id": null,
                    "session_id": self.native_id.clone().unwrap_or_default(),
                });
                self.send(&line).await;
            }
            Order::Permission { id, reply } => {
                if let Some(line) = self.decoder.permit(&id, reply) {
                    self.send(&line).await;
                }
            }
            Order::Question { id, answer } => {
                let mut out = Vec::new();
                let line = self.decoder.answer(&id, answer, &mut out);
                apply(recorder, out, None);
                if let Some(line) = line {
                    self.send(&line).await;
                }
            }
            Order::Interrupt => self.interrupt().await,
            Order::Environment(_) | Order::Terminate => {}
        }
    }

    async fn interrupt(&mut self) {
        if !self.turn.runs() {
            return;
        }
        self.decoder.interrupting();
        self.requests += 1;
        let line = json!({
            "type": "control_request",
            "request_id": format!("bastide-{}", self.requests),
            "request": {"subtype": "interrupt"},
        });
        self.send(&line).await;
        self.turn.interrupted(INTERRUPT_WAIT);
    }

    async fn line(&mut self, line: Line, recorder: &Recorder) {
        let Some((value, raw)) = parse(recorder, "claude", line) else { return };
        let decoded = self.decoder.decode(&value);
        let applied = apply(recorder, decoded, Some(&raw));
        if applied.native_id.is_some() {
            self.native_id = applied.native_id;
        }
        for value in applied.send {
            self.send(&value).await;
        }
        if applied.turn_over {
            self.turn.over();
        }
    }

    /// The output ended: the program is gone, or about to be.
    async fn gone(mut self, recorder: &Recorder) -> Ended {
        let left = Left::of(&mut self.process, END_WAIT).await;
        let in_turn = self.turn.close(recorder, self.decoder.close(), "failed");
        // It leaves after some failed turns, having told about them; the next message starts it again.
        let told = !in_turn && self.turns > 0 && self.native_id.is_some() && left.code().is_some();
        if left.well() || told { Ended::Dormant } else { left.failed("claude") }
    }

    async fn terminate(mut self, recorder: &Recorder) -> Ended {
        self.interrupt().await;
        let until = Instant::now() + END_WAIT;
        while self.turn.runs() {
            match tokio::time::timeout_at(until, self.process.next_line()).await {
                Ok(Ok(Some(line))) => self.line(line, recorder).await,
                _ => break,
            }
        }
        self.process.close_stdin();
        let _ = timeout(END_WAIT, self.process.wait()).await;
        self.process.kill().await;
        self.turn.close(recorder, self.decoder.close(), "interrupted");
        Ended::Terminated
    }
}

#[async_trait]
impl AgentSession for Session {
    async fn run(
        mut self: Box<Self>,
        mut orders: mpsc::Receiver<Order>,
        recorder: Recorder,
    ) -> Ended {
        loop {
            tokio::select! {
                order = orders.recv() => match order {
                    None | Some(Order::Terminate) => return self.terminate(&recorder).await,
                    Some(order) => self.order(order, &recorder).await,
                },
                line = self.process.next_line() => match line {
                    Ok(Some(line)) => self.line(line, &recorder).await,
                    Ok(None) | Err(_) => return self.gone(&recorder).await,
                },
                () = self.turn.given_up() => {
                    self.process.kill().await;
                    self.turn.close(&recorder, self.decoder.close(), "interrupted");
                    return Ended::Dormant;
                }
            }
        }
    }
}

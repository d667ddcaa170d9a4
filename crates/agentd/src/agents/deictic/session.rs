//! A session's process: orders in, lines out, one loop.

use std::time::Duration;

use async_trait::async_trait;
use deictic::protocol::{Heard, Reply};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

use super::decoder::Decoder;
use crate::adapter::{AgentSession, Answer, Ended, Order, PermissionReply};
use crate::agents::apply::{apply, parse};
use crate::agents::turn::{Left, Turn};
use crate::process::{AgentProcess, Line};
use crate::recorder::Recorder;
use crate::secrets::Change;

/// How long a turn may go on after it was interrupted, before its process is killed.
const INTERRUPT_WAIT: Duration = Duration::from_secs(5);

/// How long the end of a turn, and the end of the process, may take when the session is terminated.
const END_WAIT: Duration = Duration::from_millis(1500);

pub(super) struct Session {
    process: AgentProcess,
    decoder: Decoder,
    turn: Turn,
}

impl Session {
    pub(super) fn new(process: AgentProcess) -> Self {
        Self { process, decoder: Decoder::default(), turn: Turn::default() }
    }

    /// If it does not read any more, its end will tell.
    async fn tell(&mut self, heard: &Heard) {
        if let Ok(line) = serde_json::to_string(heard) {
            let _ = self.process.write_line(&line).await;
        }
    }

    async fn order(&mut self, order: Order, recorder: &Recorder) {
        match order {
            Order::Message(message) => {
                self.turn.begin(&message.text, recorder);
                self.tell(&Heard::Message { text: message.whole() }).await;
            }
            Order::Permission { id, reply } => {
                if self.decoder.permit(&id) {
                    let reply = match reply {
                        PermissionReply::Once => Reply::Once,
                        PermissionReply::Always => Reply::Always,
                        PermissionReply::Reject => Reply::Reject,
                    };
                    self.tell(&Heard::Permission { id, reply }).await;
                }
            }
            Order::Question { id, answer } => {
                if self.decoder.answer(&id) {
                    let answers = match answer {
                        Answer::Answered(lists) => {
                            Some(lists.into_iter().next().unwrap_or_default())
                        }
                        Answer::Rejected => None,
                    };
                    self.tell(&Heard::Question { id, answers }).await;
                }
            }
            Order::Interrupt => self.interrupt().await,
            Order::Environment(Change { set, unset }) => {
                self.tell(&Heard::Environment { set, unset }).await;
            }
            Order::Terminate => {}
        }
    }

    async fn interrupt(&mut self) {
        if self.turn.runs() {
            self.tell(&Heard::Interrupt).await;
            self.turn.interrupted(INTERRUPT_WAIT);
        }
    }

    fn line(&mut self, line: Line, recorder: &Recorder) {
        let Some((value, raw)) = parse(recorder, "deictic", line) else { return };
        let applied = apply(recorder, self.decoder.decode(&value), Some(&raw));
        if applied.turn_over {
            self.turn.over();
        }
    }

    /// The output ended: the program is gone, or about to be.
    async fn gone(mut self, recorder: &Recorder) -> Ended {
        let left = Left::of(&mut self.process, END_WAIT).await;
        self.turn.close(recorder, self.decoder.close(), "failed");
        if left.well() { Ended::Dormant } else { left.failed("deictic") }
    }

    async fn terminate(mut self, recorder: &Recorder) -> Ended {
        self.interrupt().await;
        let until = Instant::now() + END_WAIT;
        while self.turn.runs() {
            match timeout_at(until, self.process.next_line()).await {
                Ok(Ok(Some(line))) => self.line(line, recorder),
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
                    Ok(Some(line)) => self.line(line, &recorder),
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

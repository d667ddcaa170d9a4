//! A session's process: orders in, lines out, one loop.

use std::time::Duration;

use async_trait::async_trait;
use deictic::protocol::{Heard, Reply};
use events::{ContentPart, ItemKind, ItemRole};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::decoder::Decoder;
use crate::adapter::{AgentSession, Answer, Ended, Order, PermissionReply};
use crate::agents::apply::{apply, parse};
use crate::agents::decoded::Decoded;
use crate::conversion::Item;
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
    /// A turn runs.
    turn: bool,
    /// When an interrupted turn is given up on.
    give_up: Option<Instant>,
}

impl Session {
    pub(super) fn new(process: AgentProcess) -> Self {
        Self { process, decoder: Decoder::default(), turn: false, give_up: None }
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
                self.turn = true;
                let id = format!("user:{}", uuid::Uuid::new_v4());
                let item = Item::new(id, ItemKind::Message, ItemRole::User)
                    .with_content(vec![ContentPart::text(&message.text)]);
                recorder.record_synthetic(item.completed());
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
        if self.turn {
            self.tell(&Heard::Interrupt).await;
            self.give_up.get_or_insert(Instant::now() + INTERRUPT_WAIT);
        }
    }

    fn line(&mut self, line: Line, recorder: &Recorder) {
        let Some((value, raw)) = parse(recorder, "deictic", line) else { return };
        let applied = apply(recorder, self.decoder.decode(&value), Some(&raw));
        if applied.turn_over {
            self.turn = false;
            self.give_up = None;
        }
    }

    /// The output ended: the program is gone, or about to be.
    async fn gone(mut self, recorder: &Recorder) -> Ended {
        let status = timeout(END_WAIT, self.process.wait()).await.ok().and_then(Result::ok);
        self.process.kill().await;
        self.close_turn(recorder, "failed");
        if status.is_some_and(|status| status.success()) {
            return Ended::Dormant;
        }
        let code = status.and_then(|status| status.code());
        let message = match code {
            Some(code) => format!("deictic exited with code {code}"),
            None => "deictic was killed".to_owned(),
        };
        let stderr = Some(self.process.stderr()).filter(|text| !text.is_empty());
        Ended::Failed { code: "process_exit", message, exit_code: code, stderr }
    }

    fn close_turn(&mut self, recorder: &Recorder, status: &str) {
        let mut left = self.decoder.close();
        if std::mem::take(&mut self.turn) {
            left.push(Decoded::TurnOver(json!({"status": status})));
        }
        apply(recorder, left, None);
    }

    async fn terminate(mut self, recorder: &Recorder) -> Ended {
        self.interrupt().await;
        let until = Instant::now() + END_WAIT;
        while self.turn {
            match timeout_at(until, self.process.next_line()).await {
                Ok(Ok(Some(line))) => self.line(line, recorder),
                _ => break,
            }
        }
        self.process.close_stdin();
        let _ = timeout(END_WAIT, self.process.wait()).await;
        self.process.kill().await;
        self.close_turn(recorder, "interrupted");
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
            let give_up = self.give_up.unwrap_or_else(|| Instant::now() + INTERRUPT_WAIT);
            tokio::select! {
                order = orders.recv() => match order {
                    None | Some(Order::Terminate) => return self.terminate(&recorder).await,
                    Some(order) => self.order(order, &recorder).await,
                },
                line = self.process.next_line() => match line {
                    Ok(Some(line)) => self.line(line, &recorder),
                    Ok(None) | Err(_) => return self.gone(&recorder).await,
                },
                () = sleep_until(give_up), if self.give_up.is_some() => {
                    self.process.kill().await;
                    self.close_turn(&recorder, "interrupted");
                    return Ended::Dormant;
                }
            }
        }
    }
}

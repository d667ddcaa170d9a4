//! One thread of a shared app-server.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::decoder::Decoder;
use super::wire::{FromServer, Link, ToServer};
use crate::adapter::{AgentSession, Ended, Message, Order};
use crate::agents::apply::apply;
use crate::agents::decoded::Decoded;
use crate::conversion::Conversion;
use crate::error::{Error, Result};
use crate::recorder::Recorder;

/// How long a turn may go on after it was interrupted, before it is left alone.
const INTERRUPT_WAIT: Duration = Duration::from_secs(15);
/// How long the end of a turn may take when the session is terminated.
const END_WAIT: Duration = Duration::from_millis(1500);

/// What older versions are told instead of being switched to planning.
const PLAN_PREFIX: &str = "Make a plan before acting.\n\n";

pub(super) struct Session {
    pub(super) link: Link,
    pub(super) events: mpsc::Receiver<FromServer>,
    pub(super) thread: String,
    pub(super) decoder: Decoder,
    pub(super) options: TurnOptions,
    pub(super) turn: Turn,
}

/// What every turn is started with.
#[derive(Debug, Clone)]
pub(super) struct TurnOptions {
    /// The model that plans; planning is a mode of turns that has to name one.
    pub(super) plan_with: Option<String>,
    pub(super) plan: bool,
    pub(super) effort: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct Turn {
    running: bool,
    id: Option<String>,
    /// The answer to its start, and what it was started with.
    starting: Option<(oneshot::Receiver<Result<Value>>, Message)>,
    /// It has to be interrupted as soon as its id is known.
    interrupt: bool,
    give_up: Option<Instant>,
}

impl Session {
    fn order(&mut self, order: Order, recorder: &Recorder) {
        let answer = match order {
            Order::Message(message) => {
                self.turn = Turn { running: true, ..Turn::default() };
                self.start_turn(message, recorder);
                None
            }
            Order::Permission { id, reply } => self.decoder.permit(&id, reply),
            Order::Question { id, answer } => {
                let mut out = Vec::new();
                let line = self.decoder.answer(&id, answer, &mut out);
                apply(recorder, out, None);
                line
            }
            Order::Interrupt => {
                self.interrupt();
                None
            }
            Order::Environment(_) | Order::Terminate => None,
        };
        if let Some(answer) = answer {
            self.tell(answer);
        }
    }

    /// If it is gone, that is said on the other way.
    fn tell(&self, value: Value) {
        let _ = self.link.send(ToServer::Send(value));
    }

    fn start_turn(&mut self, message: Message, recorder: &Recorder) {
        let prefix = self.options.plan && self.options.plan_with.is_none();
        let prefix = if prefix { PLAN_PREFIX } else { "" };
        let said = json!({"type": "text", "text": format!("{prefix}{}", message.text)});
        let context = message.before().map(|text| json!({"type": "text", "text": text}));
        let mut params = json!({
            "threadId": self.thread,
            "input": context.into_iter().chain([said]).collect::<Vec<_>>(),
        });
        if let Some(model) = self.options.plan_with.as_ref().filter(|_| self.options.plan) {
            params["collaborationMode"] = json!({"mode": "plan", "settings": {
                "model": model, "reasoning_effort": null, "developer_instructions": null,
            }});
        }
        if let Some(effort) = &self.options.effort {
            params["effort"] = effort.as_str().into();
        }
        match self.link.call("turn/start", params, None) {
            Ok(answer) => self.turn.starting = Some((answer, message)),
            Err(error) => self.refused(&error, recorder),
        }
    }

    fn started(&mut self, answer: Result<Value>, message: Message, recorder: &Recorder) {
        match answer {
            Ok(result) => {
                let id = result.pointer("/turn/id").and_then(Value::as_str);
                self.turn.id = id.map(str::to_owned).or(self.turn.id.take());
                self.interrupt_if_asked();
            }
            // A version that cannot be switched to planning is asked to plan.
            Err(_) if self.options.plan && self.options.plan_with.is_some() => {
                self.options.plan_with = None;
                self.start_turn(message, recorder);
            }
            Err(error) => self.refused(&error, recorder),
        }
    }

    fn refused(&mut self, error: &Error, recorder: &Recorder) {
        let message = match error {
            Error::Stream { message } => message.clone(),
            other => other.to_string(),
        };
        recorder.record(Conversion::error(message, Some("jsonrpc.error"), None));
        self.close_turn(recorder, "failed");
    }

    fn interrupt(&mut self) {
        if self.turn.running {
            self.turn.interrupt = true;
            self.turn.give_up.get_or_insert(Instant::now() + INTERRUPT_WAIT);
            self.interrupt_if_asked();
        }
    }

    fn interrupt_if_asked(&mut self) {
        let id = self.decoder.turn_id().or(self.turn.id.as_deref()).map(str::to_owned);
        if let Some(id) = id.filter(|_| self.turn.interrupt) {
            self.turn.interrupt = false;
            let params = json!({"threadId": self.thread, "turnId": id});
            let _ = self.link.call("turn/interrupt", params, None);
        }
    }

    /// Nothing of the program's is left out; what is not of this thread never comes here.
    fn message(&mut self, message: &Value, raw: &crate::conversion::Raw, recorder: &Recorder) {
        let applied = apply(recorder, self.decoder.decode(message), Some(raw));
        for value in applied.send {
            self.tell(value);
        }
        if applied.turn_over {
            self.turn = Turn::default();
        }
        self.interrupt_if_asked();
    }

    /// Whether a turn was running.
    fn close_turn(&mut self, recorder: &Recorder, status: &str) -> bool {
        let mut left = self.decoder.close();
        let turn = std::mem::take(&mut self.turn);
        if turn.running {
            left.push(Decoded::TurnOver(json!({"status": status})));
        }
        apply(recorder, left, None);
        turn.running
    }

    /// The process is gone; the thread is not: it is resumed in the next one.
    fn gone(&mut self, exit_code: Option<i32>, stderr: &str, recorder: &Recorder) -> Ended {
        if self.turn.running {
            let message = match exit_code {
                Some(code) => format!("codex app-server exited with code {code}"),
                None => "codex app-server is gone".to_owned(),
            };
            let details = json!({"exit_code": exit_code, "stderr": stderr});
            recorder.record(Conversion::error(message, Some("server_exit"), Some(details)));
        }
        self.close_turn(recorder, "failed");
        Ended::Dormant
    }

    fn leave(&self) {
        let params = json!({"threadId": self.thread});
        let _ = self.link.call("thread/unsubscribe", params, None);
        let _ = self.link.send(ToServer::Leave { thread: self.thread.clone() });
    }

    async fn terminate(&mut self, recorder: &Recorder) -> Ended {
        self.interrupt();
        let until = Instant::now() + END_WAIT;
        if let Some((answer, message)) = self.turn.starting.take()
            && let Ok(Ok(answer)) = timeout(END_WAIT, answer).await
        {
            self.started(answer, message, recorder);
        }
        while self.turn.running {
            match timeout_at(until, self.events.recv()).await {
                Ok(Some(FromServer::Message { message, raw })) => {
                    self.message(&message, &raw, recorder);
                }
                Ok(Some(FromServer::Gone { .. }) | None) | Err(_) => break,
            }
        }
        self.close_turn(recorder, "interrupted");
        self.leave();
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
            let give_up = self.turn.give_up.unwrap_or_else(|| Instant::now() + INTERRUPT_WAIT);
            let waiting = self.turn.give_up.is_some();
            tokio::select! {
                order = orders.recv() => match order {
                    None | Some(Order::Terminate) => return self.terminate(&recorder).await,
                    Some(order) => self.order(order, &recorder),
                },
                event = self.events.recv() => match event {
                    Some(FromServer::Message { message, raw }) => {
                        self.message(&message, &raw, &recorder);
                    }
                    Some(FromServer::Gone { exit_code, stderr }) => {
                        return self.gone(exit_code, &stderr, &recorder);
                    }
                    None => return self.gone(None, "", &recorder),
                },
                answer = answer_of(&mut self.turn.starting) => {
                    let (answer, message) = answer;
                    self.started(answer, message, &recorder);
                }
                () = sleep_until(give_up), if waiting => {
                    self.close_turn(&recorder, "interrupted");
                    self.leave();
                    return Ended::Dormant;
                }
            }
        }
    }
}

/// Waits for ever when there is nothing to wait for.
async fn answer_of(
    starting: &mut Option<(oneshot::Receiver<Result<Value>>, Message)>,
) -> (Result<Value>, Message) {
    let Some((answer, _)) = starting.as_mut() else { return std::future::pending().await };
    let answer = answer.await.unwrap_or_else(|_| Err(Error::stream("codex app-server is gone")));
    let message = starting.take().map(|(_, message)| message);
    (answer, message.unwrap_or_else(|| Message::new("")))
}

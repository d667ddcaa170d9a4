//! One session of a shared server: its events, and what is posted to it.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use super::client::{Answer, Client, Events};
use super::decoder::Decoder;
use crate::adapter::{AgentSession, Ended, Order};
use crate::agents::apply::apply;
use crate::agents::decoded::{Decoded, text};
use crate::conversion::{Conversion, Raw};
use crate::error::{Error, Result};
use crate::recorder::Recorder;

/// How long a turn may go on after it was aborted, before it is left alone.
const ABORT_WAIT: Duration = Duration::from_secs(15);
/// How long the end of a turn may take when the session is terminated.
const END_WAIT: Duration = Duration::from_millis(1500);
/// How long after a first idle the last one may come.
const SETTLE_WAIT: Duration = Duration::from_secs(5);
/// The server asks a model that fails again and again, for ever, later each time.
const RETRIES_MAX: u64 = 4;

pub(super) struct Session {
    client: Client,
    gone: CancellationToken,
    events: Events,
    id: String,
    /// The part of a query that says where the session works.
    place: String,
    options: Value,
    decoder: Decoder,
    calls: FuturesUnordered<BoxFuture<'static, (Call, Result<Answer>)>>,
    give_up: Option<Instant>,
    /// When a turn that was idle with something incomplete is over all the same.
    settle: Option<Instant>,
}

/// What an answer belongs to.
enum Call {
    Prompt,
    Other,
}

impl Session {
    /// `options` is what every prompt carries: agent, model, variant.
    pub(super) fn new(
        server: super::server::Server,
        events: Events,
        id: String,
        place: String,
        options: Value,
    ) -> Self {
        Self {
            client: server.client,
            gone: server.gone,
            events,
            decoder: Decoder::new(id.clone()),
            id,
            place,
            options,
            calls: FuturesUnordered::new(),
            give_up: None,
            settle: None,
        }
    }

    fn order(&mut self, order: Order, recorder: &Recorder) {
        match order {
            Order::Message(message) => {
                self.decoder.prompting();
                self.give_up = None;
                let mut body = self.options.clone();
                let context = message.before();
                // What is added is not shown as the user's.
                let added =
                    context.map(|text| json!({"type": "text", "text": text, "synthetic": true}));
                let said = json!({"type": "text", "text": message.text});
                body["parts"] = added.into_iter().chain([said]).collect();
                let path = format!("/session/{}/prompt_async", self.id);
                self.post(Call::Prompt, &path, body);
            }
            Order::Permission { id, reply } => {
                if let Some(call) = self.decoder.permit(&id, reply) {
                    self.send(&call);
                }
            }
            Order::Question { id, answer } => {
                let mut out = Vec::new();
                let call = self.decoder.answer(&id, answer, &mut out);
                apply(recorder, out, None);
                if let Some(call) = call {
                    self.send(&call);
                }
            }
            Order::Interrupt => self.interrupt(),
            Order::Environment(_) | Order::Terminate => {}
        }
    }

    fn interrupt(&mut self) {
        if self.decoder.in_turn() {
            self.decoder.interrupting();
            self.abort();
        }
    }

    fn abort(&mut self) {
        self.give_up.get_or_insert(Instant::now() + ABORT_WAIT);
        self.post(Call::Other, &format!("/session/{}/abort", self.id), json!({}));
    }

    /// What the decoder wants to be posted.
    fn send(&mut self, call: &Value) {
        let body = call.get("body").cloned().unwrap_or_else(|| json!({}));
        self.post(Call::Other, text(call, "path"), body);
    }

    fn post(&mut self, call: Call, path: &str, body: Value) {
        let client = self.client.clone();
        let path = format!("{path}?{}", self.place);
        self.calls.push(Box::pin(async move { (call, client.post(&path, &body).await) }));
    }

    fn answered(&mut self, call: &Call, answer: Result<Answer>, recorder: &Recorder) {
        let failure = match answer {
            Ok(answer) if answer.status.is_success() => return,
            Ok(answer) => {
                let said = answer.body.pointer("/data/message").and_then(Value::as_str);
                format!("opencode answered {}: {}", answer.status, said.unwrap_or_default())
            }
            Err(Error::Stream { message }) => message,
            Err(error) => error.to_string(),
        };
        match call {
            Call::Prompt => {
                recorder.record(Conversion::error(failure, Some("opencode_server"), None));
                self.close(recorder);
            }
            Call::Other => tracing::warn!("session {}: {failure}", self.id),
        }
    }

    fn event(&mut self, line: &str, recorder: &Recorder) {
        let Ok(event) = serde_json::from_str::<Value>(line) else {
            let (error, location) = ("not JSON".to_owned(), "opencode".to_owned());
            let raw = Raw::of_text(line);
            return recorder.record_raw(Conversion::Unparsed { error, location }, &raw);
        };
        let decoded = self.decoder.decode(&event);
        if decoded.is_empty() {
            return;
        }
        let raw = Raw::from_line(line).unwrap_or_else(|| Raw::from(&event));
        let applied = apply(recorder, decoded, Some(&raw));
        for call in &applied.send {
            self.send(call);
        }
        if self.decoder.is_unsettled() {
            self.settle.get_or_insert(Instant::now() + SETTLE_WAIT);
        }
        if applied.turn_over {
            (self.give_up, self.settle) = (None, None);
        } else if self.decoder.retries() > RETRIES_MAX && self.give_up.is_none() {
            let failure = self.decoder.given_up();
            recorder.record(failure);
            self.abort();
        }
    }

    /// Whatever is open is closed; the turn, if one runs, is over.
    fn close(&mut self, recorder: &Recorder) {
        let left = self.decoder.close();
        apply(recorder, left, None);
        (self.give_up, self.settle) = (None, None);
    }

    /// The stream of events ended. The session is resumed with the next message.
    async fn gone(mut self, recorder: &Recorder) -> Ended {
        if self.decoder.in_turn() {
            let alive = !self.gone.is_cancelled();
            let (code, what) = match alive {
                true => ("opencode_stream", "the events of opencode stopped"),
                false => ("server_exit", "opencode serve is gone"),
            };
            recorder.record(Conversion::error(what, Some(code), None));
            if alive {
                let path = format!("/session/{}/abort?{}", self.id, self.place);
                let nothing = json!({});
                let abort = self.client.post(&path, &nothing);
                let _ = tokio::time::timeout(END_WAIT, abort).await;
            }
        }
        self.close(recorder);
        Ended::Dormant
    }

    async fn terminate(mut self, recorder: &Recorder) -> Ended {
        let until = Instant::now() + END_WAIT;
        self.interrupt();
        while self.decoder.in_turn() {
            tokio::select! {
                event = timeout_at(until, self.events.next()) => match event {
                    Ok(Some(event)) => self.event(&event, recorder),
                    Ok(None) | Err(_) => break,
                },
                Some((call, answer)) = self.calls.next() => self.answered(&call, answer, recorder),
            }
        }
        let _ = timeout_at(until, async { while self.calls.next().await.is_some() {} }).await;
        self.close(recorder);
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
            let give_up = self.give_up.unwrap_or_else(|| Instant::now() + ABORT_WAIT);
            let waiting = self.give_up.is_some();
            let settle = self.settle.unwrap_or(give_up);
            let gone = self.gone.clone();
            tokio::select! {
                order = orders.recv() => match order {
                    None | Some(Order::Terminate) => return self.terminate(&recorder).await,
                    Some(order) => self.order(order, &recorder),
                },
                event = self.events.next() => match event {
                    Some(event) => self.event(&event, &recorder),
                    None => return self.gone(&recorder).await,
                },
                Some((call, answer)) = self.calls.next() => {
                    self.answered(&call, answer, &recorder);
                }
                () = gone.cancelled() => return self.gone(&recorder).await,
                () = sleep_until(settle), if self.settle.is_some() => self.close(&recorder),
                () = sleep_until(give_up), if waiting => {
                    apply(&recorder, vec![Decoded::from(Conversion::status("abort.ignored", None))], None);
                    self.close(&recorder);
                }
            }
        }
    }
}

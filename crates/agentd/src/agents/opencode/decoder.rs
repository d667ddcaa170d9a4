//! Events of an `OpenCode` server about one session, to universal events.
//!
//! ```text
//! prompt --> user message --> busy --> parts of assistant messages ... --> messages complete --> idle
//!                              |                             (after an error or an abort: idle before that too)
//!                              | retry (again and again, until it is aborted)
//!                              | permission or question asked, and replied or dropped
//! ```
//!
//! A part is an item: text, reasoning, or a tool's call with its result. Events of other sessions are
//! ignored, but for what sessions that this one started ask the user.

use std::collections::BTreeSet;

use events::RUNTIME_EVENT;
use serde_json::{Value, json};

use super::parts::Parts;
use super::requests::Requests;
use crate::adapter::{Answer, PermissionReply};
use crate::agents::decoded::{Decoded, OPEN_MAX, detail, number, only, some_text, text};
use crate::conversion::Conversion;

/// About screens, other ways of saying the same, or nothing that a user of the session looks at.
const IGNORED: &[&str] = &[
    "command.",
    "message.removed",
    "message.part.removed",
    "permission.v2.",
    "question.v2.",
    "session.created",
    "session.deleted",
    "session.diff",
    "session.next.",
    "session.updated",
];

#[derive(Debug)]
pub(crate) struct Decoder {
    session: String,
    /// Sessions that it started.
    children: BTreeSet<String>,
    parts: Parts,
    requests: Requests,
    turn: Turn,
    /// How often the model was asked again in vain, in a row.
    retries: u64,
    last_retry: Option<String>,
}

#[derive(Debug, Default)]
struct Turn {
    /// A prompt was sent and its end has not come.
    running: bool,
    /// The server began to work on it: an idle before that is about the turn before.
    busy: bool,
    interrupted: bool,
    failed: bool,
    /// The assistant began to say something.
    answered: bool,
    /// What the user said in it; what belongs to other messages is about an earlier turn.
    prompts: BTreeSet<String>,
    /// Messages of the assistant that are not complete: an idle now is not the end. A prompt that
    /// came before it would be lost.
    writing: BTreeSet<String>,
    /// There was such an idle.
    unsettled: bool,
    usage: Usage,
}

#[derive(Debug, Default)]
struct Usage {
    input: u64,
    output: u64,
    reasoning: u64,
    cached: u64,
    cost: f64,
}

impl Decoder {
    pub(crate) fn new(session: impl Into<String>) -> Self {
        Self {
            session: session.into(),
            children: BTreeSet::new(),
            parts: Parts::default(),
            requests: Requests::default(),
            turn: Turn::default(),
            retries: 0,
            last_retry: None,
        }
    }

    /// A prompt is about to be sent.
    pub(crate) fn prompting(&mut self) {
        self.turn = Turn { running: true, ..Turn::default() };
        self.retries = 0;
    }

    /// We asked it to stop.
    pub(crate) fn interrupting(&mut self) {
        self.turn.interrupted = true;
    }

    pub(crate) fn in_turn(&self) -> bool {
        self.turn.running
    }

    /// It was idle with something incomplete, and will be again soon; or else [`Self::close`] it.
    pub(super) fn is_unsettled(&self) -> bool {
        self.turn.running && self.turn.unsettled
    }

    pub(super) fn retries(&self) -> u64 {
        self.retries
    }

    /// We give up on a model that does not answer.
    pub(super) fn given_up(&mut self) -> Conversion {
        self.turn.failed = true;
        let message = self.last_retry.take().unwrap_or_else(|| "the model does not answer".into());
        Conversion::error(message, Some("retries_exhausted"), None)
    }

    pub(crate) fn decode(&mut self, event: &Value) -> Vec<Decoded> {
        let mut out = Vec::new();
        // Some streams wrap what others send plainly.
        let event = event.get("payload").unwrap_or(event);
        let properties = event.get("properties").unwrap_or(&Value::Null);
        let kind = text(event, "type");
        let of = session_of(properties);
        self.adopt(kind, properties);
        let ours = of == self.session;
        match kind {
            "permission.asked" | "question.asked" if ours || self.children.contains(of) => {
                self.requests.asked(kind, properties, &mut out);
            }
            "permission.replied" | "question.replied" | "question.rejected" => {
                self.requests.replied(kind, properties, &mut out);
            }
            _ if ours => self.session_event(kind, properties, &mut out),
            _ => {}
        }
        out
    }

    /// What to send for a permission that was answered; nothing if it is not pending (any more).
    pub(crate) fn permit(&mut self, id: &str, reply: PermissionReply) -> Option<Value> {
        self.requests.permit(id, reply)
    }

    /// What to send for a question, once all that were asked with it have an answer.
    pub(crate) fn answer(
        &mut self,
        id: &str,
        answer: Answer,
        out: &mut Vec<Decoded>,
    ) -> Option<Value> {
        self.requests.answer(id, answer, out)
    }

    /// The server is gone, or the turn is given up: nothing stays open.
    pub(crate) fn close(&mut self) -> Vec<Decoded> {
        let mut out = Vec::new();
        self.finish(&mut out);
        out
    }

    fn session_event(&mut self, kind: &str, properties: &Value, out: &mut Vec<Decoded>) {
        match kind {
            "message.updated" => self.message(properties, out),
            "message.part.updated" => {
                let part = properties.get("part").unwrap_or(&Value::Null);
                if text(part, "type") == "step-finish" {
                    self.turn.usage.add(part);
                }
                self.parts.updated(part, text(properties, "delta"), out);
            }
            "message.part.delta" if text(properties, "field") == "text" => {
                self.parts.delta(text(properties, "partID"), text(properties, "delta"), out);
            }
            "message.part.delta" => {}
            "session.status" => self.status(properties, out),
            "session.idle" => self.idle(out),
            "session.error" => self.error(properties, out),
            "session.compacted" => out.push(Conversion::status(kind, None).into()),
            "todo.updated" => {
                let todos = only(properties, &["todos"]);
                out.push(Conversion::status(kind, detail(&todos)).into());
            }
            known if IGNORED.iter().any(|ignored| known.starts_with(ignored)) => {}
            other => out.push(Conversion::status(other, detail(properties)).into()),
        }
    }

    /// A session that one of ours started may ask the user too.
    fn adopt(&mut self, kind: &str, properties: &Value) {
        if !matches!(kind, "session.created" | "session.updated") {
            return;
        }
        let info = properties.get("info").unwrap_or(&Value::Null);
        let (id, parent) = (text(info, "id"), text(info, "parentID"));
        let known = parent == self.session || self.children.contains(parent);
        if known && !id.is_empty() && self.children.len() < OPEN_MAX {
            self.children.insert(id.to_owned());
        }
    }

    fn message(&mut self, properties: &Value, out: &mut Vec<Decoded>) {
        let info = properties.get("info").unwrap_or(&Value::Null);
        let id = text(info, "id");
        if text(info, "role") == "user" {
            if self.parts.learn_user(id) {
                self.turn.prompts.insert(id.to_owned());
            }
            return;
        }
        let parent = text(info, "parentID");
        if !self.turn.running || !(parent.is_empty() || self.turn.prompts.contains(parent)) {
            return;
        }
        self.turn.answered = true;
        let error = info.get("error").filter(|error| error.is_object());
        if error.is_some() || info.pointer("/time/completed").is_some() {
            self.turn.writing.remove(id);
        } else if self.turn.writing.len() < OPEN_MAX {
            self.turn.writing.insert(id.to_owned());
        }
        let Some(error) = error else { return };
        if text(error, "name") == "MessageAbortedError" {
            self.turn.interrupted = true;
        } else if !self.turn.failed && !self.turn.interrupted {
            self.failure(error, out);
        }
    }

    fn status(&mut self, properties: &Value, out: &mut Vec<Decoded>) {
        let status = properties.get("status").unwrap_or(&Value::Null);
        match text(status, "type") {
            "busy" => self.turn.busy = true,
            "retry" => {
                self.turn.busy = true;
                self.retries = number(status, "/attempt").max(self.retries.saturating_add(1));
                self.last_retry = some_text(status, "message").map(str::to_owned);
                let shown = only(status, &["attempt", "message"]);
                out.push(Conversion::status("retry", detail(&shown)).into());
            }
            "idle" => self.idle(out),
            _ => out.push(Conversion::status("session.status", detail(status)).into()),
        }
    }

    fn error(&mut self, properties: &Value, out: &mut Vec<Decoded>) {
        let error = properties.get("error").unwrap_or(&Value::Null);
        // It comes twice sometimes, and then the second one is after the end.
        if !self.turn.running {
            return;
        }
        if text(error, "name") == "MessageAbortedError" {
            self.turn.interrupted = true;
        } else if !self.turn.failed {
            self.failure(error, out);
        }
        // What was refused before it began has no end of its own.
        if !self.turn.busy {
            self.turn.busy = true;
            self.idle(out);
        }
    }

    fn failure(&mut self, error: &Value, out: &mut Vec<Decoded>) {
        self.turn.failed = true;
        let name = some_text(error, "name").unwrap_or("agent_error");
        let data = error.get("data").unwrap_or(&Value::Null);
        let status = number(data, "/statusCode");
        let code = if status > 0 { format!("api_error_{status}") } else { name.to_owned() };
        let message = some_text(data, "message").unwrap_or(name);
        let mut details = only(data, &["statusCode", "isRetryable", "providerID"]);
        details["name"] = name.into();
        out.push(Conversion::error(message, Some(&code), Some(details)).into());
    }

    fn idle(&mut self, out: &mut Vec<Decoded>) {
        if !self.turn.running || !self.turn.busy {
            return;
        }
        if !self.turn.writing.is_empty() {
            self.turn.unsettled = true;
            return;
        }
        // Some versions tell nobody but their own log why they did not even ask the model.
        if !(self.turn.answered || self.turn.failed || self.turn.interrupted) {
            self.turn.failed = true;
            let message = "opencode ended the turn without an answer";
            out.push(Conversion::error(message, Some("no_answer"), None).into());
        }
        self.finish(out);
    }

    fn finish(&mut self, out: &mut Vec<Decoded>) {
        let calls = self.parts.close(out);
        self.requests.withdraw_all(out);
        let turn = std::mem::take(&mut self.turn);
        if !turn.running {
            return;
        }
        if turn.usage.input.saturating_add(turn.usage.output) > 0 {
            let usage = json!({
                "type": "usage",
                "input_tokens": turn.usage.input,
                "output_tokens": turn.usage.output,
                "cached_input_tokens": turn.usage.cached,
                "reasoning_tokens": turn.usage.reasoning,
                "tool_calls": calls,
                "cost_usd": turn.usage.cost,
            });
            out.push(Conversion::status(RUNTIME_EVENT, Some(usage.to_string())).into());
        }
        let status = match (turn.failed, turn.interrupted) {
            (true, _) => "failed",
            (false, true) => "interrupted",
            (false, false) => "completed",
        };
        out.push(Decoded::TurnOver(json!({"status": status})));
    }
}

impl Usage {
    fn add(&mut self, part: &Value) {
        let of = |pointer: &str| number(part, &format!("/tokens{pointer}"));
        self.input = self.input.saturating_add(of("/input"));
        self.output = self.output.saturating_add(of("/output"));
        self.reasoning = self.reasoning.saturating_add(of("/reasoning"));
        self.cached = self.cached.saturating_add(of("/cache/read"));
        self.cost += part.get("cost").and_then(Value::as_f64).unwrap_or(0.0);
    }
}

/// Whose event it is. Older versions say it only inside.
fn session_of(properties: &Value) -> &str {
    let inside = |key: &str| properties.get(key).and_then(|one| some_text(one, "sessionID"));
    some_text(properties, "sessionID")
        .or_else(|| inside("part"))
        .or_else(|| inside("info"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;

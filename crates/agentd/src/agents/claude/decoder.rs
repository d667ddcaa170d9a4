//! Lines of Claude's stream JSON, to universal events. Amp prints the same form.
//!
//! ```text
//! message_start --> text block --> deltas --> assistant line --> message_stop   one message item
//!                   thinking   --> deltas --> assistant line                    one reasoning item
//!                   tool use   ---------------> assistant line ... user line    one call, one result
//! result: whatever is still open is closed, the turn is over
//! ```
//!
//! Without partial messages the same comes without starts and deltas; every step is optional. A
//! message of the model is one item for each run of text between its tool calls.

use std::collections::BTreeMap;

use events::{ContentPart, ItemKind, ItemRole, RUNTIME_EVENT, ReasoningVisibility};
use serde_json::{Value, json};

use super::control::Control;
use super::outcome::{error_of, usage_of, words_of};
use super::tools::Tools;
use crate::adapter::{Answer, PermissionReply};
use crate::agents::decoded::{Decoded, detail, list, number, only, some_text, text};
use crate::conversion::{Conversion, Item};

/// What a session has open. One for its life; a resumed session begins with a new one.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    /// By the call that a sub-agent works for; the main agent's is the empty one.
    open: BTreeMap<String, Message>,
    tools: Tools,
    control: Control,
    /// The program's own words on why the model did not answer.
    api_error: Option<String>,
    interrupted: bool,
}

/// A message of the model that is being written.
#[derive(Debug, Default)]
struct Message {
    id: String,
    /// Runs of text before this one.
    segment: usize,
    started: bool,
    parts: Vec<ContentPart>,
    streamed: String,
    /// Reasoning items that were begun and not completed, oldest first.
    thinking: Vec<(u64, String)>,
    thoughts: usize,
}

impl Message {
    fn item_id(&self) -> String {
        match self.segment {
            0 => self.id.clone(),
            segment => format!("{}:{}", self.id, segment + 1),
        }
    }
}

impl Decoder {
    /// Anything at all: what is not understood becomes a status.
    pub(crate) fn decode(&mut self, line: &Value) -> Vec<Decoded> {
        let mut out = Vec::new();
        match text(line, "type") {
            "system" => self.system(line, &mut out),
            "stream_event" => self.stream_event(line, &mut out),
            "assistant" => self.assistant(line, &mut out),
            "user" => self.user(line, &mut out),
            "result" => self.result(line, &mut out),
            "control_request" => {
                let call = line.pointer("/request/tool_use_id").and_then(Value::as_str);
                let input = self.tools.input(call.unwrap_or_default());
                self.control.request(line, input, &mut out);
            }
            "control_cancel_request" => self.control.cancel(text(line, "request_id"), &mut out),
            "control_response" | "keep_alive" | "tool_progress" => {}
            "" => out.push(Conversion::status("unknown", detail(line)).into()),
            other => out.push(Conversion::status(other, detail(line)).into()),
        }
        out
    }

    /// We asked it to stop: what comes now is no failure.
    pub(crate) fn interrupting(&mut self) {
        self.interrupted = true;
    }

    /// What to send for a permission that was answered; nothing if it is not pending (any more).
    pub(crate) fn permit(&mut self, id: &str, reply: PermissionReply) -> Option<Value> {
        self.control.permit(id, reply)
    }

    /// What to send for a question, once all that were asked with it have an answer.
    pub(crate) fn answer(
        &mut self,
        id: &str,
        answer: Answer,
        out: &mut Vec<Decoded>,
    ) -> Option<Value> {
        self.control.answer(id, answer, out)
    }

    /// The id under which the question of a request was asked.
    #[cfg(test)]
    pub(crate) fn question_of_request(&self, request: &str) -> Option<String> {
        self.control.question_of(request)
    }

    /// The program is gone: nothing stays open.
    pub(crate) fn close(&mut self) -> Vec<Decoded> {
        let mut out = Vec::new();
        self.close_all(&mut out);
        out
    }

    fn system(&mut self, line: &Value, out: &mut Vec<Decoded>) {
        match text(line, "subtype") {
            "init" => {
                if let Some(id) = some_text(line, "session_id") {
                    out.push(Decoded::NativeId(id.to_owned()));
                }
                let keys = ["model", "permissionMode", "cwd", "claude_code_version", "tools"];
                let metadata = Some(only(line, &keys));
                out.push(Conversion::SessionStarted { metadata }.into());
            }
            "status" => {
                if let Some(mode) = some_text(line, "permissionMode") {
                    let mode = Some(mode.to_owned());
                    out.push(Conversion::status("permission_mode", mode).into());
                }
            }
            "thinking_tokens" => {}
            "" => out.push(Conversion::status("system", detail(line)).into()),
            other => {
                let mut shown = line.clone();
                if let Some(object) = shown.as_object_mut() {
                    object.retain(|key, _| !["type", "subtype", "uuid"].contains(&key.as_str()));
                    object.remove("session_id");
                }
                out.push(Conversion::status(other, detail(&shown)).into());
            }
        }
    }

    fn stream_event(&mut self, line: &Value, out: &mut Vec<Decoded>) {
        let Some(event) = line.get("event") else { return };
        let scope = text(line, "parent_tool_use_id").to_owned();
        let index = number(event, "/index");
        match text(event, "type") {
            "message_start" => {
                let id = event.pointer("/message/id").and_then(Value::as_str).unwrap_or_default();
                self.message(&scope, id, out);
            }
            "content_block_start" => {
                let Some(message) = self.open.get_mut(&scope) else { return };
                match event.pointer("/content_block/type").and_then(Value::as_str) {
                    Some("text") => start_text(message, &scope, out),
                    Some("thinking") => {
                        start_thinking(message, &scope, index, out);
                    }
                    _ => {}
                }
            }
            "content_block_delta" => {
                let Some(message) = self.open.get_mut(&scope) else { return };
                let Some(delta) = event.get("delta") else { return };
                if let Some(words) = some_text(delta, "text") {
                    start_text(message, &scope, out);
                    message.streamed.push_str(words);
                    let (native_item_id, delta) = (message.item_id(), words.to_owned());
                    out.push(Conversion::ItemDelta { native_item_id, delta }.into());
                } else if let Some(words) = some_text(delta, "thinking") {
                    let native_item_id = start_thinking(message, &scope, index, out);
                    let delta = words.to_owned();
                    out.push(Conversion::ItemDelta { native_item_id, delta }.into());
                }
            }
            "message_stop" => self.finish(&scope, out),
            _ => {}
        }
    }

    fn assistant(&mut self, line: &Value, out: &mut Vec<Decoded>) {
        let Some(message) = line.get("message") else { return };
        let scope = text(line, "parent_tool_use_id").to_owned();
        let flag = |key: &str| line.get(key).and_then(Value::as_bool).unwrap_or(false);
        if flag("is_api_error_message")
            || flag("isApiErrorMessage")
            || (text(message, "model") == "<synthetic>" && some_text(line, "error").is_some())
        {
            self.api_error = Some(words_of(message.get("content").unwrap_or(&Value::Null)));
            return;
        }
        self.message(&scope, text(message, "id"), out);
        if let Some(words) = some_text(message, "content") {
            self.block(&scope, &json!({"type": "text", "text": words}), out);
        }
        for block in list(message, "content") {
            self.block(&scope, block, out);
        }
    }

    fn block(&mut self, scope: &str, block: &Value, out: &mut Vec<Decoded>) {
        let Some(message) = self.open.get_mut(scope) else { return };
        match text(block, "type") {
            "text" => {
                start_text(message, scope, out);
                message.parts.push(ContentPart::text(text(block, "text")));
            }
            "thinking" => {
                complete_thinking(message, scope, text(block, "thinking"), out);
            }
            "redacted_thinking" => {}
            "tool_use" | "server_tool_use" | "mcp_tool_use" => {
                let parent = message.started.then(|| message.item_id());
                finish_text(message, scope, out);
                self.tools.started(block, parent.as_deref().or(parent_of(scope)), out);
            }
            kind if kind.ends_with("_tool_result") => self.tools.ended(block, &Value::Null, out),
            _ => {
                start_text(message, scope, out);
                message.parts.push(ContentPart::Json { json: block.clone() });
            }
        }
    }

    fn user(&mut self, line: &Value, out: &mut Vec<Decoded>) {
        let scope = text(line, "parent_tool_use_id").to_owned();
        self.finish(&scope, out);
        let Some(content) = line.pointer("/message/content") else { return };
        let result = line.get("tool_use_result").unwrap_or(&Value::Null);
        for block in content.as_array().map_or(&[][..], Vec::as_slice) {
            match text(block, "type") {
                "tool_result" => self.tools.ended(block, result, out),
                "text" if text(block, "text").starts_with("[Request interrupted") => {
                    self.interrupted = true;
                }
                "text" if line.get("isSynthetic").and_then(Value::as_bool) == Some(true) => {
                    let said = Some(text(block, "text").to_owned());
                    out.push(Conversion::status("notice", said).into());
                }
                _ => {}
            }
        }
    }

    fn result(&mut self, line: &Value, out: &mut Vec<Decoded>) {
        if let Some(id) = some_text(line, "session_id") {
            out.push(Decoded::NativeId(id.to_owned()));
        }
        let calls = self.tools.take_count();
        self.close_all(out);
        let failed = line.get("is_error").and_then(Value::as_bool).unwrap_or(false);
        let stopped = std::mem::take(&mut self.interrupted)
            || text(line, "terminal_reason").starts_with("aborted");
        let api_error = self.api_error.take();
        if failed && !stopped {
            out.push(error_of(line, api_error).into());
        }
        let used = |key: &str| number(line, key) > 0;
        if used("/usage/input_tokens") || used("/usage/output_tokens") || calls > 0 {
            let usage = usage_of(line, calls);
            out.push(Conversion::status(RUNTIME_EVENT, Some(usage.to_string())).into());
        }
        let status = match (stopped, failed) {
            (true, _) => "interrupted",
            (false, true) => "failed",
            (false, false) => "completed",
        };
        let mut summary = only(line, &["stop_reason", "num_turns", "duration_ms"]);
        summary["status"] = status.into();
        out.push(Decoded::TurnOver(summary));
    }

    /// Makes a message the open one of its scope; another one there is complete.
    fn message(&mut self, scope: &str, id: &str, out: &mut Vec<Decoded>) {
        if self.open.get(scope).is_some_and(|open| open.id == id) {
            return;
        }
        self.finish(scope, out);
        // A sub-agent that never finishes leaves its message behind.
        if self.open.len() < crate::agents::decoded::OPEN_MAX {
            let message = Message { id: id.to_owned(), ..Message::default() };
            self.open.insert(scope.to_owned(), message);
        }
    }

    fn finish(&mut self, scope: &str, out: &mut Vec<Decoded>) {
        if let Some(mut message) = self.open.remove(scope) {
            finish_text(&mut message, scope, out);
            while !message.thinking.is_empty() {
                complete_thinking(&mut message, scope, "", out);
            }
        }
    }

    fn close_all(&mut self, out: &mut Vec<Decoded>) {
        let scopes: Vec<String> = self.open.keys().cloned().collect();
        scopes.iter().for_each(|scope| self.finish(scope, out));
        self.tools.close(out);
        self.control.withdraw_all(out);
    }
}

fn assistant_item(id: String, scope: &str) -> Item {
    let item = Item::new(id, ItemKind::Message, ItemRole::Assistant);
    match parent_of(scope) {
        Some(parent) => item.with_parent(parent),
        None => item,
    }
}

/// What a sub-agent says belongs to the call that it works for.
fn parent_of(scope: &str) -> Option<&str> {
    Some(scope).filter(|scope| !scope.is_empty())
}

fn start_text(message: &mut Message, scope: &str, out: &mut Vec<Decoded>) {
    if !message.started {
        message.started = true;
        out.push(assistant_item(message.item_id(), scope).started().into());
    }
}

fn finish_text(message: &mut Message, scope: &str, out: &mut Vec<Decoded>) {
    if !std::mem::take(&mut message.started) {
        return;
    }
    let streamed = std::mem::take(&mut message.streamed);
    let mut parts = std::mem::take(&mut message.parts);
    if parts.is_empty() && !streamed.is_empty() {
        parts.push(ContentPart::text(streamed));
    }
    let item = assistant_item(message.item_id(), scope).with_content(parts);
    message.segment += 1;
    out.push(item.completed().into());
}

fn start_thinking(
    message: &mut Message,
    scope: &str,
    index: u64,
    out: &mut Vec<Decoded>,
) -> String {
    if let Some((_, id)) = message.thinking.iter().find(|(at, _)| *at == index) {
        return id.clone();
    }
    message.thoughts += 1;
    let id = format!("{}:thinking:{}", message.id, message.thoughts);
    out.push(assistant_item(id.clone(), scope).started().into());
    message.thinking.push((index, id.clone()));
    id
}

fn complete_thinking(message: &mut Message, scope: &str, said: &str, out: &mut Vec<Decoded>) {
    let id = if message.thinking.is_empty() {
        start_thinking(message, scope, u64::MAX, out);
        message.thinking.remove(0).1
    } else {
        message.thinking.remove(0).1
    };
    let (text, visibility) = (said.to_owned(), ReasoningVisibility::Public);
    let content = vec![ContentPart::Reasoning { text, visibility }];
    out.push(assistant_item(id, scope).with_content(content).completed().into());
}

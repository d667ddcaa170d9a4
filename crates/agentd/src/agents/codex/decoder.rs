//! Notifications of Codex's app-server about one thread, to universal events.
//!
//! ```text
//! turn/started --> item/started --> deltas --> item/completed ... --> turn/completed
//!                        | approval asked, answered or withdrawn (serverRequest/resolved)
//! ```
//!
//! What a thread has open when its turn ends is closed as failed. Notifications that are not known become
//! statuses; those that are known to be about something else are ignored.

use events::RUNTIME_EVENT;
use serde_json::{Value, json};

use super::items::Items;
use super::requests::Requests;
use crate::adapter::{Answer, PermissionReply};
use crate::agents::decoded::{Decoded, detail, number, only, some_text, text};
use crate::conversion::Conversion;

/// About the program, the account or the screen of somebody else.
const IGNORED: &[&str] = &[
    "account/",
    "app/",
    "codex/event/",
    "deprecationNotice",
    "fs/",
    "fuzzyFileSearch/",
    "item/commandExecution/terminalInteraction",
    "item/fileChange/outputDelta",
    "item/fileChange/patchUpdated",
    "item/reasoning/summaryPartAdded",
    "mcpServer/",
    "project/",
    "remoteControl/",
    "skills/",
    "thread/archived",
    "thread/attachment/",
    "thread/closed",
    "thread/environment/",
    "thread/name/updated",
    "thread/queue/changed",
    "thread/readState/",
    "thread/section/",
    "thread/settings/",
    "thread/status/changed",
    "turn/moderationMetadata",
    "windows",
];

#[derive(Debug, Default)]
pub(crate) struct Decoder {
    items: Items,
    requests: Requests,
    usage: Usage,
    /// Of this turn: it was told already.
    error_told: bool,
    turn_id: Option<String>,
}

/// Summed up over a turn.
#[derive(Debug, Default)]
struct Usage {
    input: u64,
    output: u64,
    cached: u64,
    reasoning: u64,
}

impl Decoder {
    /// The turn that runs, as far as the program has said.
    pub(super) fn turn_id(&self) -> Option<&str> {
        self.turn_id.as_deref()
    }

    /// A message of the program that has a method: a notification, or a request if it has an id.
    pub(crate) fn decode(&mut self, message: &Value) -> Vec<Decoded> {
        let mut out = Vec::new();
        let method = text(message, "method");
        let params = message.get("params").unwrap_or(&Value::Null);
        match message.get("id").filter(|id| !id.is_null()) {
            Some(id) => self.requests.asked(id, method, params, &mut out),
            None => self.notification(method, params, &mut out),
        }
        out
    }

    fn notification(&mut self, method: &str, params: &Value, out: &mut Vec<Decoded>) {
        match method {
            "thread/started" => {
                let thread = params.get("thread").unwrap_or(&Value::Null);
                let keys = ["id", "model", "modelProvider", "cwd", "cliVersion"];
                let metadata = Some(only(thread, &keys));
                out.push(Conversion::SessionStarted { metadata }.into());
            }
            "turn/started" => self.turn_started(params, out),
            "turn/completed" => self.turn_completed(params, out),
            "item/started" => self.items.started(params, out),
            "item/completed" => self.items.completed(params, out),
            "item/agentMessage/delta"
            | "item/plan/delta"
            | "item/reasoning/textDelta"
            | "item/reasoning/summaryTextDelta" => self.items.delta(params, out),
            "item/commandExecution/outputDelta" => self.items.output_delta(params, out),
            "item/mcpToolCall/progress" => status("mcp.progress", params, out),
            "serverRequest/resolved" => self.requests.resolved(params, out),
            "error" => self.error(params, out),
            "thread/tokenUsage/updated" => self.usage.add(params),
            "turn/plan/updated" => {
                status("turn.plan.updated", &only(params, &["explanation", "plan"]), out);
            }
            "turn/diff/updated" => status("turn.diff.updated", &only(params, &["diff"]), out),
            "thread/compacted" => status("thread.compacted", &Value::Null, out),
            "warning" | "configWarning" | "guardianWarning" => {
                status("warning", &only(params, &["message", "summary", "details"]), out);
            }
            known if IGNORED.iter().any(|ignored| known.starts_with(ignored)) => {}
            "" => status("unknown", params, out),
            other => status(&other.replace('/', "."), params, out),
        }
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

    /// The program is gone: nothing stays open.
    pub(crate) fn close(&mut self) -> Vec<Decoded> {
        let mut out = Vec::new();
        self.items.close(&mut out);
        self.requests.withdraw_all(&mut out);
        self.turn_id = None;
        out
    }

    fn turn_started(&mut self, params: &Value, out: &mut Vec<Decoded>) {
        let turn = params.get("turn").unwrap_or(&Value::Null);
        self.turn_id = some_text(turn, "id").map(str::to_owned);
        self.error_told = false;
        self.usage = Usage::default();
        status("turn.started", &only(turn, &["id"]), out);
    }

    fn turn_completed(&mut self, params: &Value, out: &mut Vec<Decoded>) {
        let turn = params.get("turn").unwrap_or(&Value::Null);
        let calls = self.items.take_count();
        out.extend(self.close());
        let failed = text(turn, "status") == "failed";
        if failed && !self.error_told {
            out.push(error_of(turn.get("error").unwrap_or(&Value::Null)).into());
        }
        self.error_told = false;
        let usage = std::mem::take(&mut self.usage);
        if usage.input.saturating_add(usage.output) > 0 {
            let usage = json!({
                "type": "usage",
                "input_tokens": usage.input,
                "output_tokens": usage.output,
                "cached_input_tokens": usage.cached,
                "reasoning_tokens": usage.reasoning,
                "tool_calls": calls,
            });
            out.push(Conversion::status(RUNTIME_EVENT, Some(usage.to_string())).into());
        }
        let mut summary = json!({"status": some_text(turn, "status").unwrap_or("completed")});
        if let Some(took) = turn.get("durationMs").and_then(Value::as_u64) {
            summary["duration_ms"] = took.into();
        }
        out.push(Decoded::TurnOver(summary));
    }

    fn error(&mut self, params: &Value, out: &mut Vec<Decoded>) {
        let error = params.get("error").unwrap_or(&Value::Null);
        if params.get("willRetry").and_then(Value::as_bool) == Some(true) {
            status("error.retry", error, out);
            return;
        }
        self.error_told = true;
        out.push(error_of(error).into());
    }
}

impl Usage {
    /// What the last call of the model used.
    fn add(&mut self, params: &Value) {
        let of = |key: &str| number(params, &format!("/tokenUsage/last/{key}"));
        self.input = self.input.saturating_add(of("inputTokens"));
        self.output = self.output.saturating_add(of("outputTokens"));
        self.cached = self.cached.saturating_add(of("cachedInputTokens"));
        self.reasoning = self.reasoning.saturating_add(of("reasoningOutputTokens"));
    }
}

fn status(label: &str, value: &Value, out: &mut Vec<Decoded>) {
    out.push(Conversion::status(label, detail(value)).into());
}

fn error_of(error: &Value) -> Conversion {
    let message = some_text(error, "message").unwrap_or("the turn failed");
    let info = error.get("codexErrorInfo").unwrap_or(&Value::Null);
    let code = match info {
        Value::String(code) => code.clone(),
        Value::Object(object) => object.keys().next().cloned().unwrap_or_default(),
        _ => String::new(),
    };
    let code = if code.is_empty() { "agent_error" } else { &code };
    let details = only(error, &["codexErrorInfo", "additionalDetails"]);
    Conversion::error(message, Some(code), Some(details))
}

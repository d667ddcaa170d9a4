//! Chat Completions, streamed: `DeepSeek`'s own format, and that of most gateways.

use http::{HeaderName, HeaderValue, header};
use serde_json::{Value, json};

use super::answer::{Answer, Builder, Piece, Stop, list, number, text};
use super::endpoint::{Endpoint, Vendor};
use super::refusal::is_context_full;
use super::sse::Event;
use super::{Block, Message, Request};
use crate::fault::Fault;

/// The most that `DeepSeek` takes for its smaller model.
const DEEPSEEK_OUTPUT_MAX: u64 = 8_192;

pub(super) fn headers(endpoint: &Endpoint) -> Vec<(HeaderName, HeaderValue)> {
    vec![(header::AUTHORIZATION, endpoint.key.bearer())]
}

pub(super) fn body(endpoint: &Endpoint, request: &Request<'_>) -> Value {
    let tools: Vec<Value> = request
        .tools
        .iter()
        .map(|tool| {
            json!({"type": "function", "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
            }})
        })
        .collect();
    let deepseek = endpoint.vendor == Vendor::DeepSeek;
    let mut messages = vec![json!({"role": "system", "content": request.system})];
    messages.extend(request.messages.iter().flat_map(|one| message(one, deepseek)));
    let mut body = json!({
        "model": endpoint.model,
        "messages": messages,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    if !tools.is_empty() {
        body["tools"] = tools.into();
    }
    if deepseek {
        // Others disagree about the name of it, and have sane defaults.
        body["max_tokens"] = request.output_tokens.min(DEEPSEEK_OUTPUT_MAX).into();
        if endpoint.effort.is_some() {
            body["thinking"] = json!({"type": "enabled"});
        }
    } else if let Some(effort) = endpoint.effort {
        body["reasoning_effort"] = effort.as_str().into();
    }
    body
}

fn message(message: &Message, deepseek: bool) -> Vec<Value> {
    match message {
        Message::User { text } => vec![json!({"role": "user", "content": text})],
        Message::Assistant { blocks } => vec![assistant(blocks, deepseek)],
        Message::Results { results } => results
            .iter()
            .map(|one| json!({"role": "tool", "tool_call_id": one.id, "content": one.output}))
            .collect(),
    }
}

fn assistant(blocks: &[Block], deepseek: bool) -> Value {
    let (mut said, mut thought, mut calls) = (String::new(), String::new(), Vec::new());
    for block in blocks {
        match block {
            Block::Text { text } => said.push_str(text),
            Block::Thinking { text, .. } => thought.push_str(text),
            Block::Call { call } => calls.push(json!({
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.object().to_string()},
            })),
        }
    }
    let mut message = json!({"role": "assistant", "content": said});
    // It wants its thoughts back for as long as it makes calls.
    if deepseek && !thought.is_empty() && !calls.is_empty() {
        message["reasoning_content"] = thought.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    message
}

#[derive(Debug, Default)]
pub(super) struct Decoder {
    builder: Builder,
    over: bool,
}

impl Decoder {
    pub(super) fn event(&mut self, event: &Event, out: &mut Vec<Piece>) -> Result<(), Fault> {
        if event.data.trim() == "[DONE]" {
            self.over = true;
            return Ok(());
        }
        let value: Value = serde_json::from_str(&event.data)
            .map_err(|error| Fault::Garbage(format!("an event is not JSON: {error}")))?;
        if let Some(error) = value.get("error").filter(|error| !error.is_null()) {
            return Err(failure(error));
        }
        if value.get("usage").is_some_and(Value::is_object) {
            self.usage(&value);
        }
        let Some(choice) = list(&value, "choices").first() else { return Ok(()) };
        let delta = &choice["delta"];
        for key in ["reasoning_content", "reasoning"] {
            self.builder.thinking(text(delta, key), out)?;
        }
        self.builder.text(text(delta, "content"), out)?;
        self.builder.text(text(delta, "refusal"), out)?;
        for call in list(delta, "tool_calls") {
            self.call(call)?;
        }
        match choice.get("finish_reason").and_then(Value::as_str) {
            None => return Ok(()),
            Some("length") => self.builder.stop(Stop::Length),
            Some("content_filter") => self.builder.stop(Stop::Refused),
            Some("insufficient_system_resource") => {
                let message = "insufficient_system_resource".to_owned();
                return Err(Fault::Failed { message, passing: true });
            }
            Some(_) => {}
        }
        self.over = true;
        Ok(())
    }

    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    pub(super) fn end(self) -> Result<Answer, Fault> {
        if self.over { Ok(self.builder.finish()) } else { Err(Fault::Cut) }
    }

    fn call(&mut self, call: &Value) -> Result<(), Fault> {
        let key = number(call, "/index");
        let function = &call["function"];
        if !self.builder.has_call(key) {
            self.builder.call(key, text(call, "id"), text(function, "name"))?;
        }
        self.builder.arguments(key, text(function, "arguments"))
    }

    fn usage(&mut self, value: &Value) {
        let usage = self.builder.usage();
        usage.input = number(value, "/usage/prompt_tokens");
        usage.output = number(value, "/usage/completion_tokens");
        usage.cached = number(value, "/usage/prompt_tokens_details/cached_tokens")
            .max(number(value, "/usage/prompt_cache_hit_tokens"));
        usage.reasoning = number(value, "/usage/completion_tokens_details/reasoning_tokens");
    }
}

fn failure(error: &Value) -> Fault {
    let code = error.get("code").map(|code| match code {
        Value::String(code) => code.clone(),
        other => other.to_string(),
    });
    let message = match error {
        Value::String(said) => said.clone(),
        _ => format!("{}: {}", code.clone().unwrap_or_default(), text(error, "message")),
    };
    if is_context_full(&message) {
        return Fault::ContextFull { message };
    }
    let passing = code.is_some_and(|code| {
        matches!(code.as_str(), "server_error" | "overloaded" | "429" | "500" | "502" | "503")
    });
    Fault::Failed { message, passing }
}

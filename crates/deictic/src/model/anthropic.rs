//! The Messages API of Anthropic, streamed.

use http::{HeaderName, HeaderValue};
use serde_json::{Value, json};

use super::answer::{Answer, Builder, Piece, Stop, number, text};
use super::endpoint::Endpoint;
use super::sse::Event;
use super::{Block, CallResult, Message, Request};
use crate::fault::Fault;

const VERSION: &str = "2023-06-01";

pub(super) fn headers(endpoint: &Endpoint) -> Vec<(HeaderName, HeaderValue)> {
    vec![
        (HeaderName::from_static("x-api-key"), endpoint.key.value()),
        (HeaderName::from_static("anthropic-version"), HeaderValue::from_static(VERSION)),
    ]
}

pub(super) fn body(endpoint: &Endpoint, request: &Request<'_>) -> Value {
    let tools: Vec<Value> = request
        .tools
        .iter()
        .map(|tool| {
            json!({
                "name": tool.name,
                "description": tool.description,
                "input_schema": tool.parameters,
            })
        })
        .collect();
    let mut messages: Vec<Value> = request.messages.iter().map(message).collect();
    remember(messages.last_mut().and_then(|last| last["content"].as_array_mut()));
    let mut system = vec![json!({"type": "text", "text": request.system})];
    remember(Some(&mut system));
    let mut body = json!({
        "model": endpoint.model,
        "max_tokens": request.output_tokens,
        "system": system,
        "messages": messages,
        "stream": true,
    });
    if !tools.is_empty() {
        body["tools"] = tools.into();
    }
    if let Some(effort) = endpoint.effort {
        // The budget is part of what it may say.
        let budget = effort.budget();
        body["thinking"] = json!({"type": "enabled", "budget_tokens": budget});
        body["max_tokens"] = (request.output_tokens + budget).into();
    }
    body
}

/// What comes before is the same next time, and cheaper if the vendor keeps it.
fn remember(blocks: Option<&mut Vec<Value>>) {
    if let Some(last) = blocks.and_then(|blocks| blocks.last_mut())
        && matches!(text(last, "type"), "text" | "tool_result")
    {
        last["cache_control"] = json!({"type": "ephemeral"});
    }
}

fn message(message: &Message) -> Value {
    match message {
        Message::User { text } => {
            json!({"role": "user", "content": [{"type": "text", "text": text}]})
        }
        Message::Assistant { blocks } => {
            let blocks: Vec<Value> = blocks.iter().filter_map(block).collect();
            json!({"role": "assistant", "content": blocks})
        }
        Message::Results { results } => {
            let blocks: Vec<Value> = results.iter().map(result).collect();
            json!({"role": "user", "content": blocks})
        }
    }
}

fn block(block: &Block) -> Option<Value> {
    match block {
        // It refuses texts without any.
        Block::Text { text } if text.trim().is_empty() => None,
        Block::Text { text } => Some(json!({"type": "text", "text": text})),
        Block::Thinking { text, token } => {
            let token = token.as_ref()?;
            if let Some(data) = token.get("redacted") {
                return Some(json!({"type": "redacted_thinking", "data": data}));
            }
            Some(json!({"type": "thinking", "thinking": text, "signature": token}))
        }
        Block::Call { call } => Some(
            json!({"type": "tool_use", "id": call.id, "name": call.name, "input": call.object()}),
        ),
    }
}

fn result(result: &CallResult) -> Value {
    // Nothing at all is refused.
    let output = if result.output.is_empty() { "(no output)" } else { &result.output };
    json!({
        "type": "tool_result",
        "tool_use_id": result.id,
        "content": output,
        "is_error": result.failed,
    })
}

#[derive(Debug, Default)]
pub(super) struct Decoder {
    builder: Builder,
    over: bool,
}

impl Decoder {
    pub(super) fn event(&mut self, event: &Event, out: &mut Vec<Piece>) -> Result<(), Fault> {
        let value: Value = serde_json::from_str(&event.data)
            .map_err(|error| Fault::Garbage(format!("an event is not JSON: {error}")))?;
        let index = number(&value, "/index");
        match text(&value, "type") {
            "message_start" => self.usage(&value["message"]),
            "content_block_start" => self.block(index, &value["content_block"], out)?,
            "content_block_delta" => self.delta(index, &value["delta"], out)?,
            "message_delta" => {
                self.usage(&value);
                self.stopped(value.pointer("/delta/stop_reason").and_then(Value::as_str));
            }
            "message_stop" => self.over = true,
            "error" => return Err(failure(&value["error"])),
            // Ends of blocks, signs of life, and what is not known yet.
            _ => {}
        }
        Ok(())
    }

    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    pub(super) fn end(self) -> Result<Answer, Fault> {
        if self.over { Ok(self.builder.finish()) } else { Err(Fault::Cut) }
    }

    fn block(&mut self, index: u64, block: &Value, out: &mut Vec<Piece>) -> Result<(), Fault> {
        match text(block, "type") {
            "text" => self.builder.text(text(block, "text"), out),
            "thinking" => self.builder.thinking(text(block, "thinking"), out),
            "redacted_thinking" => self.builder.thinking_token(json!({"redacted": block["data"]})),
            "tool_use" => {
                self.builder.call(index, text(block, "id"), text(block, "name"))?;
                match &block["input"] {
                    Value::Object(input) if !input.is_empty() => {
                        self.builder.set_arguments(index, &block["input"].to_string())
                    }
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    fn delta(&mut self, index: u64, delta: &Value, out: &mut Vec<Piece>) -> Result<(), Fault> {
        match text(delta, "type") {
            "text_delta" => self.builder.text(text(delta, "text"), out),
            "thinking_delta" => self.builder.thinking(text(delta, "thinking"), out),
            "signature_delta" => self.builder.thinking_token(text(delta, "signature").into()),
            "input_json_delta" => self.builder.arguments(index, text(delta, "partial_json")),
            _ => Ok(()),
        }
    }

    /// The numbers are running totals; a later one replaces an earlier one.
    fn usage(&mut self, of: &Value) {
        let usage = self.builder.usage();
        let cached = number(of, "/usage/cache_read_input_tokens");
        let input = number(of, "/usage/input_tokens")
            .saturating_add(cached)
            .saturating_add(number(of, "/usage/cache_creation_input_tokens"));
        if input > 0 {
            usage.input = input;
            usage.cached = cached;
        }
        usage.output = usage.output.max(number(of, "/usage/output_tokens"));
    }

    fn stopped(&mut self, reason: Option<&str>) {
        match reason {
            Some("max_tokens") => self.builder.stop(Stop::Length),
            Some("refusal") => self.builder.stop(Stop::Refused),
            Some("model_context_window_exceeded") => self.builder.stop(Stop::ContextFull),
            _ => {}
        }
    }
}

fn failure(error: &Value) -> Fault {
    let kind = text(error, "type");
    let passing = matches!(kind, "overloaded_error" | "api_error" | "rate_limit_error");
    Fault::Failed { message: format!("{kind}: {}", text(error, "message")), passing }
}

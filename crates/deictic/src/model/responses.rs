//! The Responses API of `OpenAI`, streamed and without being stored there.

use http::{HeaderName, HeaderValue, header};
use serde_json::{Value, json};

use super::answer::{Answer, Builder, Piece, Stop, list, number, text};
use super::endpoint::Endpoint;
use super::refusal::is_context_full;
use super::sse::Event;
use super::{Block, Message, Request};
use crate::fault::Fault;

pub(super) fn headers(endpoint: &Endpoint) -> Vec<(HeaderName, HeaderValue)> {
    vec![(header::AUTHORIZATION, endpoint.key.bearer())]
}

pub(super) fn body(endpoint: &Endpoint, request: &Request<'_>) -> Value {
    let tools: Vec<Value> = request
        .tools
        .iter()
        .map(|tool| {
            json!({
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
                "strict": false,
            })
        })
        .collect();
    let input: Vec<Value> = request.messages.iter().flat_map(items).collect();
    let mut body = json!({
        "model": endpoint.model,
        "instructions": request.system,
        "input": input,
        "max_output_tokens": request.output_tokens,
        "store": false,
        "stream": true,
    });
    if !tools.is_empty() {
        body["tools"] = tools.into();
    }
    // Models that do not reason refuse both.
    if endpoint.effort.is_some() || reasons(&endpoint.model) {
        body["include"] = json!(["reasoning.encrypted_content"]);
        body["reasoning"] = json!({"summary": "auto"});
    }
    if let Some(effort) = endpoint.effort {
        body["reasoning"]["effort"] = effort.as_str().into();
        body["max_output_tokens"] = (request.output_tokens + effort.budget()).into();
    }
    body
}

fn reasons(model: &str) -> bool {
    ["o1", "o3", "o4", "gpt-5", "codex"].iter().any(|prefix| model.starts_with(prefix))
        && !model.contains("chat")
}

fn items(message: &Message) -> Vec<Value> {
    match message {
        Message::User { text } => vec![json!({
            "type": "message", "role": "user",
            "content": [{"type": "input_text", "text": text}],
        })],
        Message::Assistant { blocks } => blocks.iter().filter_map(item).collect(),
        Message::Results { results } => results
            .iter()
            .map(|result| {
                json!({
                    "type": "function_call_output",
                    "call_id": result.id,
                    "output": result.output,
                })
            })
            .collect(),
    }
}

fn item(block: &Block) -> Option<Value> {
    match block {
        Block::Text { text } => Some(json!({
            "type": "message", "role": "assistant",
            "content": [{"type": "output_text", "text": text, "annotations": []}],
        })),
        // As it came, or not at all: it cannot be made up.
        Block::Thinking { token, .. } => token.clone(),
        Block::Call { call } => Some(json!({
            "type": "function_call",
            "call_id": call.id,
            "name": call.name,
            "arguments": call.object().to_string(),
        })),
    }
}

#[derive(Debug, Default)]
pub(super) struct Decoder {
    builder: Builder,
    /// Of the message that is being said.
    streamed: usize,
    over: bool,
}

impl Decoder {
    pub(super) fn event(&mut self, event: &Event, out: &mut Vec<Piece>) -> Result<(), Fault> {
        if event.data == "[DONE]" {
            return Ok(());
        }
        let value: Value = serde_json::from_str(&event.data)
            .map_err(|error| Fault::Garbage(format!("an event is not JSON: {error}")))?;
        match text(&value, "type") {
            "response.output_text.delta" | "response.refusal.delta" => {
                self.streamed += text(&value, "delta").len();
                self.builder.text(text(&value, "delta"), out)?;
            }
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                self.builder.thinking(text(&value, "delta"), out)?;
            }
            "response.output_item.done" => {
                let index = number(&value, "/output_index");
                self.item(index, &value["item"], out)?;
            }
            "response.completed" | "response.incomplete" => {
                self.over = true;
                self.finished(&value["response"]);
            }
            "response.failed" => return Err(failure(&value["response"]["error"])),
            "error" => {
                // Either in the event or below it.
                let inner = value.get("error").filter(|error| error.is_object());
                return Err(failure(inner.unwrap_or(&value)));
            }
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

    fn item(&mut self, index: u64, item: &Value, out: &mut Vec<Piece>) -> Result<(), Fault> {
        match text(item, "type") {
            "message" => {
                let streamed = std::mem::take(&mut self.streamed);
                // Some gateways send no deltas.
                for part in list(item, "content").iter().filter(|_| streamed == 0) {
                    self.builder.text(text(part, "text"), out)?;
                    self.builder.text(text(part, "refusal"), out)?;
                }
            }
            "function_call" => {
                self.builder.call(index, text(item, "call_id"), text(item, "name"))?;
                self.builder.set_arguments(index, text(item, "arguments"))?;
            }
            // Only what can be given back without being stored is kept.
            "reasoning" if item.get("encrypted_content").is_some_and(Value::is_string) => {
                self.builder.thinking_token(json!({
                    "type": "reasoning",
                    "id": item["id"],
                    "summary": item["summary"],
                    "encrypted_content": item["encrypted_content"],
                }))?;
            }
            _ => {}
        }
        Ok(())
    }

    fn finished(&mut self, response: &Value) {
        let usage = self.builder.usage();
        usage.input = number(response, "/usage/input_tokens");
        usage.output = number(response, "/usage/output_tokens");
        usage.cached = number(response, "/usage/input_tokens_details/cached_tokens");
        usage.reasoning = number(response, "/usage/output_tokens_details/reasoning_tokens");
        match response.pointer("/incomplete_details/reason").and_then(Value::as_str) {
            Some("max_output_tokens") => self.builder.stop(Stop::Length),
            Some("content_filter") => self.builder.stop(Stop::Refused),
            _ => {}
        }
    }
}

fn failure(error: &Value) -> Fault {
    let (code, said) = (text(error, "code"), text(error, "message"));
    let message = format!("{code}: {said}");
    if is_context_full(&message) {
        return Fault::ContextFull { message };
    }
    let passing = matches!(code, "server_error" | "rate_limit_exceeded" | "overloaded");
    Fault::Failed { message, passing }
}

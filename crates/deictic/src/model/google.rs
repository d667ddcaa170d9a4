//! `streamGenerateContent` of Google's Gemini API, as server-sent events.

use http::{HeaderName, HeaderValue};
use serde_json::{Value, json};

use super::answer::{Answer, Builder, Piece, Stop, list, number, text};
use super::endpoint::Endpoint;
use super::refusal::is_context_full;
use super::sse::Event;
use super::{Block, Call, CallResult, Message, Request};
use crate::fault::Fault;

pub(super) fn headers(endpoint: &Endpoint) -> Vec<(HeaderName, HeaderValue)> {
    vec![(HeaderName::from_static("x-goog-api-key"), endpoint.key.value())]
}

pub(super) fn body(endpoint: &Endpoint, request: &Request<'_>) -> Value {
    let tools: Vec<Value> = request
        .tools
        .iter()
        .map(|tool| {
            json!({
                "name": tool.name,
                "description": tool.description,
                "parametersJsonSchema": tool.parameters,
            })
        })
        .collect();
    let contents: Vec<Value> = request.messages.iter().map(content).collect();
    let mut body = json!({
        "systemInstruction": {"parts": [{"text": request.system}]},
        "contents": contents,
        "generationConfig": {"maxOutputTokens": request.output_tokens},
    });
    if !tools.is_empty() {
        body["tools"] = json!([{ "functionDeclarations": tools }]);
    }
    if let Some(effort) = endpoint.effort {
        let budget = effort.budget();
        body["generationConfig"]["maxOutputTokens"] = (request.output_tokens + budget).into();
        body["generationConfig"]["thinkingConfig"] =
            json!({"includeThoughts": true, "thinkingBudget": budget});
    }
    body
}

fn content(message: &Message) -> Value {
    match message {
        Message::User { text } => json!({"role": "user", "parts": [{"text": text}]}),
        Message::Assistant { blocks } => {
            let parts: Vec<Value> = blocks.iter().filter_map(part).collect();
            json!({"role": "model", "parts": parts})
        }
        Message::Results { results } => {
            let parts: Vec<Value> = results.iter().map(response).collect();
            json!({"role": "user", "parts": parts})
        }
    }
}

fn part(block: &Block) -> Option<Value> {
    match block {
        Block::Text { text } => Some(json!({"text": text})),
        // A thought is not given back; the signature that came alone is.
        Block::Thinking { token, .. } => {
            token.as_ref().map(|token| json!({"text": "", "thoughtSignature": token}))
        }
        Block::Call { call } => {
            let Call { name, token, .. } = call;
            let mut part = json!({"functionCall": {"name": name, "args": call.object()}});
            if let Some(token) = token {
                part["thoughtSignature"] = token.clone();
            }
            Some(part)
        }
    }
}

fn response(result: &CallResult) -> Value {
    let key = if result.failed { "error" } else { "output" };
    json!({"functionResponse": {"name": result.name, "response": {key: result.output}}})
}

#[derive(Debug, Default)]
pub(super) struct Decoder {
    builder: Builder,
    calls: u64,
    over: bool,
}

impl Decoder {
    pub(super) fn event(&mut self, event: &Event, out: &mut Vec<Piece>) -> Result<(), Fault> {
        let value: Value = serde_json::from_str(&event.data)
            .map_err(|error| Fault::Garbage(format!("an event is not JSON: {error}")))?;
        if let Some(error) = value.get("error").filter(|error| error.is_object()) {
            return Err(failure(error));
        }
        if value.get("usageMetadata").is_some() {
            self.usage(&value);
        }
        if value.pointer("/promptFeedback/blockReason").is_some() {
            self.builder.stop(Stop::Refused);
            self.over = true;
        }
        let Some(candidate) = list(&value, "candidates").first() else { return Ok(()) };
        for part in list(&candidate["content"], "parts") {
            self.part(part, out)?;
        }
        match candidate.get("finishReason").and_then(Value::as_str) {
            None => return Ok(()),
            Some("STOP" | "FINISH_REASON_UNSPECIFIED") => {}
            Some("MAX_TOKENS") => self.builder.stop(Stop::Length),
            Some(reason @ ("MALFORMED_FUNCTION_CALL" | "UNEXPECTED_TOOL_CALL")) => {
                return Err(Fault::Failed { message: reason.to_owned(), passing: true });
            }
            Some(_) => self.builder.stop(Stop::Refused),
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

    fn part(&mut self, part: &Value, out: &mut Vec<Piece>) -> Result<(), Fault> {
        let signature = part.get("thoughtSignature").filter(|token| token.is_string());
        if let Some(call) = part.get("functionCall") {
            self.calls += 1;
            self.builder.call(self.calls, text(call, "id"), text(call, "name"))?;
            let arguments = call.get("args").map(Value::to_string).unwrap_or_default();
            self.builder.set_arguments(self.calls, &arguments)?;
            if let Some(signature) = signature {
                self.builder.call_token(self.calls, signature.clone())?;
            }
            return Ok(());
        }
        if part.get("thought").and_then(Value::as_bool) == Some(true) {
            return self.builder.thinking(text(part, "text"), out);
        }
        self.builder.text(text(part, "text"), out)?;
        match signature {
            Some(signature) => self.builder.thinking_token(signature.clone()),
            None => Ok(()),
        }
    }

    fn usage(&mut self, value: &Value) {
        let usage = self.builder.usage();
        let reasoning = number(value, "/usageMetadata/thoughtsTokenCount");
        usage.input = number(value, "/usageMetadata/promptTokenCount");
        usage.output =
            number(value, "/usageMetadata/candidatesTokenCount").saturating_add(reasoning);
        usage.cached = number(value, "/usageMetadata/cachedContentTokenCount");
        usage.reasoning = reasoning;
    }
}

fn failure(error: &Value) -> Fault {
    let message = format!("{}: {}", text(error, "status"), text(error, "message"));
    if is_context_full(&message) {
        return Fault::ContextFull { message };
    }
    let passing = matches!(number(error, "/code"), 429 | 500..=599);
    Fault::Failed { message, passing }
}

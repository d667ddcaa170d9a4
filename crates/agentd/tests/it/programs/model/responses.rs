//! The Responses API, streamed.

use std::time::Duration;

use axum::http::{HeaderMap, header};
use axum::response::Response;
use serde_json::{Value, json};

use super::{Dialogue, Model, Outcome, Piece, Reply, list, refuse, stream_of, text, texts};

pub(super) fn answer(model: &Model, headers: &HeaderMap, request: &Value) -> Response {
    model.check_key((headers, request), header::AUTHORIZATION, "Bearer ");
    if request["stream"] != true {
        model.fault("a request that is not for a stream");
    }
    match read(model, request).outcome() {
        Outcome::Error(status) => refuse(status),
        Outcome::Reply(reply) => stream_of(Writer::new(model, request).write(reply)),
    }
}

fn read(model: &Model, request: &Value) -> Dialogue {
    let mut dialogue = Dialogue::default();
    let names = list(request, "tools").map(|tool| text(tool, "name").to_owned());
    dialogue.tools.extend(names);
    for item in list(request, "input") {
        match (text(item, "type"), text(item, "role")) {
            ("message" | "", "user") => dialogue.user(&texts(&item["content"])),
            (kind, _) if kind.ends_with("_output") => {
                model.check_result(text(item, "call_id"));
                dialogue.results.push(texts(&item["output"]));
            }
            _ => {}
        }
    }
    dialogue
}

struct Writer<'a> {
    model: &'a Model,
    pieces: Vec<Piece>,
    response: Value,
    output: Vec<Value>,
}

impl<'a> Writer<'a> {
    fn new(model: &'a Model, request: &Value) -> Self {
        let response = json!({
            "id": model.id("resp_"), "object": "response", "created_at": 1, "model": request["model"],
            "status": "in_progress", "output": [], "usage": null, "error": null,
        });
        Self { model, pieces: Vec::new(), response, output: Vec::new() }
    }

    fn send(&mut self, pause: Duration, kind: &str, mut event: Value) {
        event["type"] = kind.into();
        event["sequence_number"] = self.pieces.len().into();
        self.pieces.push((pause, format!("event: {kind}\ndata: {event}\n\n")));
    }

    fn write(mut self, reply: Reply) -> Vec<Piece> {
        let now = Duration::ZERO;
        let response = self.response.clone();
        self.send(now, "response.created", json!({"response": response}));
        if let Some(thought) = reply.thinking {
            self.reasoning(&thought);
        }
        if !reply.pieces.is_empty() {
            self.message(&reply.pieces, reply.pause);
        }
        for (name, arguments) in reply.calls {
            self.call(&name, &arguments);
        }
        let mut response = self.response.clone();
        response["status"] = "completed".into();
        response["output"] = Value::Array(self.output.clone());
        response["usage"] = json!({
            "input_tokens": 10, "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 7, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 17,
        });
        self.send(now, "response.completed", json!({"response": response}));
        self.pieces
    }

    fn reasoning(&mut self, thought: &str) {
        let (now, id, at) = (Duration::ZERO, self.model.id("rs_"), self.output.len());
        let empty = json!({"type": "reasoning", "id": id, "summary": []});
        self.send(now, "response.output_item.added", json!({"output_index": at, "item": empty}));
        let about = json!({"item_id": id, "output_index": at, "summary_index": 0});
        let with = |key: &str, value: Value| {
            let mut event = about.clone();
            event[key] = value;
            event
        };
        let part = json!({"type": "summary_text", "text": ""});
        self.send(now, "response.reasoning_summary_part.added", with("part", part));
        let delta = with("delta", thought.into());
        self.send(now, "response.reasoning_summary_text.delta", delta);
        let done = with("text", thought.into());
        self.send(now, "response.reasoning_summary_text.done", done);
        let summary = json!([{"type": "summary_text", "text": thought}]);
        self.done(
            json!({"type": "reasoning", "id": id, "summary": summary, "encrypted_content": "eA=="}),
        );
    }

    fn message(&mut self, pieces: &[String], pause: Duration) {
        let (now, id, at) = (Duration::ZERO, self.model.id("msg_"), self.output.len());
        let empty = json!({
            "type": "message", "id": id, "role": "assistant", "status": "in_progress", "content": [],
        });
        self.send(now, "response.output_item.added", json!({"output_index": at, "item": empty}));
        for piece in pieces {
            let delta = json!({
                "item_id": id, "output_index": at, "content_index": 0, "delta": piece,
            });
            self.send(pause, "response.output_text.delta", delta);
        }
        let content = json!([{"type": "output_text", "text": pieces.concat(), "annotations": []}]);
        self.done(json!({
            "type": "message", "id": id, "role": "assistant", "status": "completed", "content": content,
        }));
    }

    fn call(&mut self, name: &str, arguments: &Value) {
        let (id, call_id) = (self.model.id("fc_"), self.model.call_id("call_"));
        self.done(json!({
            "type": "function_call", "id": id, "call_id": call_id, "name": name,
            "arguments": arguments.to_string(), "status": "completed",
        }));
    }

    fn done(&mut self, item: Value) {
        let at = self.output.len();
        let event = json!({"output_index": at, "item": item});
        self.send(Duration::ZERO, "response.output_item.done", event);
        self.output.push(item);
    }
}

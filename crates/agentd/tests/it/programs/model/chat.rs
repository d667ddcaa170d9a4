//! Chat Completions, streamed.

use std::time::Duration;

use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

use super::{Dialogue, Model, Outcome, Piece, Reply, list, refuse, stream_of, text, texts};

pub(super) fn answer(model: &Model, headers: &HeaderMap, request: &Value) -> Response {
    model.check_key((headers, request), header::AUTHORIZATION, "Bearer ");
    let dialogue = read(model, request);
    let reply = match dialogue.outcome() {
        Outcome::Error(status) => return refuse(status),
        Outcome::Reply(reply) => reply,
    };
    if request["stream"] == true {
        return stream_of(write(model, request, reply));
    }
    let message = json!({"role": "assistant", "content": reply.pieces.concat()});
    axum::Json(json!({
        "id": model.id("chat_"), "object": "chat.completion", "created": 1, "model": request["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 7, "total_tokens": 17},
    }))
    .into_response()
}

fn read(model: &Model, request: &Value) -> Dialogue {
    let mut dialogue = Dialogue::default();
    let names = list(request, "tools").map(|tool| text(&tool["function"], "name").to_owned());
    dialogue.tools.extend(names);
    for message in list(request, "messages") {
        match text(message, "role") {
            "user" => dialogue.user(&texts(&message["content"])),
            "tool" => {
                model.check_result(text(message, "tool_call_id"));
                dialogue.results.push(texts(&message["content"]));
            }
            _ => {}
        }
    }
    dialogue
}

fn write(model: &Model, request: &Value, reply: Reply) -> Vec<Piece> {
    let id = model.id("chat_");
    let mut pieces = Vec::new();
    let mut send = |pause: Duration, choices: Value, usage: Value| {
        let chunk = json!({
            "id": id, "object": "chat.completion.chunk", "created": 1, "model": request["model"],
            "choices": choices, "usage": usage,
        });
        pieces.push((pause, format!("data: {chunk}\n\n")));
    };
    let choice = |delta: Value| json!([{"index": 0, "delta": delta, "finish_reason": null}]);
    let now = Duration::ZERO;
    send(now, choice(json!({"role": "assistant", "content": ""})), Value::Null);
    if let Some(thought) = reply.thinking {
        send(now, choice(json!({"reasoning_content": thought})), Value::Null);
    }
    for text in reply.pieces {
        send(reply.pause, choice(json!({"content": text})), Value::Null);
    }
    let stop = if reply.calls.is_empty() { "stop" } else { "tool_calls" };
    for (index, (name, arguments)) in reply.calls.into_iter().enumerate() {
        let function = json!({"name": name, "arguments": arguments.to_string()});
        let id = model.call_id("call_");
        let call = json!({"index": index, "id": id, "type": "function", "function": function});
        send(now, choice(json!({"tool_calls": [call]})), Value::Null);
    }
    send(now, json!([{"index": 0, "delta": {}, "finish_reason": stop}]), Value::Null);
    let usage = json!({"prompt_tokens": 10, "completion_tokens": 7, "total_tokens": 17});
    send(now, json!([]), usage);
    pieces.push((now, "data: [DONE]\n\n".to_owned()));
    pieces
}

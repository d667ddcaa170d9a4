//! The Messages API, streamed.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

use super::{Dialogue, Model, Outcome, Piece, Reply, list, refuse, stream_of, text, texts};

pub(super) fn answer(model: &Model, headers: &HeaderMap, request: &Value) -> Response {
    model.check_key((headers, request), HeaderName::from_static("x-api-key"), "");
    let dialogue = read(model, request);
    let reply = match dialogue.outcome() {
        Outcome::Error(status) => return refuse(status),
        Outcome::Reply(reply) => reply,
    };
    if request["stream"] == true {
        return stream_of(write(model, request, reply));
    }
    let usage = json!({"input_tokens": 10, "output_tokens": 7});
    axum::Json(json!({
        "id": model.id("msg_"), "type": "message", "role": "assistant", "model": request["model"],
        "content": [{"type": "text", "text": reply.pieces.concat()}],
        "stop_reason": "end_turn", "stop_sequence": null, "usage": usage,
    }))
    .into_response()
}

fn read(model: &Model, request: &Value) -> Dialogue {
    let mut dialogue = Dialogue::default();
    dialogue.tools.extend(list(request, "tools").map(|tool| text(tool, "name").to_owned()));
    for message in list(request, "messages").filter(|message| text(message, "role") == "user") {
        dialogue.user(&texts(&message["content"]));
        for block in list(message, "content").filter(|block| text(block, "type") == "tool_result") {
            model.check_result(text(block, "tool_use_id"));
            dialogue.results.push(texts(&block["content"]));
        }
    }
    dialogue
}

fn write(model: &Model, request: &Value, reply: Reply) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut send = |pause: Duration, event: Value| {
        let text = format!("event: {}\ndata: {event}\n\n", text(&event, "type"));
        pieces.push((pause, text));
    };
    let now = Duration::ZERO;
    let usage = json!({"input_tokens": 10, "output_tokens": 1});
    send(
        now,
        json!({"type": "message_start", "message": {
            "id": model.id("msg_"), "type": "message", "role": "assistant", "model": request["model"],
            "content": [], "stop_reason": null, "stop_sequence": null, "usage": usage,
        }}),
    );
    let stop = if reply.calls.is_empty() { "end_turn" } else { "tool_use" };
    let mut index = 0;
    let mut block = |start: Value, deltas: Vec<Value>, pause: Duration| {
        send(now, json!({"type": "content_block_start", "index": index, "content_block": start}));
        for delta in deltas {
            send(pause, json!({"type": "content_block_delta", "index": index, "delta": delta}));
        }
        send(now, json!({"type": "content_block_stop", "index": index}));
        index += 1;
    };
    if let Some(thought) = reply.thinking {
        let start = json!({"type": "thinking", "thinking": "", "signature": ""});
        let deltas = vec![
            json!({"type": "thinking_delta", "thinking": thought}),
            json!({"type": "signature_delta", "signature": "signed"}),
        ];
        block(start, deltas, now);
    }
    if !reply.pieces.is_empty() {
        let deltas = reply.pieces.iter().map(|text| json!({"type": "text_delta", "text": text}));
        block(json!({"type": "text", "text": ""}), deltas.collect(), reply.pause);
    }
    for (name, input) in reply.calls {
        let id = model.call_id("toolu_");
        let start = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
        let delta = json!({"type": "input_json_delta", "partial_json": input.to_string()});
        block(start, vec![delta], now);
    }
    let delta = json!({"stop_reason": stop, "stop_sequence": null});
    send(now, json!({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 7}}));
    send(now, json!({"type": "message_stop"}));
    pieces
}

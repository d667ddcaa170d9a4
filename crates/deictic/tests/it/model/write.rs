//! Answers in the vendors' formats, as server-sent events.

use serde_json::{Value, json};

use super::{Dialect, Model, Words};

pub(super) fn write(model: &Model, words: Words) -> Vec<String> {
    match model.dialect() {
        Dialect::Anthropic => anthropic(model, words),
        Dialect::OpenAi => responses(model, words),
        Dialect::OpenAiChat | Dialect::DeepSeek => chat(model, words),
        Dialect::Google => google(words),
    }
}

fn anthropic(model: &Model, words: Words) -> Vec<String> {
    let mut events = vec![
        json!({"type": "message_start", "message": {"id": model.id("msg_"), "usage": {
            "input_tokens": 6, "cache_read_input_tokens": 4, "output_tokens": 1,
        }}}),
        json!({"type": "ping"}),
    ];
    let mut index = 0;
    let mut block = |start: Value, deltas: Vec<Value>| {
        events.push(json!({"type": "content_block_start", "index": index, "content_block": start}));
        for delta in deltas {
            events.push(json!({"type": "content_block_delta", "index": index, "delta": delta}));
        }
        events.push(json!({"type": "content_block_stop", "index": index}));
        index += 1;
    };
    if let Some(thought) = words.thinking {
        block(
            json!({"type": "thinking", "thinking": "", "signature": ""}),
            vec![
                json!({"type": "thinking_delta", "thinking": thought}),
                json!({"type": "signature_delta", "signature": "signed"}),
            ],
        );
    }
    if !words.pieces.is_empty() {
        let deltas = words.pieces.iter().map(|text| json!({"type": "text_delta", "text": text}));
        block(json!({"type": "text", "text": ""}), deltas.collect());
    }
    let stop = if words.calls.is_empty() { "end_turn" } else { "tool_use" };
    for (name, input) in words.calls {
        let id = model.call_id("toolu_");
        let deltas = super::halves(&input.to_string())
            .into_iter()
            .map(|part| json!({"type": "input_json_delta", "partial_json": part}));
        block(json!({"type": "tool_use", "id": id, "name": name, "input": {}}), deltas.collect());
    }
    let delta = json!({"stop_reason": stop, "stop_sequence": null});
    events.push(json!({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 7}}));
    events.push(json!({"type": "message_stop"}));
    named(&events)
}

fn named(events: &[Value]) -> Vec<String> {
    let one = |event: &Value| {
        format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap_or_default())
    };
    events.iter().map(one).collect()
}

fn responses(model: &Model, words: Words) -> Vec<String> {
    let mut events = vec![json!({"type": "response.created", "response": {}})];
    let mut at = 0;
    if let Some(thought) = words.thinking {
        let delta = json!({"type": "response.reasoning_summary_text.delta", "delta": thought});
        events.push(delta);
        let item = json!({
            "type": "reasoning", "id": model.id("rs_"), "encrypted_content": "eA==",
            "summary": [{"type": "summary_text", "text": thought}],
        });
        events.push(json!({
            "type": "response.output_item.done", "output_index": at, "item": item,
        }));
        at += 1;
    }
    if !words.pieces.is_empty() {
        for piece in &words.pieces {
            events.push(json!({"type": "response.output_text.delta", "delta": piece}));
        }
        let text = words.pieces.concat();
        let content = json!([{"type": "output_text", "text": text, "annotations": []}]);
        let item = json!({"type": "message", "role": "assistant", "content": content});
        events.push(json!({
            "type": "response.output_item.done", "output_index": at, "item": item,
        }));
        at += 1;
    }
    for (name, arguments) in words.calls {
        let item = json!({
            "type": "function_call", "id": model.id("fc_"), "call_id": model.call_id("call_"),
            "name": name, "arguments": arguments.to_string(),
        });
        events.push(json!({
            "type": "response.output_item.done", "output_index": at, "item": item,
        }));
        at += 1;
    }
    let usage = json!({
        "input_tokens": 10, "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 7, "output_tokens_details": {"reasoning_tokens": 2},
    });
    let response = json!({"status": "completed", "usage": usage});
    events.push(json!({"type": "response.completed", "response": response}));
    named(&events)
}

fn chat(model: &Model, words: Words) -> Vec<String> {
    let chunk = |delta: Value, finish: Value| {
        let choices = json!([{"index": 0, "delta": delta, "finish_reason": finish}]);
        json!({"object": "chat.completion.chunk", "choices": choices, "usage": null})
    };
    let mut chunks = vec![chunk(json!({"role": "assistant", "content": ""}), Value::Null)];
    if let Some(thought) = words.thinking {
        chunks.push(chunk(json!({ "reasoning_content": thought }), Value::Null));
    }
    for piece in &words.pieces {
        chunks.push(chunk(json!({ "content": piece }), Value::Null));
    }
    let stop = if words.calls.is_empty() { "stop" } else { "tool_calls" };
    for (index, (name, arguments)) in words.calls.into_iter().enumerate() {
        let [one, two] = <[String; 2]>::try_from(super::halves(&arguments.to_string())).unwrap();
        let function = json!({"name": name, "arguments": one});
        let id = model.call_id("call_");
        let call = json!({"index": index, "id": id, "type": "function", "function": function});
        chunks.push(chunk(json!({"tool_calls": [call]}), Value::Null));
        let rest = json!({"index": index, "function": {"arguments": two}});
        chunks.push(chunk(json!({"tool_calls": [rest]}), Value::Null));
    }
    chunks.push(chunk(json!({}), stop.into()));
    let usage = json!({
        "prompt_tokens": 10, "completion_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 4},
    });
    chunks.push(json!({"choices": [], "usage": usage}));
    let mut pieces: Vec<String> = chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect();
    pieces.push("data: [DONE]\n\n".to_owned());
    pieces
}

fn google(words: Words) -> Vec<String> {
    let mut parts = Vec::new();
    if let Some(thought) = words.thinking {
        parts.push(json!({"text": thought, "thought": true}));
    }
    parts.extend(words.pieces.iter().map(|text| json!({ "text": text })));
    for (name, args) in words.calls {
        let call = json!({"name": name, "args": args});
        parts.push(json!({"functionCall": call, "thoughtSignature": "signed"}));
    }
    let chunk = |parts: Value, finish: Value| {
        let content = json!({"role": "model", "parts": parts});
        let usage = json!({
            "promptTokenCount": 10, "candidatesTokenCount": 5, "thoughtsTokenCount": 2,
            "cachedContentTokenCount": 4,
        });
        let candidates = json!([{"index": 0, "content": content, "finishReason": finish}]);
        format!("data: {}\r\n\r\n", json!({"candidates": candidates, "usageMetadata": usage}))
    };
    let mut pieces: Vec<String> =
        parts.into_iter().map(|part| chunk(json!([part]), Value::Null)).collect();
    pieces.push(chunk(json!([]), "STOP".into()));
    pieces
}

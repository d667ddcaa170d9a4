//! Requests in the vendors' formats: what they say, and whether they are as the vendor wants them.

use axum::http::{HeaderMap, Uri};
use serde_json::{Value, json};

use super::{Asked, Dialect, KEY, MODEL, Model};

pub(super) fn read(model: &Model, uri: &Uri, headers: &HeaderMap, body: &Value) -> Asked {
    let asked = match model.dialect() {
        Dialect::Anthropic => {
            model.check(uri.path() == "/v1/messages", "the path");
            model.check_header(headers, "x-api-key", KEY);
            model.check_header(headers, "anthropic-version", "2023-06-01");
            model.check(body["max_tokens"].as_u64().is_some_and(|n| n > 0), "max_tokens");
            anthropic(model, body)
        }
        Dialect::OpenAi => {
            model.check(uri.path() == "/responses", "the path");
            model.check_header(headers, "authorization", &format!("Bearer {KEY}"));
            model.check(body["store"] == false, "store");
            responses(model, body)
        }
        Dialect::OpenAiChat | Dialect::DeepSeek => {
            model.check(uri.path() == "/chat/completions", "the path");
            model.check_header(headers, "authorization", &format!("Bearer {KEY}"));
            model.check(body["stream_options"]["include_usage"] == true, "stream_options");
            chat(model, body)
        }
        Dialect::Google => {
            let path = format!("/v1beta/models/{MODEL}:streamGenerateContent");
            model.check(uri.path() == path, "the path");
            model.check(uri.query() == Some("alt=sse"), "the query");
            model.check_header(headers, "x-goog-api-key", KEY);
            google(model, body)
        }
    };
    if model.dialect() != Dialect::Google {
        model.check(body["stream"] == true, "stream");
        model.check(body["model"] == MODEL, "model");
    }
    asked
}

pub(super) fn error_body(dialect: Dialect, status: u16, message: &str) -> Value {
    match dialect {
        Dialect::Anthropic => {
            json!({"type": "error", "error": {"type": "an_error", "message": message}})
        }
        Dialect::OpenAi | Dialect::OpenAiChat | Dialect::DeepSeek => {
            json!({"error": {"message": message, "type": "an_error", "code": null}})
        }
        Dialect::Google => {
            json!({"error": {"code": status, "message": message, "status": "AN_ERROR"}})
        }
    }
}

fn anthropic(model: &Model, body: &Value) -> Asked {
    let mut asked = Asked { system: texts(&body["system"]), ..Asked::default() };
    asked.tools.extend(list(body, "tools").map(|tool| text(tool, "name").to_owned()));
    let mut open = 0;
    for message in list(body, "messages") {
        let blocks: Vec<&Value> = list(message, "content").collect();
        model.check(!blocks.is_empty(), "a message without content");
        let results = blocks.iter().filter(|block| text(block, "type") == "tool_result").count();
        model.check(results == open, "every call has its result in the next message");
        open = blocks.iter().filter(|block| text(block, "type") == "tool_use").count();
        for block in blocks {
            match text(block, "type") {
                "tool_result" => {
                    model.check_result(text(block, "tool_use_id"));
                    asked.results.push(texts(&block["content"]));
                }
                "tool_use" => model.check(block["input"].is_object(), "input is an object"),
                "thinking" => model.check(text(block, "signature") == "signed", "signature"),
                "text" if text(message, "role") == "user" => {
                    asked.users.push(text(block, "text").to_owned());
                }
                _ => {}
            }
        }
    }
    model.check(open == 0, "it ends with calls");
    asked
}

fn responses(model: &Model, body: &Value) -> Asked {
    let mut asked = Asked { system: text(body, "instructions").to_owned(), ..Asked::default() };
    asked.tools.extend(list(body, "tools").map(|tool| text(tool, "name").to_owned()));
    for item in list(body, "input") {
        match (text(item, "type"), text(item, "role")) {
            ("message", "user") => asked.users.push(texts(&item["content"])),
            ("function_call_output", _) => {
                model.check_result(text(item, "call_id"));
                asked.results.push(text(item, "output").to_owned());
            }
            ("function_call", _) => {
                let arguments = serde_json::from_str::<Value>(text(item, "arguments"));
                model.check(arguments.is_ok_and(|value| value.is_object()), "arguments");
            }
            ("reasoning", _) => {
                model.check(text(item, "encrypted_content") == "eA==", "encrypted_content");
            }
            ("message", "assistant") => {}
            (kind, role) => model.fault(format!("an item that is not known: {kind} {role}")),
        }
    }
    asked
}

fn chat(model: &Model, body: &Value) -> Asked {
    let mut asked = Asked::default();
    let names = list(body, "tools").map(|tool| text(&tool["function"], "name").to_owned());
    asked.tools.extend(names);
    for message in list(body, "messages") {
        match text(message, "role") {
            "system" => asked.system = text(message, "content").to_owned(),
            "user" => asked.users.push(text(message, "content").to_owned()),
            "tool" => {
                model.check_result(text(message, "tool_call_id"));
                asked.results.push(text(message, "content").to_owned());
            }
            "assistant" => {
                let thought = message.get("reasoning_content").is_some();
                let calls = message.get("tool_calls").is_some();
                let deepseek = model.dialect() == Dialect::DeepSeek;
                model.check(!thought || (deepseek && calls), "reasoning_content");
            }
            role => model.fault(format!("a role that is not known: {role}")),
        }
    }
    asked
}

fn google(model: &Model, body: &Value) -> Asked {
    let mut asked =
        Asked { system: texts(&body["systemInstruction"]["parts"]), ..Asked::default() };
    for tools in list(body, "tools") {
        let names = list(tools, "functionDeclarations").map(|tool| text(tool, "name").to_owned());
        asked.tools.extend(names);
    }
    for content in list(body, "contents") {
        for part in list(content, "parts") {
            if let Some(response) = part.get("functionResponse") {
                model.check(text(content, "role") == "user", "a response is the user's");
                let response = &response["response"];
                let output = response.get("output").or_else(|| response.get("error"));
                let output = output.and_then(Value::as_str).unwrap_or_default();
                asked.results.push(output.to_owned());
            } else if part.get("functionCall").is_some() {
                model.check(text(part, "thoughtSignature") == "signed", "thoughtSignature");
            } else if text(content, "role") == "user" {
                asked.users.push(text(part, "text").to_owned());
            }
        }
    }
    asked
}

/// The texts of content, whatever its form.
fn texts(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let parts = parts.iter().filter_map(|part| part.get("text")?.as_str());
            parts.collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value.get(key).and_then(Value::as_array).into_iter().flatten()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

//! What a turn came to: its words, its error, what it used.

use serde_json::{Value, json};

use crate::agents::decoded::{list, number, only, some_text, text};
use crate::conversion::Conversion;

/// The text of content, whatever its form.
pub(super) fn words_of(content: &Value) -> String {
    match content {
        Value::String(words) => words.clone(),
        Value::Array(blocks) => {
            let words: Vec<&str> = blocks.iter().map(|block| text(block, "text")).collect();
            words.into_iter().filter(|words| !words.is_empty()).collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

pub(super) fn error_of(line: &Value, api_error: Option<String>) -> Conversion {
    let listed: Vec<&str> = list(line, "errors").iter().filter_map(Value::as_str).collect();
    let message = some_text(line, "result")
        .map(str::to_owned)
        .or(api_error)
        .or_else(|| Some(listed.join("; ")).filter(|text| !text.is_empty()))
        .unwrap_or_else(|| "the turn failed".to_owned());
    let status = number(line, "/api_error_status");
    let code = match text(line, "subtype") {
        _ if status > 0 => format!("api_error_{status}"),
        "" | "success" => "agent_error".to_owned(),
        subtype => subtype.to_owned(),
    };
    let details = only(line, &["subtype", "api_error_status", "terminal_reason", "errors"]);
    Conversion::error(message, Some(&code), Some(details))
}

pub(super) fn usage_of(line: &Value, tool_calls: u64) -> Value {
    json!({
        "type": "usage",
        "input_tokens": number(line, "/usage/input_tokens"),
        "output_tokens": number(line, "/usage/output_tokens"),
        "cached_input_tokens": number(line, "/usage/cache_read_input_tokens"),
        "tool_calls": tool_calls,
        "cost_usd": line.get("total_cost_usd"),
    })
}

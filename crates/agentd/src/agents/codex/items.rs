//! Codex's items. What it does (a command, a patch, a tool) is one native item, and two of ours: the
//! call and its result.

use std::collections::BTreeMap;

use events::{ContentPart, FileAction, ItemKind, ItemRole, ReasoningVisibility};
use serde_json::{Value, json};

use crate::adapter::is_context;
use crate::agents::decoded::{Decoded, OPEN_MAX, detail, list, only, some_text, text};
use crate::conversion::{Conversion, Item};

#[derive(Debug, Default)]
pub(super) struct Items {
    open: BTreeMap<String, Item>,
    calls: u64,
}

/// A native item, as ours.
enum Shown {
    Message(Item),
    Call { call: Item, result: Vec<ContentPart> },
    Status { label: String, detail: Option<String> },
}

impl Items {
    pub(super) fn started(&mut self, params: &Value, out: &mut Vec<Decoded>) {
        let native = params.get("item").unwrap_or(&Value::Null);
        let item = match shown(native) {
            Shown::Message(item) => item,
            Shown::Call { call, .. } => {
                self.calls += 1;
                call
            }
            Shown::Status { label, detail } => {
                out.push(Conversion::status(label, detail).into());
                return;
            }
        };
        let Some(id) = item.native_id.clone().filter(|_| self.open.len() < OPEN_MAX) else {
            return;
        };
        self.open.insert(id, item.clone());
        out.push(item.started().into());
    }

    pub(super) fn completed(&mut self, params: &Value, out: &mut Vec<Decoded>) {
        let native = params.get("item").unwrap_or(&Value::Null);
        let id = text(native, "id").to_owned();
        let was_open = self.open.remove(&id).is_some();
        let failed = matches!(text(native, "status"), "failed" | "declined" | "errored");
        match shown(native) {
            Shown::Message(item) => out.push(item.completed().into()),
            Shown::Call { call, result } => {
                self.calls += u64::from(!was_open);
                let end = |item: Item| if failed { item.failed() } else { item.completed() };
                out.push(end(call).into());
                self.open.remove(&result_id(&id));
                out.push(end(result_item(&id).with_content(result)).into());
            }
            // It was shown when it began, if it did.
            Shown::Status { label, detail } => {
                if label.ends_with("ed") || label == "contextCompaction" {
                    out.push(Conversion::status(label, detail).into());
                }
            }
        }
    }

    pub(super) fn delta(&mut self, params: &Value, out: &mut Vec<Decoded>) {
        let (Some(id), Some(delta)) = (some_text(params, "itemId"), some_text(params, "delta"))
        else {
            return;
        };
        if !self.open.contains_key(id) {
            // Its start was missed.
            if self.open.len() >= OPEN_MAX {
                return;
            }
            let item = Item::new(id, ItemKind::Message, ItemRole::Assistant);
            self.open.insert(id.to_owned(), item.clone());
            out.push(item.started().into());
        }
        let (native_item_id, delta) = (id.to_owned(), delta.to_owned());
        out.push(Conversion::ItemDelta { native_item_id, delta }.into());
    }

    /// What a command prints while it runs belongs to its result.
    pub(super) fn output_delta(&mut self, params: &Value, out: &mut Vec<Decoded>) {
        let (Some(id), Some(delta)) = (some_text(params, "itemId"), some_text(params, "delta"))
        else {
            return;
        };
        let (native_item_id, delta) = (result_id(id), delta.to_owned());
        if !self.open.contains_key(&native_item_id) {
            if self.open.len() >= OPEN_MAX {
                return;
            }
            let item = result_item(id);
            self.open.insert(native_item_id.clone(), item.clone());
            out.push(item.started().into());
        }
        out.push(Conversion::ItemDelta { native_item_id, delta }.into());
    }

    pub(super) fn take_count(&mut self) -> u64 {
        std::mem::take(&mut self.calls)
    }

    /// What is still open will not be completed.
    pub(super) fn close(&mut self, out: &mut Vec<Decoded>) {
        for item in std::mem::take(&mut self.open).into_values() {
            out.push(item.failed().into());
        }
    }
}

fn result_id(id: &str) -> String {
    format!("{id}:result")
}

fn result_item(id: &str) -> Item {
    Item::new(result_id(id), ItemKind::ToolResult, ItemRole::Tool).with_parent(id)
}

fn message(id: &str, role: ItemRole, content: Vec<ContentPart>) -> Shown {
    Shown::Message(Item::new(id, ItemKind::Message, role).with_content(content))
}

fn call(id: &str, name: &str, arguments: &Value, result: Vec<ContentPart>) -> Shown {
    let content = vec![ContentPart::ToolCall {
        name: name.to_owned(),
        arguments: arguments.to_string(),
        call_id: id.to_owned(),
    }];
    let call = Item::new(id, ItemKind::ToolCall, ItemRole::Assistant).with_content(content);
    Shown::Call { call, result }
}

fn output(id: &str, output: impl Into<String>) -> ContentPart {
    ContentPart::ToolResult { call_id: id.to_owned(), output: output.into() }
}

fn shown(native: &Value) -> Shown {
    let id = text(native, "id");
    match text(native, "type") {
        "userMessage" => message(id, ItemRole::User, user_content(native)),
        "agentMessage" | "plan" => {
            let said = text(native, "text");
            let content = if said.is_empty() { vec![] } else { vec![ContentPart::text(said)] };
            message(id, ItemRole::Assistant, content)
        }
        "reasoning" => message(id, ItemRole::Assistant, reasoning(native)),
        "commandExecution" => command(id, native),
        "fileChange" => patch(id, native),
        "mcpToolCall" => mcp(id, native),
        "dynamicToolCall" | "collabAgentToolCall" => {
            let name = text(native, "tool");
            let arguments = native.get("arguments").or_else(|| native.get("prompt"));
            let result = json_part(only(native, &["status", "success", "contentItems"]));
            let arguments = arguments.unwrap_or(&Value::Null);
            call(id, name, arguments, vec![output(id, ""), result])
        }
        "webSearch" => {
            let arguments = only(native, &["query", "action"]);
            call(id, "web_search", &arguments, vec![output(id, text(native, "query"))])
        }
        "imageView" => {
            let path = text(native, "path").to_owned();
            message(id, ItemRole::Assistant, vec![ContentPart::Image { path, mime: None }])
        }
        "imageGeneration" => {
            let path = text(native, "savedPath").to_owned();
            message(id, ItemRole::Assistant, vec![ContentPart::Image { path, mime: None }])
        }
        kind @ ("enteredReviewMode" | "exitedReviewMode" | "contextCompaction" | "hookPrompt"
        | "subAgentActivity" | "sleep" | "functionCallOutput") => {
            Shown::Status { label: kind.to_owned(), detail: detail(&without_id(native)) }
        }
        _ => {
            let part = ContentPart::Json { json: native.clone() };
            let item = Item::new(id, ItemKind::Unknown, ItemRole::Assistant);
            Shown::Message(item.with_content(vec![part]))
        }
    }
}

fn without_id(native: &Value) -> Value {
    let mut rest = native.clone();
    if let Some(object) = rest.as_object_mut() {
        object.retain(|key, _| !["id", "type", "startedAtMs", "completedAtMs"].contains(&&**key));
    }
    rest
}

fn json_part(json: Value) -> ContentPart {
    ContentPart::Json { json }
}

fn user_content(native: &Value) -> Vec<ContentPart> {
    list(native, "content")
        .iter()
        .filter(|part| !is_context(text(part, "text")))
        .map(|part| match text(part, "type") {
            "text" => ContentPart::text(text(part, "text")),
            "localImage" => ContentPart::Image { path: text(part, "path").to_owned(), mime: None },
            "image" => ContentPart::Image { path: text(part, "url").to_owned(), mime: None },
            _ => json_part(part.clone()),
        })
        .collect()
}

/// The summary is meant for the user, the content is not.
fn reasoning(native: &Value) -> Vec<ContentPart> {
    let parts = |key: &str, visibility: ReasoningVisibility| {
        list(native, key)
            .iter()
            .map(|part| part.as_str().unwrap_or_else(|| text(part, "text")))
            .filter(|text| !text.is_empty())
            .map(|text| ContentPart::Reasoning { text: text.to_owned(), visibility })
            .collect::<Vec<_>>()
    };
    let mut all = parts("content", ReasoningVisibility::Private);
    all.extend(parts("summary", ReasoningVisibility::Public));
    all
}

fn command(id: &str, native: &Value) -> Shown {
    let arguments = only(native, &["command", "cwd"]);
    let about = only(native, &["command", "cwd", "status", "exitCode", "durationMs"]);
    let result = vec![output(id, text(native, "aggregatedOutput")), json_part(about)];
    call(id, "exec_command", &arguments, result)
}

fn patch(id: &str, native: &Value) -> Shown {
    let changes = list(native, "changes");
    let files: Vec<&str> = changes.iter().map(|change| text(change, "path")).collect();
    let mut result = vec![output(id, format!("{}: {}", text(native, "status"), files.join(", ")))];
    result.extend(changes.iter().map(|change| {
        let kind = change.pointer("/kind/type").and_then(Value::as_str);
        let added = kind.unwrap_or_else(|| text(change, "kind")) == "add";
        ContentPart::FileRef {
            path: text(change, "path").to_owned(),
            action: if added { FileAction::Write } else { FileAction::Patch },
            diff: some_text(change, "diff").map(str::to_owned),
        }
    }));
    call(id, "apply_patch", &only(native, &["changes"]), result)
}

fn mcp(id: &str, native: &Value) -> Shown {
    let name = format!("{}.{}", text(native, "server"), text(native, "tool"));
    let said = native.pointer("/result/content").map(words).unwrap_or_default();
    let error = native.pointer("/error/message").and_then(Value::as_str).unwrap_or_default();
    let said = if error.is_empty() { said } else { error.to_owned() };
    let result = vec![output(id, said), json_part(only(native, &["result", "error", "status"]))];
    call(id, &name, native.get("arguments").unwrap_or(&json!({})), result)
}

fn words(content: &Value) -> String {
    let parts = content.as_array().map_or(&[][..], Vec::as_slice).iter();
    let words: Vec<&str> = parts.map(|part| text(part, "text")).collect();
    words.join("\n").trim().to_owned()
}

//! Parts of messages. Each is told again and again while it grows, and has an end that says what it became.

use std::collections::{BTreeMap, VecDeque};

use events::{ContentPart, FileAction, ItemKind, ItemRole, ReasoningVisibility};
use serde_json::Value;

use crate::agents::decoded::{Decoded, OPEN_MAX, detail, only, some_text, text};
use crate::conversion::{Conversion, Item};

/// How many messages are known to be the user's.
const USERS_MAX: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Parts {
    users: VecDeque<String>,
    open: BTreeMap<String, Open>,
    calls: u64,
}

/// A part that has not ended.
#[derive(Debug)]
enum Open {
    Words { reasoning: bool, so_far: String },
    Tool { call: Item },
}

impl Parts {
    /// A message of the user; whether it is a new one.
    pub(super) fn learn_user(&mut self, message: &str) -> bool {
        if self.users.iter().any(|known| known == message) {
            return false;
        }
        self.users.push_back(message.to_owned());
        if self.users.len() > USERS_MAX {
            self.users.pop_front();
        }
        true
    }

    /// `delta` is what older versions send with it.
    pub(super) fn updated(&mut self, part: &Value, delta: &str, out: &mut Vec<Decoded>) {
        let id = text(part, "id");
        if self.users.iter().any(|user| user == text(part, "messageID")) {
            user_part(part, out);
            return;
        }
        match text(part, "type") {
            kind @ ("text" | "reasoning") => {
                if part.get("synthetic").and_then(Value::as_bool) == Some(true) {
                    return;
                }
                self.words(id, kind == "reasoning", part, out);
                self.delta(id, delta, out);
                self.end_of_words(id, part, out);
            }
            "tool" => self.tool(part, out),
            "file" => {
                let path = some_text(part, "filename").unwrap_or_else(|| text(part, "url"));
                let mime = some_text(part, "mime").map(str::to_owned);
                let content = vec![ContentPart::Image { path: path.to_owned(), mime }];
                let item = Item::new(id, ItemKind::Message, ItemRole::Assistant);
                out.push(item.with_content(content).completed().into());
            }
            "compaction" | "subtask" | "agent" => {
                let label = text(part, "type");
                out.push(Conversion::status(label, detail(part)).into());
            }
            _ => {}
        }
    }

    pub(super) fn delta(&mut self, id: &str, delta: &str, out: &mut Vec<Decoded>) {
        let Some(Open::Words { so_far, .. }) = self.open.get_mut(id) else { return };
        if delta.is_empty() {
            return;
        }
        so_far.push_str(delta);
        let (native_item_id, delta) = (id.to_owned(), delta.to_owned());
        out.push(Conversion::ItemDelta { native_item_id, delta }.into());
    }

    /// Nothing more will come. Returns how many tools were called since the last time.
    pub(super) fn close(&mut self, out: &mut Vec<Decoded>) -> u64 {
        for (id, open) in std::mem::take(&mut self.open) {
            out.push(match open {
                Open::Words { reasoning, so_far } => words_item(&id, reasoning, so_far).into(),
                Open::Tool { call } => call.failed().into(),
            });
        }
        std::mem::take(&mut self.calls)
    }

    fn words(&mut self, id: &str, reasoning: bool, part: &Value, out: &mut Vec<Decoded>) {
        let ended = part.pointer("/time/end").is_some();
        if self.open.contains_key(id) || ended || self.open.len() >= OPEN_MAX {
            return;
        }
        let item = Item::new(id, ItemKind::Message, ItemRole::Assistant);
        out.push(item.started().into());
        let so_far = String::new();
        self.open.insert(id.to_owned(), Open::Words { reasoning, so_far });
    }

    fn end_of_words(&mut self, id: &str, part: &Value, out: &mut Vec<Decoded>) {
        if part.pointer("/time/end").is_none_or(Value::is_null) {
            return;
        }
        let whole = text(part, "text");
        // Older versions trim the whole; the end that it had was told already.
        let same = |so_far: &str| so_far.len() > whole.len() && so_far.trim_end() == whole;
        let said = match self.open.remove(id) {
            Some(Open::Words { so_far, .. }) if same(&so_far) => so_far,
            _ => whole.to_owned(),
        };
        out.push(words_item(id, text(part, "type") == "reasoning", said).into());
    }

    fn tool(&mut self, part: &Value, out: &mut Vec<Decoded>) {
        let call_id = some_text(part, "callID").unwrap_or_else(|| text(part, "id"));
        let state = part.get("state").unwrap_or(&Value::Null);
        let known = self.open.contains_key(call_id);
        match text(state, "status") {
            "running" if !known && self.open.len() < OPEN_MAX => {
                self.calls += 1;
                let call = call_of(part, call_id);
                out.push(call.clone().started().into());
                self.open.insert(call_id.to_owned(), Open::Tool { call });
            }
            "completed" | "error" => {
                self.open.remove(call_id);
                self.calls += u64::from(!known);
                let exit = state.pointer("/metadata/exit").and_then(Value::as_i64).unwrap_or(0);
                // A command that fails has been run well, as far as the server is concerned.
                let failed = text(state, "status") == "error" || exit != 0;
                let end = |item: Item| if failed { item.failed() } else { item.completed() };
                out.push(end(call_of(part, call_id)).into());
                out.push(end(result_of(part, state, call_id)).into());
            }
            _ => {}
        }
    }
}

fn words_item(id: &str, reasoning: bool, text: String) -> Conversion {
    let visibility = ReasoningVisibility::Public;
    let part = match reasoning {
        true => ContentPart::Reasoning { text, visibility },
        false => ContentPart::Text { text },
    };
    let item = Item::new(id, ItemKind::Message, ItemRole::Assistant);
    item.with_content(vec![part]).completed()
}

/// What the user said, as the server repeats it; what it adds itself is not the user's.
fn user_part(part: &Value, out: &mut Vec<Decoded>) {
    let added = part.get("synthetic").and_then(Value::as_bool) == Some(true);
    let said = text(part, "text");
    if text(part, "type") == "text" && !added && !said.is_empty() {
        let item = Item::new(text(part, "id"), ItemKind::Message, ItemRole::User);
        out.push(item.with_content(vec![ContentPart::text(said)]).completed().into());
    }
}

fn call_of(part: &Value, call_id: &str) -> Item {
    let input = part.pointer("/state/input").cloned().unwrap_or_default();
    let content = vec![ContentPart::ToolCall {
        name: text(part, "tool").to_owned(),
        arguments: input.to_string(),
        call_id: call_id.to_owned(),
    }];
    Item::new(call_id, ItemKind::ToolCall, ItemRole::Assistant).with_content(content)
}

fn result_of(part: &Value, state: &Value, call_id: &str) -> Item {
    let output = some_text(state, "error").unwrap_or_else(|| text(state, "output")).to_owned();
    let mut content = vec![ContentPart::ToolResult { call_id: call_id.to_owned(), output }];
    if text(state, "status") == "completed" {
        content.extend(file_of(text(part, "tool"), state));
    }
    let metadata = state.get("metadata").unwrap_or(&Value::Null);
    let about = only(metadata, &["exit", "truncated", "answers"]);
    if about.as_object().is_some_and(|object| !object.is_empty()) {
        content.push(ContentPart::Json { json: about });
    }
    Item::new(format!("{call_id}:result"), ItemKind::ToolResult, ItemRole::Tool)
        .with_parent(call_id)
        .with_content(content)
}

fn file_of(tool: &str, state: &Value) -> Option<ContentPart> {
    let action = match tool {
        "read" => FileAction::Read,
        "write" => FileAction::Write,
        "edit" | "patch" | "apply_patch" | "multiedit" => FileAction::Patch,
        _ => return None,
    };
    let path = state.pointer("/input/filePath").and_then(Value::as_str)?.to_owned();
    let diff = state.pointer("/metadata/diff").and_then(Value::as_str).map(str::to_owned);
    Some(ContentPart::FileRef { path, action, diff })
}

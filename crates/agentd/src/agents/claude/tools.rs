//! Tool calls and their results. A call is open until its result comes; one whose result never comes
//! has failed.

use std::collections::BTreeMap;

use events::{ContentPart, FileAction, ItemKind, ItemRole};
use serde_json::Value;

use super::outcome::words_of;
use crate::agents::decoded::{Decoded, OPEN_MAX, list, some_text, text};
use crate::conversion::Item;

#[derive(Debug, Default)]
pub(super) struct Tools {
    open: BTreeMap<String, Call>,
    /// Since it was last asked for.
    count: u64,
}

#[derive(Debug)]
struct Call {
    name: String,
    input: Value,
    item: Item,
}

impl Tools {
    pub(super) fn started(&mut self, block: &Value, parent: Option<&str>, out: &mut Vec<Decoded>) {
        let (id, name) = (text(block, "id").to_owned(), text(block, "name").to_owned());
        if self.open.contains_key(&id) || self.open.len() >= OPEN_MAX {
            return;
        }
        self.count += 1;
        let input = block.get("input").cloned().unwrap_or(Value::Null);
        let content = vec![ContentPart::ToolCall {
            name: name.clone(),
            arguments: input.to_string(),
            call_id: id.clone(),
        }];
        let mut item = Item::new(id.clone(), ItemKind::ToolCall, ItemRole::Assistant);
        item.native_parent = parent.map(str::to_owned);
        let item = item.with_content(content);
        out.push(item.clone().started().into());
        self.open.insert(id, Call { name, input, item });
    }

    /// A result, with what the program adds about it for its own display.
    pub(super) fn ended(&mut self, block: &Value, extra: &Value, out: &mut Vec<Decoded>) {
        let id = text(block, "tool_use_id").to_owned();
        let failed = block.get("is_error").and_then(Value::as_bool).unwrap_or(false);
        let call = self.open.remove(&id);
        let content = block.get("content").unwrap_or(&Value::Null);
        let output = words_of(content);
        let mut parts = vec![ContentPart::ToolResult { call_id: id.clone(), output }];
        let others = content.as_array().map_or(&[][..], Vec::as_slice).iter();
        parts.extend(
            others
                .filter(|part| text(part, "type") != "text")
                .map(|part| ContentPart::Json { json: part.clone() }),
        );
        if let Some(Call { name, input, item }) = call {
            if !failed {
                parts.extend(file_of(&name, &input, extra));
            }
            out.push(if failed { item.failed() } else { item.completed() }.into());
        }
        let result = Item::new(format!("{id}:result"), ItemKind::ToolResult, ItemRole::Tool)
            .with_parent(id)
            .with_content(parts);
        out.push(if failed { result.failed() } else { result.completed() }.into());
    }

    /// What an open call was called with.
    pub(super) fn input(&self, id: &str) -> &Value {
        self.open.get(id).map_or(&Value::Null, |call| &call.input)
    }

    /// What is still open will not get a result.
    pub(super) fn close(&mut self, out: &mut Vec<Decoded>) {
        for call in std::mem::take(&mut self.open).into_values() {
            out.push(call.item.failed().into());
        }
    }

    pub(super) fn take_count(&mut self) -> u64 {
        std::mem::take(&mut self.count)
    }
}

/// The file that a call read or changed.
fn file_of(name: &str, input: &Value, extra: &Value) -> Option<ContentPart> {
    let action = match name {
        "Read" => FileAction::Read,
        "Write" => FileAction::Write,
        "Edit" | "MultiEdit" | "NotebookEdit" => FileAction::Patch,
        _ => return None,
    };
    let path = some_text(extra, "filePath")
        .or_else(|| some_text(input, "file_path"))
        .or_else(|| some_text(input, "notebook_path"))?;
    let lines: Vec<&str> = list(extra, "structuredPatch")
        .iter()
        .flat_map(|hunk| list(hunk, "lines"))
        .filter_map(Value::as_str)
        .collect();
    let diff = Some(lines.join("\n")).filter(|diff| !diff.is_empty());
    Some(ContentPart::FileRef { path: path.to_owned(), action, diff })
}

//! What was said in a session, for people and for later models: entries from events, and their Markdown.
//!
//! Only what is complete is an entry; deltas are not needed for it, and states are left out. What an agent
//! had begun to say when it died is an entry too, marked as unfinished, at the end.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;

use crate::{
    ContentPart, ItemKind, ItemRole, ItemStatus, PermissionStatus, QuestionStatus,
    ReasoningVisibility, SessionEndReason, UniversalEvent, UniversalEventData, UniversalItem,
};

/// Items that are kept while they are incomplete, and the text of each. More is not shown as unfinished.
const OPEN_MAX: usize = 256;
const OPEN_BYTES_MAX: usize = 256 << 10;

/// One thing that was said or done. As JSON it is a line of `application/jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Entry {
    pub sequence: u64,
    pub time: String,
    /// The item that it was done for, by an agent that works for another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<String>,
    #[serde(flatten)]
    pub said: Said,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Said {
    Message {
        role: ItemRole,
        text: String,
        #[serde(skip_serializing_if = "is_false")]
        unfinished: bool,
    },
    Reasoning {
        text: String,
    },
    ToolCall {
        call_id: String,
        name: String,
        /// JSON, as text.
        arguments: String,
    },
    ToolResult {
        call_id: String,
        output: String,
        failed: bool,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        diffs: Vec<Diff>,
    },
    Permission {
        action: String,
        status: PermissionStatus,
    },
    Question {
        prompt: String,
        status: QuestionStatus,
        #[serde(skip_serializing_if = "Option::is_none")]
        response: Option<String>,
    },
    Error {
        message: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        code: Option<String>,
    },
    TurnEnded,
    SessionEnded {
        reason: SessionEndReason,
    },
}

/// What became of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diff {
    pub path: String,
    pub diff: String,
}

/// Reads events in order.
#[derive(Debug, Default)]
pub struct Transcript {
    /// Messages that have begun, by id: the entry as far as it is known.
    open: BTreeMap<String, Entry>,
}

impl Transcript {
    /// What this event adds.
    pub fn read(&mut self, event: &UniversalEvent) -> Vec<Entry> {
        match &event.data {
            UniversalEventData::ItemStarted(data) => {
                self.begin(event, &data.item);
                Vec::new()
            }
            UniversalEventData::ItemDelta(data) => {
                let open = self.open.get_mut(&data.item_id).map(|entry| &mut entry.said);
                if let Some(Said::Message { text, .. }) = open
                    && text.len() + data.delta.len() <= OPEN_BYTES_MAX
                {
                    text.push_str(&data.delta);
                }
                Vec::new()
            }
            UniversalEventData::ItemCompleted(data) => {
                self.open.remove(&data.item.item_id);
                let entry = |said| entry(event, data.item.parent_id.clone(), said);
                said(&data.item).into_iter().map(entry).collect()
            }
            UniversalEventData::PermissionResolved(data) => {
                let (action, status) = (data.action.clone(), data.status);
                vec![entry(event, None, Said::Permission { action, status })]
            }
            UniversalEventData::QuestionResolved(data) => {
                let (prompt, response) = (data.prompt.clone(), data.response.clone());
                let said = Said::Question { prompt, response, status: data.status };
                vec![entry(event, None, said)]
            }
            UniversalEventData::Error(data) => {
                let (message, code) = (data.message.clone(), data.code.clone());
                vec![entry(event, None, Said::Error { message, code })]
            }
            UniversalEventData::SessionEnded(data) => {
                let mut entries = self.unfinished();
                entries.push(entry(event, None, Said::SessionEnded { reason: data.reason }));
                entries
            }
            UniversalEventData::SessionStarted(_)
            | UniversalEventData::PermissionRequested(_)
            | UniversalEventData::QuestionRequested(_)
            | UniversalEventData::AgentUnparsed(_) => Vec::new(),
        }
    }

    /// What was begun and never completed. At the end of the log.
    pub fn unfinished(&mut self) -> Vec<Entry> {
        let mut open: Vec<_> = std::mem::take(&mut self.open).into_values().collect();
        open.retain(|one| !matches!(&one.said, Said::Message { text, .. } if text.is_empty()));
        open.sort_by_key(|entry| entry.sequence);
        open
    }

    fn begin(&mut self, event: &UniversalEvent, item: &UniversalItem) {
        let assistant = matches!(item.role, Some(ItemRole::Assistant) | None);
        if item.kind != ItemKind::Message || !assistant || self.open.len() >= OPEN_MAX {
            return;
        }
        // Some agents put all that is known into the start, and say it again in deltas.
        let said =
            Said::Message { role: ItemRole::Assistant, text: String::new(), unfinished: true };
        self.open.insert(item.item_id.clone(), entry(event, item.parent_id.clone(), said));
    }
}

fn entry(event: &UniversalEvent, parent_id: Option<String>, said: Said) -> Entry {
    Entry { sequence: event.sequence, time: event.time.clone(), parent_id, said }
}

fn said(item: &UniversalItem) -> Vec<Said> {
    let mut all = Vec::new();
    let diffs: Vec<Diff> = item.content.iter().filter_map(diff).collect();
    for part in &item.content {
        match part {
            ContentPart::Reasoning { text, visibility: ReasoningVisibility::Public } => {
                all.push(Said::Reasoning { text: text.clone() });
            }
            ContentPart::ToolCall { name, arguments, call_id } => all.push(Said::ToolCall {
                call_id: call_id.clone(),
                name: name.clone(),
                arguments: arguments.clone(),
            }),
            ContentPart::ToolResult { call_id, output } => all.push(Said::ToolResult {
                call_id: call_id.clone(),
                output: output.clone(),
                failed: item.status == ItemStatus::Failed,
                diffs: diffs.clone(),
            }),
            ContentPart::Text { .. }
            | ContentPart::Json { .. }
            | ContentPart::FileRef { .. }
            | ContentPart::Reasoning { visibility: ReasoningVisibility::Private, .. }
            | ContentPart::Image { .. }
            | ContentPart::Status { .. } => {}
        }
    }
    let text = item.text();
    let speaks = matches!(item.kind, ItemKind::Message | ItemKind::System | ItemKind::Unknown);
    if speaks && !text.is_empty() {
        let role = item.role.unwrap_or(ItemRole::Assistant);
        all.push(Said::Message { role, text, unfinished: false });
    }
    if item.is_end_of_turn() {
        all.push(Said::TurnEnded);
    }
    all
}

fn diff(part: &ContentPart) -> Option<Diff> {
    match part {
        ContentPart::FileRef { path, diff: Some(diff), .. } => {
            Some(Diff { path: path.clone(), diff: diff.clone() })
        }
        _ => None,
    }
}

impl Entry {
    /// A section of Markdown. What was said is passed on as it is; what tools said is fenced.
    pub fn markdown(&self) -> String {
        let mut out = String::new();
        let below = self.parent_id.as_ref().map(|id| format!(" (for {id})")).unwrap_or_default();
        // Writing to a string cannot fail.
        let _ = match &self.said {
            Said::Message { role, text, unfinished } => {
                let who = match role {
                    ItemRole::User => "User",
                    ItemRole::Assistant => "Assistant",
                    ItemRole::System => "System",
                    ItemRole::Tool => "Tool",
                };
                let note = if *unfinished { ", unfinished" } else { "" };
                write!(out, "## {who}{below}{note}\n\n{}\n", text.trim_end())
            }
            Said::Reasoning { text } => {
                let quoted: Vec<_> =
                    text.trim_end().lines().map(|line| format!("> {line}")).collect();
                write!(out, "### Thought{below}\n\n{}\n", quoted.join("\n"))
            }
            Said::ToolCall { name, arguments, .. } => {
                write!(
                    out,
                    "### Tool: {}{below}\n\n{}",
                    one_line(name),
                    fenced("json", &pretty(arguments))
                )
            }
            Said::ToolResult { output, failed, diffs, .. } => {
                let word = if *failed { "Failed" } else { "Result" };
                let diffs: String = diffs
                    .iter()
                    .map(|one| {
                        format!("\n{}:\n\n{}", one_line(&one.path), fenced("diff", &one.diff))
                    })
                    .collect();
                write!(out, "### {word}{below}\n\n{}{diffs}", fenced("", output))
            }
            Said::Permission { action, status } => {
                let word = match status {
                    PermissionStatus::Requested => "asked for",
                    PermissionStatus::Approved => "approved",
                    PermissionStatus::Denied => "denied",
                };
                writeln!(out, "*Permission {word}: {}*", one_line(action))
            }
            Said::Question { prompt, status, response } => {
                let answer = match (status, response) {
                    (QuestionStatus::Answered, Some(response)) => one_line(response),
                    (QuestionStatus::Answered, None) => "answered".into(),
                    (QuestionStatus::Rejected, _) => "not answered".into(),
                    (QuestionStatus::Requested, _) => "open".into(),
                };
                writeln!(out, "*Question: {} — {answer}*", one_line(prompt))
            }
            Said::Error { message, code } => {
                let code = code.as_ref().map(|code| format!(" ({})", one_line(code)));
                writeln!(out, "**Error{}: {}**", code.unwrap_or_default(), one_line(message))
            }
            Said::TurnEnded => writeln!(out, "---"),
            Said::SessionEnded { reason } => {
                let word = match reason {
                    SessionEndReason::Completed => "completed",
                    SessionEndReason::Error => "failed",
                    SessionEndReason::Terminated => "terminated",
                };
                writeln!(out, "*Session ended: {word}*")
            }
        };
        out
    }
}

/// Longer than any run of backticks inside, so that nothing gets out.
fn fenced(language: &str, text: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}{language}\n{}\n{fence}\n", text.trim_end_matches('\n'))
}

fn pretty(arguments: &str) -> String {
    let value = serde_json::from_str::<Value>(arguments);
    let text = value.and_then(|value| serde_json::to_string_pretty(&value));
    text.unwrap_or_else(|_| arguments.to_owned())
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

#[cfg(test)]
mod tests;

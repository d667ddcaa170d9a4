//! What a person sees of a session: events to lines of text. It prints nothing itself and decides nothing.
//!
//! What agents say is shown as it comes; what tools say is cut, because all of it is in the log. Nothing of it moves the
//! cursor or changes the terminal: control characters are left out.

use std::collections::BTreeMap;

use events::{
    ContentPart, ItemKind, ItemRole, ItemStatus, PermissionStatus, QuestionStatus, RUNTIME_EVENT,
    ReasoningVisibility, SessionEndReason, UniversalEvent, UniversalEventData, UniversalItem,
};
use serde_json::Value;

/// Of what a tool says, and of a diff.
const LINES_MAX: usize = 12;
/// Of a line.
const COLUMNS_MAX: usize = 200;
/// Items that are followed at a time.
const OPEN_MAX: usize = 1024;

/// What the agent waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Asked {
    Permission { id: String },
    Question { id: String, options: Vec<String> },
}

#[derive(Debug, Default)]
pub(super) struct View {
    color: bool,
    /// Messages of the agent that have begun; whether anything of each was shown.
    open: BTreeMap<String, bool>,
    parents: BTreeMap<String, usize>,
    /// The message that the cursor is in.
    current: Option<String>,
    /// The oldest first.
    asked: Vec<Asked>,
    turn_over: bool,
    ended: bool,
}

#[derive(Debug, Clone, Copy)]
enum Style {
    Dim,
    Bold,
    Red,
    Green,
    Yellow,
}

impl View {
    pub(super) fn new(color: bool) -> Self {
        Self { color, ..Self::default() }
    }

    /// What the agent waits for first.
    pub(super) fn asked(&self) -> Option<&Asked> {
        self.asked.first()
    }

    /// Whether a turn ended since it was asked last.
    pub(super) fn take_turn_over(&mut self) -> bool {
        std::mem::take(&mut self.turn_over)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// What to print for it, line ends included.
    pub(super) fn show(&mut self, event: &UniversalEvent) -> String {
        match &event.data {
            UniversalEventData::SessionStarted(_) => self.line(Style::Dim, "· session started"),
            UniversalEventData::SessionEnded(data) => {
                self.ended = true;
                self.asked.clear();
                let word = match data.reason {
                    SessionEndReason::Completed => "completed",
                    SessionEndReason::Error => "failed",
                    SessionEndReason::Terminated => "terminated",
                };
                self.line(Style::Dim, &format!("· session ended: {word}"))
            }
            UniversalEventData::ItemStarted(data) => self.started(&data.item),
            UniversalEventData::ItemDelta(data) => self.delta(&data.item_id, &data.delta),
            UniversalEventData::ItemCompleted(data) => self.completed(&data.item),
            UniversalEventData::Error(data) => {
                let code = data.code.as_ref().map(|code| format!(" ({code})")).unwrap_or_default();
                self.line(Style::Red, &format!("error{code}: {}", data.message))
            }
            UniversalEventData::PermissionRequested(data) => {
                self.asked.push(Asked::Permission { id: data.permission_id.clone() });
                let about = data.metadata.as_ref().map(about).unwrap_or_default();
                let text = format!("? {}{about}  [y] once  [a] always  [n] no", data.action);
                self.line(Style::Yellow, &text)
            }
            UniversalEventData::PermissionResolved(data) => {
                self.asked
                    .retain(|asked| asked != &Asked::Permission { id: data.permission_id.clone() });
                let word = match data.status {
                    PermissionStatus::Approved => "allowed",
                    PermissionStatus::Denied => "refused",
                    PermissionStatus::Requested => "asked for",
                };
                self.line(Style::Dim, &format!("· {}: {word}", data.action))
            }
            UniversalEventData::QuestionRequested(data) => {
                let (id, options) = (data.question_id.clone(), data.options.clone());
                let choices =
                    options.iter().zip(1..).map(|(option, n)| format!("  [{n}] {option}"));
                let text =
                    format!("? {}{}  [n] no answer", data.prompt, choices.collect::<String>());
                self.asked.push(Asked::Question { id, options });
                self.line(Style::Yellow, &text)
            }
            UniversalEventData::QuestionResolved(data) => {
                let this = |asked: &Asked| matches!(asked, Asked::Question { id, .. } if *id == data.question_id);
                self.asked.retain(|asked| !this(asked));
                let word = match (data.status, &data.response) {
                    (QuestionStatus::Answered, Some(response)) => response.clone(),
                    (QuestionStatus::Answered, None) => "answered".into(),
                    (QuestionStatus::Rejected, _) => "not answered".into(),
                    (QuestionStatus::Requested, _) => "asked".into(),
                };
                self.line(Style::Dim, &format!("· {}: {word}", data.prompt))
            }
            UniversalEventData::AgentUnparsed(data) => {
                self.line(Style::Dim, &format!("· not understood: {}", data.error))
            }
        }
    }

    /// What is said beside the events.
    pub(super) fn note(&mut self, text: &str) -> String {
        self.line(Style::Dim, &format!("· {text}"))
    }

    /// Ends the line that the cursor is in, if it is in one.
    fn fresh(&mut self) -> &'static str {
        if self.current.take().is_some() { "\n" } else { "" }
    }

    fn line(&mut self, style: Style, text: &str) -> String {
        let fresh = self.fresh();
        let text = one_line(text);
        format!("{fresh}{}\n", self.painted(style, &text))
    }

    fn started(&mut self, item: &UniversalItem) -> String {
        let depth = item.parent_id.as_ref().map_or(0, |id| 1 + self.parents.get(id).unwrap_or(&0));
        if self.parents.len() < OPEN_MAX {
            self.parents.insert(item.item_id.clone(), depth.min(4));
        }
        let speaks = item.kind == ItemKind::Message && item.role != Some(ItemRole::User);
        if speaks && self.open.len() < OPEN_MAX {
            self.open.insert(item.item_id.clone(), false);
        }
        String::new()
    }

    fn delta(&mut self, id: &str, delta: &str) -> String {
        let Some(shown) = self.open.get_mut(id) else { return String::new() };
        let begins = !std::mem::replace(shown, true);
        let margin = self.margin(id);
        let text = harmless(delta).replace('\n', &format!("\n{margin}"));
        if self.current.as_deref() == Some(id) {
            return text;
        }
        let fresh = self.fresh();
        self.current = Some(id.to_owned());
        let blank = if begins { "\n" } else { "" };
        format!("{fresh}{blank}{margin}{text}")
    }

    fn completed(&mut self, item: &UniversalItem) -> String {
        let shown = self.open.remove(&item.item_id);
        let mut text = String::new();
        if item.is_end_of_turn() {
            self.turn_over = true;
            return format!("{}\n", self.fresh());
        }
        // The mock agent marks no turns: it says that it is ready.
        let native = item.native_item_id.as_deref().unwrap_or_default();
        self.turn_over |= native.starts_with("mock_") && native.ends_with("_prompt");
        let speaks = matches!(item.kind, ItemKind::Message | ItemKind::System | ItemKind::Unknown);
        if speaks && shown != Some(true) {
            text.push_str(&self.said(item));
        }
        let failed = item.status == ItemStatus::Failed;
        for part in &item.content {
            text.push_str(&self.part(item, part, failed));
        }
        if self.parents.len() >= OPEN_MAX {
            self.parents.clear();
        }
        text
    }

    /// A message that was not shown as it came.
    fn said(&mut self, item: &UniversalItem) -> String {
        let said = item.text();
        if said.is_empty() {
            return String::new();
        }
        let (fresh, margin) = (self.fresh(), self.margin(&item.item_id));
        let user = item.role == Some(ItemRole::User);
        let lead = if user { "> " } else { "" };
        let lines = harmless(&said);
        let lines = lines.lines().map(|line| {
            let line = format!("{margin}{lead}{line}");
            if user { self.painted(Style::Bold, &line) } else { line }
        });
        format!("{fresh}\n{}\n", lines.collect::<Vec<_>>().join("\n"))
    }

    fn part(&mut self, item: &UniversalItem, part: &ContentPart, failed: bool) -> String {
        let margin = self.margin(&item.item_id);
        match part {
            ContentPart::ToolCall { name, arguments, .. } => {
                let text = format!("{margin}● {name} {}", arguments_of(arguments));
                self.line(Style::Green, &text)
            }
            ContentPart::ToolResult { output, .. } => {
                let style = if failed { Style::Red } else { Style::Dim };
                self.block(&format!("{margin}  "), output, |_| style)
            }
            ContentPart::FileRef { path, diff, .. } => {
                let head = self.line(Style::Dim, &format!("{margin}  {path}"));
                let diff = diff.as_deref().unwrap_or_default();
                let style = |line: &str| match line.bytes().next() {
                    Some(b'+') => Style::Green,
                    Some(b'-') => Style::Red,
                    _ => Style::Dim,
                };
                format!("{head}{}", self.block(&format!("{margin}  "), diff, style))
            }
            ContentPart::Reasoning { text, visibility: ReasoningVisibility::Public } => {
                self.block(&format!("{margin}~ "), text, |_| Style::Dim)
            }
            ContentPart::Image { path, .. } => {
                self.line(Style::Dim, &format!("{margin}[image: {path}]"))
            }
            ContentPart::Status { label, .. } if label == RUNTIME_EVENT => String::new(),
            ContentPart::Status { label, detail } => {
                let detail = detail.as_deref().unwrap_or_default();
                self.line(Style::Dim, &format!("{margin}· {label} {detail}"))
            }
            ContentPart::Text { .. }
            | ContentPart::Json { .. }
            | ContentPart::Reasoning { visibility: ReasoningVisibility::Private, .. } => {
                String::new()
            }
        }
    }

    fn block(&mut self, margin: &str, text: &str, style: impl Fn(&str) -> Style) -> String {
        let mut out = self.fresh().to_owned();
        let lines: Vec<&str> = text.trim_end().lines().collect();
        for line in lines.iter().take(LINES_MAX) {
            let shown = format!("{margin}{}", cut(&harmless(line)));
            out.push_str(&self.painted(style(line), &shown));
            out.push('\n');
        }
        if lines.len() > LINES_MAX {
            let more = format!("{margin}… {} more lines", lines.len() - LINES_MAX);
            out.push_str(&self.painted(Style::Dim, &more));
            out.push('\n');
        }
        out
    }

    fn margin(&self, id: &str) -> String {
        "│ ".repeat(self.parents.get(id).copied().unwrap_or(0))
    }

    fn painted(&self, style: Style, text: &str) -> String {
        if !self.color || text.is_empty() {
            return text.to_owned();
        }
        let code = match style {
            Style::Dim => 2,
            Style::Bold => 1,
            Style::Red => 31,
            Style::Green => 32,
            Style::Yellow => 33,
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }
}

/// What a permission is for, where it says so in a way that many agents share.
fn about(metadata: &Value) -> String {
    let inside = ["input", "arguments"].map(|key| &metadata[key]);
    let places = [metadata, inside[0], inside[1]];
    let found = places.iter().find_map(|place| {
        ["command", "path", "file_path", "url"].iter().find_map(|key| place[key].as_str())
    });
    found.map(|text| format!(": {text}")).unwrap_or_default()
}

/// The values of a tool's arguments, in short.
fn arguments_of(text: &str) -> String {
    match serde_json::from_str::<Value>(text) {
        Ok(Value::Object(fields)) => {
            let value = |value: &Value| match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            fields.values().map(value).collect::<Vec<_>>().join("  ")
        }
        Ok(_) | Err(_) => text.to_owned(),
    }
}

fn one_line(text: &str) -> String {
    cut(&harmless(text).replace('\n', " ⏎ "))
}

fn cut(line: &str) -> String {
    match line.char_indices().nth(COLUMNS_MAX) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line.to_owned(),
    }
}

/// Without what would move the cursor, change colours, or set the clipboard.
fn harmless(text: &str) -> String {
    // The last two turn the direction of what follows.
    let turns = |c: char| matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let visible = |c: &char| matches!(c, '\n' | '\t') || !(c.is_control() || turns(*c));
    text.chars().filter(visible).collect()
}

#[cfg(test)]
mod tests;

//! What was said in a session, as text: for an agent that goes on and does not know it any more.

use std::collections::VecDeque;

use ::events::{
    ContentPart, ItemKind, ItemRole, UniversalEvent, UniversalEventData, UniversalItem,
};
use model::{Result, SessionId};
use store::Store;

/// What comes before the end of it is left out.
const BYTES_MAX: usize = 128 * 1024;
/// Of one message, or the output of one tool.
const MESSAGE_BYTES_MAX: usize = 16 * 1024;
const OUTPUT_BYTES_MAX: usize = 2 * 1024;
/// Of one read of the log.
const PAGE: (u32, u64) = (512, 512 * 1024);

/// The end of the conversation; `None` if nothing was said.
pub(super) async fn of(store: &Store, session: SessionId) -> Result<Option<String>> {
    let (mut lines, mut bytes) = (VecDeque::new(), 0);
    let mut after = 0;
    loop {
        let rows = store.session_log(session, after, PAGE).await?;
        let Some(last) = rows.last() else { break };
        after = last.sequence;
        for row in rows {
            let event = serde_json::from_str::<UniversalEvent>(&row.event).ok();
            let Some(line) = event.as_ref().and_then(line) else { continue };
            bytes += line.len();
            lines.push_back(line);
            while bytes > BYTES_MAX {
                let Some(oldest) = lines.pop_front() else { break };
                bytes -= oldest.len();
            }
        }
    }
    let text = lines.into_iter().collect::<Vec<_>>().join("\n\n");
    Ok(Some(text).filter(|text| !text.is_empty()))
}

fn line(event: &UniversalEvent) -> Option<String> {
    let UniversalEventData::ItemCompleted(data) = &event.data else { return None };
    let item = &data.item;
    let text = match item.kind {
        ItemKind::Message => {
            let who = match item.role {
                Some(ItemRole::User) => "User",
                Some(ItemRole::Assistant) => "Assistant",
                Some(ItemRole::System | ItemRole::Tool) | None => return None,
            };
            let text = texts(item);
            if text.is_empty() {
                return None;
            }
            format!("{who}: {}", cut(&text, MESSAGE_BYTES_MAX))
        }
        ItemKind::ToolCall => item.content.iter().find_map(|part| match part {
            ContentPart::ToolCall { name, arguments, .. } => {
                Some(format!("Tool call: {name} {}", cut(arguments, OUTPUT_BYTES_MAX)))
            }
            _ => None,
        })?,
        ItemKind::ToolResult => item.content.iter().find_map(|part| match part {
            ContentPart::ToolResult { output, .. } => {
                Some(format!("Tool result: {}", cut(output, OUTPUT_BYTES_MAX)))
            }
            _ => None,
        })?,
        ItemKind::System | ItemKind::Status | ItemKind::Unknown => return None,
    };
    Some(text)
}

fn texts(item: &UniversalItem) -> String {
    let texts = item.content.iter().filter_map(|part| match part {
        ContentPart::Text { text } => Some(text.as_str()),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

fn cut(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let mut end = bytes_max;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{} …", &text[..end])
}

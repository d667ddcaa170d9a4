//! What was said in a session, as text: for an agent that goes on and does not know it any more.

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
const PAGE: (u32, u64) = (2048, 1024 * 1024);
/// Of all of them: most of a log is what it took to say what counts here.
const READ_BYTES_MAX: usize = 32 * 1024 * 1024;

/// The end of the conversation, read from there; `None` if nothing was said.
pub(super) async fn of(store: &Store, session: SessionId) -> Result<Option<String>> {
    let (mut lines, mut bytes, mut read, mut before) = (Vec::new(), 0, 0, u64::MAX);
    while read < READ_BYTES_MAX {
        let rows = store.session_log_back(session, before, PAGE).await?;
        let Some(last) = rows.last() else { break };
        before = last.sequence;
        read += rows.iter().map(|row| row.event.len()).sum::<usize>();
        let events = rows.iter().filter_map(|row| serde_json::from_str(&row.event).ok());
        lines.extend(events.filter_map(|event| line(&event)).take_while(|line| {
            bytes += line.len();
            bytes <= BYTES_MAX
        }));
        if bytes > BYTES_MAX {
            break;
        }
    }
    lines.reverse();
    Ok(Some(lines.join("\n\n")).filter(|text| !text.is_empty()))
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

//! How an event is a line of the file, and a frame of a stream.

use std::io::Write as _;
use std::ops::Range;

use events::{
    ContentPart, EventSource, ItemKind, ItemRole, SESSION_IDLE, TURN_COMPLETED, UniversalEvent,
    UniversalEventData, UniversalEventType, UniversalItem,
};
use serde::Serialize;

/// An event that is about to be stored.
#[derive(Debug)]
pub(crate) struct Numbered<'a> {
    pub(crate) sequence: u64,
    pub(crate) time: &'a str,
    pub(crate) session_id: &'a str,
    pub(crate) native_session_id: Option<&'a str>,
    pub(crate) synthetic: bool,
    pub(crate) data: &'a UniversalEventData,
    /// JSON, without line breaks.
    pub(crate) raw: Option<&'a str>,
    pub(crate) terminal: bool,
}

#[derive(Serialize)]
struct Stored<'a> {
    event_id: EventId,
    sequence: u64,
    time: &'a str,
    session_id: &'a str,
    native_session_id: Option<&'a str>,
    synthetic: bool,
    source: EventSource,
    r#type: UniversalEventType,
    data: &'a UniversalEventData,
}

struct EventId(u64);

impl Serialize for EventId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("evt_{}", self.0))
    }
}

pub(super) struct Written {
    /// Of the buffer: the event up to its raw payload.
    pub(super) text: Range<usize>,
    pub(super) terminal: bool,
}

/// Appends the line of an event to the buffer.
pub(super) fn write(event: &Numbered<'_>, out: &mut Vec<u8>) -> Written {
    let stored = Stored {
        event_id: EventId(event.sequence),
        sequence: event.sequence,
        time: event.time,
        session_id: event.session_id,
        native_session_id: event.native_session_id,
        synthetic: event.synthetic,
        source: if event.synthetic { EventSource::Daemon } else { EventSource::Agent },
        r#type: event.data.kind(),
        data: event.data,
    };
    // The head is as long for every event, so that it can be filled in afterwards.
    let start = out.len();
    out.extend_from_slice(b"0000000000. ");
    let head = out.len();
    serde_json::to_writer(&mut *out, &stored).expect("an event is JSON, and memory takes it");
    out.pop();
    out.extend_from_slice(b",\"raw\":");
    let text = head..out.len();
    let mut slot = &mut out[start..head];
    let flag = if event.terminal { '!' } else { '.' };
    write!(slot, "{:010}{flag} ", text.len()).expect("the head has room");
    out.extend_from_slice(event.raw.unwrap_or("null").as_bytes());
    out.extend_from_slice(b"}\n");
    Written { text, terminal: event.terminal }
}

/// A line, taken apart.
#[derive(Debug)]
pub(super) struct Taken<'a> {
    /// The event up to its raw payload.
    pub(super) text: &'a [u8],
    /// All of it.
    pub(super) whole: &'a [u8],
    pub(super) terminal: bool,
}

/// `None` if it is none.
pub(super) fn take(line: &[u8]) -> Option<Taken<'_>> {
    let space = line.iter().take(16).position(|byte| *byte == b' ')?;
    let (head, whole) = (&line[..space], &line[space + 1..]);
    let (flag, digits) = head.split_last()?;
    let length: usize = std::str::from_utf8(digits).ok()?.parse().ok()?;
    let text = whole.get(..length)?;
    Some(Taken { text, whole, terminal: *flag == b'!' })
}

/// The event of a line, if it is one with that number.
pub(super) fn parse(line: &[u8], sequence: u64) -> Option<UniversalEvent> {
    let event: UniversalEvent = serde_json::from_slice(take(line)?.whole).ok()?;
    (event.sequence == sequence).then_some(event)
}

/// A frame of a stream of server-sent events, from the text up to the raw payload.
pub(super) fn frame(sequence: u64, text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 48);
    frame_of(sequence, &[text, b"null}"], &mut out);
    out
}

pub(super) fn frame_of(sequence: u64, pieces: &[&[u8]], out: &mut Vec<u8>) {
    write!(out, "id: {sequence}\ndata: ").expect("memory takes it");
    for piece in pieces {
        out.extend_from_slice(piece);
    }
    out.extend_from_slice(b"\n\n");
}

/// Whether an event ends a `/messages/stream`. `marks_turns`: the agent says when a turn ends, so
/// that a message of it does not.
pub(crate) fn is_terminal(data: &UniversalEventData, marks_turns: bool) -> bool {
    match data {
        UniversalEventData::SessionEnded(_)
        | UniversalEventData::Error(_)
        | UniversalEventData::AgentUnparsed(_)
        | UniversalEventData::PermissionRequested(_)
        | UniversalEventData::QuestionRequested(_) => true,
        UniversalEventData::ItemCompleted(data) => {
            ends_turn(&data.item) || (!marks_turns && is_message_of_assistant(&data.item))
        }
        UniversalEventData::SessionStarted(_)
        | UniversalEventData::ItemStarted(_)
        | UniversalEventData::ItemDelta(_)
        | UniversalEventData::PermissionResolved(_)
        | UniversalEventData::QuestionResolved(_) => false,
    }
}

fn ends_turn(item: &UniversalItem) -> bool {
    item.kind == ItemKind::Status
        && item.content.iter().any(|part| {
            matches!(part, ContentPart::Status { label, .. }
                if label == TURN_COMPLETED || label == SESSION_IDLE)
        })
}

fn is_message_of_assistant(item: &UniversalItem) -> bool {
    item.kind == ItemKind::Message && item.role == Some(ItemRole::Assistant)
}

//! Server-sent events out of bytes that come in any pieces. Every buffer has a bound, because who sends
//! may mean harm.

use crate::fault::Fault;

/// A line, which holds at most one event's data.
const LINE_BYTES_MAX: usize = 2 * 1024 * 1024;

/// The lines of data of one event.
const EVENT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// A whole stream. An answer is far smaller; most of this is what is written around each word.
const STREAM_BYTES_MAX: usize = 128 * 1024 * 1024;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Event {
    /// Empty if it has none.
    pub(crate) name: String,
    pub(crate) data: String,
    /// Empty if it has none.
    pub(crate) id: String,
}

/// What has come and is not a whole event yet.
#[derive(Debug, Default)]
pub(crate) struct Events {
    line: Vec<u8>,
    /// The last byte was a carriage return: a line feed after it ends nothing.
    returned: bool,
    event: Event,
    has_data: bool,
    bytes: usize,
    begun: bool,
}

impl Events {
    /// Takes bytes and gives the events that they complete.
    pub(crate) fn push(&mut self, bytes: &[u8], out: &mut Vec<Event>) -> Result<(), Fault> {
        self.bytes += bytes.len();
        if self.bytes > STREAM_BYTES_MAX {
            return Err(Fault::TooLong { what: "stream", bytes_max: STREAM_BYTES_MAX });
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            if std::mem::take(&mut self.returned) && rest[0] == b'\n' {
                rest = &rest[1..];
                continue;
            }
            let end = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let part = &rest[..end.unwrap_or(rest.len())];
            if self.line.len() + part.len() > LINE_BYTES_MAX {
                return Err(Fault::TooLong { what: "line", bytes_max: LINE_BYTES_MAX });
            }
            self.line.extend_from_slice(part);
            let Some(end) = end else { return Ok(()) };
            self.returned = rest[end] == b'\r';
            rest = &rest[end + 1..];
            self.line_ended(out)?;
        }
        Ok(())
    }

    fn line_ended(&mut self, out: &mut Vec<Event>) -> Result<(), Fault> {
        let line = std::mem::take(&mut self.line);
        let text = String::from_utf8_lossy(&line);
        let mut text: &str = &text;
        if !std::mem::replace(&mut self.begun, true) {
            text = text.trim_start_matches('\u{feff}');
        }
        if text.is_empty() {
            let event = std::mem::take(&mut self.event);
            if std::mem::take(&mut self.has_data) {
                out.push(event);
            }
            return Ok(());
        }
        let (field, value) = text.split_once(':').unwrap_or((text, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => {
                if self.event.data.len() + value.len() > EVENT_BYTES_MAX {
                    return Err(Fault::TooLong { what: "event", bytes_max: EVENT_BYTES_MAX });
                }
                if std::mem::replace(&mut self.has_data, true) {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
            }
            "event" => value.clone_into(&mut self.event.name),
            "id" => value.clone_into(&mut self.event.id),
            // Comments, times to wait: nothing that an answer is made of.
            _ => {}
        }
        Ok(())
    }
}

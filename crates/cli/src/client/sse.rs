//! Reads server-sent events off a response.

use std::collections::VecDeque;
use std::time::Duration;

use http::Response;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::failure::Failure;

/// Servers send a comment every few seconds; silence this long means that they are gone.
const SILENCE_MAX: Duration = Duration::from_secs(90);
/// Of one event.
const EVENT_BYTES_MAX: usize = 16 << 20;

/// One event. `event` is `message` where the server named none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Event {
    pub id: Option<String>,
    pub event: String,
    pub data: String,
}

/// The events of one response.
pub(crate) struct Events {
    body: Incoming,
    parser: Parser,
    ready: VecDeque<Event>,
}

impl Events {
    pub(crate) fn new(response: Response<Incoming>) -> Self {
        Self { body: response.into_body(), parser: Parser::default(), ready: VecDeque::new() }
    }

    /// `None` at the end of the stream. A failure may be cured by asking again from the last id.
    pub(crate) async fn next(&mut self) -> Result<Option<Event>, Failure> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            let frame = tokio::time::timeout(SILENCE_MAX, self.body.frame())
                .await
                .map_err(|_| Failure::new("the server fell silent"))?;
            match frame {
                None => return Ok(None),
                Some(Err(error)) => {
                    return Err(Failure::new(format!("the stream broke off: {error}")));
                }
                Some(Ok(frame)) => {
                    let Ok(bytes) = frame.into_data() else { continue };
                    self.parser.feed(&bytes, &mut self.ready)?;
                }
            }
        }
    }
}

#[derive(Default)]
struct Parser {
    line: Vec<u8>,
    event: Event,
    has_data: bool,
}

impl Parser {
    fn feed(&mut self, bytes: &[u8], ready: &mut VecDeque<Event>) -> Result<(), Failure> {
        for &byte in bytes {
            if byte == b'\n' {
                let line = std::mem::take(&mut self.line);
                let line = String::from_utf8_lossy(&line);
                self.take(line.trim_end_matches('\r'), ready);
            } else {
                self.line.push(byte);
            }
        }
        if self.line.len() + self.event.data.len() > EVENT_BYTES_MAX {
            return Err(Failure::new("the server sent an event that is too large"));
        }
        Ok(())
    }

    fn take(&mut self, line: &str, ready: &mut VecDeque<Event>) {
        if line.is_empty() {
            let mut event = std::mem::take(&mut self.event);
            if std::mem::take(&mut self.has_data) {
                if event.event.is_empty() {
                    event.event = "message".into();
                }
                ready.push_back(event);
            }
            return;
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => self.event.id = Some(value.to_owned()),
            "event" => value.clone_into(&mut self.event.event),
            "data" => {
                if self.has_data {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
                self.has_data = true;
            }
            // Comments and what later versions add.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;

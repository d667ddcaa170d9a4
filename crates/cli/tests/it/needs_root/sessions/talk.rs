//! One client of a session, which looks at every event: none is missing, none comes twice.

use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use tungstenite::client::IntoClientRequest as _;
use tungstenite::{Message, WebSocket};

use crate::needs_root::pause;

/// Longer than anything here takes, also on a loaded machine.
const WAIT: Duration = Duration::from_secs(100);
/// Connections to a server that has just started.
const TRIES: usize = 500;

pub(super) struct Talk {
    socket: WebSocket<TcpStream>,
    /// The sequence of the last event.
    last: u64,
    /// Since it said something.
    turn: Vec<Value>,
    /// Control frames that nobody asked for yet.
    controls: Vec<Value>,
    /// Read, and not looked at.
    ahead: Option<Message>,
}

impl Talk {
    #[track_caller]
    pub(super) fn connect(url: &str, token: &str, from: u64) -> Self {
        let address = url.strip_prefix("ws://").unwrap().split('/').next().unwrap();
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(WAIT)).unwrap();
        let mut request = format!("{url}?from={from}").into_client_request().unwrap();
        let bearer = format!("Bearer {token}").parse().unwrap();
        request.headers_mut().insert("authorization", bearer);
        let (socket, _) = tungstenite::client(request, stream).unwrap();
        Self { socket, last: from, turn: Vec::new(), controls: Vec::new(), ahead: None }
    }

    /// Until the server that has just started has found the session again. Something has to come.
    #[track_caller]
    pub(super) fn connect_again(url: &str, token: &str, from: u64) -> Self {
        for _ in 0..TRIES {
            let mut talk = Self::connect(url, token, from);
            match talk.socket.read().unwrap() {
                Message::Close(_) => pause(),
                first => {
                    talk.ahead = Some(first);
                    return talk;
                }
            }
        }
        panic!("the session is not found again");
    }

    pub(super) fn last(&self) -> u64 {
        self.last
    }

    pub(super) fn seen(&self) -> &[Value] {
        &self.turn
    }

    #[track_caller]
    pub(super) fn send(&mut self, frame: &Value) {
        self.socket.send(Message::text(frame.to_string())).unwrap();
    }

    #[track_caller]
    pub(super) fn say(&mut self, message: &str) {
        self.turn.clear();
        self.send(&json!({ "type": "message", "message": message }));
    }

    /// The next event; `None` when the connection is closed.
    #[track_caller]
    fn next(&mut self) -> Option<Value> {
        loop {
            let read = self.ahead.take().map_or_else(|| self.socket.read(), Ok);
            let text = match read {
                Ok(Message::Text(text)) => text,
                Ok(Message::Close(_)) => return None,
                Ok(_) => continue,
                Err(error) => panic!("waited in vain: {error}\n{:#?}", self.turn),
            };
            let frame: Value = serde_json::from_str(&text).unwrap();
            let Some(sequence) = frame["sequence"].as_u64() else {
                assert_ne!(frame["event"], "error", "{frame}");
                self.controls.push(frame);
                continue;
            };
            assert_eq!(sequence, self.last + 1, "after {} comes {frame}", self.last);
            self.last = sequence;
            self.turn.push(frame.clone());
            return Some(frame);
        }
    }

    /// The first event from here on of which `wanted` knows something.
    #[track_caller]
    fn until<T>(&mut self, what: &str, wanted: impl Fn(&Value) -> Option<T>) -> T {
        loop {
            let Some(event) = self.next() else {
                panic!("closed before {what}: {:#?}", self.turn);
            };
            if let Some(found) = wanted(&event) {
                return found;
            }
        }
    }

    /// How the turn ended.
    #[track_caller]
    pub(super) fn end_of_turn(&mut self) -> String {
        self.until("the end of the turn", |event| {
            let part = parts(event).find(|part| part["label"] == "turn.completed")?;
            let summary: Value = serde_json::from_str(part["detail"].as_str()?).ok()?;
            Some(summary["status"].as_str()?.to_owned())
        })
    }

    #[track_caller]
    pub(super) fn until_delta(&mut self, word: &str) {
        self.until("a delta", |event| {
            event["data"]["delta"].as_str().filter(|delta| delta.contains(word)).map(drop)
        });
    }

    /// Answers what it asks for.
    #[track_caller]
    pub(super) fn permit(&mut self, reply: &str) {
        let id = self.until("a permission", |event| {
            let id = event["data"]["permission_id"].as_str().map(str::to_owned);
            id.filter(|_| event["type"] == "permission.requested")
        });
        self.send(&json!({ "type": "permission.reply", "permission_id": id, "reply": reply }));
    }

    /// The next control frame of this name; the events before it are kept.
    #[track_caller]
    pub(super) fn control(&mut self, event: &str) -> Value {
        loop {
            if let Some(at) = self.controls.iter().position(|frame| frame["event"] == event) {
                return self.controls.remove(at);
            }
            // It comes alone: what is read for it is a frame, or an event that belongs to no turn.
            match self.socket.read().unwrap() {
                Message::Text(text) => {
                    let frame: Value = serde_json::from_str(&text).unwrap();
                    match frame["sequence"].as_u64() {
                        Some(sequence) => {
                            assert_eq!(
                                sequence,
                                self.last + 1,
                                "after {} comes {frame}",
                                self.last
                            );
                            self.last = sequence;
                        }
                        None => self.controls.push(frame),
                    }
                }
                Message::Close(why) => panic!("closed before {event}: {why:?}"),
                _ => {}
            }
        }
    }

    /// Until the server closes: the types of what came.
    #[track_caller]
    pub(super) fn until_end(&mut self) -> String {
        self.turn.clear();
        while self.next().is_some() {}
        let types: Vec<_> = self.turn.iter().filter_map(|event| event["type"].as_str()).collect();
        types.join(" ")
    }

    #[track_caller]
    pub(super) fn read_to(&mut self, last: u64) {
        while self.last < last {
            self.next().expect("it is in the log");
        }
    }

    /// What the agent said in the turn.
    pub(super) fn said(&self) -> Vec<String> {
        let messages = self.turn.iter().filter(|event| {
            let item = &event["data"]["item"];
            item["kind"] == "message" && item["role"] == "assistant"
        });
        let parts = messages.flat_map(parts).filter(|part| part["type"] == "text");
        parts.filter_map(|part| part["text"].as_str().map(str::to_owned)).collect()
    }

    /// What the last tool printed.
    pub(super) fn output(&self) -> String {
        let results = self.turn.iter().flat_map(parts);
        let results = results.filter(|part| part["type"] == "tool_result");
        let last = results.filter_map(|part| part["output"].as_str()).last();
        last.unwrap_or_default().to_owned()
    }

    pub(super) fn errors(&self) -> Vec<String> {
        let errors = self.turn.iter().filter(|event| event["type"] == "error");
        errors.map(Value::to_string).collect()
    }
}

/// Of an item that is complete.
fn parts(event: &Value) -> impl Iterator<Item = &Value> {
    let complete = event["type"] == "item.completed";
    let parts = event["data"]["item"]["content"].as_array().filter(|_| complete);
    parts.into_iter().flatten()
}

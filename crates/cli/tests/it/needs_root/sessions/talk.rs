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
        Self::try_connect(url, token, from).expect("it connects")
    }

    /// `None` when nobody answers, or it is refused.
    fn try_connect(url: &str, token: &str, from: u64) -> Option<Self> {
        let address = url.strip_prefix("ws://").unwrap().split('/').next().unwrap();
        let stream = TcpStream::connect(address).ok()?;
        stream.set_read_timeout(Some(WAIT)).unwrap();
        let mut request = format!("{url}?from={from}").into_client_request().unwrap();
        let bearer = format!("Bearer {token}").parse().unwrap();
        request.headers_mut().insert("authorization", bearer);
        let (socket, _) = tungstenite::client(request, stream).ok()?;
        Some(Self { socket, last: from, turn: Vec::new(), controls: Vec::new(), ahead: None })
    }

    /// Until a server that leads takes what is said. What comes meanwhile is what `turn` begins with.
    #[track_caller]
    pub(super) fn come_back(url: &str, token: &str, from: u64) -> Self {
        let mut turn = Vec::new();
        for _ in 0..TRIES {
            let last = turn.last().and_then(|event: &Value| event["sequence"].as_u64());
            if let Some(mut talk) = Self::try_connect(url, token, last.unwrap_or(from)) {
                talk.turn = std::mem::take(&mut turn);
                if talk.is_heard() {
                    return talk;
                }
                turn = talk.turn;
            }
            pause();
        }
        panic!("nobody takes the session back");
    }

    /// Whether its sandbox answers, and the connection lasts until then.
    fn is_heard(&mut self) -> bool {
        let probe = json!({ "type": "exec", "command": "true", "id": "probe" });
        if self.socket.send(Message::text(probe.to_string())).is_err() {
            return false;
        }
        while let Some(frame) = self.try_read() {
            let told = frame["type"] == "exit" || frame["event"] == "error";
            if frame["id"] == "probe" && told {
                return frame["type"] == "exit";
            }
        }
        false
    }

    /// One frame; `None` when the connection is over.
    pub(super) fn try_read(&mut self) -> Option<Value> {
        loop {
            if let Message::Text(text) = self.socket.read().ok()? {
                return Some(self.take(&text));
            }
        }
    }

    fn take(&mut self, text: &str) -> Value {
        let frame: Value = serde_json::from_str(text).unwrap();
        if let Some(sequence) = frame["sequence"].as_u64() {
            assert_eq!(sequence, self.last + 1, "after {} comes {frame}", self.last);
            self.last = sequence;
            self.turn.push(frame.clone());
        }
        frame
    }

    /// What a line of shell in the sandbox prints. What comes meanwhile is not looked at.
    #[track_caller]
    pub(super) fn exec(&mut self, command: &str) -> String {
        self.send(&json!({ "type": "exec", "command": command, "id": "exec" }));
        let mut printed = String::new();
        loop {
            let frame = self.try_read().expect("it is not closed");
            assert_ne!(frame["event"], "error", "{frame}");
            if frame["id"] != "exec" {
                continue;
            }
            match frame["data"].as_str() {
                Some(data) => printed.push_str(data),
                None => return printed,
            }
        }
    }

    /// Of what was sent last.
    #[track_caller]
    pub(super) fn refusal(&mut self) -> Value {
        loop {
            let frame = self.try_read().expect("it is not closed");
            if frame["event"] == "error" {
                return frame;
            }
        }
    }

    /// An image of the display, as soon as there is one.
    #[track_caller]
    pub(super) fn screenshot(&mut self) -> Vec<u8> {
        self.send(&json!({ "type": "screenshot" }));
        loop {
            match self.socket.read().unwrap() {
                Message::Binary(image) => return image.to_vec(),
                Message::Text(text) => assert_ne!(self.take(&text)["event"], "error"),
                Message::Close(why) => panic!("closed before the image: {why:?}"),
                _ => {}
            }
        }
    }

    /// Like [`Self::send`], to a server that may be gone.
    pub(super) fn try_say(&mut self, message: &str) -> bool {
        let frame = json!({ "type": "message", "message": message });
        self.socket.send(Message::text(frame.to_string())).is_ok()
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

//! A session, live: what happens is printed, and what is typed is said. A connection that is lost is taken up again
//! after the last event that was seen.
//!
//! ```text
//!  a line              a message to the agent
//!  y a n, 1 to 9       answers what the agent asks, without a return key
//!  ctrl-C              ends the turn; when none runs, leaves the session alone
//! ```

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use api::frame::{ControlFrame, SystemFrame};
use events::UniversalEvent;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, Stdin};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;

use super::socket::{Came, Socket};
use super::view::{Asked, View};
use crate::client::Client;
use crate::failure::Failure;
use crate::out;
use crate::terminal::RawMode;

const RECONNECT_AFTER: Duration = Duration::from_secs(1);
/// Without one event in between.
const RECONNECTS_MAX: u32 = 30;
const INPUT_BYTES: usize = 4 << 10;
/// Of a line that is typed.
const LINE_BYTES_MAX: usize = 256 << 10;
const CTRL_C: u8 = 3;

/// When it is enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// The person leaves, or the session ends.
    Left,
    /// The turn is over that the message began.
    TurnOver,
    /// The message is out.
    Said,
}

pub(super) struct Live<'a> {
    client: &'a Client,
    id: &'a str,
    json: bool,
    view: View,
    /// The last event that was seen.
    seen: u64,
    /// A turn runs, as far as is known.
    busy: bool,
    keys: Option<Keys>,
    interrupts: Signal0,
}

/// What a person types. Nothing is read unless a person is there.
struct Keys {
    stdin: Stdin,
    line: Vec<u8>,
    /// While a key answers.
    raw: Option<RawMode>,
}

/// Signals, once they are wanted.
type Signal0 = Option<Signal>;

/// What ends a connection.
enum End {
    Enough,
    /// Another try may help.
    Lost,
    Closed(String),
}

impl<'a> Live<'a> {
    pub(super) fn new(client: &'a Client, id: &'a str, json: bool) -> Self {
        let color = std::io::stdout().is_terminal();
        let view = View::new(color && !json);
        Self { client, id, json, view, seen: 0, busy: false, keys: None, interrupts: None }
    }

    /// Shows what comes after `from`. What is to be said is said once, however often the connection breaks.
    pub(super) async fn run(
        mut self,
        from: u64,
        mut say: Option<String>,
        until: Until,
    ) -> Result<ExitCode, Failure> {
        self.seen = from;
        self.interrupts = Some(signal(SignalKind::interrupt())?);
        if until == Until::Left && !self.json && std::io::stdin().is_terminal() {
            let stdin = tokio::io::stdin();
            self.keys = Some(Keys { stdin, line: Vec::new(), raw: None });
        }
        let mut failures = 0;
        loop {
            let before = self.seen;
            let end = match Socket::open(self.client, self.id, self.seen).await {
                Ok(mut socket) => {
                    if let Some(text) = say.take()
                        && !socket.say(&json!({ "type": "message", "message": text })).await
                    {
                        return Err(Failure::new("the connection broke while it was said"));
                    }
                    if until == Until::Said {
                        socket.close().await;
                        return Ok(ExitCode::SUCCESS);
                    }
                    self.busy |= until == Until::TurnOver;
                    self.hold(socket, until).await?
                }
                Err(failure) if failures == 0 || failures >= RECONNECTS_MAX => return Err(failure),
                Err(_) => End::Lost,
            };
            match end {
                End::Enough => return Ok(ExitCode::SUCCESS),
                End::Closed(reason) => {
                    self.note(&format!("disconnected: {reason}"))?;
                    return Ok(ExitCode::FAILURE);
                }
                End::Lost if self.seen > before => failures = 1,
                End::Lost => failures += 1,
            }
            if failures > RECONNECTS_MAX {
                return Err(Failure::new("the connection is lost, and does not come back"));
            }
            sleep(RECONNECT_AFTER).await;
        }
    }

    async fn hold(&mut self, mut socket: Socket, until: Until) -> Result<End, Failure> {
        loop {
            if self.view.has_ended() || (until == Until::TurnOver && !self.busy) {
                socket.close().await;
                return Ok(End::Enough);
            }
            if let Some(keys) = &mut self.keys {
                keys.mind(self.view.asked().is_some())?;
            }
            tokio::select! {
                came = socket.next() => match came {
                    Came::Text(text) => self.take(&text)?,
                    Came::Image(bytes) => self.note(&format!("an image of the display, {bytes} bytes"))?,
                    Came::Closed { code: 1001, reason } if reason == "server shutting down" => {
                        return Ok(End::Lost);
                    }
                    Came::Closed { code, reason } => return Ok(End::Closed(format!("{reason} ({code})"))),
                    Came::Lost => return Ok(End::Lost),
                },
                typed = typed(&mut self.keys) => {
                    for frame in self.typed(typed?) {
                        if frame.is_null() {
                            socket.close().await;
                            return Ok(End::Enough);
                        }
                        if !socket.say(&frame).await {
                            return Ok(End::Lost);
                        }
                    }
                }
                () = interrupted(&mut self.interrupts) => {
                    let frame = self.interrupt();
                    if frame.is_null() {
                        socket.close().await;
                        return Ok(End::Enough);
                    }
                    if !socket.say(&frame).await {
                        return Ok(End::Lost);
                    }
                }
            }
        }
    }

    fn take(&mut self, text: &str) -> Result<(), Failure> {
        if let Ok(event) = serde_json::from_str::<UniversalEvent>(text) {
            self.seen = self.seen.max(event.sequence);
            let shown = self.view.show(&event);
            if self.view.take_turn_over() {
                self.busy = false;
            }
            return if self.json { raw(text) } else { printed(&shown) };
        }
        if self.json {
            return raw(text);
        }
        match serde_json::from_str::<ControlFrame>(text) {
            Ok(ControlFrame::System(SystemFrame::Cancel { reason })) => {
                self.note(&format!("asked to wrap up: {}", reason.as_str()))
            }
            Ok(ControlFrame::System(SystemFrame::ConfigUpdate { keys })) => {
                self.note(&format!("replaced: {}", keys.join(", ")))
            }
            Ok(ControlFrame::System(SystemFrame::Error { detail, .. })) => {
                self.busy = false;
                self.note(&format!("not taken: {detail}"))
            }
            Ok(ControlFrame::Stdout { data, .. } | ControlFrame::Stderr { data, .. }) => {
                self.note(&data)
            }
            Ok(ControlFrame::Exit { exit_code, .. }) => self.note(&format!("exit {exit_code}")),
            // Wire version 1.
            Err(_) => self.plain(text),
        }
    }

    fn plain(&mut self, text: &str) -> Result<(), Failure> {
        let frame: Value = serde_json::from_str(text).unwrap_or_default();
        self.seen = self.seen.max(frame["sequence"].as_u64().unwrap_or(0));
        self.busy &= frame["type"] != "done";
        let said = frame["text"].as_str().or(frame["name"].as_str()).unwrap_or_default();
        let kind = frame["type"].as_str().unwrap_or_default();
        if frame["type"] == "done" { Ok(()) } else { self.note(&format!("{kind}: {said}")) }
    }

    /// What was typed, as frames. `null` leaves.
    fn typed(&mut self, bytes: Vec<u8>) -> Vec<Value> {
        let Some(keys) = &mut self.keys else { return Vec::new() };
        if bytes.is_empty() {
            return vec![Value::Null];
        }
        if keys.raw.is_some() {
            if bytes.contains(&CTRL_C) {
                return vec![self.interrupt()];
            }
            let asked = self.view.asked();
            let answers = bytes.iter().filter_map(|key| answer(asked?, *key));
            return answers.take(1).collect();
        }
        keys.line.extend(bytes);
        keys.line.truncate(LINE_BYTES_MAX);
        let mut frames = Vec::new();
        while let Some(end) = keys.line.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = keys.line.drain(..=end).collect();
            let text = String::from_utf8_lossy(&line);
            if !text.trim().is_empty() {
                self.busy = true;
                frames.push(json!({ "type": "message", "message": text.trim_end() }));
            }
        }
        frames
    }

    /// The turn first, then we.
    fn interrupt(&mut self) -> Value {
        if std::mem::replace(&mut self.busy, false) {
            return json!({ "type": "interrupt" });
        }
        Value::Null
    }

    fn note(&mut self, text: &str) -> Result<(), Failure> {
        if self.json {
            return Ok(());
        }
        printed(&self.view.note(text))
    }
}

impl Keys {
    /// One key is enough while something is asked; else lines are edited as usual.
    fn mind(&mut self, asked: bool) -> Result<(), Failure> {
        match (asked, self.raw.is_some()) {
            (true, false) => self.raw = RawMode::enter()?,
            (false, true) => self.raw = None,
            (true, true) | (false, false) => {}
        }
        Ok(())
    }
}

/// What a key says to what is asked.
fn answer(asked: &Asked, key: u8) -> Option<Value> {
    match asked {
        Asked::Permission { id } => {
            let reply = match key.to_ascii_lowercase() {
                b'y' => "once",
                b'a' => "always",
                b'n' => "reject",
                _ => return None,
            };
            Some(json!({ "type": "permission.reply", "permission_id": id, "reply": reply }))
        }
        Asked::Question { id, .. } if key.eq_ignore_ascii_case(&b'n') => {
            Some(json!({ "type": "question.reject", "question_id": id }))
        }
        Asked::Question { id, options } => {
            let chosen = usize::from(key.checked_sub(b'1')?);
            let option = options.get(chosen)?;
            Some(json!({ "type": "question.reply", "question_id": id, "answers": [[option]] }))
        }
    }
}

async fn typed(keys: &mut Option<Keys>) -> Result<Vec<u8>, Failure> {
    let Some(keys) = keys else { return std::future::pending().await };
    let mut buffer = vec![0; INPUT_BYTES];
    let read = keys.stdin.read(&mut buffer).await?;
    buffer.truncate(read);
    Ok(buffer)
}

async fn interrupted(signals: &mut Signal0) {
    match signals {
        Some(signals) => drop(signals.recv().await),
        None => std::future::pending().await,
    }
}

fn printed(text: &str) -> Result<(), Failure> {
    if !text.is_empty() {
        out::stdout(text.as_bytes())?;
    }
    Ok(())
}

fn raw(text: &str) -> Result<(), Failure> {
    out::stdout(format!("{text}\n").as_bytes())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_answers_what_is_asked_and_nothing_else() {
        let permission = Asked::Permission { id: "p".into() };
        for (key, reply) in [(b'y', "once"), (b'A', "always"), (b'n', "reject")] {
            let frame = json!({ "type": "permission.reply", "permission_id": "p", "reply": reply });
            assert_eq!(answer(&permission, key), Some(frame));
        }
        assert_eq!(answer(&permission, b'x'), None);
        let options = vec!["Red".to_owned(), "Blue".to_owned()];
        let question = Asked::Question { id: "q".into(), options };
        let chosen = json!({ "type": "question.reply", "question_id": "q", "answers": [["Blue"]] });
        assert_eq!(answer(&question, b'2'), Some(chosen));
        let none = json!({ "type": "question.reject", "question_id": "q" });
        assert_eq!(answer(&question, b'N'), Some(none));
        assert_eq!((answer(&question, b'3'), answer(&question, b'0')), (None, None));
    }
}

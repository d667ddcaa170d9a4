//! The one client of a session: what it is told beside the log, and what becomes of what it says.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use api::frame::{ClientFrame, ControlFrame, FrameError, SystemFrame};
use engine::{Attachment, CancelReason, Command, ExecEvent, Notice, OutputStream};
use futures_util::StreamExt as _;
use model::{Error, Result, SandboxRef, SessionId};
use serde_json::{Value, json};
use store::Store;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::display::Inputs;
use super::live::{self, Client};
use super::{Attached, Live, Signal, daemon};
use crate::app::App;
use crate::turns;

/// Signals that a client may be behind; commands wait for it, and what ends it comes after them.
const SIGNALS_MAX: usize = 64;
/// Commands of one client that run at the same time.
const COMMANDS_MAX: usize = 8;
/// Of one command.
const COMMAND_BYTES_MAX: usize = 64 * 1024;
/// Of an id in a path of the daemon.
const ID_CHARS_MAX: usize = 256;

static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// What an [`Attached`] is made of.
pub(super) struct Hold {
    app: App,
    live: Arc<Live>,
    number: u64,
    gone: CancellationToken,
    commands: Arc<Semaphore>,
    inputs: Inputs,
}

pub(super) async fn attach(app: &App, live: Arc<Live>) -> Result<Attached> {
    let sandbox = SandboxRef::Id(live.sandbox);
    let attachment = app.engine.attach(&live.caller, &sandbox).await?;
    let (signals, received) = mpsc::channel(SIGNALS_MAX);
    let (number, gone) = (NUMBERS.fetch_add(1, Ordering::Relaxed), CancellationToken::new());
    let client = Client { number, signals: signals.clone(), gone: gone.clone() };
    if let Some(before) = live.client().replace(client) {
        before.gone.cancel();
        app.tasks.spawn(async move {
            let reason = "another connection took over";
            let close = before.signals.send(Signal::Close { code: 1011, reason });
            let _ = tokio::time::timeout(live::SIGNAL_MAX, close).await;
        });
    }
    let head = live.head.clone();
    let inputs = Inputs::begin(app, &live, number, signals.clone());
    app.tasks.spawn(attend(Arc::clone(app), attachment, signals, gone.clone()));
    let commands = Arc::new(Semaphore::new(COMMANDS_MAX));
    let hold = Hold { app: Arc::clone(app), live, number, gone, commands, inputs };
    Ok(Attached { head, signals: received, hold })
}

/// Tells the client what its sandbox tells; while this lasts, the sandbox is in use.
async fn attend(
    app: App,
    mut attachment: Attachment,
    signals: mpsc::Sender<Signal>,
    gone: CancellationToken,
) {
    loop {
        let notice = tokio::select! {
            () = gone.cancelled() => return,
            () = signals.closed() => return,
            () = app.draining.cancelled() => {
                let close = Signal::Close { code: 1001, reason: "server shutting down" };
                let _ = signals.try_send(close);
                return;
            }
            notice = attachment.notices.recv() => notice,
        };
        let reason = match notice {
            Ok(Notice::Cancel(reason)) => shown(reason),
            // Who follows the agent tells the end.
            Ok(Notice::Destroyed) | Err(RecvError::Lagged(_)) => continue,
            Err(RecvError::Closed) => return gone.cancelled().await,
        };
        let told = ControlFrame::System(SystemFrame::Cancel { reason });
        if signals.send(Signal::Control(told.text())).await.is_err() {
            return;
        }
    }
}

impl Attached {
    /// At most `max` events after that one, oldest first; empty when there are none yet.
    pub(crate) async fn read(&mut self, after: u64, max: usize) -> Result<Vec<(u64, Arc<str>)>> {
        let Hold { app, live, .. } = &self.hold;
        let of: (&Store, SessionId) = (&app.store, live.id);
        live::read(of, &live.ring, (after, max)).await
    }

    /// What a client says. What comes of it is an event, a signal, or this refusal.
    pub(crate) async fn say(&self, frame: ClientFrame) -> Result<()> {
        let Hold { app, live, .. } = &self.hold;
        if self.hold.gone.is_cancelled() {
            return Err(Error::unavailable("another connection took over"));
        }
        match &frame {
            ClientFrame::Message { message } => {
                daemon::tell(app, live, "messages", json!({ "message": message })).await?;
                turns::watch(app, &live.caller, &SandboxRef::Id(live.sandbox));
            }
            ClientFrame::PermissionReply { permission_id, reply } => {
                let path =
                    format!("permissions/{}/reply", segment("permission_id", permission_id)?);
                let body = json!({ "reply": reply.as_str() });
                daemon::tell(app, live, &path, body).await?;
            }
            ClientFrame::QuestionReply { question_id, answers } => {
                let path = format!("questions/{}/reply", segment("question_id", question_id)?);
                daemon::tell(app, live, &path, json!({ "answers": answers })).await?;
            }
            ClientFrame::QuestionReject { question_id } => {
                let path = format!("questions/{}/reject", segment("question_id", question_id)?);
                daemon::tell(app, live, &path, Value::Null).await?;
            }
            ClientFrame::Interrupt {} => daemon::tell(app, live, "interrupt", Value::Null).await?,
            ClientFrame::Exec { command, id } => self.hold.exec(command, id.clone()).await?,
            ClientFrame::From { .. } => {
                return Err(Error::invalid("type", "from can be the first frame only"));
            }
            ClientFrame::MouseMove { .. }
            | ClientFrame::MouseClick { .. }
            | ClientFrame::KeyboardType { .. }
            | ClientFrame::PressKey { .. }
            | ClientFrame::Scroll { .. }
            | ClientFrame::Screenshot {} => self.hold.inputs.add(live, &frame)?,
        }
        Ok(())
    }
}

impl Hold {
    /// Starts it; what it prints follows as control frames. It ends with the client.
    async fn exec(&self, command: &str, id: Option<String>) -> Result<()> {
        if command.len() > COMMAND_BYTES_MAX {
            let detail = format!("at most {COMMAND_BYTES_MAX} bytes");
            return Err(Error::invalid("command", detail));
        }
        let many = || Error::wrong_state(format!("{COMMANDS_MAX} commands run already"));
        let turn = Arc::clone(&self.commands).try_acquire_owned().map_err(|_| many())?;
        let (caller, sandbox) = (self.live.caller.clone(), SandboxRef::Id(self.live.sandbox));
        let command = Command::shell(command.to_owned());
        let (exec, output) = self.app.engine.exec_start(&caller, &sandbox, command).await?;
        let signals = self.live.client().as_ref().map(|client| client.signals.clone());
        let (app, gone) = (Arc::clone(&self.app), self.gone.clone());
        app.clone().tasks.spawn(async move {
            let _turn = turn;
            let Some(signals) = signals else { return };
            let told = gone.run_until_cancelled(tell_output(output, &signals, id)).await;
            if told != Some(true) {
                let _ = app.engine.exec_kill(&caller, &sandbox, &exec).await;
            }
        });
        Ok(())
    }
}

/// Whether it ended with the client there.
async fn tell_output(
    mut output: engine::ExecOutput,
    signals: &mpsc::Sender<Signal>,
    id: Option<String>,
) -> bool {
    // Of each stream, the begin of a character whose rest has not come yet.
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    while let Some(event) = output.next().await {
        let frame = match event {
            Ok(ExecEvent::Output { stream, bytes, .. }) => {
                let id = id.clone();
                match stream {
                    OutputStream::Stdout => {
                        ControlFrame::Stdout { id, data: text(&mut stdout, &bytes) }
                    }
                    OutputStream::Stderr => {
                        ControlFrame::Stderr { id, data: text(&mut stderr, &bytes) }
                    }
                }
            }
            Ok(ExecEvent::Gap { .. } | ExecEvent::Keepalive) => continue,
            Ok(ExecEvent::Exit(exit)) => {
                let frame = ControlFrame::Exit { id, exit_code: exit.exit_code };
                return signals.send(Signal::Control(frame.text())).await.is_ok();
            }
            Ok(ExecEvent::SandboxEnded { .. }) => return true,
            Err(error) => {
                let frame = ControlFrame::error_of(FrameError::Unavailable, error.to_string(), id);
                let _ = signals.send(Signal::Control(frame.text())).await;
                return true;
            }
        };
        if signals.send(Signal::Control(frame.text())).await.is_err() {
            return false;
        }
    }
    true
}

/// Whole characters; the begin of one at the end stays for what comes next.
fn text(bytes: &mut Vec<u8>, more: &[u8]) -> String {
    bytes.extend_from_slice(more);
    let whole = match std::str::from_utf8(bytes) {
        Ok(_) => bytes.len(),
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        Err(_) => bytes.len(),
    };
    let rest = bytes.split_off(whole);
    let text = String::from_utf8_lossy(bytes).into_owned();
    *bytes = rest;
    text
}

fn shown(reason: CancelReason) -> api::cancel::CancelReason {
    match reason {
        CancelReason::CreditsExhausted => api::cancel::CancelReason::CreditsExhausted,
        CancelReason::UserRequest => api::cancel::CancelReason::UserRequest,
        CancelReason::AdminAction => api::cancel::CancelReason::AdminAction,
        CancelReason::Timeout => api::cancel::CancelReason::Timeout,
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.gone.cancel();
        let mut client = self.live.client();
        if client.as_ref().is_some_and(|client| client.number == self.number) {
            client.take();
        }
    }
}

/// An id as one segment of a path.
fn segment(field: &str, id: &str) -> Result<String> {
    if id.is_empty() || id.len() > ID_CHARS_MAX {
        return Err(Error::invalid(field, format!("must be 1 to {ID_CHARS_MAX} bytes")));
    }
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    Ok(id.bytes().map(byte).collect())
}

//! The display of a `cua` session: what a client does to it, and what it is shown.

use std::sync::Arc;
use std::time::Duration;

use api::ClientFrame;
use api::frame::ControlFrame;
use bytes::Bytes;
use engine::Command;
use model::{Error, Result, SandboxRef};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::socket::shown;
use super::{Live, Signal};
use crate::app::App;

const TEMPLATE: &str = "cua";
/// Of one input.
const TIME_MAX: Duration = Duration::from_secs(20);
/// Inputs of one client that wait.
const INPUTS_MAX: usize = 64;
/// Of one text that is typed, and how long that may take: six seconds, but half a minute when its characters are
/// all different and no keyboard has them.
const TEXT_BYTES_MAX: usize = 4096;
const TYPING_TIME_MAX: Duration = Duration::from_secs(60);
/// A sandbox may stand on a build of the template that has no program for it yet.
const TYPE: &str = "if command -v type-text >/dev/null; then exec type-text \"$1\"; fi\n\
                    exec xdotool type -- \"$1\"";
/// Clicks of the wheel in one frame.
const CLICKS_MAX: u32 = 50;
/// Images of one turn that are shown; more are in the log only.
const IMAGES_MAX: usize = 8;
const IMAGE_BYTES_MAX: usize = 8 << 20;

/// What one client does with the mouse and the keyboard, or asks to see: one after the other, and nothing else
/// that it says or is told waits for it.
pub(super) struct Inputs(mpsc::Sender<Input>);

struct Input {
    argv: Vec<String>,
    limit: Duration,
    /// It prints an image for the client.
    shows: bool,
}

impl Inputs {
    /// Those of a client that has gone are carried out too, unless another one has come.
    pub(super) fn begin(
        app: &App,
        live: &Arc<Live>,
        number: u64,
        signals: mpsc::Sender<Signal>,
    ) -> Self {
        let (sender, inputs) = mpsc::channel(INPUTS_MAX);
        if live.spec.template == TEMPLATE {
            let work = carry_out(Arc::clone(app), Arc::clone(live), (number, inputs), signals);
            app.tasks.spawn(work);
        }
        Self(sender)
    }

    /// What is wrong with it is said now; what the display says of it comes as a control frame.
    pub(super) fn add(&self, live: &Live, frame: &ClientFrame) -> Result<()> {
        if live.spec.template != TEMPLATE {
            return Err(Error::invalid(
                "type",
                "only a session with the template cua has a display",
            ));
        }
        self.0.try_send(input(frame)?).map_err(|full| match full {
            TrySendError::Full(_) => {
                Error::wrong_state(format!("{INPUTS_MAX} inputs wait already: send less at a time"))
            }
            TrySendError::Closed(_) => Error::unavailable("another connection took over"),
        })
    }
}

async fn carry_out(
    app: App,
    live: Arc<Live>,
    (number, mut inputs): (u64, mpsc::Receiver<Input>),
    signals: mpsc::Sender<Signal>,
) {
    while let Some(input) = inputs.recv().await {
        let has_come = live.client().as_ref().is_some_and(|client| client.number != number);
        if has_come || app.draining.is_cancelled() {
            return;
        }
        let signal = match run(&app, &live, input.argv, input.limit).await {
            Ok(image) if input.shows => Signal::Binary(image),
            Ok(_) => continue,
            Err(error) => {
                let (code, detail) = shown(error);
                Signal::Control(ControlFrame::error_of(code, detail, None).text())
            }
        };
        // Who has gone is told nothing.
        let _ = signals.send(signal).await;
    }
}

/// Sends images that the agent shows to the client, behind the pump: none of it holds events up.
pub(super) fn show(app: &App, live: &Arc<Live>, mut images: Vec<String>) {
    if images.is_empty() || live.spec.template != TEMPLATE || live.client().is_none() {
        return;
    }
    images.truncate(IMAGES_MAX);
    let (app, live) = (Arc::clone(app), Arc::clone(live));
    app.clone().tasks.spawn(async move {
        for path in images {
            let argv =
                vec!["head".into(), "-c".into(), IMAGE_BYTES_MAX.to_string(), "--".into(), path];
            if let Ok(bytes) = run(&app, &live, argv, TIME_MAX).await
                && !bytes.is_empty()
            {
                live.signal(Signal::Binary(bytes)).await;
            }
        }
    });
}

fn input(frame: &ClientFrame) -> Result<Input> {
    let (limit, shows) = match frame {
        ClientFrame::KeyboardType { .. } => (TYPING_TIME_MAX, false),
        ClientFrame::Screenshot {} => (TIME_MAX, true),
        _ => (TIME_MAX, false),
    };
    Ok(Input { argv: argv(frame)?, limit, shows })
}

fn argv(frame: &ClientFrame) -> Result<Vec<String>> {
    let xdotool = |words: &[&str]| {
        ["xdotool"].iter().chain(words).map(|word| (*word).to_owned()).collect::<Vec<_>>()
    };
    let at = |x: &u32, y: &u32| (x.to_string(), y.to_string());
    Ok(match frame {
        ClientFrame::MouseMove { x, y } => {
            let (x, y) = at(x, y);
            xdotool(&["mousemove", &x, &y])
        }
        ClientFrame::MouseClick { x, y, button } => {
            let (x, y) = at(x, y);
            let button = button.unwrap_or(1);
            if !(1..=9).contains(&button) {
                return Err(Error::invalid("button", "must be 1 to 9"));
            }
            xdotool(&["mousemove", &x, &y, "click", &button.to_string()])
        }
        ClientFrame::KeyboardType { text } => {
            if text.len() > TEXT_BYTES_MAX || text.contains('\0') {
                let detail = format!("at most {TEXT_BYTES_MAX} bytes, without NUL");
                return Err(Error::invalid("text", detail));
            }
            ["sh", "-c", TYPE, "sh", text].map(str::to_owned).into()
        }
        ClientFrame::PressKey { key } => {
            let good = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'+');
            if key.is_empty() || key.len() > 64 || !key.bytes().all(good) {
                return Err(Error::invalid(
                    "key",
                    "must be a key as xdotool calls it: ctrl+Return",
                ));
            }
            xdotool(&["key", "--", key])
        }
        ClientFrame::Scroll { x, y, clicks } => {
            let (x, y) = at(x, y);
            let count = clicks.unsigned_abs().clamp(1, CLICKS_MAX).to_string();
            let button = if *clicks < 0 { "4" } else { "5" };
            xdotool(&["mousemove", &x, &y, "click", "--repeat", &count, button])
        }
        ClientFrame::Screenshot {} => {
            ["import", "-silent", "-window", "root", "png:-"].map(str::to_owned).into()
        }
        _ => return Err(Error::invalid("type", "no input of a display")),
    })
}

async fn run(app: &App, live: &Live, argv: Vec<String>, limit: Duration) -> Result<Bytes> {
    let command = Command { argv, timeout: Some(limit), ..Command::shell(String::new()) };
    let outcome = app.engine.exec(&live.caller, &SandboxRef::Id(live.sandbox), command).await?;
    if outcome.exit_code != 0 {
        let said = String::from_utf8_lossy(&outcome.stderr);
        let said: String = said.trim().chars().take(200).collect();
        return Err(Error::unavailable(format!("the display does not take it: {said}")));
    }
    Ok(outcome.stdout)
}

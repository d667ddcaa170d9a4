//! The display of a `cua` session: what a client does to it, and what it is shown.

use std::sync::Arc;

use api::ClientFrame;
use bytes::Bytes;
use engine::Command;
use model::{Error, Result, SandboxRef};

use super::{Live, Signal};
use crate::app::App;

const TEMPLATE: &str = "cua";
/// Of one input.
const TIME_MAX: std::time::Duration = std::time::Duration::from_secs(20);
/// Of one text that is typed.
const TEXT_BYTES_MAX: usize = 4096;
/// Clicks of the wheel in one frame.
const CLICKS_MAX: u32 = 50;
/// Images of one turn that are shown; more are in the log only.
const IMAGES_MAX: usize = 8;
const IMAGE_BYTES_MAX: usize = 8 << 20;

/// What a client does with the mouse and the keyboard, or asks to see.
pub(super) async fn input(app: &App, live: &Live, frame: &ClientFrame) -> Result<()> {
    if live.spec.template != TEMPLATE {
        return Err(Error::invalid("type", "only a session with the template cua has a display"));
    }
    if matches!(frame, ClientFrame::Screenshot {}) {
        let shot = ["import", "-silent", "-window", "root", "png:-"];
        let outcome = run(app, live, shot.map(str::to_owned).into()).await?;
        live.signal(Signal::Binary(outcome)).await;
        return Ok(());
    }
    run(app, live, argv(frame)?).await.map(drop)
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
            if let Ok(bytes) = run(&app, &live, argv).await
                && !bytes.is_empty()
            {
                live.signal(Signal::Binary(bytes)).await;
            }
        }
    });
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
            xdotool(&["type", "--", text])
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
        _ => return Err(Error::invalid("type", "no input of a display")),
    })
}

async fn run(app: &App, live: &Live, argv: Vec<String>) -> Result<Bytes> {
    let command = Command { argv, timeout: Some(TIME_MAX), ..Command::shell(String::new()) };
    let outcome = app.engine.exec(&live.caller, &SandboxRef::Id(live.sandbox), command).await?;
    if outcome.exit_code != 0 {
        let said = String::from_utf8_lossy(&outcome.stderr);
        let said: String = said.trim().chars().take(200).collect();
        return Err(Error::unavailable(format!("the display does not take it: {said}")));
    }
    Ok(outcome.stdout)
}

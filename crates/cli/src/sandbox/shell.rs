//! `bastide sandbox shell`: a terminal inside a sandbox, through the guest's process service. Keys
//! go in as they are pressed; the local terminal is restored on every way out.

use std::process::ExitCode;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use model::SandboxRef;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::pair;
use crate::client::Client;
use crate::envd::{Envd, Process, Said};
use crate::failure::Failure;
use crate::out;
use crate::terminal::{self, RawMode};

const INPUT_BYTES: usize = 16 << 10;

#[derive(Debug, Args)]
pub(crate) struct ShellArgs {
    #[arg(value_name = "SANDBOX")]
    id: SandboxRef,
    /// As whom; default: the template's user
    #[arg(long, short)]
    user: Option<String>,
    /// Where to begin
    #[arg(long, short = 'w', value_name = "DIR")]
    cwd: Option<String>,
    /// A variable for the shell; may be repeated
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = pair)]
    env: Vec<(String, String)>,
    /// What to run; default: a login shell
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

pub(super) async fn shell(client: &Client, args: ShellArgs) -> Result<ExitCode, Failure> {
    let user = args.user.as_deref();
    let mut calls = Envd::open(client, &args.id, user).await?;
    let stream = Envd::open(client, &args.id, user).await?;
    let mut process = Process::start(stream, &start_request(&args)).await?;
    let selector = process.selector();
    let _raw = RawMode::enter()?;
    let mut resized = signal(SignalKind::window_change())?;
    let mut ended = signal(SignalKind::terminate())?;
    let mut hung_up = signal(SignalKind::hangup())?;
    let mut stdin = tokio::io::stdin();
    let mut buffer = vec![0; INPUT_BYTES];
    let mut open = true;
    loop {
        tokio::select! {
            said = process.next() => match said? {
                Said::Stdout(bytes) => out::stdout(&bytes)?,
                Said::Stderr(bytes) => out::stderr(&bytes)?,
                Said::Ended(code) => return Ok(ExitCode::from(code)),
            },
            read = stdin.read(&mut buffer), if open => {
                let read = read?;
                // The end of a pipe is what ctrl-D is on a terminal.
                open = read > 0;
                let bytes: &[u8] = if open { &buffer[..read] } else { &[4] };
                let input = json!({ "pty": STANDARD.encode(bytes) });
                let request = json!({ "process": selector, "input": input });
                call(&mut calls, "SendInput", &request).await;
            }
            _ = resized.recv() => {
                let update = json!({ "process": selector, "pty": pty() });
                call(&mut calls, "Update", &update).await;
            }
            _ = ended.recv() => return Ok(hang_up(&mut calls, &selector).await),
            _ = hung_up.recv() => return Ok(hang_up(&mut calls, &selector).await),
        }
    }
}

/// An input that comes when the shell has just ended is not a failure: its end will be told.
async fn call(calls: &mut Envd, method: &str, request: &Value) {
    let _ = calls.unary(&format!("process.Process/{method}"), request).await;
}

async fn hang_up(calls: &mut Envd, selector: &Value) -> ExitCode {
    let request = json!({ "process": selector, "signal": "SIGNAL_SIGKILL" });
    // We are going anyway.
    let _ = calls.unary("process.Process/SendSignal", &request).await;
    ExitCode::FAILURE
}

fn start_request(args: &ShellArgs) -> Value {
    let (program, arguments): (&str, Vec<&str>) = match args.command.split_first() {
        Some((program, rest)) => (program, rest.iter().map(String::as_str).collect()),
        None => ("/bin/bash", vec!["-i", "-l"]),
    };
    let mut envs: serde_json::Map<String, Value> =
        [("TERM", "xterm-256color"), ("LANG", "C.UTF-8")]
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.into()))
            .collect();
    envs.extend(args.env.iter().map(|(name, value)| (name.clone(), value.clone().into())));
    let mut process = json!({ "cmd": program, "args": arguments, "envs": envs });
    if let Some(cwd) = &args.cwd {
        process["cwd"] = cwd.as_str().into();
    }
    json!({ "process": process, "pty": pty() })
}

fn pty() -> Value {
    let (cols, rows) = terminal::size();
    json!({ "size": { "cols": cols, "rows": rows } })
}

//! A process of a guest with our own terminal or pipes as its input and output.

use std::process::ExitCode;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::envd::{Envd, Process, Said};
use crate::failure::Failure;
use crate::out;
use crate::terminal::{self, RawMode};

const INPUT_BYTES: usize = 64 << 10;
/// As `timeout` answers for a command that it killed.
const TIMED_OUT: u8 = 124;

/// What to start.
#[derive(Debug, Default)]
pub(crate) struct Program {
    pub command: Vec<String>,
    pub cwd: Option<String>,
    pub env: Vec<(String, String)>,
}

/// What our own signals do to the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signals {
    /// It is killed, and so are we.
    Kill,
    /// It gets them, and decides.
    Pass,
}

/// Three connections to one guest: its output, our input, and what may not wait for either.
pub(crate) struct Lines {
    pub output: Envd,
    pub input: Envd,
    pub control: Envd,
}

/// Runs `program` in a terminal of its own, drawn on ours. Our terminal is restored on every way
/// out.
pub(crate) async fn with_terminal(lines: Lines, program: &Program) -> Result<ExitCode, Failure> {
    let Lines { output, input: mut calls, .. } = lines;
    let mut request = start_request(program);
    request["process"]["envs"]["TERM"] = "xterm-256color".into();
    request["pty"] = pty();
    let mut process = Process::start(output, &request).await?;
    let selector = process.selector();
    let _raw = RawMode::enter()?;
    let mut resized = signal(SignalKind::window_change())?;
    let mut ends = Ends::watch()?;
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
                call(&mut calls, "SendInput", &json!({ "process": selector, "input": input })).await;
            }
            _ = resized.recv() => {
                call(&mut calls, "Update", &json!({ "process": selector, "pty": pty() })).await;
            }
            (_, code) = ends.next() => {
                send_signal(&mut calls, &selector, "SIGNAL_SIGKILL").await;
                return Ok(ExitCode::from(code));
            }
        }
    }
}

/// Runs `program` with our stdin, stdout and stderr.
pub(crate) async fn with_pipes(
    lines: Lines,
    program: &Program,
    signals: Signals,
    limit: Option<Duration>,
) -> Result<ExitCode, Failure> {
    let Lines { output, mut input, mut control } = lines;
    let mut request = start_request(program);
    request["stdin"] = true.into();
    let mut process = Process::start(output, &request).await?;
    let selector = process.selector();
    let feeding = feed(&mut input, &selector);
    let mut feeding = std::pin::pin!(feeding);
    let mut ends = Ends::watch()?;
    let mut expired = std::pin::pin!(expired(limit));
    let mut fed = false;
    let code = loop {
        tokio::select! {
            said = process.next() => match said? {
                Said::Stdout(bytes) => out::stdout(&bytes)?,
                Said::Stderr(bytes) => out::stderr(&bytes)?,
                Said::Ended(code) => return Ok(ExitCode::from(code)),
            },
            result = &mut feeding, if !fed => {
                result?;
                fed = true;
            }
            (name, code) = ends.next() => match signals {
                Signals::Pass => send_signal(&mut control, &selector, name).await,
                Signals::Kill => break code,
            },
            () = &mut expired => {
                out::note("warning: the command was killed because its time was up");
                break TIMED_OUT;
            }
        }
    };
    send_signal(&mut control, &selector, "SIGNAL_SIGKILL").await;
    Ok(ExitCode::from(code))
}

async fn feed(calls: &mut Envd, selector: &Value) -> Result<(), Failure> {
    let mut stdin = tokio::io::stdin();
    let mut buffer = vec![0; INPUT_BYTES];
    loop {
        let read = stdin.read(&mut buffer).await?;
        if read == 0 {
            break;
        }
        let input = json!({ "stdin": STANDARD.encode(&buffer[..read]) });
        let request = json!({ "process": selector, "input": input });
        // A command that closed its input, or ended, wants no more; how it ended is told elsewhere.
        if calls.unary("process.Process/SendInput", &request).await.is_err() {
            return Ok(());
        }
    }
    call(calls, "CloseStdin", &json!({ "process": selector })).await;
    Ok(())
}

/// What comes when the process has just ended is not a failure: its end will be told.
async fn call(calls: &mut Envd, method: &str, request: &Value) {
    let _ = calls.unary(&format!("process.Process/{method}"), request).await;
}

async fn send_signal(calls: &mut Envd, selector: &Value, name: &str) {
    call(calls, "SendSignal", &json!({ "process": selector, "signal": name })).await;
}

async fn expired(limit: Option<Duration>) {
    match limit {
        Some(limit) => tokio::time::sleep(limit).await,
        None => std::future::pending().await,
    }
}

/// The signals that would end us.
pub(crate) struct Ends {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
    quit: Signal,
    user1: Signal,
    user2: Signal,
}

impl Ends {
    pub(crate) fn watch() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            quit: signal(SignalKind::quit())?,
            user1: signal(SignalKind::user_defined1())?,
            user2: signal(SignalKind::user_defined2())?,
        })
    }

    /// What the guest calls it, and the exit code of a command that it ended.
    pub(crate) async fn next(&mut self) -> (&'static str, u8) {
        tokio::select! {
            _ = self.interrupt.recv() => ("SIGNAL_SIGINT", 130),
            _ = self.terminate.recv() => ("SIGNAL_SIGTERM", 143),
            _ = self.hang_up.recv() => ("SIGNAL_SIGHUP", 129),
            _ = self.quit.recv() => ("SIGNAL_SIGQUIT", 131),
            _ = self.user1.recv() => ("SIGNAL_SIGUSR1", 138),
            _ = self.user2.recv() => ("SIGNAL_SIGUSR2", 140),
        }
    }
}

fn start_request(program: &Program) -> Value {
    let (command, arguments) = program.command.split_first().expect("clap requires a command");
    let envs: Map<String, Value> =
        program.env.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect();
    let mut process = json!({ "cmd": command, "args": arguments, "envs": envs });
    if let Some(cwd) = &program.cwd {
        process["cwd"] = cwd.as_str().into();
    }
    json!({ "process": process })
}

fn pty() -> Value {
    let (cols, rows) = terminal::size();
    json!({ "size": { "cols": cols, "rows": rows } })
}

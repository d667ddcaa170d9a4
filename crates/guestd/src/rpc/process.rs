//! `process.Process`.

mod stream;

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use self::stream::{Deadline, Events};
use super::{Nothing, no_such, user_of};
use crate::connect::{self, Messages};
use crate::http::{Request, Response};
use crate::process::{self as processes, Process, PtySize, Start, Stdin, Until};
use crate::refusal::{Refusal, Result};
use crate::state::State;

/// Terminals are not bigger, and the kernel counts in 16 bits.
const SIDE_MAX: u32 = u16::MAX as u32;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct ProcessConfig {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    cmd: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    args: Vec<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    envs: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cwd: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Pty {
    #[serde(default)]
    size: Size,
}

#[derive(Debug, Default, Deserialize)]
struct Size {
    #[serde(default)]
    cols: u32,
    #[serde(default)]
    rows: u32,
}

#[derive(Debug, Default, Deserialize)]
struct Selector {
    pid: Option<u32>,
    tag: Option<String>,
}

#[derive(Debug, Deserialize)]
struct StartRequest {
    #[serde(default)]
    process: ProcessConfig,
    pty: Option<Pty>,
    tag: Option<String>,
    stdin: Option<bool>,
}

/// Of every call that names a process.
#[derive(Debug, Deserialize)]
struct Selected {
    #[serde(default)]
    process: Selector,
    pty: Option<Pty>,
    input: Option<InputMessage>,
    signal: Option<SignalName>,
}

#[derive(Debug, Deserialize)]
struct InputMessage {
    stdin: Option<String>,
    pty: Option<String>,
}

/// By name or by number, as protobuf's JSON allows.
#[derive(Debug, Deserialize)]
enum SignalName {
    #[serde(rename = "SIGNAL_SIGTERM")]
    Term,
    #[serde(rename = "SIGNAL_SIGKILL")]
    Kill,
    // Ours: what a terminal or a supervisor sends, for `bastide run`.
    #[serde(rename = "SIGNAL_SIGHUP")]
    Hangup,
    #[serde(rename = "SIGNAL_SIGINT")]
    Interrupt,
    #[serde(rename = "SIGNAL_SIGQUIT")]
    Quit,
    #[serde(rename = "SIGNAL_SIGUSR1")]
    User1,
    #[serde(rename = "SIGNAL_SIGUSR2")]
    User2,
}

impl SignalName {
    fn signal(&self) -> Signal {
        match self {
            Self::Term => Signal::TERM,
            Self::Kill => Signal::KILL,
            Self::Hangup => Signal::HUP,
            Self::Interrupt => Signal::INT,
            Self::Quit => Signal::QUIT,
            Self::User1 => Signal::USR1,
            Self::User2 => Signal::USR2,
        }
    }
}

/// One message of `StreamInput`.
#[derive(Debug, Deserialize)]
struct StreamMessage {
    start: Option<Selected>,
    data: Option<StreamData>,
}

#[derive(Debug, Deserialize)]
struct StreamData {
    input: Option<InputMessage>,
}

#[derive(Debug, Serialize)]
struct ListAnswer {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    processes: Vec<Info>,
}

#[derive(Debug, Serialize)]
struct Info {
    config: ProcessConfig,
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<String>,
}

pub(crate) async fn process(state: Arc<State>, request: Request, procedure: &str) -> Response {
    match procedure {
        "List" => connect::unary(list(&state, request).await),
        "Start" => connect::stream(start(&state, request).await),
        "Connect" => connect::stream(attach(&state, request).await),
        "StreamInput" => connect::stream_of_one(stream_input(&state, request).await),
        "Update" | "SendInput" | "SendSignal" | "CloseStdin" => {
            connect::unary(on_one(&state, request, procedure).await)
        }
        other => connect::unary::<Nothing>(Err(no_such(other))),
    }
}

async fn list(state: &State, request: Request) -> Result<ListAnswer> {
    connect::unary_request::<serde_json::Value>(request).await?;
    let running = state.processes.running();
    let processes = running.iter().filter(|process| process.start.id.is_none()).map(|process| {
        let start = &process.start;
        let (cmd, args) = start
            .argv
            .split_first()
            .map_or((String::new(), Vec::new()), |(cmd, args)| (cmd.clone(), args.to_vec()));
        let config = ProcessConfig { cmd, args, envs: start.env.clone(), cwd: start.cwd.clone() };
        Info { config, pid: process.pid, tag: start.tag.clone() }
    });
    Ok(ListAnswer { processes: processes.collect() })
}

async fn start(state: &Arc<State>, request: Request) -> Result<Events> {
    let user = user_of(&request)?;
    let timeout = connect::timeout(request.headers());
    let keepalive = connect::keepalive(request.headers());
    let request: StartRequest = connect::stream_request(request).await?;
    let config = request.process;
    let start = Start {
        detached: false,
        id: None,
        tag: request.tag,
        argv: std::iter::once(config.cmd).chain(config.args).collect(),
        env: config.envs,
        cwd: config.cwd,
        user,
        stdin: if request.stdin.unwrap_or(true) { Stdin::Open } else { Stdin::Empty },
        pty: request.pty.map(|pty| size(&pty)),
        timeout,
        until: Until::Closed,
    };
    let process = processes::start(state, start)?;
    let reader = process.output.reader(Some(0));
    Ok(Events::new(process, reader, keepalive, Deadline::OfProcess))
}

async fn attach(state: &State, request: Request) -> Result<Events> {
    let deadline = connect::timeout(request.headers());
    let keepalive = connect::keepalive(request.headers());
    let request: Selected = connect::stream_request(request).await?;
    let process = select(state, &request.process)?;
    let reader = process.output.reader(None);
    Ok(Events::new(process, reader, keepalive, Deadline::OfStream(deadline)))
}

async fn on_one(state: &State, request: Request, procedure: &str) -> Result<Nothing> {
    let request: Selected = connect::unary_request(request).await?;
    let process = select(state, &request.process)?;
    match procedure {
        "Update" => {
            if let Some(pty) = &request.pty {
                process.resize(size(pty))?;
            }
        }
        "SendInput" => give(&process, request.input).await?,
        "SendSignal" => match request.signal {
            Some(name) => process.signal(name.signal()).await?,
            None => return Err(Refusal::invalid("there is no signal")),
        },
        _ => {
            if process.is_pty() {
                return Err(Refusal::new(
                    crate::refusal::Code::FailedPrecondition,
                    "a pty has no stdin to close; send Ctrl+D instead",
                ));
            }
            process.input().close();
        }
    }
    Ok(Nothing {})
}

async fn stream_input(state: &State, request: Request) -> Result<Nothing> {
    let mut messages = Messages::new(request)?;
    let mut process = None;
    while let Some(message) = messages.next::<StreamMessage>().await? {
        if let Some(start) = message.start {
            process = Some(select(state, &start.process)?);
        }
        if let Some(data) = message.data {
            let process = process.as_ref();
            let process =
                process.ok_or_else(|| Refusal::invalid("the first message is not a start"))?;
            give(process, data.input).await?;
        }
    }
    Ok(Nothing {})
}

async fn give(process: &Process, input: Option<InputMessage>) -> Result<()> {
    let wrong = |message: &str| Refusal::new(crate::refusal::Code::FailedPrecondition, message);
    let text = match (input, process.is_pty()) {
        (Some(InputMessage { stdin: Some(text), .. }), false)
        | (Some(InputMessage { pty: Some(text), .. }), true) => text,
        (Some(InputMessage { stdin: Some(_), .. }), true) => {
            return Err(wrong("the process has a pty and no stdin"));
        }
        (Some(InputMessage { pty: Some(_), .. }), false) => {
            return Err(wrong("the process has no pty"));
        }
        _ => return Err(Refusal::invalid("there is no input")),
    };
    let bytes =
        STANDARD.decode(text).map_err(|error| Refusal::invalid(format!("input: {error}")))?;
    process.input().write(Bytes::from(bytes)).await
}

fn select(state: &State, selector: &Selector) -> Result<Arc<Process>> {
    match (selector.pid, &selector.tag) {
        (Some(pid), _) => state.processes.by_pid(pid),
        (None, Some(tag)) => state.processes.by_tag(tag),
        (None, None) => Err(Refusal::invalid("there is no process selector")),
    }
}

fn size(pty: &Pty) -> PtySize {
    let side = |side: u32| u16::try_from(side.min(SIDE_MAX)).unwrap_or(u16::MAX);
    PtySize { cols: side(pty.size.cols), rows: side(pty.size.rows) }
}

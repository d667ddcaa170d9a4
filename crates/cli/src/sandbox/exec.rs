//! `bastide sandbox exec`: a command whose output comes live and whose exit code is ours.
//!
//! Without input it runs through `exec/stream`, which survives a lost connection: we come back
//! where we were. With input on stdin it runs through the guest's process service, because input
//! can be endless and of any bytes. Interrupting us kills the command.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use api::exec::{ExecExit, ExecGap, ExecLost, ExecOutput, ExecStarted, OutputStream};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use http::{Method, header};
use model::SandboxRef;
use rustix::fs::{FileType, fstat};
use serde_json::{Map, Value};

use super::{path_of, show};
use crate::args::pair;
use crate::attach::{self, Ends, Lines, Program, Signals};
use crate::client::sse::{Event, Events};
use crate::client::{Client, empty, full};
use crate::envd::Envd;
use crate::failure::Failure;
use crate::out;

/// In a row, without one byte in between.
const REATTACH_MAX: u32 = 10;
const REATTACH_AFTER: Duration = Duration::from_millis(300);

#[derive(Debug, Args)]
#[command(after_help = "\
One word after -- is a line for the shell; several are a program and its arguments:
  bastide sandbox exec my-box -- 'ls | wc -l'
  bastide sandbox exec my-box -- python3 main.py --name 'with blanks'")]
pub(crate) struct ExecArgs {
    #[arg(value_name = "SANDBOX")]
    id: SandboxRef,
    /// As whom; default: the template's user
    #[arg(long, short)]
    user: Option<String>,
    /// Where to run it
    #[arg(long, short = 'w', value_name = "DIR")]
    cwd: Option<String>,
    /// A variable for the command; may be repeated
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = pair)]
    env: Vec<(String, String)>,
    /// Kill it after this long
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// Give it no input, also when there is some on stdin
    #[arg(long)]
    no_stdin: bool,
    #[arg(required = true, value_name = "COMMAND", trailing_var_arg = true)]
    command: Vec<String>,
}

pub(super) async fn exec(client: &Client, args: ExecArgs, json: bool) -> Result<ExitCode, Failure> {
    if json {
        return blocking(client, &args).await;
    }
    if !args.no_stdin && has_input() {
        let lines = lines(client, &args.id, args.user.as_deref()).await?;
        let command = vec!["/bin/sh".into(), "-c".into(), line(&args.command)];
        let limit = args.timeout.map(Duration::from_secs);
        let program = Program { command, cwd: args.cwd, env: args.env };
        return attach::with_pipes(lines, &program, Signals::Kill, limit).await;
    }
    streaming(client, &args).await
}

/// Connections to the guest, for its process service.
pub(super) async fn lines(
    client: &Client,
    id: &SandboxRef,
    user: Option<&str>,
) -> Result<Lines, Failure> {
    Ok(Lines {
        output: Envd::open(client, id, user).await?,
        input: Envd::open(client, id, user).await?,
        control: Envd::open(client, id, user).await?,
    })
}

/// With `--json`: one answer with everything in it.
async fn blocking(client: &Client, args: &ExecArgs) -> Result<ExitCode, Failure> {
    let answer: Value =
        client.json(Method::POST, &path_of(&args.id, "exec", &[]), Some(&body(args))).await?;
    out::json(&answer)?;
    let answer: api::ExecResponse = show::parse(answer)?;
    Ok(exit_code(answer.exit_code))
}

async fn streaming(client: &Client, args: &ExecArgs) -> Result<ExitCode, Failure> {
    let request = client
        .request(Method::POST, &path_of(&args.id, "exec/stream", &[]))
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, "text/event-stream")
        .body(full(body(args).to_string().into_bytes()))
        .map_err(|error| Failure::new(error.to_string()))?;
    let events = Events::new(client.send(request).await?);
    let mut following = Following { client, id: &args.id, exec_id: None, offset: 0, events };
    let mut ends = Ends::watch()?;
    let code = tokio::select! {
        code = following.follow() => return code,
        (_, code) = ends.next() => code,
    };
    following.kill().await?;
    Ok(ExitCode::from(code))
}

/// One command whose output we read.
struct Following<'a> {
    client: &'a Client,
    id: &'a SandboxRef,
    exec_id: Option<String>,
    /// Of the next byte.
    offset: u64,
    events: Events,
}

impl Following<'_> {
    async fn follow(&mut self) -> Result<ExitCode, Failure> {
        let mut failures = 0;
        loop {
            let failure = match self.events.next().await {
                Ok(Some(event)) => {
                    failures = 0;
                    match self.take(&event)? {
                        Some(code) => return Ok(code),
                        None => continue,
                    }
                }
                Ok(None) => Failure::new("the stream ended before the command did"),
                Err(failure) => failure,
            };
            failures += 1;
            self.attach_again(failures, failure).await?;
        }
    }

    /// The exit code, once there is one.
    fn take(&mut self, event: &Event) -> Result<Option<ExitCode>, Failure> {
        match event.event.as_str() {
            "started" => self.exec_id = Some(parse::<ExecStarted>(event)?.exec_id),
            "output" => self.print(&parse(event)?)?,
            "gap" => {
                let gap: ExecGap = parse(event)?;
                out::note(format!("warning: {} bytes were lost", gap.offset - self.offset));
                self.offset = gap.offset;
            }
            "exit" => {
                let exit: ExecExit = parse(event)?;
                if exit.timed_out {
                    out::note("warning: the command was killed because its time was up");
                }
                return Ok(Some(exit_code(exit.exit_code)));
            }
            "error" => return Err(Failure::new(parse::<ExecLost>(event)?.detail)),
            // What later versions add.
            _ => {}
        }
        Ok(None)
    }

    fn print(&mut self, output: &ExecOutput) -> Result<(), Failure> {
        let bytes = match (&output.data, &output.data_base64) {
            (Some(text), _) => text.clone().into_bytes(),
            (None, Some(text)) => STANDARD
                .decode(text)
                .map_err(|error| Failure::new(format!("the output is not understood: {error}")))?,
            (None, None) => Vec::new(),
        };
        // What came twice, because we attached again, is not printed twice.
        let known =
            usize::try_from(self.offset.saturating_sub(output.offset)).unwrap_or(usize::MAX);
        let fresh = bytes.get(known..).unwrap_or_default();
        match output.stream {
            OutputStream::Stdout => out::stdout(fresh)?,
            OutputStream::Stderr => out::stderr(fresh)?,
        }
        self.offset = self.offset.max(output.offset + bytes.len() as u64);
        Ok(())
    }

    async fn attach_again(&mut self, failures: u32, why: Failure) -> Result<(), Failure> {
        let Some(exec_id) = self.exec_id.clone() else { return Err(why) };
        if failures > REATTACH_MAX {
            return Err(why);
        }
        tokio::time::sleep(REATTACH_AFTER * failures).await;
        let offset = self.offset.to_string();
        let path = path_of(self.id, &format!("exec/{exec_id}"), &[("offset", &offset)]);
        let request = self
            .client
            .request(Method::GET, &path)
            .header(header::ACCEPT, "text/event-stream")
            .body(empty())
            .map_err(|error| Failure::new(error.to_string()))?;
        // A server that restarts refuses connections for a moment; the next round tries again.
        if let Ok(response) = self.client.send(request).await {
            self.events = Events::new(response);
        }
        Ok(())
    }

    async fn kill(&self) -> Result<(), Failure> {
        let Some(exec_id) = &self.exec_id else { return Ok(()) };
        let request = self
            .client
            .request(Method::DELETE, &path_of(self.id, &format!("exec/{exec_id}"), &[]))
            .body(empty())
            .map_err(|error| Failure::new(error.to_string()))?;
        self.client.send(request).await.map(drop)
    }
}

fn parse<T: serde::de::DeserializeOwned>(event: &Event) -> Result<T, Failure> {
    serde_json::from_str(&event.data)
        .map_err(|error| Failure::new(format!("the server's event is not understood: {error}")))
}

fn body(args: &ExecArgs) -> Value {
    let mut body = Map::new();
    body.insert("command".into(), line(&args.command).into());
    if let Some(cwd) = &args.cwd {
        body.insert("cwd".into(), cwd.as_str().into());
    }
    if let Some(user) = &args.user {
        body.insert("user".into(), user.as_str().into());
    }
    if let Some(timeout) = args.timeout {
        body.insert("timeout_seconds".into(), timeout.into());
    }
    if !args.env.is_empty() {
        let env: Map<String, Value> =
            args.env.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect();
        body.insert("env".into(), env.into());
    }
    Value::Object(body)
}

/// One word is a line for the shell already; several are quoted so that they arrive as they are.
fn line(words: &[String]) -> String {
    match words {
        [line] => line.clone(),
        words => words.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" "),
    }
}

fn quote(word: &str) -> String {
    let plain = |c: u8| c.is_ascii_alphanumeric() || b"-_./:=,@%+".contains(&c);
    if !word.is_empty() && word.bytes().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn exit_code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code & 0xff).unwrap_or(1))
}

/// A pipe, a file or a socket; not a terminal and not `/dev/null`.
fn has_input() -> bool {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        return false;
    }
    let kind = fstat(&stdin).map(|stat| FileType::from_raw_mode(stat.st_mode));
    matches!(kind, Ok(FileType::Fifo | FileType::RegularFile | FileType::Socket))
}

#[cfg(test)]
mod tests;

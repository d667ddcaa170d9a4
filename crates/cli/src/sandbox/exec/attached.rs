//! A command with our stdin as its own, through the guest's process service.

use std::process::ExitCode;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use tokio::io::AsyncReadExt;

use super::{ExecArgs, INTERRUPTED, line};
use crate::client::Client;
use crate::envd::{Envd, Process, Said};
use crate::failure::Failure;
use crate::out;

const INPUT_BYTES: usize = 64 << 10;
/// As `timeout` answers for a command that it killed.
const TIMED_OUT: u8 = 124;

pub(super) async fn run(client: &Client, args: &ExecArgs) -> Result<ExitCode, Failure> {
    let user = args.user.as_deref();
    let mut calls = Envd::open(client, &args.id, user).await?;
    let stream = Envd::open(client, &args.id, user).await?;
    let mut process = Process::start(stream, &start_request(args)).await?;
    let selector = process.selector();
    let feeding = feed(&mut calls, &selector);
    let code = tokio::select! {
        code = print(&mut process, feeding) => return code,
        () = expired(args.timeout) => {
            out::note("warning: the command was killed because its time was up");
            TIMED_OUT
        }
        signal = tokio::signal::ctrl_c() => {
            signal?;
            INTERRUPTED
        }
    };
    let request = json!({ "process": selector, "signal": "SIGNAL_SIGKILL" });
    Envd::open(client, &args.id, user).await?.unary("process.Process/SendSignal", &request).await?;
    Ok(ExitCode::from(code))
}

/// Prints until the process ends, whether all of the input was wanted or not.
async fn print(
    process: &mut Process,
    feeding: impl Future<Output = Result<(), Failure>>,
) -> Result<ExitCode, Failure> {
    let mut feeding = std::pin::pin!(feeding);
    let mut fed = false;
    loop {
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
        }
    }
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
    let _ = calls.unary("process.Process/CloseStdin", &json!({ "process": selector })).await;
    Ok(())
}

async fn expired(timeout: Option<u64>) {
    match timeout {
        Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
        None => std::future::pending().await,
    }
}

fn start_request(args: &ExecArgs) -> Value {
    let envs: Map<String, Value> =
        args.env.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect();
    let mut process =
        json!({ "cmd": "/bin/sh", "args": ["-c", line(&args.command)], "envs": envs });
    if let Some(cwd) = &args.cwd {
        process["cwd"] = cwd.as_str().into();
    }
    json!({ "process": process, "stdin": true })
}

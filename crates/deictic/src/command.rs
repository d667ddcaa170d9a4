//! `deictic …` as a command: its arguments, and running what they ask for. The program that it is part of hands
//! over what it was started with and its environment.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use rustix::process::geteuid;
use serde_json::Value;
use tokio::io::BufReader;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::alone;
use crate::limits::Limits;
use crate::model::Environment;
use crate::protocol::{McpServer, PermissionMode, Start};
use crate::session::Surroundings;
use crate::stdio;

/// What `--help` prints.
const HELP: &str = "\
A coding agent. Its text goes to standard output, everything else to standard error; it ends with 0
when the task was carried out, with 1 when it was not.

Usage: deictic --model MODEL --task TASK [OPTIONS]
       deictic --stdio

  --model MODEL            the model; VENDOR/MODEL where its name does not tell the vendor [LLM_MODEL]
  --task TASK              what to do; - reads it from standard input
  --vendor VENDOR          anthropic, openai, openai-chat, google, deepseek [LLM_VENDOR]
  --base-url URL           where the model is asked [LLM_BASE_URL, or the vendor's own variable]
  --effort EFFORT          low, medium or high: how hard the model is to think
  --cwd DIR                where it works; here
  --permission-mode MODE   default (only reads, as nobody can be asked), plan, or bypass
  --app FILE               the agents of an application, as JSON (app_json)
  --mcp FILE               tool servers, as JSON: {\"NAME\": {\"type\": \"local\", \"command\": [...]}}
  --session ID             go on with a session
  --state-dir DIR          where sessions are kept
  --context-tokens N       what the model can read [128000]
  --output-tokens N        what one answer may have [16384]
  --stdio                  speak JSON lines instead; the first one is the session

The key is LLM_API_KEY, or ANTHROPIC_API_KEY, OPENAI_API_KEY, GEMINI_API_KEY, DEEPSEEK_API_KEY.
";

/// A task that is longer does not come as an argument.
const TASK_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// `app_json` and lists of servers.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Wrong arguments.
const USAGE: u8 = 2;

#[derive(Debug, Default)]
struct Asked {
    stdio: bool,
    help: bool,
    task: Option<String>,
    directory: Option<PathBuf>,
    start: Start,
    limits: Limits,
}

/// Runs until the task, or the input, is over.
pub fn main(arguments: impl Iterator<Item = String>, environment: Environment) -> ExitCode {
    let asked = match parse(arguments) {
        Ok(asked) => asked,
        Err(why) => {
            aside(&format!("{why}\nhint: deictic --help\n"));
            return ExitCode::from(USAGE);
        }
    };
    if asked.help {
        let _ = std::io::stdout().write_all(HELP.as_bytes());
        return ExitCode::SUCCESS;
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            aside(&format!("cannot start: {error}\n"));
            return ExitCode::FAILURE;
        }
    };
    let ended = runtime.block_on(run(asked, environment));
    // A read of a terminal, or of a file system that hangs, is not waited for.
    runtime.shutdown_background();
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            aside(&format!("{error}\n"));
            ExitCode::FAILURE
        }
    }
}

fn aside(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

async fn run(asked: Asked, environment: Environment) -> std::io::Result<bool> {
    let directory = match asked.directory {
        Some(directory) => directory,
        None => std::env::current_dir()?,
    };
    let around = Surroundings {
        directory,
        state_dir: state_dir(&environment),
        environment,
        limits: asked.limits,
        attended: asked.stdio,
    };
    if asked.stdio {
        let input = BufReader::new(tokio::io::stdin());
        return stdio::serve(input, tokio::io::stdout(), around).await;
    }
    let cancel = CancellationToken::new();
    let tasks = TaskTracker::new();
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        let (mut signal, cancel) = (signal(kind)?, cancel.clone());
        tasks.spawn(async move {
            signal.recv().await;
            cancel.cancel();
        });
    }
    let task = asked.task.unwrap_or_default();
    let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
    alone::run(&asked.start, &task, around, cancel, (&mut out, &mut err)).await
}

fn state_dir(environment: &Environment) -> PathBuf {
    let absolute =
        |name: &str| environment.get(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")));
    match base {
        Some(base) => base.join("bastide-deictic"),
        None => format!("/tmp/bastide-deictic-{}", geteuid().as_raw()).into(),
    }
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Asked, String> {
    let mut asked = Asked::default();
    while let Some(argument) = arguments.next() {
        let (name, glued) = match argument.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
            _ => (argument.as_str(), None),
        };
        match name {
            "--stdio" => asked.stdio = true,
            "--help" | "-h" => asked.help = true,
            _ => {
                let value = glued.or_else(|| arguments.next());
                let value = value.ok_or_else(|| format!("{name}: a value is missing"))?;
                take(&mut asked, name, value)?;
            }
        }
    }
    if !asked.stdio && !asked.help && asked.task.is_none() {
        return Err("nothing to do: give --task, or --stdio".to_owned());
    }
    Ok(asked)
}

fn take(asked: &mut Asked, name: &str, value: String) -> Result<(), String> {
    let number = || value.parse::<u64>().map_err(|_| format!("{name}: not a number: {value}"));
    match name {
        "--model" => asked.start.model = Some(value),
        "--task" if value == "-" => asked.task = Some(read("/dev/stdin", TASK_BYTES_MAX)?),
        "--task" => asked.task = Some(value),
        "--vendor" => asked.start.vendor = Some(value),
        "--base-url" => asked.start.base_url = Some(value),
        "--effort" => asked.start.effort = Some(value),
        "--cwd" => asked.directory = Some(value.into()),
        "--session" => asked.start.session = Some(value),
        "--state-dir" => asked.start.state_dir = Some(value.into()),
        "--context-tokens" => asked.limits.context_tokens = number()?,
        "--output-tokens" => asked.limits.output_tokens = number()?.max(1),
        "--permission-mode" => asked.start.permission_mode = mode(&value)?,
        "--app" => asked.start.app = Some(json::<Value>(name, &value)?),
        "--mcp" => {
            asked.start.mcp = json::<std::collections::BTreeMap<String, McpServer>>(name, &value)?;
        }
        _ => return Err(format!("unknown argument: {name}")),
    }
    Ok(())
}

fn mode(text: &str) -> Result<PermissionMode, String> {
    match text {
        "default" => Ok(PermissionMode::Default),
        "plan" => Ok(PermissionMode::Plan),
        "bypass" => Ok(PermissionMode::Bypass),
        _ => Err(format!("--permission-mode: one of default, plan, bypass: {text}")),
    }
}

fn json<T: serde::de::DeserializeOwned>(name: &str, path: &str) -> Result<T, String> {
    let text = read(path, FILE_BYTES_MAX)?;
    serde_json::from_str(&text).map_err(|error| format!("{name}: {path}: {error}"))
}

fn read(path: &str, bytes_max: u64) -> Result<String, String> {
    use std::io::Read as _;
    let failed = |error: std::io::Error| format!("cannot read {path}: {error}");
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut text = String::new();
    file.take(bytes_max + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > bytes_max {
        return Err(format!("longer than {bytes_max} bytes: {path}"));
    }
    Ok(text)
}

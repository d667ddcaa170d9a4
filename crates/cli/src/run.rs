//! `bastide run`: one command in a fresh sandbox, without a server. Nothing of it is left, however
//! it ends. There is no network inside.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use driver_linux::template::TemplateStore;
use driver_linux::{OneShot, OneShotConfig};
use guest_proto::{GUEST_PORT, Guest};
use model::{Limits, TemplateName};

use crate::args::{DataDir, pair};
use crate::attach::{self, Lines, Program, Signals};
use crate::envd::Envd;
use crate::failure::Failure;
use crate::{block_on, out};

/// As shells answer for a command that they cannot find.
const NOT_FOUND: u8 = 127;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  bastide run -- id
  bastide run -it -- bash
  tar -c . | bastide run --template standard -- sh -c 'tar -x && make'")]
pub(crate) struct RunArgs {
    /// What to make it from; `host` is this machine's own programs, read-only
    #[arg(long, short = 'T', default_value = "host")]
    template: TemplateName,
    /// Pass stdin on, which is done anyway; for those who are used to -it
    #[arg(long, short)]
    interactive: bool,
    /// Give the command a terminal
    #[arg(long, short)]
    tty: bool,
    /// As whom; default: the template's user
    #[arg(long, short)]
    user: Option<String>,
    /// Where to run it; default: /workspace
    #[arg(long, short = 'w', value_name = "DIR")]
    cwd: Option<String>,
    /// A variable for the command; may be repeated
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = pair)]
    env: Vec<(String, String)>,
    /// Processors; default: the template's
    #[arg(long, value_name = "N")]
    vcpu: Option<u32>,
    /// Memory; default: the template's
    #[arg(long, value_name = "MIB")]
    memory_mib: Option<u32>,
    /// Processes; default: the template's
    #[arg(long, value_name = "N")]
    pids: Option<u32>,
    #[command(flatten)]
    data: DataDir,
    #[arg(required = true, value_name = "COMMAND", trailing_var_arg = true)]
    command: Vec<String>,
}

pub(crate) fn execute(args: RunArgs) -> Result<ExitCode, Failure> {
    let data_dir = args.data.dir();
    let limits = limits(&args, &data_dir)?;
    let config = OneShotConfig {
        data_dir,
        template: args.template,
        limits,
        runtime_dir: PathBuf::from("/run/bastide"),
    };
    // Before any runtime: it forks.
    let sandbox = OneShot::start(&config).map_err(|error| told(&error))?;
    let program = Program { command: args.command, cwd: args.cwd, env: args.env };
    let user = args.user.unwrap_or_else(|| sandbox.user().to_owned());
    let result = block_on(run(sandbox.guest(), &user, &program, args.tty));
    sandbox.close();
    match result {
        Err(failure) if failure.message.contains("no such program") => {
            out::failure(&failure);
            Ok(ExitCode::from(NOT_FOUND))
        }
        other => other,
    }
}

async fn run(guest: &Guest, user: &str, program: &Program, tty: bool) -> Result<ExitCode, Failure> {
    let open = async || -> Result<Envd, Failure> {
        let tunnel = guest
            .tunnel(GUEST_PORT)
            .await
            .map_err(|error| Failure::new(format!("cannot reach the sandbox: {error}")))?;
        Envd::over(tunnel, Some(user)).await
    };
    let lines = Lines { output: open().await?, input: open().await?, control: open().await? };
    if tty {
        attach::with_terminal(lines, program).await
    } else {
        attach::with_pipes(lines, program, Signals::Pass, None).await
    }
}

/// The template's, with what was asked for instead.
fn limits(args: &RunArgs, data_dir: &std::path::Path) -> Result<Option<Limits>, Failure> {
    if args.vcpu.is_none() && args.memory_mib.is_none() && args.pids.is_none() {
        return Ok(None);
    }
    let built = TemplateStore::open(data_dir)?.get(&args.template)?;
    Ok(built.map(|built| {
        let own = built.template.limits;
        Limits {
            vcpu: args.vcpu.unwrap_or(own.vcpu),
            memory_mib: args.memory_mib.unwrap_or(own.memory_mib),
            pids: args.pids.unwrap_or(own.pids),
            ..own
        }
    }))
}

/// The driver's hints are on a line of their own.
fn told(error: &anyhow::Error) -> Failure {
    let text = format!("{error:#}");
    match text.split_once("\nhint: ") {
        Some((message, hint)) => Failure::new(message).hint(hint),
        None => Failure::new(text),
    }
}

//! `bastide sandbox shell`: a terminal inside a sandbox.

use std::process::ExitCode;

use clap::Args;
use model::SandboxRef;

use super::exec;
use crate::args::pair;
use crate::attach::{self, Program};
use crate::client::Client;
use crate::failure::Failure;

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
    let lines = exec::lines(client, &args.id, args.user.as_deref()).await?;
    let shell = ["/bin/bash", "-i", "-l"];
    let command = if args.command.is_empty() {
        shell.iter().map(|&word| word.to_owned()).collect()
    } else {
        args.command
    };
    let program = Program { command, cwd: args.cwd, env: args.env };
    attach::with_terminal(lines, &program).await
}

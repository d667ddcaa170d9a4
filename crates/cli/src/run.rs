//! `bastide run`: one command in a fresh sandbox, without a server.

use std::process::ExitCode;

use clap::Args;
use model::{PolicyName, TemplateName};

use crate::args::pair;
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// What to make it from; `host` is this machine's own programs, read-only
    #[arg(long, short = 'T', default_value = "host")]
    template: TemplateName,
    /// Keep stdin open also when it is a terminal
    #[arg(long, short)]
    interactive: bool,
    /// Give the command a terminal
    #[arg(long, short)]
    tty: bool,
    /// What may be reached from inside: none or open
    #[arg(long, default_value = "none")]
    policy: PolicyName,
    /// A variable for the command; may be repeated
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = pair)]
    env: Vec<(String, String)>,
    #[arg(required = true, value_name = "COMMAND", trailing_var_arg = true)]
    command: Vec<String>,
}

pub(crate) fn execute(_args: RunArgs) -> Result<ExitCode, Failure> {
    Err(Failure::new("not wired"))
}

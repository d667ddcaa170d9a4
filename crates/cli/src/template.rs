//! `bastide template`: what sandboxes are made from, in the data directory of this machine.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use model::TemplateName;

use crate::args::DataDir;
use crate::failure::Failure;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Build a template; one that is built already is kept
    Build {
        name: TemplateName,
        /// Build it anew; sandboxes that exist keep what they stand on
        #[arg(long)]
        force: bool,
        /// Take the definition from this file instead of the built-in ones
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// List templates, built or not
    #[command(visible_alias = "ls")]
    List,
    /// Remove a built template; sandboxes that exist keep what they stand on
    Rm { name: TemplateName },
}

pub(crate) fn execute(_data: &DataDir, _command: Command) -> Result<ExitCode, Failure> {
    Err(Failure::new("not wired"))
}

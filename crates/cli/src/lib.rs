//! The command line of Bastide. It wires the parts together for `serve` and `run`; everything else
//! is a client of the HTTP API and knows no more than what the API says.

mod account;
mod agents;
mod args;
mod attach;
mod audit;
mod billing;
mod catalogue;
mod client;
mod completions;
mod doctor;
mod envd;
mod failure;
mod keys;
mod mcp;
mod org;
mod out;
mod run;
mod sandbox;
mod secrets;
mod serve;
mod session;
mod status;
mod template;
mod terminal;
mod workspace;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

pub use crate::args::Cli;
use crate::args::Command;
use crate::client::Client;
use crate::failure::Failure;

/// What `main` does: parses, runs, reports, and answers with the exit code.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    match dispatch(cli.command) {
        Ok(code) => code,
        Err(failure) => {
            out::failure(&failure);
            ExitCode::FAILURE
        }
    }
}

fn dispatch(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Run(args) => run::execute(args),
        Command::Sandbox { connection, command } => {
            let client = Client::new(&connection)?;
            let json = connection.shown.json;
            block_on(sandbox::execute(&client, *command, json))
        }
        Command::Account { connection, command } => {
            let client = Client::new(&connection)?;
            block_on(account::execute(&client, command, connection.shown.json))
        }
        Command::Org { connection, command } => {
            let client = Client::new(&connection)?;
            block_on(org::execute(&client, command, connection.shown.json))
        }
        Command::Audit { connection, command } => {
            let client = Client::new(&connection)?;
            block_on(audit::execute(&client, command, connection.shown.json))
        }
        Command::Keys { connection, command } => {
            let client = Client::new(&connection)?;
            block_on(keys::execute(&client, command, connection.shown.json))
        }
        Command::Catalogue { connection } => {
            let client = Client::new(&connection)?;
            block_on(catalogue::execute(&client, connection.shown.json))
        }
        Command::Session { connection, command } => {
            let client = Client::new(&connection)?;
            block_on(session::execute(&client, *command, connection.shown.json))
        }
        Command::Secrets { connection, command } => secrets::execute(&connection, command),
        Command::Usage { connection, days } => {
            let client = Client::new(&connection)?;
            block_on(billing::usage(&client, days, connection.shown.json))
        }
        Command::Billing { connection, command } => {
            let client = Client::new(&connection)?;
            block_on(billing::execute(&client, command, connection.shown.json))
        }
        Command::Workspace { connection, command } => {
            let client = Client::new(&connection)?;
            block_on(workspace::execute(&client, command, connection.shown.json))
        }
        Command::Template { data, shown, command } => template::execute(&data, command, shown.json),
        Command::Status { connection } => {
            let client = Client::new(&connection)?;
            block_on(status::execute(&client, &connection))
        }
        Command::Doctor(args) => doctor::execute(&args),
        Command::Agents(args) => agents::execute(args),
        Command::Mcp(args) => mcp::execute(&args),
        Command::Serve(flags) => serve::execute(&flags),
        Command::Completions { shell } => {
            completions::print(shell, &mut Cli::command());
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// A command of the client needs one thread. A read of stdin that never ends does not hold it up.
pub(crate) fn block_on<F>(command: F) -> Result<ExitCode, Failure>
where
    F: Future<Output = Result<ExitCode, Failure>>,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(command);
    runtime.shutdown_background();
    result
}

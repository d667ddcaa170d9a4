//! `bastide sandbox`: one module a command, or a few small ones together.

mod archive;
mod copy;
mod create;
mod egress;
mod events;
mod exec;
mod files;
mod forward;
mod logs;
mod shell;
mod show;
mod task;
mod tree;
mod update;
mod url;

use std::process::ExitCode;

use clap::Subcommand;
use http::Method;
use model::SandboxRef;
use serde_json::{Value, json};

use crate::client::Client;
use crate::failure::Failure;
use crate::out;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make a sandbox and start it
    Create(Box<create::CreateArgs>),
    /// List your sandboxes
    #[command(visible_alias = "ls")]
    List,
    /// Show everything about one sandbox
    Get {
        #[arg(value_name = "SANDBOX")]
        id: SandboxRef,
    },
    /// Run a command in a sandbox; its exit code is ours
    Exec(exec::ExecArgs),
    /// Open a terminal in a sandbox
    Shell(shell::ShellArgs),
    /// List, read, write and remove files
    Files {
        #[command(subcommand)]
        command: files::Command,
    },
    /// Copy a file or a directory into a sandbox or out of it
    Cp(copy::CopyArgs),
    /// Show the end of the agent's log
    Logs(logs::LogsArgs),
    /// Show what a sandbox reached and what was refused
    Egress(egress::EgressArgs),
    /// Stop a sandbox and keep its workspace
    Stop(Many),
    /// Start a stopped sandbox
    Start(Many),
    /// Freeze a sandbox
    Pause(Many),
    /// Thaw a paused sandbox
    Resume(Many),
    /// Give a sandbox another name
    Rename {
        #[arg(value_name = "SANDBOX")]
        id: SandboxRef,
        name: String,
    },
    /// Change a sandbox while it runs: the key of its agent's model, or its policy
    Update(update::UpdateArgs),
    /// Destroy sandboxes and their workspaces
    #[command(visible_alias = "delete")]
    Rm(Many),
    /// Make a port of a sandbox reachable on this machine
    Forward(forward::ForwardArgs),
    /// Print a link to a port of a sandbox, for a browser
    Url(url::UrlArgs),
    /// Write the workspace as a tar archive
    Export(archive::ExportArgs),
    /// Unpack a tar archive into the workspace
    Import(archive::ImportArgs),
    /// Follow what happens to your sandboxes
    Events(events::EventsArgs),
}

/// One or more sandboxes, by id or name.
#[derive(Debug, clap::Args)]
pub(crate) struct Many {
    #[arg(value_name = "SANDBOX", required = true)]
    ids: Vec<SandboxRef>,
}

pub(crate) async fn execute(
    client: &Client,
    command: Command,
    json: bool,
) -> Result<ExitCode, Failure> {
    match command {
        Command::Create(args) => return create::create(client, *args, json).await,
        Command::List => show::list(client, json).await?,
        Command::Get { id } => show::get(client, &id, json).await?,
        Command::Exec(args) => return exec::exec(client, args, json).await,
        Command::Shell(args) => return shell::shell(client, args).await,
        Command::Files { command } => files::execute(client, command, json).await?,
        Command::Cp(args) => copy::copy(client, args).await?,
        Command::Logs(args) => logs::logs(client, args, json).await?,
        Command::Egress(args) => egress::egress(client, args, json).await?,
        Command::Stop(many) => each(client, many, "stop", json).await?,
        Command::Start(many) => each(client, many, "start", json).await?,
        Command::Pause(many) => each(client, many, "pause", json).await?,
        Command::Resume(many) => each(client, many, "resume", json).await?,
        Command::Rename { id, name } => rename(client, &id, &name, json).await?,
        Command::Update(args) => update::update(client, args, json).await?,
        Command::Rm(many) => remove(client, many, json).await?,
        Command::Forward(args) => forward::forward(client, args).await?,
        Command::Url(args) => url::url(client, args, json).await?,
        Command::Export(args) => archive::export(client, args).await?,
        Command::Import(args) => archive::import(client, args, json).await?,
        Command::Events(args) => events::events(client, args, json).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// `POST /v1/sandboxes/{id}/{verb}` for each; the first refusal ends it.
async fn each(client: &Client, many: Many, verb: &str, json: bool) -> Result<(), Failure> {
    for id in many.ids {
        let path = format!("/v1/sandboxes/{id}/{verb}");
        let answer: Value = client.json(Method::POST, &path, None).await?;
        show::changed(&answer, json)?;
    }
    Ok(())
}

async fn remove(client: &Client, many: Many, json: bool) -> Result<(), Failure> {
    for id in many.ids {
        let path = format!("/v1/sandboxes/{id}");
        let answer: Value = client.json(Method::DELETE, &path, None).await?;
        show::changed(&answer, json)?;
    }
    Ok(())
}

async fn rename(client: &Client, id: &SandboxRef, name: &str, json: bool) -> Result<(), Failure> {
    let path = format!("/v1/sandboxes/{id}");
    let answer: Value = client.json(Method::PATCH, &path, Some(&json!({ "name": name }))).await?;
    if json {
        return out::json(&answer);
    }
    out::line(answer["name"].as_str().unwrap_or(name));
    Ok(())
}

/// `/v1/sandboxes/{id}/{what}` with a query.
fn path_of(id: &SandboxRef, what: &str, query: &[(&str, &str)]) -> String {
    let mut path = format!("/v1/sandboxes/{id}/{what}");
    if !query.is_empty() {
        let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(query).finish();
        path.push('?');
        path.push_str(&query);
    }
    path
}

//! `bastide sandbox files`: listing and removing through the guest's own service, reading and
//! writing through the API.

use clap::{Args, Subcommand};
use model::SandboxRef;
use serde_json::{Value, json};

use super::copy::{self, Upload};
use crate::client::Client;
use crate::envd::Envd;
use crate::failure::Failure;
use crate::out;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List a directory
    #[command(visible_alias = "list")]
    Ls(DirectoryArgs),
    /// Write a file to stdout
    Cat(FileArgs),
    /// Write stdin to a file
    Put(FileArgs),
    /// Remove a file or a whole directory
    Rm(FileArgs),
}

#[derive(Debug, Args)]
pub(crate) struct DirectoryArgs {
    #[arg(value_name = "SANDBOX")]
    id: SandboxRef,
    /// Absolute
    #[arg(default_value = "/workspace")]
    path: String,
}

#[derive(Debug, Args)]
pub(crate) struct FileArgs {
    #[arg(value_name = "SANDBOX")]
    id: SandboxRef,
    /// Absolute
    path: String,
}

pub(super) async fn execute(client: &Client, command: Command, json: bool) -> Result<(), Failure> {
    match command {
        Command::Ls(args) => list(client, &args, json).await,
        Command::Cat(args) => copy::fetch(client, &args.id, &args.path, None).await,
        Command::Put(args) => {
            let source = tokio::io::stdin();
            let upload = Upload { id: &args.id, path: &args.path, source, size: None };
            copy::send(client, upload).await
        }
        Command::Rm(args) => remove(client, &args).await,
    }
}

async fn list(client: &Client, args: &DirectoryArgs, json: bool) -> Result<(), Failure> {
    let mut envd = Envd::open(client, &args.id, None).await?;
    let request = json!({ "path": args.path, "depth": 1 });
    let mut answer = envd.unary("filesystem.Filesystem/ListDir", &request).await?;
    let entries = match answer["entries"].take() {
        Value::Array(entries) => entries,
        _ => Vec::new(),
    };
    if json {
        return out::json(&entries);
    }
    out::table(&["MODE", "OWNER", "SIZE", "MODIFIED", "NAME"], entries.iter().map(row).collect());
    Ok(())
}

/// A whole directory goes with everything in it, so the path must be written out.
async fn remove(client: &Client, args: &FileArgs) -> Result<(), Failure> {
    let mut envd = Envd::open(client, &args.id, None).await?;
    let request = json!({ "path": args.path });
    // The guest removes what is absent with success; a typing error should be told.
    envd.unary("filesystem.Filesystem/Stat", &request).await?;
    envd.unary("filesystem.Filesystem/Remove", &request).await?;
    Ok(())
}

fn row(entry: &Value) -> Vec<String> {
    let text = |field: &str| match &entry[field] {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    // A guest is not trusted with the terminal: control characters are shown, not sent.
    let clean = |text: String| -> String { text.escape_debug().to_string().replace("\\'", "'") };
    let size = if entry["size"].is_null() { "0".into() } else { text("size") };
    let name = match &entry["symlinkTarget"] {
        Value::String(target) => format!("{} -> {target}", text("name")),
        _ => text("name"),
    };
    [text("permissions"), text("owner"), size, text("modifiedTime"), name]
        .into_iter()
        .map(clean)
        .collect()
}

//! `bastide secrets`: bundles over HTTP, and the master key on this machine. Values come from files and
//! the environment, never from the command line, which every user of a machine can read.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use api::secrets::{Bundle, Bundles, Deleted, RotatedBundle};
use clap::{Args, Subcommand};
use http::Method;
use model::BundleName;
use serde_json::{Map, Value, json};

use crate::args::Connection;
use crate::client::Client;
use crate::failure::Failure;
use crate::{block_on, out};

const BUNDLES: &str = "/v1/tenants/me/secrets";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make a bundle
    Create {
        name: BundleName,
        #[command(flatten)]
        values: Values,
    },
    /// List your bundles, without their values
    #[command(visible_alias = "ls")]
    List,
    /// Show which keys a bundle has
    Show { name: BundleName },
    /// Replace all values of a bundle
    Rotate {
        name: BundleName,
        #[command(flatten)]
        values: Values,
    },
    /// Delete a bundle
    #[command(visible_alias = "rm")]
    Delete { name: BundleName },
    /// Add a new master key on this machine; a running server seals everything anew within a minute,
    /// environments of sandboxes when it starts next
    RotateKey {
        /// Default: `master.key` in the data directory
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Remove all master keys but the newest; what is still sealed with them is lost
    ForgetOldKeys {
        /// Default: `master.key` in the data directory
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
}

/// Where values come from.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub(crate) struct Values {
    /// Take the value of this key from the environment variable of the same name
    #[arg(long, value_name = "KEY")]
    from_env: Vec<String>,
    /// Take the value of this key from a file (`-` is stdin), without the line end at its end
    #[arg(long, value_name = "KEY=FILE", value_parser = crate::args::pair)]
    from_file: Vec<(String, String)>,
}

pub(crate) fn execute(connection: &Connection, command: Command) -> Result<ExitCode, Failure> {
    let key_file = |file: Option<PathBuf>| match file {
        Some(file) => Ok(file),
        None => connection.data.dir().map(|dir| dir.join("master.key")),
    };
    match command {
        Command::RotateKey { file } => rotate_key(&key_file(file)?),
        Command::ForgetOldKeys { file } => forget_old_keys(&key_file(file)?),
        Command::Create { .. }
        | Command::List
        | Command::Show { .. }
        | Command::Rotate { .. }
        | Command::Delete { .. } => {
            let client = Client::new(connection)?;
            block_on(call(&client, command, connection.shown.json))
        }
    }
}

async fn call(client: &Client, command: Command, json: bool) -> Result<ExitCode, Failure> {
    match command {
        Command::Create { name, values } => {
            let body = json!({ "name": name.as_str(), "values": values.read()? });
            let made: Bundle = client.json(Method::POST, BUNDLES, Some(&body)).await?;
            one(json, &made, &made.name)?;
        }
        Command::List => list(client, json).await?,
        Command::Show { name } => {
            let bundle: Bundle = client.json(Method::GET, &path(&name), None).await?;
            one(json, &bundle, &bundle.key_names.join("\n"))?;
        }
        Command::Rotate { name, values } => {
            let body = json!({ "values": values.read()? });
            let rotated: RotatedBundle =
                client.json(Method::PUT, &path(&name), Some(&body)).await?;
            one(json, &rotated, &rotated.name)?;
        }
        Command::Delete { name } => {
            let deleted: Deleted = client.json(Method::DELETE, &path(&name), None).await?;
            one(json, &deleted, name.as_str())?;
        }
        Command::RotateKey { .. } | Command::ForgetOldKeys { .. } => {}
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(client: &Client, json: bool) -> Result<(), Failure> {
    let list: Bundles = client.json(Method::GET, BUNDLES, None).await?;
    if json {
        return out::json(&list);
    }
    let rows = list.bundles.into_iter().map(|bundle| {
        let rotated = bundle.last_rotated_at.map(|at| at.to_string()).unwrap_or_default();
        vec![bundle.name, bundle.key_names.join(" "), bundle.created_at.to_string(), rotated]
    });
    out::table(&["NAME", "KEYS", "CREATED", "ROTATED"], rows.collect());
    Ok(())
}

fn one(json: bool, whole: &impl serde::Serialize, line: &str) -> Result<(), Failure> {
    if json {
        return out::json(whole);
    }
    out::line(line);
    Ok(())
}

fn path(name: &BundleName) -> String {
    format!("{BUNDLES}/{name}")
}

fn rotate_key(file: &Path) -> Result<ExitCode, Failure> {
    seal::add_key(file)?;
    out::note(format!("{} has a new key; it keeps the old ones", file.display()));
    out::note("hint: start the servers anew, then bastide secrets forget-old-keys");
    Ok(ExitCode::SUCCESS)
}

fn forget_old_keys(file: &Path) -> Result<ExitCode, Failure> {
    let count = seal::forget_old_keys(file)?;
    out::note(format!("removed {count} old keys from {}", file.display()));
    Ok(ExitCode::SUCCESS)
}

impl Values {
    fn read(&self) -> Result<Map<String, Value>, Failure> {
        let mut values = Map::new();
        for key in &self.from_env {
            let value = std::env::var_os(key).and_then(|value| value.into_string().ok());
            let value =
                value.ok_or_else(|| Failure::new(format!("not set, or not text: ${key}")))?;
            values.insert(key.clone(), value.into());
        }
        for (key, file) in &self.from_file {
            let text = match file.as_str() {
                "-" => std::io::read_to_string(std::io::stdin()),
                file => std::fs::read_to_string(file),
            };
            let text =
                text.map_err(|error| Failure::new(format!("cannot read {file}: {error}")))?;
            let value = text.strip_suffix('\n').unwrap_or(&text);
            values.insert(key.clone(), value.into());
        }
        Ok(values)
    }
}

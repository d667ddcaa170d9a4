//! `bastide status`: what a server says of itself, and who else serves from the same data directory.

use std::process::ExitCode;

use http::Method;
use serde_json::{Value, json};
use server::ServerEntry;

use crate::args::Connection;
use crate::client::Client;
use crate::failure::Failure;
use crate::out;

pub(crate) async fn execute(client: &Client, connection: &Connection) -> Result<ExitCode, Failure> {
    let asked = client.json::<Value>(Method::GET, "/healthz", None).await;
    // Of this machine, if we may look; a server elsewhere has another directory.
    let servers = server::servers(&connection.data.dir()?).unwrap_or_default();
    if connection.shown.json {
        let health = asked.as_ref().ok();
        out::json(&json!({ "server": health, "servers": servers }))?;
    }
    match asked {
        Ok(health) if !connection.shown.json => {
            let word = |key: &str| match &health[key] {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let (role, pid, epoch) = (word("role"), word("pid"), word("epoch"));
            let (url, version) = (&connection.server, word("version"));
            out::line(format!("{url}: {role}, epoch {epoch}, process {pid}, version {version}"));
        }
        Ok(_) => {}
        Err(failure) if servers.is_empty() || connection.shown.json => return Err(failure),
        Err(failure) => out::failure(&failure),
    }
    if !connection.shown.json && !servers.is_empty() {
        out::table(&["PID", "ROLE", "EPOCH", "VERSION", "LISTEN"], rows(&servers));
    }
    Ok(ExitCode::SUCCESS)
}

fn rows(servers: &[ServerEntry]) -> Vec<Vec<String>> {
    let row = |server: &ServerEntry| {
        let epoch = server.epoch.map_or_else(String::new, |epoch| epoch.to_string());
        let (role, version) = (server.role.clone(), server.version.clone());
        vec![server.pid.to_string(), role, epoch, version, server.listen.join(",")]
    };
    servers.iter().map(row).collect()
}

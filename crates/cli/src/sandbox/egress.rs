//! `bastide sandbox egress`: what a sandbox reached, what was refused, and what would allow it.

use std::time::Duration;

use api::{EgressEntry, EgressLog};
use clap::Args;
use http::Method;
use model::SandboxRef;
use serde_json::Value;

use super::{path_of, show};
use crate::client::Client;
use crate::failure::Failure;
use crate::out;

const ASK_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(crate) struct EgressArgs {
    #[arg(value_name = "SANDBOX")]
    id: SandboxRef,
    /// How many entries from the end; at most 1000
    #[arg(long, short = 'n', default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    lines: u32,
    /// Only what was refused
    #[arg(long)]
    denied: bool,
    /// Go on with what comes; with --json one entry a line
    #[arg(long, short = 'f')]
    follow: bool,
}

pub(super) async fn egress(client: &Client, args: EgressArgs, json: bool) -> Result<(), Failure> {
    let lines = args.lines.to_string();
    let mut query = vec![("limit", lines)];
    let answer = ask(client, &args.id, &query).await?;
    if json && !args.follow {
        return out::json(&answer);
    }
    let mut log: EgressLog = show::parse(answer)?;
    if !json {
        let shown = log.entries.iter().chain(&log.open).filter(|entry| args.wants(entry));
        table(shown);
    }
    if !args.follow {
        return Ok(());
    }
    let mut is_first = !json;
    loop {
        if !is_first {
            for entry in log.entries.iter().filter(|entry| args.wants(entry)) {
                if json {
                    out::json_line(entry)?;
                } else {
                    out::line(row(entry).join("  "));
                }
            }
        }
        is_first = false;
        // Without any entry yet: everything from the beginning.
        let next = log.next.unwrap_or_else(|| "0".into());
        query = vec![("after", next), ("limit", "1000".into())];
        tokio::time::sleep(ASK_EVERY).await;
        log = show::parse(ask(client, &args.id, &query).await?)?;
    }
}

impl EgressArgs {
    fn wants(&self, entry: &EgressEntry) -> bool {
        !self.denied || entry.verdict == "denied"
    }
}

async fn ask(client: &Client, id: &SandboxRef, query: &[(&str, String)]) -> Result<Value, Failure> {
    let query: Vec<(&str, &str)> =
        query.iter().map(|(name, value)| (*name, value.as_str())).collect();
    client.json(Method::GET, &path_of(id, "egress", &query), None).await
}

fn table<'a>(entries: impl Iterator<Item = &'a EgressEntry>) {
    let rows: Vec<Vec<String>> = entries.map(row).collect();
    let header = ["TIME", "TARGET", "PORT", "ADDRESS", "VERDICT", "REASON", "UP", "DOWN", "HINT"];
    out::table(&header, rows);
}

fn row(entry: &EgressEntry) -> Vec<String> {
    let absent = || "-".to_owned();
    vec![
        entry.at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        entry.target.clone(),
        entry.port.map_or_else(absent, |port| port.to_string()),
        entry.address.map_or_else(absent, |address| address.to_string()),
        entry.verdict.clone(),
        entry.reason.clone(),
        entry.bytes_up.to_string(),
        entry.bytes_down.to_string(),
        entry.hint.clone().unwrap_or_else(absent),
    ]
}

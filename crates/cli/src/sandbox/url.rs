//! `bastide sandbox url`: a link to a port inside, for a browser, that works without a key for a while.

use std::process::Stdio;

use clap::Args;
use http::Method;
use model::SandboxRef;
use serde_json::{Value, json};

use super::{path_of, show};
use crate::client::Client;
use crate::failure::Failure;
use crate::out;

/// What opens a page for a person, on most desktops.
const OPENER: &str = "xdg-open";

#[derive(Debug, Args)]
pub(crate) struct UrlArgs {
    #[arg(value_name = "SANDBOX")]
    id: SandboxRef,
    /// The port inside
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// How long the link works; at most a week
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    expires: u32,
    /// The link by a path of the server, when the sandbox's own host cannot be resolved
    #[arg(long)]
    path: bool,
    /// Open it in a browser too
    #[arg(long)]
    open: bool,
}

pub(super) async fn url(client: &Client, args: UrlArgs, json: bool) -> Result<(), Failure> {
    let path = path_of(&args.id, &format!("ports/{}/link", args.port), &[]);
    let body = json!({ "expires_seconds": args.expires });
    let answer: Value = client.json(Method::POST, &path, Some(&body)).await?;
    let link: api::PortLink = show::parse(answer.clone())?;
    let url = if args.path { &link.path_url } else { &link.url };
    if args.open {
        open(url)?;
    }
    if json {
        return out::json(&answer);
    }
    out::line(url);
    Ok(())
}

fn open(url: &str) -> Result<(), Failure> {
    let opened = std::process::Command::new(OPENER)
        .arg(url)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    opened.map(drop).map_err(|error| {
        Failure::new(format!("cannot start {OPENER}: {error}"))
            .hint("open the printed URL yourself")
    })
}

//! `bastide sandbox logs`: the end of the agent's log.

use clap::Args;
use http::Method;
use model::SandboxRef;
use serde_json::Value;

use super::{path_of, show};
use crate::client::Client;
use crate::failure::Failure;
use crate::out;

#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    #[arg(value_name = "SANDBOX")]
    id: SandboxRef,
    /// `stderr`, what the agent printed; or `agents`, what the agent daemon logged
    #[arg(long, default_value = "stderr", value_parser = ["stderr", "agents"])]
    stream: String,
    /// How many lines from the end
    #[arg(long, short = 'n', conflicts_with = "bytes")]
    lines: Option<u64>,
    /// How many bytes from the end
    #[arg(long, short = 'c')]
    bytes: Option<u64>,
}

pub(super) async fn logs(client: &Client, args: LogsArgs, json: bool) -> Result<(), Failure> {
    let amount = match (args.lines, args.bytes) {
        (Some(lines), _) => Some(("lines", lines.to_string())),
        (None, Some(bytes)) => Some(("bytes", bytes.to_string())),
        (None, None) => None,
    };
    let mut query = vec![("stream", args.stream.as_str())];
    query.extend(amount.iter().map(|(name, value)| (*name, value.as_str())));
    let path = path_of(&args.id, "logs", &query);
    let answer: Value = client.json(Method::GET, &path, None).await?;
    if json {
        return out::json(&answer);
    }
    let logs: api::Logs = show::parse(answer)?;
    Ok(out::stdout(logs.content.as_bytes())?)
}

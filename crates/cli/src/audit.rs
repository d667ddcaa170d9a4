//! `bastide audit`: the log of who changed what, and whether it is whole.

use std::process::ExitCode;

use api::admin::{AuditLine, AuditLog};
use clap::Subcommand;
use http::Method;
use store::AuditEntry;

use crate::client::Client;
use crate::failure::Failure;
use crate::out;

const PAGE: usize = 1000;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Print entries, oldest first
    #[command(visible_alias = "ls")]
    List {
        /// Only what came after this number
        #[arg(long, value_name = "NUMBER", default_value_t = 0)]
        after: i64,
    },
    /// Check that no entry was changed or left out; prints the last number and digest
    Verify {
        /// A number and digest that an earlier run printed, to see that the log still holds it
        #[arg(long, value_name = "NUMBER:DIGEST")]
        since: Option<String>,
    },
}

pub(crate) async fn execute(
    client: &Client,
    command: Command,
    json: bool,
) -> Result<ExitCode, Failure> {
    match command {
        Command::List { after } => list(client, after, json).await?,
        Command::Verify { since } => verify(client, since.as_deref(), json).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(client: &Client, after: i64, json: bool) -> Result<(), Failure> {
    let log = page(client, after).await?;
    if json {
        return out::json(&log);
    }
    let rows = log.entries.into_iter().map(|line| {
        let AuditLine { number, at, actor, action, target, outcome, address, digest: _ } = line;
        vec![number.to_string(), at.to_string(), actor, action, target, outcome, address]
    });
    let head = ["NUMBER", "AT", "ACTOR", "ACTION", "TARGET", "OUTCOME", "ADDRESS"];
    out::table(&head, rows.collect());
    Ok(())
}

async fn verify(client: &Client, since: Option<&str>, json: bool) -> Result<(), Failure> {
    let known = since.map(parse).transpose()?;
    let mut log = page(client, 0).await?;
    let (mut number, mut digest) = (log.begins.number, digest(&log.begins.digest)?);
    let begins = number;
    if known.is_some_and(|(at, was)| at == begins && was != digest) {
        return Err(Failure::new(format!("entry {begins} is not what it was")));
    }
    loop {
        let count = log.entries.len();
        for line in log.entries {
            let expected = number + 1;
            let (entry, said) = entry(line.clone())?;
            digest = entry.digest(&digest, expected);
            if line.number != expected || digest != said {
                return Err(Failure::new(format!("the audit log was changed at entry {expected}")));
            }
            number = expected;
            if known.is_some_and(|(at, was)| at == number && was != digest) {
                return Err(Failure::new(format!("entry {number} is not what it was")));
            }
        }
        if count < PAGE {
            break;
        }
        log = page(client, number).await?;
    }
    if let Some((at, _)) = known.filter(|(at, _)| *at < begins) {
        let message = format!("entry {at} was removed for its age: the log begins after {begins}");
        return Err(Failure::new(message));
    }
    if let Some((at, _)) = known
        && at > number
    {
        return Err(Failure::new(format!("the audit log ends at {number}: {at} is gone")));
    }
    let digest = hex(&digest);
    if json {
        let entries = number - begins;
        let told = serde_json::json!({ "entries": entries, "number": number, "digest": digest });
        return out::json(&told);
    }
    out::line(format!("{number}:{digest}"));
    out::note(format!("{} entries, all as they were written", number - begins));
    Ok(())
}

async fn page(client: &Client, after: i64) -> Result<AuditLog, Failure> {
    let path = format!("/v1/admin/audit?after={after}&limit={PAGE}");
    client.json(Method::GET, &path, None).await
}

fn entry(line: AuditLine) -> Result<(AuditEntry, [u8; 32]), Failure> {
    let said = digest(&line.digest)?;
    let AuditLine { number: _, at, actor, action, target, outcome, address, digest: _ } = line;
    Ok((AuditEntry { at, actor, action, target, outcome, address }, said))
}

fn parse(text: &str) -> Result<(i64, [u8; 32]), Failure> {
    let wrong = || Failure::new(format!("not NUMBER:DIGEST: {text}"));
    let (number, rest) = text.split_once(':').ok_or_else(wrong)?;
    Ok((number.parse().map_err(|_| wrong())?, digest(rest)?))
}

fn digest(text: &str) -> Result<[u8; 32], Failure> {
    let wrong = || Failure::new(format!("not a digest: {text}"));
    let mut digest = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return Err(wrong());
    }
    for (index, byte) in digest.iter_mut().enumerate() {
        let pair = &text[index * 2..index * 2 + 2];
        *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
    }
    Ok(digest)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

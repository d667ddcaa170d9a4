//! `bastide sandbox create`: every field of the API that a person would set.

use std::process::ExitCode;

use clap::Args;
use http::{Method, header};
use serde_json::{Map, Value};

use super::show;
use super::task::{self, AgentArgs};
use crate::args::pair;
use crate::client::{Client, full};
use crate::failure::Failure;
use crate::out;

#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// What to make it from
    #[arg(long, short, default_value = "standard", conflicts_with = "image")]
    template: String,
    /// A built template's name or an OCI reference, with the clocks of images
    #[arg(long, value_name = "REF")]
    image: Option<String>,
    /// A name of your own; default: a generated one
    #[arg(long, short)]
    name: Option<String>,
    /// `ephemeral` ends by itself, `persistent` keeps its workspace until you remove it
    #[arg(long, value_parser = ["ephemeral", "persistent"])]
    tier: Option<String>,
    /// What may be reached from inside: none, default, open, or one of the configuration
    #[arg(long)]
    policy: Option<String>,
    /// A variable for everything that runs inside; may be repeated
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = pair)]
    env: Vec<(String, String)>,
    /// Something to find it by; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    metadata: Vec<(String, String)>,
    /// Disk for the workspace and what changes in the root file system
    #[arg(long, value_name = "GIB")]
    disk_gb: Option<u32>,
    /// Processors
    #[arg(long, value_name = "N")]
    vcpu: Option<u32>,
    /// Share of each processor, above 0 and up to 1
    #[arg(long, value_name = "SHARE")]
    cpu_fraction: Option<f64>,
    /// Memory
    #[arg(long, value_name = "MIB")]
    memory_mib: Option<u32>,
    /// Stop it after this long without activity; 0 for never
    #[arg(long, value_name = "MINUTES")]
    auto_stop_minutes: Option<u64>,
    /// Delete it this long after its creation
    #[arg(long, value_name = "HOURS")]
    auto_delete_hours: Option<u64>,
    /// Destroy it after this long without activity
    #[arg(long, value_name = "SECONDS")]
    idle_timeout_seconds: Option<u64>,
    /// Destroy it this long after its creation, whatever happens
    #[arg(long, value_name = "SECONDS")]
    max_lifetime_seconds: Option<u64>,
    /// The same key gives the same sandbox for 24 hours
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    #[command(flatten)]
    agent: AgentArgs,
}

pub(super) async fn create(
    client: &Client,
    args: CreateArgs,
    json: bool,
) -> Result<ExitCode, Failure> {
    let key = args.idempotency_key.clone();
    let (body, waits) = body(args)?;
    let body = Value::Object(body).to_string();
    let mut request = client
        .request(Method::POST, "/v1/sandboxes")
        .header(header::CONTENT_TYPE, "application/json");
    if let Some(key) = key {
        request = request.header("Idempotency-Key", key);
    }
    let request = request
        .body(full(body.into_bytes()))
        .map_err(|error| Failure::new(format!("idempotency key: {error}")))?;
    let waiting = out::spinner("making the sandbox");
    let answer = client.whole(request).await;
    waiting.finish_and_clear();
    let answer: Value = serde_json::from_slice(&answer?)
        .map_err(|error| Failure::new(format!("the server's answer is not understood: {error}")))?;
    if waits {
        return task::wait(client, &answer, json).await;
    }
    if json {
        out::json(&answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    let sandbox: api::Sandbox = show::parse(answer)?;
    out::line(format!("{}  {}", sandbox.name, sandbox.id));
    Ok(ExitCode::SUCCESS)
}

fn body(args: CreateArgs) -> Result<(Map<String, Value>, bool), Failure> {
    let (mut body, waits) = args.agent.into_body()?;
    let mut put = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            body.insert(name.into(), value);
        }
    };
    match args.image {
        Some(image) => put("image", Some(image.into())),
        None => put("template", Some(args.template.into())),
    }
    put("name", args.name.map(Value::from));
    put("tier", args.tier.map(Value::from));
    put("policy", args.policy.map(Value::from));
    put("env", object(args.env));
    put("metadata", object(args.metadata));
    put("disk_gb", args.disk_gb.map(Value::from));
    put("vcpu", args.vcpu.map(Value::from));
    put("cpu_fraction", args.cpu_fraction.map(Value::from));
    put("memory_mib", args.memory_mib.map(Value::from));
    put("auto_stop_minutes", args.auto_stop_minutes.map(Value::from));
    put("auto_delete_hours", args.auto_delete_hours.map(Value::from));
    put("idle_timeout_seconds", args.idle_timeout_seconds.map(Value::from));
    put("max_lifetime_seconds", args.max_lifetime_seconds.map(Value::from));
    Ok((body, waits))
}

fn object(pairs: Vec<(String, String)>) -> Option<Value> {
    let map: Map<String, Value> =
        pairs.into_iter().map(|(name, value)| (name, value.into())).collect();
    (!map.is_empty()).then_some(Value::Object(map))
}

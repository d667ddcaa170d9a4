//! Changing what may be changed of a sandbox that is there.

use clap::{ArgGroup, Args};
use http::Method;
use serde_json::{Map, Value};

use super::SandboxRef;
use super::task::secret_of;
use crate::client::Client;
use crate::failure::Failure;
use crate::out;

#[derive(Debug, Args)]
// Not the group of the whole struct, which the sandbox itself would satisfy.
#[group(skip)]
#[command(group(ArgGroup::new("changes").args(["llm_key_env", "policy"]).required(true).multiple(true)))]
pub(crate) struct UpdateArgs {
    #[arg(value_name = "SANDBOX")]
    id: SandboxRef,
    /// The variable of this machine that holds another key of the agent's model, used from its next call on
    #[arg(long, value_name = "VARIABLE")]
    llm_key_env: Option<String>,
    /// Another egress policy; connections that it does not allow are cut
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
}

pub(super) async fn update(client: &Client, args: UpdateArgs, json: bool) -> Result<(), Failure> {
    let mut body = Map::new();
    if let Some(name) = &args.llm_key_env {
        body.insert("llm_key".to_owned(), secret_of("--llm-key-env", name)?.into());
    }
    if let Some(policy) = args.policy {
        body.insert("policy".to_owned(), policy.into());
    }
    let path = format!("/v1/sandboxes/{}", args.id);
    let answer: Value = client.json(Method::PATCH, &path, Some(&Value::Object(body))).await?;
    if json {
        return out::json(&answer);
    }
    out::line(answer["name"].as_str().unwrap_or_default());
    Ok(())
}

//! The agent of a new sandbox: its flags, and the wait for a one-shot task.

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use http::Method;
use serde_json::{Map, Value};
use tokio::time::sleep;

use super::show;
use crate::client::{Client, empty};
use crate::failure::Failure;
use crate::out;

/// Between two looks at a task.
const LOOK_EVERY: Duration = Duration::from_millis(500);

const RESULT: &str = "/tmp/result.txt";

#[derive(Debug, Args)]
#[command(next_help_heading = "Agent")]
pub(super) struct AgentArgs {
    /// An agent in it: deictic, claude or codex
    #[arg(long, requires = "llm_key_env")]
    agent: Option<String>,
    /// What the agent is to do, once; without it, it waits to be driven (bastide agents)
    #[arg(long, value_name = "TEXT", requires = "agent")]
    task: Option<String>,
    /// The agent's model
    #[arg(long, requires = "agent")]
    model: Option<String>,
    /// The variable of this machine that holds the model's key; it stays outside of the sandbox
    #[arg(long, value_name = "VARIABLE", requires = "agent")]
    llm_key_env: Option<String>,
    /// The session that codex or claude resumes; with --persistence-url, the conversation
    #[arg(long, value_name = "ID", requires = "task")]
    session_id: Option<String>,
    /// A program under /home/user/ or /workspace/ in the place of the agent's own
    #[arg(long, value_name = "PATH", requires = "agent")]
    agent_cmd: Option<String>,
    /// Give the agent its key, and let it reach its model itself
    #[arg(long, requires = "agent")]
    no_model_relay: bool,
    /// A backend of yours that keeps the conversation too
    #[arg(long, value_name = "URL", requires = "agent")]
    persistence_url: Option<String>,
    /// The variable of this machine that holds what it is sent as Authorization
    #[arg(long, value_name = "VARIABLE", requires = "persistence_url")]
    persistence_auth_env: Option<String>,
    /// Wait for the task to end, print its result, and exit as the agent did
    #[arg(long, requires = "task")]
    wait: bool,
}

impl AgentArgs {
    /// What it adds to the request, and whether the task is waited for.
    pub(super) fn into_body(self) -> Result<(Map<String, Value>, bool), Failure> {
        let key = self.llm_key_env.map(|name| secret_of("--llm-key-env", &name)).transpose()?;
        let auth = self.persistence_auth_env;
        let auth = auth.map(|name| secret_of("--persistence-auth-env", &name)).transpose()?;
        let mut body = Map::new();
        for (name, value) in [
            ("agent", self.agent),
            ("task", self.task),
            ("model", self.model),
            ("llm_key", key),
            ("session_id", self.session_id),
            ("agent_cmd", self.agent_cmd),
            ("persistence_url", self.persistence_url),
            ("persistence_auth_header", auth),
        ] {
            if let Some(value) = value {
                body.insert(name.to_owned(), value.into());
            }
        }
        if self.no_model_relay {
            body.insert("model_relay".to_owned(), false.into());
        }
        Ok((body, self.wait))
    }
}

/// A secret is named, not said: flags are seen by everybody on the machine.
pub(super) fn secret_of(flag: &str, variable: &str) -> Result<String, Failure> {
    let value = std::env::var_os(variable).and_then(|value| value.into_string().ok());
    let value = value.filter(|value| !value.is_empty());
    value.ok_or_else(|| Failure::new(format!("{flag}: {variable} is not set")))
}

/// Until the task of a sandbox that was just made has ended. Its result goes to standard output, and its
/// code is the answer.
pub(super) async fn wait(client: &Client, made: &Value, json: bool) -> Result<ExitCode, Failure> {
    let made: api::Sandbox = show::parse(made.clone())?;
    let path = format!("/v1/sandboxes/{}", made.id);
    if !json && std::io::stderr().is_terminal() {
        out::note(format!("{}  {}", made.name, made.id));
    }
    let working = out::spinner("the agent works");
    let ended = loop {
        let answer: Value = client.json(Method::GET, &path, None).await?;
        if answer["agent_status"] != "running" {
            break answer;
        }
        sleep(LOOK_EVERY).await;
    };
    working.finish_and_clear();
    let sandbox: api::Sandbox = show::parse(ended.clone())?;
    let Some(code) = sandbox.agent_exit_code else {
        let state = ended["state"].as_str().unwrap_or_default();
        let why = ended["end_reason"].as_str().unwrap_or("unknown");
        return Err(Failure::new(format!("the sandbox is {state} before its agent ended: {why}")));
    };
    if json {
        out::json(&ended)?;
    } else {
        let result = format!("{path}/files?path={RESULT}");
        let request = client.request(Method::GET, &result).body(empty());
        let request = request.map_err(|error| Failure::new(error.to_string()))?;
        out::stdout(&client.whole(request).await?)?;
    }
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

//! Claude Code: one long-lived process a session, stream JSON in both directions.
//!
//! ```text
//! started --initialize--> ready --user line--> turn --result--> ready
//!                                               | interrupt (result follows; else it is killed)
//! ```
//!
//! Permissions, questions and plans come as control requests on its output and are answered on its
//! input; see [`decoder`] for what its lines become. It is resumed by its own id.

mod control;
pub(super) mod decoder;
mod outcome;
mod session;
mod tools;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};

use self::decoder::Decoder;
use self::session::{Session, initialize};
use super::decoded::{list, some_text};
use super::launch::{defaults_for, variable};
use crate::adapter::{
    Adapter, Description, McpServer, Mode, Modes, Opened, PermissionMode, SessionSpec,
};
use crate::api::{AgentCapabilities, ModelInfo};
use crate::error::{Error, Result};
use crate::host::Host;
use crate::process::{AgentProcess, Launch};
use crate::recorder::Recorder;
use crate::secrets::Secrets;

static DESCRIPTION: Description = Description {
    id: "claude",
    program: Some("claude"),
    capabilities: AgentCapabilities {
        text_messages: true,
        permissions: true,
        questions: true,
        plan_mode: true,
        tool_calls: true,
        tool_results: true,
        session_lifecycle: true,
        error_events: true,
        reasoning: true,
        command_execution: true,
        file_changes: true,
        mcp_tools: true,
        streaming_deltas: true,
        ..AgentCapabilities::NONE
    },
    modes: &[
        Mode { id: "build", name: "Build", description: "Default build mode" },
        Mode { id: "plan", name: "Plan", description: "Plan mode (requires permissionMode=plan)" },
    ],
    modes_are_open: false,
    permission_modes: &[PermissionMode::Default, PermissionMode::Plan, PermissionMode::Bypass],
    marks_turns: true,
    state_variable: Some(CONFIG_DIR),
    takes_environment: false,
};

/// The variable with the directory of its settings and conversations.
const CONFIG_DIR: &str = "CLAUDE_CONFIG_DIR";

/// What a session's process gets unless the environment says otherwise: nothing but the model is
/// asked for anything, and a model that does not answer is given up on in less than a minute.
const ENVIRONMENT: &[(&str, &str)] = &[
    ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
    ("CLAUDE_CODE_MAX_RETRIES", "4"),
    ("DISABLE_AUTOUPDATER", "1"),
    ("DISABLE_ERROR_REPORTING", "1"),
    ("DISABLE_TELEMETRY", "1"),
];

#[derive(Debug, Default)]
pub(super) struct Claude;

#[async_trait]
impl Adapter for Claude {
    fn description(&self) -> &'static Description {
        &DESCRIPTION
    }

    /// Planning is both a mode of the agent and one of its permissions.
    fn choose_modes(&self, agent: Option<&str>, permission: Option<&str>) -> Result<Modes> {
        if agent != Some("plan") {
            return DESCRIPTION.choose_modes(agent, permission);
        }
        let modes = DESCRIPTION.choose_modes(agent, permission.or(Some("plan")))?;
        if modes.permission != PermissionMode::Plan {
            return Err(Error::invalid("Claude agentMode=plan requires permissionMode=plan"));
        }
        Ok(modes)
    }

    async fn models(&self, host: &Arc<Host>) -> Result<Vec<ModelInfo>> {
        let spec = SessionSpec {
            session_id: String::new(),
            agent_mode: "build".to_owned(),
            permission_mode: PermissionMode::Default,
            model: None,
            variant: None,
            directory: host.directory.clone(),
            env: BTreeMap::new(),
            secrets: Secrets::default(),
            app: None,
            mcp: BTreeMap::new(),
            resume: None,
        };
        let mut process = start(&spec, host)?;
        let answer = initialize(&mut process).await;
        process.kill().await;
        Ok(answer.map(|answer| models_of(&answer)).unwrap_or_default())
    }

    /// Of one that it does not know it says so only in the first turn.
    fn knows(&self, native_session_id: &str, spec: &SessionSpec, host: &Host) -> bool {
        let said = |name| variable(host, &spec.env, name).map(PathBuf::from);
        let dir = said(CONFIG_DIR).or_else(|| said("HOME").map(|home| home.join(".claude")));
        let projects = dir.and_then(|dir| std::fs::read_dir(dir.join("projects")).ok());
        let file = format!("{native_session_id}.jsonl");
        projects.into_iter().flatten().flatten().any(|project| project.path().join(&file).is_file())
    }

    async fn open(
        &self,
        spec: &SessionSpec,
        host: &Arc<Host>,
        _recorder: &Recorder,
    ) -> Result<Opened> {
        if spec.permission_mode == PermissionMode::Bypass && refuses_bypass(host, spec) {
            return Err(Error::invalid(
                "claude does not bypass permissions as root: run the daemon as another user, or \
                 set IS_SANDBOX=1 if this machine is a sandbox",
            ));
        }
        let mut process = start(spec, host)?;
        initialize(&mut process).await?;
        let session = Session::new(process, Decoder::default());
        Ok(Opened { native_session_id: spec.resume.clone(), session: Box::new(session) })
    }
}

fn refuses_bypass(host: &Host, spec: &SessionSpec) -> bool {
    let says_so = |value: Option<&str>| value.is_some_and(|value| value == "1");
    let environment = host.environment.get(&OsString::from("IS_SANDBOX"));
    rustix::process::geteuid().is_root()
        && !says_so(environment.and_then(|value| value.to_str()))
        && !says_so(spec.env.get("IS_SANDBOX").map(String::as_str))
}

fn start(spec: &SessionSpec, host: &Arc<Host>) -> Result<AgentProcess> {
    let program = host
        .find_program("claude")
        .ok_or_else(|| Error::AgentNotInstalled { agent: "claude".to_owned() })?;
    let launch = Launch {
        program,
        arguments: arguments(spec).into_iter().map(OsString::from).collect(),
        env: defaults_for(host, spec, ENVIRONMENT),
        directory: spec.directory.clone(),
    };
    AgentProcess::start(host, &launch)
        .map_err(|error| Error::stream(format!("cannot start claude: {error}")))
}

fn arguments(spec: &SessionSpec) -> Vec<String> {
    let mut arguments: Vec<String> = [
        "--print",
        "--verbose",
        "--output-format=stream-json",
        "--input-format=stream-json",
        "--include-partial-messages",
        "--permission-prompt-tool=stdio",
    ]
    .map(str::to_owned)
    .to_vec();
    match spec.permission_mode {
        PermissionMode::Default => {}
        PermissionMode::Plan => arguments.push("--permission-mode=plan".to_owned()),
        PermissionMode::Bypass => arguments.push("--dangerously-skip-permissions".to_owned()),
    }
    arguments.extend(spec.model.iter().map(|model| format!("--model={model}")));
    arguments.extend(spec.resume.iter().map(|id| format!("--resume={id}")));
    if !spec.mcp.is_empty() {
        arguments.push(format!("--mcp-config={}", mcp_config(&spec.mcp)));
    }
    arguments
}

fn mcp_config(servers: &BTreeMap<String, McpServer>) -> Value {
    let form = |server: &McpServer| match server {
        McpServer::Local { command, env } => json!({
            "type": "stdio",
            "command": command.first(),
            "args": command.get(1..).unwrap_or_default(),
            "env": env,
        }),
        McpServer::Remote { url, headers } => json!({
            "type": "http", "url": url, "headers": headers,
        }),
    };
    let servers: BTreeMap<&String, Value> =
        servers.iter().map(|(name, server)| (name, form(server))).collect();
    json!({"mcpServers": servers})
}

fn models_of(answer: &Value) -> Vec<ModelInfo> {
    list(answer, "models")
        .iter()
        .filter_map(|model| {
            let id = some_text(model, "value")?.to_owned();
            let levels = list(model, "supportedEffortLevels").iter();
            Some(ModelInfo {
                default: id == "default",
                id,
                name: some_text(model, "displayName").map(str::to_owned),
                variants: levels.filter_map(Value::as_str).map(str::to_owned).collect(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests;

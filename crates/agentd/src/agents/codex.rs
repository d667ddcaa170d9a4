//! Codex: one `app-server` process for all sessions, a thread each.
//!
//! Asking ("default") means that every command that is not known to be harmless is asked for, and then
//! runs as it is, without Codex's own walls inside ours. See [`decoder`] for what its notifications
//! become, [`start`] for how its process is started.

pub(super) mod decoder;
mod items;
pub(crate) mod model;
mod requests;
mod server;
mod session;
mod start;
mod wire;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;

use self::decoder::Decoder;
use self::session::{Session, Turn, TurnOptions};
use self::wire::{Link, QUEUE, ToServer};
use super::decoded::{list, some_text};
use super::servers::Servers;
use crate::adapter::{Adapter, Description, McpServer, Mode, Opened, PermissionMode, SessionSpec};
use crate::api::{AgentCapabilities, ModelInfo, ServerStatusInfo};
use crate::error::{Error, Result};
use crate::host::Host;
use crate::recorder::Recorder;

/// For calls that do not wait for a model.
const CALL_WAIT: Duration = Duration::from_secs(60);

/// What it takes as effort; another variant is none of ours.
const EFFORTS: &[&str] = &["none", "minimal", "low", "medium", "high", "xhigh"];

static DESCRIPTION: Description = Description {
    id: "codex",
    program: Some("codex"),
    capabilities: AgentCapabilities::ALL,
    modes: &[
        Mode { id: "build", name: "Build", description: "Default build mode" },
        Mode { id: "plan", name: "Plan", description: "Planning mode via prompt prefix" },
    ],
    modes_are_open: false,
    permission_modes: &[PermissionMode::Default, PermissionMode::Plan, PermissionMode::Bypass],
    marks_turns: true,
    state_variable: Some("CODEX_HOME"),
    takes_environment: false,
};

#[derive(Debug, Default)]
pub(super) struct Codex {
    servers: Servers<Link>,
}

#[async_trait]
impl Adapter for Codex {
    fn description(&self) -> &'static Description {
        &DESCRIPTION
    }

    async fn models(&self, host: &Arc<Host>) -> Result<Vec<ModelInfo>> {
        let link = self.servers.get(host, &BTreeMap::new()).await?;
        let answer = finished(link.call("model/list", json!({}), None)?).await?;
        Ok(list(&answer, "data").iter().filter_map(model_of).collect())
    }

    async fn open(
        &self,
        spec: &SessionSpec,
        host: &Arc<Host>,
        _recorder: &Recorder,
    ) -> Result<Opened> {
        let link = self.servers.get(host, &spec.environment()).await?;
        let (sender, events) = mpsc::channel(QUEUE);
        let mut params = thread_params(spec);
        let method = match &spec.resume {
            Some(thread) => {
                params["threadId"] = thread.as_str().into();
                "thread/resume"
            }
            None => "thread/start",
        };
        let answer = finished(link.call(method, params, Some(sender))?).await?;
        let thread = answer
            .pointer("/thread/id")
            .and_then(Value::as_str)
            .ok_or_else(|| Error::stream(format!("codex answered {method} without a thread")))?
            .to_owned();
        let model = some_text(&answer, "model").map(str::to_owned).or_else(|| spec.model.clone());
        let options = TurnOptions {
            plan: spec.agent_mode == "plan",
            plan_with: model,
            effort: spec.variant.clone().filter(|variant| EFFORTS.contains(&variant.as_str())),
        };
        let (decoder, turn) = (Decoder::default(), Turn::default());
        let session = Session { link, events, thread: thread.clone(), decoder, options, turn };
        Ok(Opened { native_session_id: Some(thread), session: Box::new(session) })
    }

    fn server_status(&self) -> Option<ServerStatusInfo> {
        Some(self.servers.status())
    }

    /// A thread is one process's: another one resumes it only when that is gone.
    async fn let_go(&self) {
        for link in self.servers.all() {
            let (done, wait) = tokio::sync::oneshot::channel();
            if link.send(ToServer::EndIfUnused { done }).is_ok() {
                let _ = timeout(CALL_WAIT, wait).await;
            }
        }
    }

    async fn close(&self) {
        self.servers.close();
    }
}

async fn finished(answer: tokio::sync::oneshot::Receiver<Result<Value>>) -> Result<Value> {
    match timeout(CALL_WAIT, answer).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err(Error::stream("codex app-server is gone")),
        Err(_) => Err(Error::stream("codex app-server does not answer")),
    }
}

fn thread_params(spec: &SessionSpec) -> Value {
    let (approval, sandbox) = match spec.permission_mode {
        PermissionMode::Default => ("untrusted", "danger-full-access"),
        PermissionMode::Plan => ("untrusted", "read-only"),
        PermissionMode::Bypass => ("never", "danger-full-access"),
    };
    let mut params = json!({
        "cwd": spec.directory,
        "approvalPolicy": approval,
        "sandbox": sandbox,
    });
    if let Some(model) = &spec.model {
        params["model"] = model.as_str().into();
    }
    if !spec.mcp.is_empty() {
        let servers = spec
            .mcp
            .iter()
            .map(|(name, server)| (format!("mcp_servers.{name}"), mcp_config(server)));
        params["config"] = Value::Object(servers.collect());
    }
    params
}

fn mcp_config(server: &McpServer) -> Value {
    match server {
        McpServer::Local { command, env } => json!({
            "command": command.first(),
            "args": command.get(1..).unwrap_or_default(),
            "env": env,
        }),
        McpServer::Remote { url, headers } => json!({"url": url, "http_headers": headers}),
    }
}

fn model_of(model: &Value) -> Option<ModelInfo> {
    let efforts = list(model, "supportedReasoningEfforts").iter();
    Some(ModelInfo {
        id: some_text(model, "model").or_else(|| some_text(model, "id"))?.to_owned(),
        name: some_text(model, "displayName").map(str::to_owned),
        variants: efforts
            .filter_map(|effort| some_text(effort, "reasoningEffort").or_else(|| effort.as_str()))
            .map(str::to_owned)
            .collect(),
        default: model.get("isDefault").and_then(Value::as_bool).unwrap_or(false),
    })
}

//! `OpenCode`: one `opencode serve` for all sessions, spoken to over HTTP on loopback, and its stream of
//! events for each session. See [`decoder`] for what the events become.
//!
//! Whether it asks before it acts is its own configuration; it does not by default.

mod client;
pub(super) mod decoder;
mod parts;
mod requests;
mod server;
mod session;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use http::StatusCode;
use serde_json::{Value, json};

use self::client::{Answer, Client};
use self::server::Server;
use self::session::Session;
use super::decoded::{list, only, some_text, text};
use super::launch::VENDOR;
use super::servers::Servers;
use crate::adapter::{Adapter, Description, McpServer, Mode, Opened, PermissionMode, SessionSpec};
use crate::api::{AgentCapabilities, AgentModeInfo, ModelInfo, ServerStatusInfo};
use crate::conversion::{Conversion, Raw};
use crate::error::{Error, Result};
use crate::host::Host;
use crate::recorder::Recorder;

static DESCRIPTION: Description = Description {
    id: "opencode",
    program: Some("opencode"),
    capabilities: AgentCapabilities::ALL,
    modes: &[
        Mode { id: "build", name: "Build", description: "Default build mode" },
        Mode { id: "plan", name: "Plan", description: "Planning mode" },
        Mode { id: "custom", name: "Custom", description: "Any user-defined OpenCode agent name" },
    ],
    modes_are_open: true,
    permission_modes: &[PermissionMode::Default],
    marks_turns: true,
    state_variable: Some("XDG_DATA_HOME"),
    takes_environment: false,
};

#[derive(Debug, Default)]
pub(super) struct Opencode {
    servers: Servers<Server>,
}

#[async_trait]
impl Adapter for Opencode {
    fn description(&self) -> &'static Description {
        &DESCRIPTION
    }

    /// Its agents are its modes. Nothing is started for this.
    async fn modes(&self, host: &Arc<Host>) -> Vec<AgentModeInfo> {
        let table: Vec<_> = DESCRIPTION.modes.iter().map(AgentModeInfo::from).collect();
        let Some(server) = self.servers.running() else { return table };
        let path = format!("/agent?{}", place(&host.directory));
        let Ok(answer) = server.client.get(&path).await else { return table };
        let mut modes: Vec<_> =
            answer.body.as_array().into_iter().flatten().filter_map(mode_of).collect();
        if modes.is_empty() {
            return table;
        }
        modes.extend(table.into_iter().filter(|mode| mode.id == "custom"));
        modes
    }

    async fn models(&self, host: &Arc<Host>) -> Result<Vec<ModelInfo>> {
        let server = self.servers.get(host, &BTreeMap::new()).await?;
        let path = format!("/config/providers?{}", place(&host.directory));
        let answer = server.client.get(&path).await?;
        Ok(models_of(&answer.body))
    }

    async fn open(
        &self,
        spec: &SessionSpec,
        host: &Arc<Host>,
        recorder: &Recorder,
    ) -> Result<Opened> {
        let options = options_of(spec)?;
        let server = self.servers.get(host, &spec.environment()).await?;
        let place = place(&spec.directory);
        // First, so that nothing of the session is missed.
        let events = server.client.events(&format!("/event?{place}")).await?;
        for (name, config) in &spec.mcp {
            let body = json!({"name": name, "config": mcp_config(config)});
            expect(server.client.post(&format!("/mcp?{place}"), &body).await?, "the MCP server")?;
        }
        let info = match &spec.resume {
            Some(id) => find(&server.client, id, &place).await?,
            None => {
                let path = format!("/session?{place}");
                expect(server.client.post(&path, &json!({})).await?, "a session")?
            }
        };
        let id = some_text(&info, "id")
            .ok_or_else(|| Error::stream("opencode made a session without an id"))?
            .to_owned();
        let metadata = Some(only(&info, &["id", "directory", "title", "version"]));
        recorder.record_raw(Conversion::SessionStarted { metadata }, &Raw::from(&info));
        let session = Session::new(server, events, id.clone(), place, options);
        Ok(Opened { native_session_id: Some(id), session: Box::new(session) })
    }

    fn server_status(&self) -> Option<ServerStatusInfo> {
        Some(self.servers.status())
    }

    async fn close(&self) {
        self.servers.close();
    }
}

async fn find(client: &Client, id: &str, place: &str) -> Result<Value> {
    if !requests::is_plain(id) {
        return Err(Error::stream(format!("opencode has no such session: {id}")));
    }
    expect(client.get(&format!("/session/{id}?{place}")).await?, "the session")
}

fn expect(answer: Answer, what: &str) -> Result<Value> {
    if answer.status == StatusCode::OK {
        return Ok(answer.body);
    }
    let said = answer.body.pointer("/data/message").and_then(Value::as_str).unwrap_or_default();
    Err(Error::stream(format!("opencode answered {} for {what}: {said}", answer.status)))
}

/// Where a session works, as the query says it.
fn place(directory: &std::path::Path) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    query.append_pair("directory", &directory.to_string_lossy());
    query.finish()
}

fn options_of(spec: &SessionSpec) -> Result<Value> {
    let mut options = json!({});
    if spec.agent_mode != "build" && spec.agent_mode != "custom" {
        options["agent"] = spec.agent_mode.as_str().into();
    }
    if let Some(model) = &spec.model {
        let vendor = spec.env.get(VENDOR).map(|vendor| (vendor.as_str(), model.as_str()));
        let (provider, id) = model.split_once('/').or(vendor).ok_or_else(|| {
            Error::invalid(format!("a model of opencode is PROVIDER/MODEL, not: {model}"))
        })?;
        options["model"] = json!({"providerID": provider, "modelID": id});
    }
    if let Some(variant) = &spec.variant {
        options["variant"] = variant.as_str().into();
    }
    Ok(options)
}

fn mcp_config(server: &McpServer) -> Value {
    match server {
        McpServer::Local { command, env } => json!({
            "type": "local", "command": command, "environment": env, "enabled": true,
        }),
        McpServer::Remote { url, headers } => json!({
            "type": "remote", "url": url, "headers": headers, "enabled": true,
        }),
    }
}

/// Agents that work for other agents are none that a session can have.
fn mode_of(agent: &Value) -> Option<AgentModeInfo> {
    if text(agent, "mode") == "subagent"
        || agent.get("hidden").and_then(Value::as_bool) == Some(true)
    {
        return None;
    }
    let id = some_text(agent, "name")?.to_owned();
    let mut name = id.clone();
    if let Some(first) = name.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    Some(AgentModeInfo { id, name, description: text(agent, "description").to_owned() })
}

fn models_of(answer: &Value) -> Vec<ModelInfo> {
    let mut models = Vec::new();
    for provider in list(answer, "providers") {
        let owner = text(provider, "id");
        let default = answer.pointer(&format!("/default/{owner}")).and_then(Value::as_str);
        let known = provider.get("models").and_then(Value::as_object);
        for (id, model) in known.into_iter().flatten() {
            let variants = model.get("variants").and_then(Value::as_object);
            models.push(ModelInfo {
                id: format!("{owner}/{id}"),
                name: some_text(model, "name").map(str::to_owned),
                variants: variants.map(|all| all.keys().cloned().collect()).unwrap_or_default(),
                default: default == Some(id.as_str()),
            });
        }
    }
    models
}

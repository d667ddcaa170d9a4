//! Deictic, our own agent: one process of our own program a session, JSON lines in both directions. What it
//! says is in [`deictic::protocol`]; see [`decoder`] for what that becomes.
//!
//! ```text
//! started --Start--> ready --message--> turn --turn_over--> ready
//!    \-> refused: the answer of the request   | interrupt (turn_over follows; else it is killed)
//! ```
//!
//! It is always there, and a session that does not exist costs nothing. Its transcript is what it is
//! resumed from.

pub(super) mod decoder;
mod session;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use deictic::protocol;
use serde_json::Value;
use tokio::time::timeout;

use self::decoder::Decoder;
use self::session::Session;
use super::apply::{apply, parse};
use super::launch::{defaults_for, variable};
use crate::adapter::{
    Adapter, Description, McpServer, Mode, Modes, Opened, PermissionMode, SessionSpec,
};
use crate::api::AgentCapabilities;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::process::{AgentProcess, Launch};
use crate::recorder::Recorder;

static DESCRIPTION: Description = Description {
    id: "deictic",
    program: None,
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
        Mode { id: "plan", name: "Plan", description: "Reads, and has its plan approved" },
    ],
    modes_are_open: false,
    permission_modes: &[PermissionMode::Default, PermissionMode::Plan, PermissionMode::Bypass],
    marks_turns: true,
    state_variable: Some(STATE_DIR),
    takes_environment: true,
};

/// The variable with the agents of an application, as `app_json` has them.
const APP: &str = "DEICTIC_APP_JSON";

/// The variable with the directory of its transcripts.
const STATE_DIR: &str = "DEICTIC_STATE_DIR";

/// Until it is ready, with its tool servers.
const READY_WAIT: Duration = Duration::from_secs(90);

#[derive(Debug, Default)]
pub(super) struct Deictic;

#[async_trait]
impl Adapter for Deictic {
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
            return Err(Error::invalid("deictic agentMode=plan requires permissionMode=plan"));
        }
        Ok(modes)
    }

    async fn open(
        &self,
        spec: &SessionSpec,
        host: &Arc<Host>,
        recorder: &Recorder,
    ) -> Result<Opened> {
        let start = start_of(spec, host)?;
        let mut command = host.deictic.iter().cloned();
        let program = command
            .next()
            .ok_or_else(|| Error::AgentNotInstalled { agent: "deictic".to_owned() })?;
        let launch = Launch {
            program: program.into(),
            arguments: command.chain([OsString::from("--stdio")]).collect(),
            env: defaults_for(host, spec, &[]),
            directory: spec.directory.clone(),
        };
        let mut process = AgentProcess::start(host, &launch)
            .map_err(|error| Error::stream(format!("cannot start deictic: {error}")))?;
        let native = match timeout(READY_WAIT, ready(&mut process, &start, recorder)).await {
            Ok(ready) => ready?,
            Err(_) => return Err(Error::stream("deictic does not start: it does not answer")),
        };
        let session = Session::new(process);
        Ok(Opened { native_session_id: Some(native), session: Box::new(session) })
    }
}

fn start_of(spec: &SessionSpec, host: &Host) -> Result<protocol::Start> {
    let app = variable(host, &spec.env, APP).filter(|app| !app.is_empty()).map(|app| {
        serde_json::from_str::<Value>(&app)
            .map_err(|error| Error::invalid(format!("{APP} is not JSON: {error}")))
    });
    let app = spec.app.clone().map(Ok).or(app);
    let state_dir = spec.env.get(STATE_DIR).map(PathBuf::from);
    let mcp = spec.mcp.iter().map(|(name, server)| (name.clone(), server_of(server)));
    Ok(protocol::Start {
        model: spec.model.clone(),
        effort: spec.variant.clone(),
        permission_mode: match spec.permission_mode {
            PermissionMode::Default => protocol::PermissionMode::Default,
            PermissionMode::Plan => protocol::PermissionMode::Plan,
            PermissionMode::Bypass => protocol::PermissionMode::Bypass,
        },
        session: spec.resume.clone(),
        state_dir: state_dir.or_else(|| Some(host.agent_dir("deictic"))),
        app: app.transpose()?,
        mcp: mcp.collect(),
        ..protocol::Start::default()
    })
}

fn server_of(server: &McpServer) -> protocol::McpServer {
    match server.clone() {
        McpServer::Local { command, env } => protocol::McpServer::Local { command, env },
        McpServer::Remote { url, headers } => protocol::McpServer::Remote { url, headers },
    }
}

/// Its own id of the session. What it refuses is the fault of who asked.
async fn ready(
    process: &mut AgentProcess,
    start: &protocol::Start,
    recorder: &Recorder,
) -> Result<String> {
    let failed = |error: std::io::Error| Error::stream(format!("deictic does not listen: {error}"));
    let line = serde_json::to_string(start).map_err(|error| failed(error.into()))?;
    process.write_line(&line).await.map_err(failed)?;
    loop {
        let Some(line) = process.next_line().await.map_err(failed)? else {
            let exit_code = process.wait().await.ok().and_then(|status| status.code());
            let stderr = Some(process.stderr()).filter(|text| !text.is_empty());
            return Err(Error::AgentProcessExited {
                agent: "deictic".to_owned(),
                exit_code,
                stderr,
            });
        };
        let Some((value, raw)) = parse(recorder, "deictic", line) else { continue };
        if let Ok(protocol::Said::Refused { message }) = serde_json::from_value(value.clone()) {
            return Err(Error::invalid(message));
        }
        // Also what it says before: tool servers that did not start.
        let applied = apply(recorder, Decoder::default().decode(&value), Some(&raw));
        if let Some(session) = applied.native_id {
            return Ok(session);
        }
    }
}

#[cfg(test)]
mod tests;

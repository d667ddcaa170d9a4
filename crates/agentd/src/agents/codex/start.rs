//! The app-server of codex: how it is started, and what it is told first.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::model;
use super::server::{Server, ServerEnd};
use super::wire::{Link, QUEUE, ToServer};
use crate::agents::launch::defaults_of;
use crate::agents::servers::{Environment, Shared};
use crate::error::{Error, Result};
use crate::host::Host;
use crate::process::{AgentProcess, Launch, Line};

const INITIALIZE_WAIT: Duration = Duration::from_secs(60);

impl Shared for Link {
    type Process = (AgentProcess, mpsc::Receiver<ToServer>);

    async fn start(host: &Arc<Host>, environment: &Environment) -> Result<(Self, Self::Process)> {
        let process = start(host, environment).await?;
        let (sender, inbox) = mpsc::channel(QUEUE);
        Ok((Self(sender), (process, inbox)))
    }

    async fn serve(&self, process: Self::Process, stop: CancellationToken) -> Option<String> {
        let (process, inbox) = process;
        match Server::new(process, inbox).run(stop).await {
            ServerEnd::Quiet => None,
            ServerEnd::Died { message } => Some(message),
        }
    }

    fn is_alive(&self) -> bool {
        !self.0.is_closed()
    }
}

async fn start(host: &Arc<Host>, environment: &Environment) -> Result<AgentProcess> {
    let program = host
        .find_program("codex")
        .ok_or_else(|| Error::AgentNotInstalled { agent: "codex".to_owned() })?;
    model::write_config(host, environment, None)
        .map_err(|error| Error::stream(format!("cannot write codex's configuration: {error}")))?;
    let mut env = defaults_of(host, &[]);
    env.extend(environment.iter().map(|(name, value)| (name.into(), value.into())));
    let launch = Launch { program, arguments: arguments(), env, directory: host.directory.clone() };
    let mut process = AgentProcess::start(host, &launch)
        .map_err(|error| Error::stream(format!("cannot start codex: {error}")))?;
    let initialized = timeout(INITIALIZE_WAIT, initialize(&mut process)).await;
    match initialized {
        Ok(Ok(())) => Ok(process),
        Ok(Err(why)) => {
            let stderr = process.stderr();
            process.kill().await;
            Err(Error::stream(format!("codex app-server does not start: {why}: {stderr}")))
        }
        Err(_) => {
            process.kill().await;
            Err(Error::stream("codex app-server does not start: it does not answer"))
        }
    }
}

/// Versions that do not know a setting say so, and go on.
fn arguments() -> Vec<OsString> {
    let settings = [
        "analytics.enabled=false",
        "features.default_mode_request_user_input=true",
        "suppress_unstable_features_warning=true",
    ];
    let settings = settings.iter().flat_map(|setting| ["-c", setting]);
    ["app-server"].into_iter().chain(settings).map(OsString::from).collect()
}

async fn initialize(process: &mut AgentProcess) -> Result<(), String> {
    let request = json!({"id": 0, "method": "initialize", "params": {
        "clientInfo": {"name": "bastide", "title": "Bastide", "version": env!("CARGO_PKG_VERSION")},
        "capabilities": {"experimentalApi": true},
    }});
    let failed = |error: std::io::Error| error.to_string();
    process.write_line(&request.to_string()).await.map_err(failed)?;
    loop {
        let line = match process.next_line().await.map_err(failed)? {
            None => return Err("it exited".to_owned()),
            Some(Line::TooLong) => continue,
            Some(Line::Text(line)) => line,
        };
        let Ok(message) = serde_json::from_str::<Value>(&line) else { continue };
        if message.get("id").and_then(Value::as_u64) != Some(0) {
            continue;
        }
        if let Some(error) = message.get("error") {
            return Err(error.to_string());
        }
        let initialized = json!({"method": "initialized"});
        return process.write_line(&initialized.to_string()).await.map_err(failed);
    }
}

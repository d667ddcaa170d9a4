//! `opencode serve`: how it is started, and when it is gone. Its port is on loopback and behind a random
//! password.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::client::Client;
use crate::agents::launch::{BASE_URL, KEY, MODEL, VENDOR, defaults_of, variable};
use crate::agents::servers::{Environment, Shared};
use crate::error::{Error, Result};
use crate::host::Host;
use crate::process::{AgentProcess, Launch, Line};

const START_WAIT: Duration = Duration::from_secs(90);
const EXIT_WAIT: Duration = Duration::from_secs(2);

/// What it gets unless the environment says otherwise: it downloads nothing by itself.
const ENVIRONMENT: &[(&str, &str)] = &[
    ("OPENCODE_DISABLE_AUTOUPDATE", "1"),
    ("OPENCODE_DISABLE_DEFAULT_PLUGINS", "1"),
    ("OPENCODE_DISABLE_LSP_DOWNLOAD", "1"),
    ("OPENCODE_DISABLE_MODELS_FETCH", "1"),
];

/// The variable with a configuration, beside those in files.
const CONFIG: &str = "OPENCODE_CONFIG_CONTENT";

/// Where the model is and which key it takes, if the environment says so: it looks at no variable for that.
fn config_of(host: &Host, environment: &Environment) -> Option<Value> {
    let said = |name: &str| variable(host, environment, name).filter(|value| !value.is_empty());
    let (vendor, base_url) = (said(VENDOR)?, said(BASE_URL)?);
    // Its own form of the base has the version.
    let version = match vendor.as_str() {
        "anthropic" => "/v1",
        "google" => "/v1beta",
        _ => "",
    };
    let mut provider = json!({"options": {"baseURL": format!("{base_url}{version}")}});
    if let Some(key) = said(KEY) {
        provider["options"]["apiKey"] = key.into();
    }
    let mut config = json!({"autoupdate": false, "share": "disabled"});
    if let Some(model) = said(MODEL) {
        // Also one that it does not know, and for what it asks a smaller one.
        provider["models"] = json!({model.as_str(): {}});
        config["small_model"] = format!("{vendor}/{model}").into();
    }
    config["provider"] = json!({vendor: provider});
    Some(config)
}

/// A running server. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Server {
    pub(super) client: Client,
    /// Cancelled when its output has ended: no session begins there any more.
    closed: CancellationToken,
    /// Cancelled when the process is gone, and that is known.
    pub(super) gone: CancellationToken,
}

impl Shared for Server {
    type Process = AgentProcess;

    async fn start(host: &Arc<Host>, environment: &Environment) -> Result<(Self, AgentProcess)> {
        let (process, client) = start(host, environment).await?;
        let (closed, gone) = (CancellationToken::new(), CancellationToken::new());
        Ok((Self { client, closed, gone }, process))
    }

    async fn serve(&self, mut process: AgentProcess, stop: CancellationToken) -> Option<String> {
        let stopped = tokio::select! {
            () = stop.cancelled() => true,
            () = output_ended(&mut process) => false,
        };
        self.closed.cancel();
        let status = match stopped {
            true => None,
            false => timeout(EXIT_WAIT, process.wait()).await.ok().and_then(|end| end.ok()),
        };
        process.kill().await;
        if stopped {
            return None;
        }
        let code = status.and_then(|status| status.code());
        Some(format!("opencode serve exited with {code:?}: {}", process.stderr()))
    }

    fn is_alive(&self) -> bool {
        !self.closed.is_cancelled()
    }

    fn gone(&self) {
        self.gone.cancel();
    }

    fn address(&self) -> Option<String> {
        Some(format!("http://{}", self.client.address))
    }
}

async fn output_ended(process: &mut AgentProcess) {
    while let Ok(Some(_)) = process.next_line().await {}
}

async fn start(host: &Arc<Host>, environment: &Environment) -> Result<(AgentProcess, Client)> {
    let program = host
        .find_program("opencode")
        .ok_or_else(|| Error::AgentNotInstalled { agent: "opencode".to_owned() })?;
    let password = uuid::Uuid::new_v4().simple().to_string();
    let mut env = defaults_of(host, ENVIRONMENT);
    if let Some(config) = config_of(host, environment) {
        env.insert(CONFIG.into(), config.to_string().into());
    }
    env.extend(environment.iter().map(|(name, value)| (name.into(), value.into())));
    env.insert("OPENCODE_SERVER_PASSWORD".into(), password.clone().into());
    let arguments = ["serve", "--hostname", "127.0.0.1", "--port", "0"];
    let arguments = arguments.into_iter().map(OsString::from).collect();
    let launch = Launch { program, arguments, env, directory: host.directory.clone() };
    let mut process = AgentProcess::start(host, &launch)
        .map_err(|error| Error::stream(format!("cannot start opencode: {error}")))?;
    let address = match timeout(START_WAIT, address_of(&mut process)).await {
        Ok(Some(address)) => address,
        Ok(None) => {
            let stderr = process.stderr();
            process.kill().await;
            return Err(Error::stream(format!("opencode serve does not start: {stderr}")));
        }
        Err(_) => {
            process.kill().await;
            return Err(Error::stream("opencode serve does not start: it says nothing"));
        }
    };
    let client = Client::new(&address, &password, &host.tasks);
    Ok((process, client))
}

/// It prints where it listens.
async fn address_of(process: &mut AgentProcess) -> Option<String> {
    loop {
        let Line::Text(line) = process.next_line().await.ok()?? else { continue };
        let Some((_, after)) = line.split_once("http://") else { continue };
        let end = after.find(|c: char| c.is_whitespace() || c == '/').unwrap_or(after.len());
        return Some(after[..end].to_owned());
    }
}

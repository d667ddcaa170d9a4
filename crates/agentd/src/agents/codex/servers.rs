//! Keeps app-servers running: one for all sessions, and one more for each environment that sessions ask
//! for. One that died is started again when it is needed, later each time it dies soon after.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::server::{Server, ServerEnd};
use super::wire::{Link, QUEUE};
use crate::agents::health::Health;
use crate::agents::launch::defaults_of;
use crate::api::ServerStatusInfo;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::process::{AgentProcess, Launch, Line};

const INITIALIZE_WAIT: Duration = Duration::from_secs(60);

/// What app-servers differ in: variables beside those of the host.
pub(super) type Environment = BTreeMap<String, String>;

#[derive(Debug)]
pub(super) struct Servers {
    state: Arc<Mutex<State>>,
    /// One start at a time.
    starting: Semaphore,
    stop: CancellationToken,
}

#[derive(Debug, Default)]
struct State {
    running: BTreeMap<Environment, Running>,
    health: Health,
}

#[derive(Debug)]
struct Running {
    link: Link,
    since: Instant,
}

impl Default for Servers {
    fn default() -> Self {
        Self { state: Arc::default(), starting: Semaphore::new(1), stop: CancellationToken::new() }
    }
}

impl Servers {
    pub(super) async fn get(&self, host: &Arc<Host>, environment: &Environment) -> Result<Link> {
        let _permit = self.starting.acquire().await.map_err(|_| Error::stream("stopped"))?;
        let wait = {
            let state = self.lock();
            if let Some(running) = state.running.get(environment)
                && running.link.is_alive()
            {
                return Ok(running.link.clone());
            }
            state.health.not_before()
        };
        if let Some(until) = wait {
            sleep_until(until).await;
        }
        match start(host, environment).await {
            Ok(process) => Ok(self.serve(host, environment, process)),
            Err(error) => {
                self.lock().health.refused(&error);
                Err(error)
            }
        }
    }

    pub(super) fn status(&self) -> ServerStatusInfo {
        let state = self.lock();
        let up = state.running.values().find(|running| running.link.is_alive());
        state.health.info(up.map(|running| running.since.elapsed()), None)
    }

    pub(super) fn close(&self) {
        self.stop.cancel();
        self.starting.close();
    }

    fn serve(&self, host: &Arc<Host>, environment: &Environment, process: AgentProcess) -> Link {
        let (sender, inbox) = mpsc::channel(QUEUE);
        let link = Link(sender);
        let since = Instant::now();
        self.lock().running.insert(environment.clone(), Running { link: link.clone(), since });
        let state = Arc::clone(&self.state);
        let key = environment.clone();
        let stop = self.stop.clone();
        let host_stop = host.stop.clone();
        host.tasks.spawn(async move {
            let stopped = CancellationToken::new();
            let running = Server::new(process, inbox).run(stopped.clone());
            tokio::pin!(running);
            let end = tokio::select! {
                end = &mut running => end,
                () = either(&stop, &host_stop) => {
                    stopped.cancel();
                    running.await
                }
            };
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            state.running.remove(&key);
            if let ServerEnd::Died { message } = end {
                tracing::warn!("{message}");
                state.health.died(message, since.elapsed());
            }
        });
        link
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn either(one: &CancellationToken, other: &CancellationToken) {
    tokio::select! {
        () = one.cancelled() => {}
        () = other.cancelled() => {}
    }
}

async fn start(host: &Arc<Host>, environment: &Environment) -> Result<AgentProcess> {
    let program = host
        .find_program("codex")
        .ok_or_else(|| Error::AgentNotInstalled { agent: "codex".to_owned() })?;
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

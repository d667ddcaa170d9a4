//! Keeps `opencode serve` running: one for all sessions, and one more for each environment that sessions
//! ask for. Its port is on loopback and behind a random password.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::client::Client;
use crate::agents::health::Health;
use crate::agents::launch::defaults_of;
use crate::api::ServerStatusInfo;
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
    running: BTreeMap<Environment, Server>,
    health: Health,
}

/// A running server. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Server {
    pub(super) client: Client,
    /// Cancelled when the process is gone.
    pub(super) gone: CancellationToken,
    since: Instant,
}

impl Default for Servers {
    fn default() -> Self {
        Self { state: Arc::default(), starting: Semaphore::new(1), stop: CancellationToken::new() }
    }
}

impl Servers {
    pub(super) async fn get(&self, host: &Arc<Host>, environment: &Environment) -> Result<Server> {
        let _permit = self.starting.acquire().await.map_err(|_| Error::stream("stopped"))?;
        let wait = {
            let state = self.lock();
            if let Some(server) = state.running.get(environment) {
                return Ok(server.clone());
            }
            state.health.not_before()
        };
        if let Some(until) = wait {
            sleep_until(until).await;
        }
        match start(host, environment).await {
            Ok((process, client)) => Ok(self.serve(host, environment, process, client)),
            Err(error) => {
                self.lock().health.refused(&error);
                Err(error)
            }
        }
    }

    /// One that runs already, whichever it is.
    pub(super) fn running(&self) -> Option<Server> {
        self.lock().running.values().next().cloned()
    }

    pub(super) fn status(&self) -> ServerStatusInfo {
        let state = self.lock();
        let up = state.running.values().next();
        let address = up.map(|server| format!("http://{}", server.client.address));
        state.health.info(up.map(|server| server.since.elapsed()), address)
    }

    pub(super) fn close(&self) {
        self.stop.cancel();
        self.starting.close();
    }

    fn serve(
        &self,
        host: &Arc<Host>,
        environment: &Environment,
        mut process: AgentProcess,
        client: Client,
    ) -> Server {
        let server = Server { client, gone: CancellationToken::new(), since: Instant::now() };
        self.lock().running.insert(environment.clone(), server.clone());
        let (state, key) = (Arc::clone(&self.state), environment.clone());
        let (stop, host_stop) = (self.stop.clone(), host.stop.clone());
        let (gone, since) = (server.gone.clone(), server.since);
        host.tasks.spawn(async move {
            let stopped = tokio::select! {
                () = stop.cancelled() => true,
                () = host_stop.cancelled() => true,
                () = output_ended(&mut process) => false,
            };
            // Before the sessions are told, so that they get a new one.
            state.lock().unwrap_or_else(PoisonError::into_inner).running.remove(&key);
            let status = match stopped {
                true => None,
                false => timeout(EXIT_WAIT, process.wait()).await.ok().and_then(|end| end.ok()),
            };
            process.kill().await;
            if !stopped {
                let code = status.and_then(|status| status.code());
                let message = format!("opencode serve exited with {code:?}: {}", process.stderr());
                tracing::warn!("{message}");
                let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                state.health.died(message, since.elapsed());
            }
            gone.cancel();
        });
        server
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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

//! Keeps processes running that sessions share: one for all sessions, and one more for each environment
//! that sessions ask for. One that died is started again when it is needed, later each time it dies soon
//! after.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::health::Health;
use crate::api::ServerStatusInfo;
use crate::error::{Error, Result};
use crate::host::Host;

/// What such processes differ in: variables beside those of the host.
pub(super) type Environment = BTreeMap<String, String>;

/// A program of which sessions share a process. A value of it is the way to a process that runs; cheap
/// to clone.
pub(super) trait Shared: Clone + Send + 'static {
    /// What owns the process.
    type Process: Send + 'static;

    fn start(
        host: &Arc<Host>,
        environment: &Environment,
    ) -> impl Future<Output = Result<(Self, Self::Process)>> + Send;

    /// Serves until the process ends or `stop`; why it ended if nobody wanted that. No process is left.
    fn serve(
        &self,
        process: Self::Process,
        stop: CancellationToken,
    ) -> impl Future<Output = Option<String>> + Send;

    /// Whether a session that begins now would find it.
    fn is_alive(&self) -> bool;

    /// Tells the sessions that it is gone. What they ask for from then on is a new one.
    fn gone(&self) {}

    /// Where it listens.
    fn address(&self) -> Option<String> {
        None
    }
}

#[derive(Debug)]
pub(super) struct Servers<S> {
    state: Arc<Mutex<State<S>>>,
    /// One start at a time.
    starting: Semaphore,
    stop: CancellationToken,
}

#[derive(Debug)]
struct State<S> {
    running: BTreeMap<Environment, Running<S>>,
    /// Of the last start; no two of a program are the same.
    last: u64,
    health: Health,
}

#[derive(Debug)]
struct Running<S> {
    number: u64,
    server: S,
    since: Instant,
}

impl<S> Default for Servers<S> {
    fn default() -> Self {
        let state = State { running: BTreeMap::new(), last: 0, health: Health::default() };
        Self {
            state: Arc::new(Mutex::new(state)),
            starting: Semaphore::new(1),
            stop: CancellationToken::new(),
        }
    }
}

impl<S: Shared> Servers<S> {
    pub(super) async fn get(&self, host: &Arc<Host>, environment: &Environment) -> Result<S> {
        let _permit = self.starting.acquire().await.map_err(|_| Error::stream("stopped"))?;
        let wait = {
            let state = lock(&self.state);
            if let Some(running) = state.running.get(environment)
                && running.server.is_alive()
            {
                return Ok(running.server.clone());
            }
            state.health.not_before()
        };
        if let Some(until) = wait {
            sleep_until(until).await;
        }
        match S::start(host, environment).await {
            Ok((server, process)) => {
                self.keep(host, environment, server.clone(), process);
                Ok(server)
            }
            Err(error) => {
                lock(&self.state).health.refused(&error);
                Err(error)
            }
        }
    }

    /// One that runs already, whichever it is.
    pub(super) fn running(&self) -> Option<S> {
        let state = lock(&self.state);
        let mut servers = state.running.values().map(|running| &running.server);
        servers.find(|server| server.is_alive()).cloned()
    }

    /// All that run.
    pub(super) fn all(&self) -> Vec<S> {
        let state = lock(&self.state);
        state.running.values().map(|running| running.server.clone()).collect()
    }

    pub(super) fn status(&self) -> ServerStatusInfo {
        let state = lock(&self.state);
        let up = state.running.values().find(|running| running.server.is_alive());
        let address = up.and_then(|running| running.server.address());
        state.health.info(up.map(|running| running.since.elapsed()), address)
    }

    pub(super) fn close(&self) {
        self.stop.cancel();
        self.starting.close();
    }

    /// It gets a task, which ends with it.
    fn keep(&self, host: &Arc<Host>, environment: &Environment, server: S, process: S::Process) {
        let since = Instant::now();
        let number = {
            let mut state = lock(&self.state);
            state.last += 1;
            let number = state.last;
            let running = Running { number, server: server.clone(), since };
            state.running.insert(environment.clone(), running);
            number
        };
        let (state, key) = (Arc::clone(&self.state), environment.clone());
        let (stop, host_stop) = (self.stop.clone(), host.stop.clone());
        host.tasks.spawn(async move {
            let stopped = CancellationToken::new();
            let serving = server.serve(process, stopped.clone());
            tokio::pin!(serving);
            let died = tokio::select! {
                died = &mut serving => died,
                () = either(&stop, &host_stop) => {
                    stopped.cancel();
                    serving.await
                }
            };
            ended(&mut lock(&state), &key, number, died.map(|message| (message, since)));
            server.gone();
        });
    }
}

/// Of the one with this number. Its successor may be running already.
fn ended<S>(state: &mut State<S>, key: &Environment, number: u64, died: Option<(String, Instant)>) {
    if state.running.get(key).is_some_and(|running| running.number == number) {
        state.running.remove(key);
    }
    if let Some((message, since)) = died {
        tracing::warn!("{message}");
        state.health.died(message, since.elapsed());
    }
}

fn lock<S>(state: &Mutex<State<S>>) -> MutexGuard<'_, State<S>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn either(one: &CancellationToken, other: &CancellationToken) {
    tokio::select! {
        () = one.cancelled() => {}
        () = other.cancelled() => {}
    }
}

#[cfg(test)]
mod tests;

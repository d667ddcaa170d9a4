//! The agent daemon in a sandbox: the way to it, and in which sandboxes one was found at a start.

use std::sync::{Arc, Mutex, PoisonError};

use driver::RelayConnection;
use guest_proto::GuestError;
use model::{EndReason, Error, Phase, Result, SandboxId, SandboxRef, SandboxSpec};
use tokio::sync::mpsc;

use crate::core::Core;
use crate::guest::failed;
use crate::registry::Cell;
use crate::{Caller, Engine, Tunnel};

/// Whoever takes them asks each of them something; the rest waits.
const FOUND_MAX: usize = 64;

/// A sandbox with an agent that a predecessor may have set to work, or that has a task.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundAgents {
    pub spec: Arc<SandboxSpec>,
    pub daemon_runs: bool,
}

/// How the agent of a one-shot task is, as the sandbox says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentStatus {
    Running,
    Ended { exit_code: i32 },
}

/// Those that nobody took yet.
pub(crate) struct Found {
    sender: mpsc::Sender<FoundAgents>,
    receiver: Mutex<Option<mpsc::Receiver<FoundAgents>>>,
}

impl Default for Found {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(FOUND_MAX);
        Self { sender, receiver: Mutex::new(Some(receiver)) }
    }
}

/// Waits until somebody takes it, or the engine ends.
pub(crate) async fn found(core: &Core, cell: &Cell, daemon_runs: bool) {
    let spec = Arc::clone(&cell.state.borrow().spec);
    if !daemon_runs && !has_task(&spec) {
        return;
    }
    let found = FoundAgents { spec, daemon_runs };
    // Nobody wants to know: then there are no turns to watch.
    let _ = core.closing.run_until_cancelled(core.agents.sender.send(found)).await;
}

/// How the agent of a one-shot task is; one of which nothing is known yet is on its way.
pub(crate) fn status(spec: &SandboxSpec, told: Option<AgentStatus>) -> Option<AgentStatus> {
    has_task(spec).then(|| told.unwrap_or(AgentStatus::Running))
}

fn has_task(spec: &SandboxSpec) -> bool {
    spec.agent.as_ref().is_some_and(|agent| agent.one_shot)
}

impl Engine {
    /// What is shown of the agent of a one-shot task from now on.
    pub fn tell_agent(&self, sandbox: SandboxId, status: AgentStatus) {
        if let Some(cell) = self.core.registry.get(sandbox) {
            *cell.agent.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
        }
    }

    /// Sandboxes that were adopted with a running agent daemon. For one taker; `None` for the next.
    pub fn take_found_agents(&self) -> Option<mpsc::Receiver<FoundAgents>> {
        self.core.agents.receiver.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Connections of programs inside to the model relay, one receiver a pool that has them. For one taker.
    pub fn take_relays(&self) -> Vec<mpsc::Receiver<RelayConnection>> {
        self.core.pools.iter().filter_map(|pool| pool.driver.take_relays()).collect()
    }

    /// A connection to the agent daemon inside, which is started on first use, and its token.
    pub async fn agents(&self, caller: &Caller, sandbox: &SandboxRef) -> Result<(Tunnel, String)> {
        self.connect_agents(caller, sandbox).await
    }

    /// The same for who only listens to what is said: the sandbox may idle meanwhile.
    pub async fn listen_to_agents(
        &self,
        caller: &Caller,
        sandbox: &SandboxRef,
    ) -> Result<(Tunnel, String)> {
        let (mut tunnel, token) = self.connect_agents(caller, sandbox).await?;
        tunnel._guard = None;
        Ok((tunnel, token))
    }

    /// Returns when the compute of a sandbox has ended or begins to, with the reason; at once for one that
    /// is not known.
    pub async fn ended(&self, sandbox: SandboxId) -> EndReason {
        let Some(cell) = self.core.registry.get(sandbox) else { return EndReason::Unknown };
        let mut states = cell.state.clone();
        drop(cell);
        let over = |phase| {
            matches!(phase, Phase::Stopping | Phase::Stopped | Phase::Deleting | Phase::Destroyed)
        };
        // What is borrowed of the state must not be held over the wait below.
        let reason = match states.wait_for(|state| over(state.phase)).await {
            Ok(state) => Some(state.end_reason.unwrap_or(EndReason::Unknown)),
            Err(_) => None,
        };
        match reason {
            Some(reason) => reason,
            // Its task has ended: the engine is shutting down, and sandboxes go on.
            None => std::future::pending().await,
        }
    }

    async fn connect_agents(
        &self,
        caller: &Caller,
        sandbox: &SandboxRef,
    ) -> Result<(Tunnel, String)> {
        let mut running = self.core.use_guest(caller, sandbox)?;
        match running.guest.agents().await {
            Ok((inner, token)) => {
                Ok((Tunnel { inner: Box::pin(inner), _guard: Some(running.guard) }, token))
            }
            Err(GuestError::Failed(why)) => {
                Err(Error::unavailable(format!("the agent daemon does not start: {why}")))
            }
            // It ended just now, or an older guest says that its port is taken.
            Err(GuestError::PortClosed) => {
                Err(Error::unavailable("the agent daemon does not listen at port 2468"))
            }
            Err(error) => {
                Err(failed(error, &mut running.life, ("agents", "agent daemon", "2468")).await)
            }
        }
    }
}

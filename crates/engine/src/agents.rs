//! The agent daemon in a sandbox: the way to it, and in which sandboxes one was found at a start.

use std::sync::{Mutex, PoisonError};

use guest_proto::GuestError;
use model::{Error, OwnerId, Result, SandboxId, SandboxRef};
use tokio::sync::mpsc;

use crate::core::Core;
use crate::guest::failed;
use crate::registry::Cell;
use crate::{Caller, Engine, Tunnel};

/// Whoever takes them asks each of them something; the rest waits.
const FOUND_MAX: usize = 64;

/// A sandbox with an agent daemon that a predecessor may have set to work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundAgents {
    pub owner: OwnerId,
    pub sandbox: SandboxId,
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
pub(crate) async fn found(core: &Core, cell: &Cell) {
    let found = FoundAgents { owner: cell.owner.clone(), sandbox: cell.id };
    // Nobody wants to know: then there are no turns to watch.
    let _ = core.closing.run_until_cancelled(core.agents.sender.send(found)).await;
}

impl Engine {
    /// Sandboxes that were adopted with a running agent daemon. For one taker; `None` for the next.
    pub fn take_found_agents(&self) -> Option<mpsc::Receiver<FoundAgents>> {
        self.core.agents.receiver.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// A connection to the agent daemon inside, which is started on first use, and its token.
    pub async fn agents(&self, caller: &Caller, sandbox: &SandboxRef) -> Result<(Tunnel, String)> {
        let mut running = self.core.use_guest(caller, sandbox)?;
        match running.guest.agents().await {
            Ok((inner, token)) => {
                Ok((Tunnel { inner: Box::pin(inner), _guard: running.guard }, token))
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

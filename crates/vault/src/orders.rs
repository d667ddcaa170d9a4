//! What agents of sandboxes are to do, with the keys of their models: sealed in the store as long as
//! the sandbox is there, so that a restarted server still has it, and opened for each use.

use anyhow::Context;
use model::{Error, OwnerId, Result, SandboxId};
use store::AgentOrder;

use crate::Vault;

/// Of a change that others get in the way of.
const CHANGE_TRIES: u32 = 8;

impl Vault {
    /// Sealed for the claims of a sandbox that is about to be made.
    pub fn seal_order(&self, owner: &OwnerId, plain: &[u8]) -> Result<Vec<u8>> {
        Ok(self.sealer.seal(plain, &about(owner)).context("seal what an agent is to do")?)
    }

    /// Whose it is and what it says; `None` for a sandbox without an agent.
    pub async fn order(&self, sandbox: SandboxId) -> Result<Option<(OwnerId, Vec<u8>)>> {
        let Some(order) = self.store.agent_order(sandbox).await? else { return Ok(None) };
        let plain = self.open_order(&order)?;
        Ok(Some((order.owner, plain)))
    }

    /// From now on it says what `change` makes of it. Whether there was one. `Unavailable` when others change
    /// it all the time.
    pub async fn change_order(
        &self,
        sandbox: SandboxId,
        change: impl Fn(&[u8]) -> Result<Vec<u8>>,
    ) -> Result<bool> {
        for _ in 0..CHANGE_TRIES {
            let Some(before) = self.store.agent_order(sandbox).await? else { return Ok(false) };
            let sealed = self.seal_order(&before.owner, &change(&self.open_order(&before)?)?)?;
            if self.store.replace_agent_order(sandbox, before, sealed).await? {
                return Ok(true);
            }
        }
        Err(Error::unavailable("what the agent is to do changes all the time; try again"))
    }

    fn open_order(&self, order: &AgentOrder) -> Result<Vec<u8>> {
        let plain = self.sealer.unseal(&order.sealed, &about(&order.owner));
        Ok(plain.context("open an agent's order")?)
    }

    /// Those under an older master key, under the newest. How many.
    pub(crate) async fn reseal_orders(&self) -> Result<usize> {
        let (mut after, mut resealed) = (None, 0);
        loop {
            let page = self.store.agent_orders(after).await?;
            let Some((last, _)) = page.last() else { return Ok(resealed) };
            after = Some(*last);
            for (sandbox, order) in page {
                if self.sealer.is_newest(&order.sealed) {
                    continue;
                }
                let anew = self.seal_order(&order.owner, &self.open_order(&order)?)?;
                // A key that was replaced meanwhile stays replaced.
                let done = self.store.replace_agent_order(sandbox, order, anew).await?;
                resealed += usize::from(done);
            }
        }
    }
}

/// An owner's does not open as another's. Which sandbox it is for is not known before it is made.
fn about(owner: &OwnerId) -> String {
    format!("agent of {owner}")
}

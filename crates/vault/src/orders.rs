//! What agents of sandboxes are to do, with the keys of their models: sealed in the store as long as
//! the sandbox is there, so that a restarted server still has it, and opened for each use.

use anyhow::Context;
use model::{OwnerId, Result, SandboxId};
use store::AgentOrder;

use crate::Vault;

impl Vault {
    /// Sealed for the claims of a sandbox that is about to be made.
    pub fn seal_order(&self, owner: &OwnerId, plain: &[u8]) -> Result<Vec<u8>> {
        Ok(self.sealer.seal(plain, &about(owner)).context("seal what an agent is to do")?)
    }

    /// Whose it is and what it says; `None` for a sandbox without an agent.
    pub async fn order(&self, sandbox: SandboxId) -> Result<Option<(OwnerId, Vec<u8>)>> {
        let Some(AgentOrder { owner, sealed }) = self.store.agent_order(sandbox).await? else {
            return Ok(None);
        };
        let plain = self.sealer.unseal(&sealed, &about(&owner)).context("open an agent's order")?;
        Ok(Some((owner, plain)))
    }

    /// From now on it says this. Whether there was one.
    pub async fn replace_order(
        &self,
        owner: &OwnerId,
        sandbox: SandboxId,
        plain: &[u8],
    ) -> Result<bool> {
        let order = AgentOrder { owner: owner.clone(), sealed: self.seal_order(owner, plain)? };
        self.store.replace_agent_order(sandbox, order).await
    }

    /// Those under an older master key, under the newest. How many.
    pub(crate) async fn reseal_orders(&self) -> Result<usize> {
        let (mut after, mut resealed) = (None, 0);
        loop {
            let page = self.store.agent_orders(after).await?;
            let Some((last, _)) = page.last() else { return Ok(resealed) };
            after = Some(*last);
            for (sandbox, AgentOrder { owner, sealed }) in page {
                if self.sealer.is_newest(&sealed) {
                    continue;
                }
                let plain = self.sealer.unseal(&sealed, &about(&owner));
                let plain = plain.context("open an agent's order")?;
                resealed += usize::from(self.replace_order(&owner, sandbox, &plain).await?);
            }
        }
    }
}

/// An owner's does not open as another's. Which sandbox it is for is not known before it is made.
fn about(owner: &OwnerId) -> String {
    format!("agent of {owner}")
}

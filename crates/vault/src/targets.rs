//! Where conversations are kept too, and what opens the door there: sealed beside what waits for it, because
//! it is needed for longer than the sandbox lasts.

use anyhow::Context;
use model::{OwnerId, Result};
use store::Persisted;

use crate::Vault;

impl Vault {
    pub fn seal_target(&self, owner: &OwnerId, plain: &[u8]) -> Result<Vec<u8>> {
        let sealed = self.sealer.seal(plain, &about(owner));
        Ok(sealed.context("seal where a conversation is kept")?)
    }

    pub fn target(&self, of: &Persisted) -> Result<Vec<u8>> {
        let plain = self.sealer.unseal(&of.sealed, &about(&of.owner));
        Ok(plain.context("open where a conversation is kept")?)
    }

    /// Those under an older master key, under the newest. How many.
    pub(crate) async fn reseal_targets(&self) -> Result<usize> {
        let (mut after, mut resealed) = (String::new(), 0);
        loop {
            let page = self.store.all_persisted(&after).await?;
            let Some(last) = page.last() else { return Ok(resealed) };
            after.clone_from(&last.conversation);
            for one in page.iter().filter(|one| !self.sealer.is_newest(&one.sealed)) {
                let anew = self.seal_target(&one.owner, &self.target(one)?)?;
                self.store.reseal_persisted(one, anew).await?;
                resealed += 1;
            }
        }
    }
}

fn about(owner: &OwnerId) -> String {
    format!("conversations of {owner}")
}

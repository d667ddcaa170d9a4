//! What an agent is to do, and with which key: made from a create, sealed in the store as long as the
//! sandbox is there, opened for each use. Nothing else of the server holds a key of a model.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::Context;
use api::agent::{AppJson, WantedAgent};
use api::create::Secret;
use model::{NewAgent, OwnerId, Result, SandboxId, Vendor};
use serde::{Deserialize, Serialize};
use vault::Vault;

/// New fields get `#[serde(default)]`: what an older server sealed is opened by a newer one.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) model: ModelAccess,
    /// Whether the relay serves it.
    #[serde(default)]
    pub(crate) relay: bool,
    #[serde(default)]
    pub(crate) task: Option<String>,
    #[serde(default)]
    pub(crate) session_id: Option<String>,
    #[serde(default)]
    pub(crate) agent_cmd: Option<String>,
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) app_json: Option<AppJson>,
    #[serde(default)]
    pub(crate) wire_version: u32,
    #[serde(default)]
    pub(crate) persistence: Option<Target>,
}

/// Where a conversation is kept too.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Target {
    pub(crate) url: String,
    /// Sent as `Authorization`, as it is.
    #[serde(default)]
    pub(crate) auth_header: Option<Secret>,
    /// Whose conversation it continues; else it is one of the sandbox's own.
    #[serde(default)]
    pub(crate) continues: Option<String>,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Target(…)")
    }
}

/// Where a sandbox's model is, and what opens it. Sessions have the same.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct ModelAccess {
    pub(crate) vendor: Vendor,
    /// Instead of the vendor's own.
    #[serde(default)]
    pub(crate) base_url: Option<String>,
    pub(crate) key: Secret,
}

impl fmt::Debug for ModelAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModelAccess({})", self.vendor.as_str())
    }
}

impl ModelAccess {
    pub(crate) fn base_url(&self) -> &str {
        self.base_url.as_deref().unwrap_or_else(|| self.vendor.base_url())
    }
}

impl Order {
    /// Sealed, for the claims of the sandbox that is about to be made.
    pub(crate) fn seal(vault: &Vault, owner: &OwnerId, wanted: WantedAgent) -> Result<NewAgent> {
        let spec = wanted.spec;
        let persistence = wanted.persistence.map(|persistence| Target {
            url: persistence.url.into(),
            auth_header: persistence.auth_header,
            continues: wanted.session_id.clone(),
        });
        let order = Self {
            model: ModelAccess {
                vendor: spec.vendor,
                base_url: wanted.base_url.map(|(_, url)| url.into()),
                key: wanted.llm_key,
            },
            relay: spec.relay,
            task: wanted.task,
            session_id: wanted.session_id,
            agent_cmd: wanted.agent_cmd,
            env: wanted.env,
            app_json: wanted.app_json,
            wire_version: wanted.wire_version,
            persistence,
        };
        Ok(NewAgent { spec, sealed: vault.seal_order(owner, &order.bytes()?)? })
    }

    /// Sealed as it is.
    pub(crate) fn sealed(&self, vault: &Vault, owner: &OwnerId) -> Result<Vec<u8>> {
        vault.seal_order(owner, &self.bytes()?)
    }

    /// `None` for a sandbox without an agent, or that is gone.
    pub(crate) async fn of(vault: &Vault, sandbox: SandboxId) -> Result<Option<(OwnerId, Self)>> {
        let Some((owner, plain)) = vault.order(sandbox).await? else { return Ok(None) };
        Ok(Some((owner, Self::read(&plain)?)))
    }

    /// From the next call to the model on, the key is this one. Whether there is an agent at all.
    pub(crate) async fn rotate(vault: &Vault, sandbox: SandboxId, key: Secret) -> Result<bool> {
        Self::change(vault, sandbox, |order| order.model.key = key.clone()).await
    }

    /// The same for whatever `change` makes of it; it may be asked more than once.
    pub(crate) async fn change(
        vault: &Vault,
        sandbox: SandboxId,
        change: impl Fn(&mut Self),
    ) -> Result<bool> {
        let changed = |plain: &[u8]| {
            let mut order = Self::read(plain)?;
            change(&mut order);
            order.bytes()
        };
        vault.change_order(sandbox, changed).await
    }

    fn read(plain: &[u8]) -> Result<Self> {
        // Its error would repeat what it cannot read.
        let unread = |_| anyhow::anyhow!("what an agent is to do cannot be read");
        Ok(serde_json::from_slice(plain).map_err(unread)?)
    }

    fn bytes(&self) -> Result<Vec<u8>> {
        Ok(serde_json::to_vec(self).context("write what an agent is to do")?)
    }
}

//! The spec as it lies on the disk. Its environment may hold what is private to the tenant, so it
//! is sealed with the deployment's master key; everything else is plain for the operator to read.

use std::collections::BTreeMap;

use anyhow::Context;
use driver::Ended;
use model::{AgentSpec, EndReason, SandboxSpec, TemplateName};
use seal::Sealer;
use serde::{Deserialize, Serialize};

/// What the driver remembers of a sandbox. New fields get `#[serde(default)]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Stored {
    pub(super) spec: SandboxSpec,
    /// The exact build of the template that its upper stands on.
    pub(super) template_digest: String,
    /// The exact build of its agent's program, which lies under that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) agent_digest: Option<String>,
    /// The boot of the kernel in which it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    boot: Option<String>,
    /// The spec's own `env` is empty on the disk.
    #[serde(default)]
    sealed_env: Option<String>,
}

/// Why the last compute ended, or is being ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct End {
    pub(super) reason: EndReason,
    /// The incarnation that a stop is under way for: a server that finds it finishes the stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) stopping: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) last: Option<Last>,
    /// Whether a guest of it had answered.
    #[serde(default)]
    pub(super) answered: bool,
}

/// What is billed of compute that ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Last {
    incarnation: String,
    started_at: jiff::Timestamp,
    ended_at: jiff::Timestamp,
    cpu_usec: u64,
}

/// What is left of a destroyed sandbox for a minute (ruling 7).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Tomb {
    pub(super) stored: Stored,
    pub(super) destroyed_at: jiff::Timestamp,
    pub(super) reason: EndReason,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) last: Option<Last>,
}

impl End {
    pub(super) fn new(reason: EndReason, last: Option<Ended>) -> Self {
        Self { reason, stopping: None, last: last.map(Last::from), answered: false }
    }

    /// Whether it tells of this incarnation: that it is being stopped, or how it ended.
    pub(super) fn is_of(&self, incarnation: &str) -> bool {
        let last = self.last.as_ref().map(|last| last.incarnation.as_str());
        self.stopping.as_deref() == Some(incarnation) || last == Some(incarnation)
    }
}

impl From<Ended> for Last {
    fn from(ended: Ended) -> Self {
        let Ended { incarnation, started_at, ended_at, cpu_usec } = ended;
        Self { incarnation, started_at, ended_at, cpu_usec }
    }
}

impl From<Last> for Ended {
    fn from(last: Last) -> Self {
        let Last { incarnation, started_at, ended_at, cpu_usec } = last;
        Self { incarnation, started_at, ended_at, cpu_usec }
    }
}

impl Stored {
    pub(super) fn new(spec: SandboxSpec, template_digest: String, boot_id: &str) -> Self {
        let boot = Some(boot_id.to_owned());
        Self { spec, template_digest, agent_digest: None, boot, sealed_env: None }
    }

    /// Whether the machine went down since it was made: then what is not flushed may be gone, or torn. Older
    /// servers did not say when that was, so it may have.
    pub(super) fn may_be_of_another_boot(&self, boot_id: &str) -> bool {
        self.boot.as_deref() != Some(boot_id)
    }

    pub(super) fn with_agent(self, digest: Option<String>) -> Self {
        Self { agent_digest: digest, ..self }
    }

    /// Whether it stands on this build.
    pub(super) fn stands_on(&self, name: &TemplateName, digest: &str) -> bool {
        let agent = self.spec.agent.as_ref().and_then(AgentSpec::layer);
        (self.spec.template == *name && self.template_digest == digest)
            || (agent.as_ref() == Some(name) && self.agent_digest.as_deref() == Some(digest))
    }

    /// The form for the disk.
    pub(super) fn sealed(&self, sealer: &Sealer) -> anyhow::Result<Self> {
        let mut sealed = self.clone();
        sealed.sealed_env = None;
        let env = std::mem::take(&mut sealed.spec.env);
        if !env.is_empty() {
            let plain = serde_json::to_vec(&env).context("encode the environment")?;
            sealed.sealed_env = Some(sealer.seal_text(&plain, &about(&self.spec))?);
        }
        Ok(sealed)
    }

    /// Without the environment: what a tombstone keeps.
    pub(super) fn without_env(mut self) -> Self {
        self.sealed_env = None;
        self.spec.env = BTreeMap::new();
        self
    }

    /// Whether its environment is sealed with a key that has been replaced.
    pub(super) fn is_sealed_with_an_old_key(&self, sealer: &Sealer) -> bool {
        self.sealed_env.as_deref().is_some_and(|text| !sealer.is_newest_text(text))
    }

    pub(super) fn opened(mut self, sealer: &Sealer) -> anyhow::Result<Self> {
        if let Some(text) = self.sealed_env.take() {
            let plain = sealer.unseal_text(&text, &about(&self.spec))?;
            self.spec.env = serde_json::from_slice(&plain).context("decode the environment")?;
        }
        Ok(self)
    }
}

/// An environment opens for its own sandbox only.
fn about(spec: &SandboxSpec) -> String {
    format!("environment of {}", spec.id)
}

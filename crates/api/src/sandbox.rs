//! The one sandbox resource, with every field of both documents (DESIGN 2.2, rulings 12 and 17).

use jiff::Timestamp;
use model::{Change, EndReason, Error, Phase, SandboxSpec, Shape, reaper};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::agent::check_secret;
use crate::create::Secret;

/// A sandbox. `id` and `vm_id` are the same; either, or `name`, goes into a path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "id": "sb-01k9q5t0a7e8fbqjyx3mz2c4nd",
    "vm_id": "sb-01k9q5t0a7e8fbqjyx3mz2c4nd",
    "name": "fragrant-bird-7x2",
    "state": "running",
    "tier": "ephemeral",
    "disk_gb": 5,
    "auto_stop_minutes": 0,
    "idle_timeout_seconds": 60,
    "max_lifetime_seconds": 7200,
    "created_at": "2026-04-24T14:00:00Z",
    "last_activity_at": "2026-04-24T14:00:01Z",
    "host_port": 8080,
    "endpoint": "http://127.0.0.1:8080",
    "vcpu": 1,
    "cpu_fraction": 0.5,
    "memory_mib": 512,
    "template": "standard",
    "rootfs": "standard@sha256:6c3c…",
    "policy": "default",
    "metadata": { "tag": "prod", "user_id": "usr_abc" }
}))]
pub struct Sandbox {
    pub id: String,
    pub vm_id: String,
    pub name: String,
    pub state: State,
    pub tier: Tier,
    pub disk_gb: u32,
    /// 0: never.
    pub auto_stop_minutes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_delete_hours: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_seconds: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_lifetime_seconds: Option<u64>,
    /// When it will be deleted, with 60 s of grace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    pub last_activity_at: Timestamp,
    /// The port on which this server's sandbox traffic is reached.
    pub host_port: u16,
    /// The public base URL of this server.
    pub endpoint: String,
    pub vcpu: u32,
    pub cpu_fraction: f64,
    pub memory_mib: u32,
    /// The template it was made from.
    pub template: String,
    /// What was written in `image`, if that was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The template's name and digest.
    pub rootfs: String,
    pub policy: String,
    /// Yours, and `user_id`.
    #[schema(value_type = Object)]
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// Why its last run ended: `user_request`, `idle`, `deadline`, `lifetime`, `oom`, `exited`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub end_reason: Option<EndReason>,
    /// `running`, `completed` or `failed`; only with an agent, while running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_status: Option<String>,
    /// Only once the agent has exited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_exit_code: Option<i32>,
}

/// Sandboxes made from an `image` show `creating` for the first three.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Creating,
    Configuring,
    Booting,
    Running,
    Paused,
    Stopping,
    Stopped,
    Deleting,
    Destroyed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    Ephemeral,
    Persistent,
}

/// The answer of the list: an array, or an object when some pool did not answer (000).
// Untagged on purpose, and only ever written: the document fixes both shapes.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum SandboxList {
    All(Vec<Sandbox>),
    Partial(PartialSandboxes),
}

/// Some pool failed or timed out; there may be more sandboxes than these.
#[derive(Debug, Serialize, ToSchema)]
pub struct PartialSandboxes {
    pub sandboxes: Vec<Sandbox>,
    /// Always true.
    pub partial: bool,
}

/// `PATCH /v1/sandboxes/{id}`: what is left out stays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "name": "better-name" }))]
pub struct PatchSandbox {
    pub name: Option<String>,
    /// Takes effect at once: connections that it does not allow are cut.
    pub policy: Option<String>,
    /// Another key for the agent's model, from its next call on.
    #[schema(value_type = Option<String>, write_only)]
    pub llm_key: Option<Secret>,
}

/// A [`PatchSandbox`] that was checked.
#[derive(Debug)]
pub struct CheckedPatch {
    pub change: Change,
    pub llm_key: Option<Secret>,
}

/// What a [`Sandbox`] is made of.
#[derive(Debug, Clone, Copy)]
pub struct SandboxFacts<'a> {
    pub spec: &'a SandboxSpec,
    pub phase: Phase,
    pub rootfs: &'a str,
    pub started_at: Option<Timestamp>,
    pub last_activity_at: Timestamp,
    pub end_reason: Option<EndReason>,
    /// Of a sandbox with a one-shot task: the exit code, once there is one.
    pub agent_exit_code: Option<Option<i32>>,
    pub host_port: u16,
    pub endpoint: &'a str,
}

impl From<SandboxFacts<'_>> for Sandbox {
    fn from(facts: SandboxFacts<'_>) -> Self {
        let spec = facts.spec;
        let id = spec.id.to_string();
        let mut metadata = spec.metadata.clone();
        metadata.insert("user_id".into(), spec.owner.as_str().into());
        // 000: only while it runs.
        let agent = facts.agent_exit_code.filter(|_| facts.phase == Phase::Running);
        Self {
            vm_id: id.clone(),
            id,
            name: spec.name.to_string(),
            state: State::of(spec.shape, facts.phase),
            tier: spec.tier.into(),
            disk_gb: spec.limits.disk_gb,
            auto_stop_minutes: spec.clocks.auto_stop_minutes.unwrap_or(0),
            auto_delete_hours: spec.clocks.auto_delete_hours,
            idle_timeout_seconds: spec.clocks.idle_timeout_seconds,
            max_lifetime_seconds: spec.clocks.max_lifetime_seconds,
            deadline: reaper::deadline(spec.clocks, spec.created_at),
            created_at: spec.created_at,
            started_at: facts.started_at,
            last_activity_at: facts.last_activity_at,
            host_port: facts.host_port,
            endpoint: facts.endpoint.to_owned(),
            vcpu: spec.limits.vcpu,
            cpu_fraction: spec.limits.cpu_fraction,
            memory_mib: spec.limits.memory_mib,
            template: spec.template.to_string(),
            image: spec.image.clone(),
            rootfs: facts.rootfs.to_owned(),
            policy: spec.policy.to_string(),
            metadata,
            end_reason: facts.end_reason,
            agent_status: agent.map(agent_status),
            agent_exit_code: agent.flatten(),
        }
    }
}

fn agent_status(exit_code: Option<i32>) -> String {
    let status = match exit_code {
        None => "running",
        Some(0) => "completed",
        Some(_) => "failed",
    };
    status.to_owned()
}

impl State {
    /// The word of the sandbox's own document (ruling 12).
    pub fn of(shape: Shape, phase: Phase) -> Self {
        match (shape, phase) {
            (Shape::Image, Phase::Configuring | Phase::Booting) | (_, Phase::Creating) => {
                Self::Creating
            }
            (Shape::Template, Phase::Configuring) => Self::Configuring,
            (Shape::Template, Phase::Booting) => Self::Booting,
            (_, Phase::Running) => Self::Running,
            (_, Phase::Paused) => Self::Paused,
            (Shape::Template, Phase::Deleting) | (_, Phase::Stopping) => Self::Stopping,
            (_, Phase::Stopped) => Self::Stopped,
            (Shape::Image, Phase::Deleting) => Self::Deleting,
            (_, Phase::Destroyed) => Self::Destroyed,
        }
    }
}

impl From<Tier> for model::Tier {
    fn from(tier: Tier) -> Self {
        match tier {
            Tier::Ephemeral => Self::Ephemeral,
            Tier::Persistent => Self::Persistent,
        }
    }
}

impl From<model::Tier> for Tier {
    fn from(tier: model::Tier) -> Self {
        match tier {
            model::Tier::Ephemeral => Self::Ephemeral,
            model::Tier::Persistent => Self::Persistent,
        }
    }
}

impl PatchSandbox {
    pub fn check(self) -> Result<CheckedPatch, Error> {
        if self.name.is_none() && self.policy.is_none() && self.llm_key.is_none() {
            return Err(Error::invalid("name", "nothing to change: send name, policy or llm_key"));
        }
        if let Some(key) = &self.llm_key {
            check_secret("llm_key", key)?;
        }
        let change = Change {
            name: self.name.as_deref().map(str::parse).transpose()?,
            policy: self.policy.as_deref().map(str::parse).transpose()?,
        };
        Ok(CheckedPatch { change, llm_key: self.llm_key })
    }
}

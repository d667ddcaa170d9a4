//! What an owner and an auditor are told: every change of state, with its reason.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{OwnerId, SandboxId};

/// One line of the audit log and of `GET /v1/events`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    pub owner: OwnerId,
    pub sandbox: SandboxId,
    pub kind: EventKind,
    /// The reason, where there is one.
    #[serde(default)]
    pub reason: Option<EndReason>,
    pub at: Timestamp,
    /// More, by kind: `{"name": "…"}`, `{"seconds": 12.3, "cpu_seconds": 0.4}` for billing.
    #[serde(default)]
    pub data: serde_json::Value,
}

/// The names in the documents are fixed (`lifecycle.idle-stop`, `billing.sandbox-hour`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventKind {
    #[serde(rename = "lifecycle.created")]
    Created,
    #[serde(rename = "lifecycle.running")]
    Running,
    #[serde(rename = "lifecycle.paused")]
    Paused,
    #[serde(rename = "lifecycle.resumed")]
    Resumed,
    #[serde(rename = "lifecycle.stopped")]
    Stopped,
    #[serde(rename = "lifecycle.destroyed")]
    Destroyed,
    #[serde(rename = "lifecycle.renamed")]
    Renamed,
    #[serde(rename = "lifecycle.policy-changed")]
    PolicyChanged,
    #[serde(rename = "lifecycle.idle-stop")]
    IdleStop,
    #[serde(rename = "lifecycle.idle-destroy")]
    IdleDestroy,
    #[serde(rename = "lifecycle.deadline")]
    Deadline,
    #[serde(rename = "lifecycle.lifetime")]
    Lifetime,
    #[serde(rename = "lifecycle.lifetime-warning")]
    LifetimeWarning,
    #[serde(rename = "lifecycle.create-failed")]
    CreateFailed,
    #[serde(rename = "sandbox.cancel")]
    Cancel,
    /// What changed in a workspace could not be saved; it is tried again.
    #[serde(rename = "workspace.not-saved")]
    WorkspaceNotSaved,
    #[serde(rename = "billing.credits-exhausted")]
    CreditsExhausted,
    #[serde(rename = "billing.sandbox-hour")]
    SandboxHour,
}

/// Why a sandbox stopped or ended (DESIGN 2.2: nothing dies silently).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    UserRequest,
    Idle,
    Deadline,
    Lifetime,
    /// The kernel killed PID 1, or everything, for want of memory.
    Oom,
    /// PID 1 ended or was killed.
    Exited,
    CreditsExhausted,
    AdminAction,
    HostLost,
    /// It could not be made; nothing of it is left.
    CreateFailed,
    Unknown,
}

impl EventKind {
    pub fn name(self) -> String {
        serde_json::to_value(self)
            .ok()
            .and_then(|value| value.as_str().map(str::to_owned))
            .expect("a unit variant is a string")
    }
}

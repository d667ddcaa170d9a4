//! What callers hand in and get back.

use jiff::Timestamp;
use model::{EndReason, OwnerId, Phase, Plan, QuotaRow, SandboxId, SandboxSpec};

use crate::AgentStatus;

/// Who calls. Sandboxes of others do not exist for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    pub owner: OwnerId,
    pub plan: Plan,
    /// What it has instead of the plan's.
    pub quota: QuotaRow,
}

/// An `Idempotency-Key` with a digest of the request it came with (ruling 20).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idempotency {
    pub key: String,
    pub body_sha256: [u8; 32],
}

/// A sandbox as it is now; what every answer is made from.
#[derive(Debug, Clone, PartialEq)]
pub struct Sandbox {
    pub spec: SandboxSpec,
    pub phase: Phase,
    /// Grows with every change that is published.
    pub generation: u64,
    /// Unique per start; `None` without compute.
    pub incarnation: Option<String>,
    pub started_at: Option<Timestamp>,
    pub last_activity_at: Timestamp,
    /// 003's `deadline`, when there is one.
    pub deadline: Option<Timestamp>,
    /// Why the last compute ended, once stopped or destroyed.
    pub end_reason: Option<EndReason>,
    /// `template@digest`.
    pub rootfs: String,
    /// The pool that runs it.
    pub pool: String,
    /// Only with a one-shot task.
    pub agent: Option<AgentStatus>,
}

/// The answer of create.
#[derive(Debug, Clone, PartialEq)]
pub struct Created {
    pub sandbox: Sandbox,
    /// An earlier request with the same idempotency key made it.
    pub replayed: bool,
}

/// The answer of list.
#[derive(Debug, Clone, PartialEq)]
pub struct Listing {
    pub sandboxes: Vec<Sandbox>,
    /// At least one pool did not answer; what it has is missing.
    pub partial: bool,
}

/// Why a cooperative cancel is broadcast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelReason {
    CreditsExhausted,
    UserRequest,
    AdminAction,
    Timeout,
}

impl CancelReason {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CreditsExhausted => "credits_exhausted",
            Self::UserRequest => "user_request",
            Self::AdminAction => "admin_action",
            Self::Timeout => "timeout",
        }
    }
}

/// The answer of cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cancelled {
    pub id: SandboxId,
    /// Whether an attached client received it.
    pub cancelled: bool,
    pub reason: CancelReason,
}

/// Counters for `/metrics`, cheap to take.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// Sandboxes now, by phase; every phase is present.
    pub phases: Vec<(Phase, u64)>,
    pub creates_total: u64,
    pub create_failures_total: u64,
    pub destroys_total: u64,
    /// Ends of compute nobody asked for, by reason.
    pub exits_total: Vec<(EndReason, u64)>,
    pub execs_total: u64,
    pub pools_unreachable: u64,
    /// How many pools do without something that others have, by what it is.
    pub pools_without: Vec<(&'static str, u64)>,
}

//! What a server may do that does not hold the pool's lease: look at what runs, speak to its guests, and
//! say that it does. It changes nothing, and needs nobody who does.

use guest_proto::Guest;
use jiff::Timestamp;
use model::{EndReason, Result, SandboxId, SandboxSpec};

/// Looks at one pool. Its methods read a few small files at most, and may block for that long.
pub trait View: Send + Sync + 'static {
    /// The compute of a sandbox, if it runs and is not paused. Does not prove that its guest answers.
    fn look(&self, id: SandboxId) -> Result<Option<Seen>>;

    /// Whether it has compute that is paused.
    fn is_paused(&self, id: SandboxId) -> bool;

    /// Why the last compute of a sandbox ended, once that is known.
    fn end_reason(&self, id: SandboxId) -> Option<EndReason>;

    /// The sandbox counts as in use until the value is dropped: [`crate::Driver::used_elsewhere`] of
    /// whoever holds the lease says so.
    fn hold(&self, id: SandboxId) -> Result<Box<dyn Send + Sync>>;
}

/// Running compute.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Its environment may be missing.
    pub spec: SandboxSpec,
    pub incarnation: String,
    pub started_at: Timestamp,
    pub guest: Guest,
}

/// Use of a sandbox through other servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsedElsewhere {
    /// A call is in flight now.
    pub busy: bool,
    pub last: Timestamp,
}

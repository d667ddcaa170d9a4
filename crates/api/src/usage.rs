//! `GET /v1/sandboxes/{id}/usage`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What the sandbox uses now, counted on the host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// Processor time since its last start.
    pub cpu_seconds: f64,
    pub memory_bytes: u64,
    pub processes: u64,
    /// Root file system changes and workspace together; what `disk_gb` bounds.
    pub disk_bytes: u64,
    /// Processes that the kernel killed for want of memory since the last start.
    pub oom_kills: u64,
}

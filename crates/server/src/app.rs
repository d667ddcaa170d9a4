//! What every handler can reach.

use std::sync::Arc;

use api::SandboxFacts;
use engine::Engine;
use store::Store;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::{Limits, MetricsAccess};
use crate::metrics::Metrics;

/// Shared by all requests; clones are one pointer.
pub(crate) type App = Arc<Shared>;

pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) store: Store,
    pub(crate) address: PublicAddress,
    pub(crate) limits: Limits,
    pub(crate) metrics: Metrics,
    pub(crate) metrics_access: MetricsAccess,
    /// Made once: they cannot change while the server runs.
    pub(crate) pages: Pages,
    /// Cancelled when the server begins to end: streams close, requests finish.
    pub(crate) draining: CancellationToken,
    /// Tunnels, which outlive their request.
    pub(crate) tasks: TaskTracker,
}

/// How clients reach this server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PublicAddress {
    /// Without a final slash.
    pub(crate) url: String,
    pub(crate) port: u16,
}

pub(crate) struct Pages {
    pub(crate) openapi_json: String,
    pub(crate) docs_html: String,
    pub(crate) docs_policy: String,
}

impl Shared {
    /// The public shape of a sandbox.
    pub(crate) fn shown(&self, sandbox: &engine::Sandbox) -> api::Sandbox {
        SandboxFacts {
            spec: &sandbox.spec,
            phase: sandbox.phase,
            rootfs: &sandbox.rootfs,
            started_at: sandbox.started_at,
            last_activity_at: sandbox.last_activity_at,
            end_reason: sandbox.end_reason,
            host_port: self.address.port,
            endpoint: &self.address.url,
        }
        .into()
    }
}

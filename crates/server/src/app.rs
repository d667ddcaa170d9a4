//! What every handler can reach.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use api::SandboxFacts;
use blobs::Blobs;
use engine::{AgentStatus, Engine};
use store::{Epoch, Store};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use url::Url;
use vault::Vault;

use crate::accounts::Accounts;
use crate::code::CodeMode;
use crate::config::{Limits, MetricsAccess};
use crate::forward::Leader;
use crate::metrics::Metrics;
use crate::money::Cashier;
use crate::oneshot::Watched;
use crate::persistence::Persistence;
use crate::preview::{Domain, Signer};
use crate::rate::Rate;
use crate::sessions::Sessions;
use crate::sessions::token::SessionTokens;
use crate::turns::Turns;
use crate::upstream::Upstream;

/// Shared by all requests; clones are one pointer.
pub(crate) type App = Arc<Shared>;

pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) store: Store,
    pub(crate) vault: Vault,
    /// Which model endpoints may be called.
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) blobs: Blobs,
    pub(crate) billing: Cashier,
    /// How long links to files of workspaces work.
    pub(crate) link_seconds: u64,
    pub(crate) address: PublicAddress,
    pub(crate) accounts: Accounts,
    /// Signs and checks links to ports.
    pub(crate) signer: Signer,
    /// Where ports have hosts of their own.
    pub(crate) preview_domain: Option<Domain>,
    /// How long a port inside may say nothing.
    pub(crate) preview_silence: Duration,
    pub(crate) limits: Limits,
    pub(crate) catalogue_rate: Rate,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) metrics_access: MetricsAccess,
    /// Made once: they cannot change while the server runs.
    pub(crate) pages: Pages,
    /// Cancelled when the server begins to end: streams close, requests finish.
    pub(crate) draining: CancellationToken,
    /// Tunnels, which outlive their request.
    pub(crate) tasks: TaskTracker,
    /// Sandboxes with an agent in a turn.
    pub(crate) turns: Turns,
    /// Sandboxes with a one-shot task.
    pub(crate) oneshots: Watched,
    pub(crate) sessions: Sessions,
    /// Conversations on their way to backends of their owners.
    pub(crate) persistence: Arc<Persistence>,
    pub(crate) rt: Rt,
    pub(crate) code: Arc<CodeMode>,
    /// As it was set.
    pub(crate) log_level: String,
    pub(crate) standing: Standing,
}

/// What the sockets of sessions need.
#[derive(Clone)]
pub(crate) struct Rt {
    pub(crate) tokens: SessionTokens,
    /// How clients reach them, as `ws` or `wss`, without a final slash.
    pub(crate) url: String,
    pub(crate) ping_every: Duration,
}

/// The part that this server has among those on its data directory.
pub(crate) enum Standing {
    /// It holds the lease (or there is none, and no other server).
    Leads(Option<Epoch>),
    Follows(Leader),
}

/// How clients reach this server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PublicAddress {
    /// Without a final slash.
    pub(crate) url: String,
    pub(crate) port: u16,
    parsed: Url,
}

impl PublicAddress {
    pub(crate) fn new(url: String) -> Result<Self> {
        let parsed = Url::parse(&url).context("public_url: not a URL")?;
        let port = parsed.port_or_known_default().context("public_url: has no port")?;
        Ok(Self { url, port, parsed })
    }

    pub(crate) fn scheme(&self) -> &str {
        self.parsed.scheme()
    }

    pub(crate) fn is_https(&self) -> bool {
        self.scheme() == "https"
    }

    /// Without brackets around an IPv6 address.
    pub(crate) fn host(&self) -> &str {
        self.parsed.host_str().unwrap_or_default().trim_matches(['[', ']'])
    }

    /// `None` when it is the one that the scheme implies.
    pub(crate) fn explicit_port(&self) -> Option<u16> {
        self.parsed.port()
    }
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
            agent_exit_code: match sandbox.agent {
                None => None,
                Some(AgentStatus::Running) => Some(None),
                Some(AgentStatus::Ended { exit_code }) => Some(Some(exit_code)),
            },
            host_port: self.address.port,
            endpoint: &self.address.url,
        }
        .into()
    }
}

impl Standing {
    /// As `/healthz` and `/metrics` tell it.
    pub(crate) fn told(&self) -> (&'static str, Option<u64>) {
        match self {
            Self::Leads(epoch) => ("leader", epoch.map(|epoch| epoch.0)),
            Self::Follows(leader) => ("follower", leader.epoch()),
        }
    }
}

//! The one seam between the platform and what runs sandboxes: `trait Driver`, the in-memory fake
//! and the conformance suite that every driver passes.
//!
//! What a driver promises:
//! - Every method is idempotent; removing what is absent is `Ok`. A method that fails half way leaves
//!   something that `remove` removes and `list` shows.
//! - State is derived, never stored (003): a spec with no compute is `stopped`, and so on. `list`
//!   after a restart tells the truth about every sandbox, running or half-made.
//! - `create` is durable when it answers; `stop` answers when the workspace is.
//! - What a guest says is untrusted; exits and usage come from the host's own accounting.

#[cfg(feature = "testing")]
pub mod conformance;
#[cfg(feature = "testing")]
pub mod fake;

mod unreachable;
mod view;

use std::collections::BTreeMap;
use std::path::PathBuf;

use async_trait::async_trait;
use guest_proto::Guest;
use jiff::Timestamp;
use model::{
    Access, EndReason, Error, Limits, OwnerId, Phase, Policy, Result, SandboxId, SandboxSpec,
    TemplateName, Tier,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

pub use unreachable::Unreachable;
pub use view::{Seen, UsedElsewhere, View};

/// What differs between drivers, so that callers branch on this and not on names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    pub pause: bool,
    /// Memory, processors and processes of a sandbox are limited by the kernel.
    pub limits: bool,
    /// `disk_gb` is enforced by the kernel.
    pub disk_limit: bool,
    /// Egress policies are enforced and can be changed while running.
    pub egress: bool,
    /// `create` may be served from a pool of waiting sandboxes.
    pub warm_pool: bool,
}

/// One sandbox as it is now, read off what exists.
#[derive(Debug, Clone)]
pub struct Observed {
    pub spec: SandboxSpec,
    pub phase: Phase,
    /// Unique per start; `None` without compute.
    pub incarnation: Option<String>,
    pub started_at: Option<Timestamp>,
    /// Why the last compute ended, if it did and is known.
    pub end_reason: Option<EndReason>,
    /// Set on what is left of a deleted sandbox for a while (ruling 7).
    pub tombstone: Option<Tombstone>,
    /// The build of its template that it stands on, which may not be the newest.
    pub digest: Option<String>,
    /// Its last compute, once that ended: what nobody billed yet can still be.
    pub ended: Option<Ended>,
    /// A guest of it has answered: before that, nobody was told that it runs.
    pub greeted: bool,
}

/// Compute that ended, as far as the host knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    pub incarnation: String,
    pub started_at: Timestamp,
    pub ended_at: Timestamp,
    pub cpu_usec: u64,
}

/// What is remembered of a destroyed sandbox for 60 s (ruling 7).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tombstone {
    pub destroyed_at: Timestamp,
    pub end_reason: EndReason,
}

/// Compute that ended without being asked to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    pub id: SandboxId,
    pub incarnation: String,
    pub reason: EndReason,
}

/// Counters of one incarnation, read on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    pub cpu_usec: u64,
    pub memory_bytes: u64,
    pub pids: u64,
    pub disk_bytes: u64,
    pub oom_kills: u64,
}

/// What can be changed about a sandbox after its creation.
#[derive(Debug, Clone, Default)]
pub struct Update {
    pub name: Option<model::Name>,
    /// The new policy's name and its rules, applied at once when running.
    pub policy: Option<(model::PolicyName, Policy)>,
}

/// A template that sandboxes can be made from.
#[derive(Debug, Clone, PartialEq)]
pub struct Template {
    pub name: TemplateName,
    /// `sha256:…` of what it was made from; what answers show as `rootfs` is `name@digest`.
    pub digest: String,
    pub built_at: Option<Timestamp>,
    pub bytes: Option<u64>,
    /// The account that commands run as when the caller names none.
    pub user: String,
    pub limits: Limits,
    pub env: BTreeMap<String, String>,
    /// The reference that it was pulled by, if it is an image: what `rootfs` then begins with.
    pub image: Option<String>,
}

/// What `create` needs beside the spec, resolved by the engine.
#[derive(Debug, Clone)]
pub struct Launch {
    pub spec: SandboxSpec,
    pub policy: Policy,
}

/// An image that somebody wants a sandbox of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageWanted {
    /// As the caller wrote it: `ghcr.io/a/b:main`.
    pub reference: String,
    pub owner: OwnerId,
    /// The operator may have any image, others what the deployment's settings list.
    pub by_operator: bool,
}

#[async_trait]
pub trait Driver: Send + Sync + 'static {
    fn capabilities(&self) -> Capabilities;

    /// Whether this pool can be asked at all. Cheap: every list asks it.
    async fn ready(&self) -> Result<()> {
        Ok(())
    }

    /// Reserves a sandbox that waits in the warm pool; a `create` with its id is then a claim. One
    /// that is not claimed soon is destroyed. `None`: there is none, make an id of your own.
    fn take_warm(&self, template: &TemplateName, tier: Tier) -> Option<SandboxId> {
        let _ = (template, tier);
        None
    }

    /// Gives back what [`Driver::take_warm`] reserved and no `create` will claim.
    fn return_warm(&self, id: SandboxId) {
        let _ = id;
    }

    /// Makes the sandbox and starts it; answers when its guest does. `Conflict` when the id exists.
    async fn create(&self, launch: Launch) -> Result<Observed>;

    /// Starts a stopped sandbox again from its spec. `Ok` when it runs already.
    async fn start(&self, id: SandboxId, policy: Policy) -> Result<Observed>;

    /// Ends every process, flushes the workspace, keeps it. `Ok` when it is stopped already.
    /// `reason` is what later observations tell.
    async fn stop(&self, id: SandboxId, reason: EndReason) -> Result<()>;

    async fn pause(&self, id: SandboxId) -> Result<()>;

    async fn resume(&self, id: SandboxId) -> Result<()>;

    /// Ends every process and removes everything, from any state; leaves a tombstone.
    async fn remove(&self, id: SandboxId, reason: EndReason) -> Result<()>;

    async fn update(&self, id: SandboxId, update: Update) -> Result<()>;

    /// One sandbox, or `None` when nothing of it exists.
    async fn observe(&self, id: SandboxId) -> Result<Option<Observed>>;

    /// All of them: running, stopped, half-made, and tombstones.
    async fn list(&self) -> Result<Vec<Observed>>;

    /// The guest of a running sandbox. Cheap; does not prove that it answers.
    fn guest(&self, id: SandboxId) -> Result<Guest>;

    /// What servers without the lease say that they do with a sandbox (see [`View::hold`]). Cheap.
    fn used_elsewhere(&self, id: SandboxId) -> Option<UsedElsewhere> {
        let _ = id;
        None
    }

    async fn usage(&self, id: SandboxId) -> Result<Usage>;

    /// The first of these alone, which is asked for at every end.
    async fn cpu_usec(&self, id: SandboxId) -> Result<u64> {
        Ok(self.usage(id).await?.cpu_usec)
    }

    /// What a sandbox reached and was refused, also of its earlier starts: the first `max` entries
    /// after the one numbered `after`, or without it the last `max`. Gone with the sandbox.
    async fn accesses(&self, id: SandboxId, after: Option<u64>, max: usize) -> Result<AccessPage> {
        let _ = (id, after, max);
        let detail = "this pool keeps no log of egress".into();
        Err(Error::NotImplemented { code: "egress_log_not_available", detail })
    }

    /// A guest over the workspace of a *stopped* sandbox, for export and import; its compute has no
    /// network, runs nothing of the tenant's, and ends with the value.
    async fn maintenance(&self, id: SandboxId) -> Result<Maintenance>;

    /// Unasked ends of compute, at least once each. One receiver: the second call gets none.
    fn take_exits(&self) -> Option<mpsc::Receiver<Exit>>;

    /// Connections that programs make to the model relay ([`model::agent::RELAY`]), of every sandbox with
    /// an agent that uses it. One receiver: the second call gets none. `None`: there is no way to it.
    fn take_relays(&self) -> Option<mpsc::Receiver<RelayConnection>> {
        None
    }

    async fn templates(&self) -> Result<Vec<Template>>;

    async fn template(&self, name: &TemplateName) -> Result<Option<Template>> {
        Ok(self.templates().await?.into_iter().find(|template| template.name == *name))
    }

    /// Makes a template unusable for what comes; what stands on it keeps it. Whether there was one.
    /// `Conflict` for one that comes with the deployment, while sandboxes are made from it.
    async fn remove_template(&self, name: &TemplateName) -> Result<bool> {
        let detail = format!("templates of this pool are not removed here: {name}");
        Err(Error::NotImplemented { code: "template_removal_not_available", detail })
    }

    /// Makes an image usable, pulling it if it is not here, and answers with the template that it is.
    /// Callers that want the same one share one pull, which goes on if they go away.
    async fn pull(&self, wanted: &ImageWanted) -> Result<Template> {
        Err(Error::NotImplemented {
            code: "image_pull_not_available",
            detail: format!("no images are pulled here: {}", wanted.reference),
        })
    }

    /// Collects what nothing owns any more; called on start and every sweep.
    async fn collect(&self) -> Result<Collected>;
}

/// Both ways of a connection from inside.
pub trait RelayStream: AsyncRead + AsyncWrite + Unpin + Send + Sync {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + Sync> RelayStream for T {}

/// A program inside wants its model. Whose sandbox it is does not come from the program.
pub struct RelayConnection {
    pub sandbox: SandboxId,
    pub stream: Box<dyn RelayStream>,
    /// Dropped with the stream, not before.
    pub hold: Box<dyn Send + Sync>,
}

/// A part of an access log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccessPage {
    /// In the order of their ends.
    pub ended: Vec<Access>,
    /// Connections that are open now, oldest first.
    pub open: Vec<Access>,
}

/// What a collection found and removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Collected {
    pub processes: u32,
    pub mounts: u32,
    pub cgroups: u32,
    pub disks: u32,
}

/// See [`Driver::maintenance`].
pub struct Maintenance {
    pub guest: Guest,
    /// Where the workspace is, as the guest sees it.
    pub workspace: PathBuf,
    /// Ends the compute when dropped or closed.
    pub hold: Box<dyn Send + Sync>,
}

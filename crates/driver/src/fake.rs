//! A driver in memory: the same promises as a real one, faults on demand, and guests that are real
//! servers of the guest protocol but run their commands on this host. For tests only: it isolates
//! nothing.
//!
//! Clones are one driver. It outlives the engine that uses it, as a host outlives a server: drop an
//! engine, start another on the same driver, and what ran still runs.

mod command;
mod faults;
mod guest;
mod holds;
mod host;
mod relay;
mod tree;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use guest_proto::Guest;
use model::{EndReason, Error, Limits, Phase, Policy, Result, SandboxId, TemplateName};
use tokio::io::DuplexStream;
use tokio::sync::mpsc;

use crate::{
    Capabilities, Collected, Driver, Exit, Launch, Maintenance, Observed, RelayConnection,
    Template, Update, Usage, UsedElsewhere,
};

pub use faults::Step;
use host::Host;
use relay::Relays;

/// See the module's description.
#[derive(Clone)]
pub struct FakeDriver {
    host: Arc<Host>,
    removed: Arc<Mutex<BTreeSet<TemplateName>>>,
    relays: Arc<Relays>,
}

impl FakeDriver {
    /// An empty host that knows the templates `standard` and `host`.
    #[expect(clippy::new_without_default, reason = "it makes a directory")]
    pub fn new() -> Self {
        Self { host: Arc::new(Host::new()), removed: Arc::default(), relays: Arc::default() }
    }

    /// The next `times` calls that come to this step fail there.
    pub fn fail(&self, step: Step, times: u32) {
        self.host.faults.fail(step, times);
    }

    /// Every call takes this long at this step from now on.
    pub fn delay(&self, step: Step, delay: Duration) {
        self.host.faults.delay(step, delay);
    }

    /// No call is answered until it is reachable again; what runs goes on.
    pub fn set_reachable(&self, reachable: bool) {
        self.host.faults.set_reachable(reachable);
    }

    /// Ends the compute of a sandbox as the kernel would, and tells the listener.
    pub fn kill(&self, id: SandboxId, reason: EndReason) {
        self.host.end_compute(id, reason);
    }

    /// Ends the compute of every sandbox, as a reboot would.
    pub fn lose_host(&self) {
        for id in self.host.ids() {
            self.host.end_compute(id, EndReason::HostLost);
        }
    }

    /// The same by a power cut: what is never flushed, which is when it began and ended, is gone.
    pub fn lose_power(&self) {
        self.lose_host();
        for id in self.host.ids() {
            self.host.forget_end(id);
        }
    }

    /// How many sandboxes have anything left but a tombstone.
    pub fn count(&self) -> usize {
        self.host.count()
    }

    /// Processor time that [`Driver::usage`] tells for every sandbox.
    pub fn set_cpu_usec(&self, cpu_usec: u64) {
        self.host.set_cpu_usec(cpu_usec);
    }

    /// The agent daemon of every sandbox is whatever listens at this port of this host.
    pub fn set_agents(&self, port: u16) {
        self.host.set_agents(port);
    }

    /// A program of this sandbox connects to the model relay.
    pub async fn connect_to_relay(&self, id: SandboxId) -> DuplexStream {
        self.relays.connect(id).await
    }

    /// Makes what `create` makes and dies half way, as a killed server would leave it.
    pub async fn leave_half_made(&self, launch: Launch) {
        self.fail(Step::BootGuest, 1);
        let made = self.create(launch).await;
        assert!(made.is_err(), "the step was told to fail");
    }
}

#[async_trait]
impl Driver for FakeDriver {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            pause: true,
            limits: false,
            disk_limit: false,
            egress: false,
            warm_pool: false,
        }
    }

    async fn ready(&self) -> Result<()> {
        self.host.faults.at(Step::Answer).await
    }

    async fn create(&self, launch: Launch) -> Result<Observed> {
        let id = launch.spec.id;
        self.host.faults.at(Step::Create).await?;
        self.host.insert(launch)?;
        self.host.faults.at(Step::MakeDisk).await?;
        self.host.make_disk(id)?;
        self.boot(id).await
    }

    async fn start(&self, id: SandboxId, _policy: Policy) -> Result<Observed> {
        self.host.faults.at(Step::Start).await?;
        let observed = self.host.observe(id).ok_or_else(|| Error::no_sandbox(id))?;
        match observed.phase {
            Phase::Running | Phase::Paused => Ok(observed),
            Phase::Deleting | Phase::Destroyed => Err(Error::no_sandbox(id)),
            Phase::Creating
            | Phase::Configuring
            | Phase::Booting
            | Phase::Stopping
            | Phase::Stopped => {
                self.host.make_disk(id)?;
                self.boot(id).await
            }
        }
    }

    async fn stop(&self, id: SandboxId, reason: EndReason) -> Result<()> {
        self.host.faults.at(Step::Stop).await?;
        self.host.stop(id, reason)
    }

    async fn pause(&self, id: SandboxId) -> Result<()> {
        self.host.faults.at(Step::Pause).await?;
        self.host.set_paused(id, true)
    }

    async fn resume(&self, id: SandboxId) -> Result<()> {
        self.host.faults.at(Step::Resume).await?;
        self.host.set_paused(id, false)
    }

    async fn remove(&self, id: SandboxId, reason: EndReason) -> Result<()> {
        self.host.faults.at(Step::Remove).await?;
        self.host.begin_removal(id);
        self.host.faults.at(Step::RemoveDisk).await?;
        self.host.finish_removal(id, reason);
        Ok(())
    }

    async fn update(&self, id: SandboxId, update: Update) -> Result<()> {
        self.host.faults.at(Step::Update).await?;
        self.host.update(id, update)
    }

    async fn observe(&self, id: SandboxId) -> Result<Option<Observed>> {
        self.host.faults.at(Step::Answer).await?;
        Ok(self.host.observe(id))
    }

    async fn list(&self) -> Result<Vec<Observed>> {
        self.host.faults.at(Step::Answer).await?;
        Ok(self.host.ids().into_iter().filter_map(|id| self.host.observe(id)).collect())
    }

    fn guest(&self, id: SandboxId) -> Result<Guest> {
        self.host.guest(id).ok_or_else(|| Error::unavailable("the sandbox has no guest"))
    }

    fn used_elsewhere(&self, id: SandboxId) -> Option<UsedElsewhere> {
        self.host.holds.used(id)
    }

    async fn usage(&self, id: SandboxId) -> Result<Usage> {
        self.host.faults.at(Step::Answer).await?;
        self.host.usage(id).ok_or_else(|| Error::no_sandbox(id))
    }

    async fn maintenance(&self, id: SandboxId) -> Result<Maintenance> {
        self.host.faults.at(Step::Maintenance).await?;
        self.host.maintenance(id)
    }

    fn take_exits(&self) -> Option<mpsc::Receiver<Exit>> {
        self.host.take_exits()
    }

    fn take_relays(&self) -> Option<mpsc::Receiver<RelayConnection>> {
        self.relays.take()
    }

    async fn templates(&self) -> Result<Vec<Template>> {
        self.host.faults.at(Step::Answer).await?;
        let removed = self.removed.lock().unwrap_or_else(PoisonError::into_inner);
        let all = ["standard", "host"].map(template).to_vec();
        Ok(all.into_iter().filter(|template| !removed.contains(&template.name)).collect())
    }

    async fn remove_template(&self, name: &TemplateName) -> Result<bool> {
        self.host.faults.at(Step::Answer).await?;
        let live = |seen: &Observed| seen.tombstone.is_none() && seen.spec.template == *name;
        if self.list().await?.iter().any(live) {
            return Err(Error::wrong_state(format!("template {name} is used")));
        }
        let known = ["standard", "host"].contains(&name.as_str());
        let mut removed = self.removed.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(known && removed.insert(name.clone()))
    }

    async fn collect(&self) -> Result<Collected> {
        self.host.faults.at(Step::Answer).await?;
        self.host.collect();
        Ok(Collected::default())
    }
}

impl FakeDriver {
    async fn boot(&self, id: SandboxId) -> Result<Observed> {
        self.host.faults.at(Step::MakeCompute).await?;
        self.host.make_compute(id)?;
        let booted = self.host.faults.at(Step::BootGuest).await;
        if let Err(failure) = booted {
            self.host.forget_compute(id);
            return Err(failure);
        }
        self.host.ready(id);
        self.host.observe(id).ok_or_else(|| Error::no_sandbox(id))
    }
}

fn template(name: &str) -> Template {
    let name: TemplateName = name.parse().expect("a constant name");
    let limits = Limits { vcpu: 1, cpu_fraction: 0.5, memory_mib: 512, pids: 512, disk_gb: 5 };
    Template {
        digest: "sha256:0000000000000000000000000000000000000000000000000000000000000000".into(),
        built_at: Some(jiff::Timestamp::UNIX_EPOCH),
        bytes: Some(0),
        user: "user".into(),
        env: [("TEMPLATE".to_owned(), name.to_string())].into(),
        image: None,
        limits,
        name,
    }
}

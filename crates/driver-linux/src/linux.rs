//! The server's half of the driver: disks, specs, adoption, ends, collection.
//!
//! What a sandbox is, is read off the data directory and the kernel:
//!
//! ```text
//!  sandboxes/ID/spec.json   it exists                run.json    it has compute (if that lives)
//!  sandboxes/ID/end.json    its compute ended, why   neither     half-made: removed at start
//!  deleting/ID              being removed            tombstones/ID.json   was removed just now
//!  pool/ID                  its disks                cgroup INCARNATION   its processes
//!  run/blank/*/N, pool/.blank-N   what the next ones are made from
//! ```
//!
//! Calls about one sandbox come one at a time (the engine's task per sandbox sees to it); the map of
//! what is known is behind a mutex that is never held across a wait.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard};

use anyhow::Context;
use async_trait::async_trait;
use driver::{
    AccessPage, Capabilities, Collected, Driver, Exit, ImageWanted, Launch, Maintenance, Observed,
    RelayConnection, Template, Update, Usage, UsedElsewhere,
};
use guest_proto::Guest;
use model::{
    EndReason, Error, Policy, PolicyName, Result, SandboxId, SandboxSpec, TemplateName, Tier,
};
use seal::Sealer;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cgroup::Hierarchy;
use crate::egress::{Egress, EgressConfig};
use crate::guest_binary;
use crate::pool::{DiskConfig, DiskPool};
use crate::privilege::Privilege;
use crate::template::TemplateStore;
use keeper::client::KeeperClient;

mod access;
mod adopt;
mod blanks;
mod builds;
mod collect;
mod compute;
mod config;
mod end;
mod entry;
mod fence;
mod inspect;
mod layout;
mod leave;
mod maintenance;
mod mend;
mod order;
mod owned;
mod pulls;
mod remains;
mod room;
mod slots;
mod stored;
mod turns;
mod view;
mod warm;

use blanks::Blanks;
use collect::Suspects;
pub use config::{ImageSettings, LinuxConfig};
use entry::{Entry, existing};
pub use fence::Fence;
pub use layout::make_data_dir;
pub(crate) use layout::{Layout, write_durably};
pub(crate) use order::plan_of;
use owned::Owned;
use pulls::Pulls;
pub(crate) use slots::Slots;
use stored::Stored;
use turns::Turns;
pub use view::LinuxView;
use warm::Warm;

/// Ends of compute that the engine has not read yet.
const EXITS_MAX: usize = 4096;
/// Connections to the model relay that nobody has taken yet; more wait.
const RELAYS_MAX: usize = 64;

/// Sandboxes on this machine. Cheap to clone.
#[derive(Clone)]
pub struct LinuxDriver {
    inner: Arc<Inner>,
}

struct Inner {
    layout: Layout,
    keeper: KeeperClient,
    hierarchy: Hierarchy,
    privilege: Privilege,
    pool: DiskPool,
    disk: DiskConfig,
    templates: TemplateStore,
    guest_programs: guest_binary::Programs,
    sealer: Sealer,
    slots: Mutex<Slots>,
    blanks: Blanks,
    policies: BTreeMap<PolicyName, Policy>,
    egress: Egress,
    images: ImageSettings,
    pulls: Mutex<Pulls>,
    boot_id: String,
    live: Mutex<HashMap<SandboxId, Entry>>,
    owned: Owned,
    warm: Mutex<Warm>,
    turns: Turns,
    /// Sandboxes that have a maintenance guest, and its incarnation once it is known.
    maintained: Mutex<BTreeMap<String, Option<String>>>,
    /// What was nobody's in the last sweep.
    suspects: Mutex<Suspects>,
    exits: mpsc::Sender<Exit>,
    exits_receiver: Mutex<Option<mpsc::Receiver<Exit>>>,
    relays: Mutex<Option<mpsc::Receiver<RelayConnection>>>,
    tasks: TaskTracker,
    cancel: CancellationToken,
    /// The warm pool ends first: to end its members takes the tasks that watch them.
    warm_tasks: TaskTracker,
    warm_cancel: CancellationToken,
    fence: Fence,
    /// One server a data directory.
    _lock: File,
}

impl LinuxDriver {
    /// Opens the data directory, starts the keeper if need be, and adopts what runs. Blocks.
    ///
    /// # Errors
    /// `Unavailable` when another server holds the directory; `Internal` when the host lacks
    /// something, with what it is.
    pub async fn open(config: LinuxConfig) -> Result<Self> {
        let opened = tokio::task::spawn_blocking(move || Inner::open(config));
        let inner = opened.await.context("open the driver")??;
        let driver = Self { inner: Arc::new(inner) };
        driver.adopt().await?;
        driver.watch_host();
        driver.keep_warm();
        driver.keep_blanks();
        Ok(driver)
    }

    /// The templates of this data directory.
    pub fn template_store(&self) -> TemplateStore {
        self.inner.templates.clone()
    }
}

impl Inner {
    fn open(config: LinuxConfig) -> anyhow::Result<Self> {
        let (layout, lock) = Layout::open_alone(&config.data_dir)?;
        let instance = layout.instance()?;
        let templates = TemplateStore::open(layout.root()).map_err(anyhow::Error::from)?;
        let templates = templates.with_host_nesting(config.host_nesting);
        let skeleton = templates.host_skeleton_dir();
        crate::template::host_skeleton(skeleton).map_err(anyhow::Error::from)?;
        templates.make_code_root().map_err(anyhow::Error::from)?;
        let sealer = config.open_sealer(layout.root())?;
        let privilege = Privilege::current();
        let pool = DiskPool::open(layout.root(), config.disk.allowed(privilege))?;
        let hierarchy = Hierarchy::detect(&instance)?;
        let warm = if hierarchy.has_groups() { config.warm } else { BTreeMap::new() };
        let guest_programs = guest_binary::install(&layout.root().join("guest"))?;
        let keeper = KeeperClient::new(layout.root().to_owned(), guest_programs.keeper.clone());
        let slots = Slots::open(&config.runtime_dir, layout.root(), &instance)?;
        keeper.ensure()?;
        let (exits, receiver) = mpsc::channel(EXITS_MAX);
        let (relays, relays_receiver) = mpsc::channel(RELAYS_MAX);
        let egress = EgressConfig { relays: Some(relays), ..layout.logged(config.egress) };
        let tasks = TaskTracker::new();
        let cancel = CancellationToken::new();
        order::warn_of_unbounded_io(config.disk, &hierarchy);
        order::warn_of_unbounded_disks(&pool, privilege);
        Ok(Self {
            sealer,
            images: config.images,
            pulls: Mutex::new(Pulls::default()),
            egress: Egress::new(egress, tasks.clone(), cancel.clone()),
            boot_id: crate::run_record::boot_id()?,
            blanks: Blanks::open(layout.blanks(), &pool),
            layout,
            keeper,
            hierarchy,
            privilege,
            pool,
            disk: config.disk,
            templates,
            guest_programs,
            slots: Mutex::new(slots),
            policies: config.policies,
            live: Mutex::new(HashMap::new()),
            owned: Owned::default(),
            warm: Mutex::new(Warm::new(warm)),
            turns: Turns::default(),
            maintained: Mutex::new(BTreeMap::new()),
            suspects: Mutex::new(Suspects::default()),
            exits,
            exits_receiver: Mutex::new(Some(receiver)),
            relays: Mutex::new(Some(relays_receiver)),
            tasks,
            cancel,
            warm_tasks: TaskTracker::new(),
            warm_cancel: CancellationToken::new(),
            fence: config.fence,
            _lock: lock,
        })
    }

    fn live(&self) -> MutexGuard<'_, HashMap<SandboxId, Entry>> {
        self.live.lock().expect("no holder of this lock panics")
    }

    fn warm(&self) -> MutexGuard<'_, Warm> {
        self.warm.lock().expect("no holder of this lock panics")
    }

    fn maintained(&self) -> MutexGuard<'_, BTreeMap<String, Option<String>>> {
        self.maintained.lock().expect("no holder of this lock panics")
    }

    fn suspects(&self) -> MutexGuard<'_, Suspects> {
        self.suspects.lock().expect("no holder of this lock panics")
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().expect("no holder of this lock panics")
    }

    fn stored(&self, id: SandboxId) -> Result<Stored> {
        existing(&self.live(), id).map(|entry| entry.stored.clone())
    }
}

#[async_trait]
impl Driver for LinuxDriver {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            pause: self.inner.hierarchy.has_groups(),
            limits: self.inner.hierarchy.bounds_all(),
            disk_limit: self.inner.pool.enforces_limits(),
            egress: true,
            warm_pool: self.inner.warm().is_on(),
        }
    }

    fn take_warm(&self, template: &TemplateName, tier: Tier) -> Option<SandboxId> {
        // A member's upper skips flushing, which a persistent sandbox must not.
        if tier != Tier::Ephemeral || !self.inner.warm().is_on() {
            return None;
        }
        let built = self.inner.templates.get(template).ok()??;
        self.inner.warm().take(template, &built.template.digest)
    }

    fn return_warm(&self, id: SandboxId) {
        self.inner.warm().give_back(id);
    }

    async fn create(&self, launch: Launch) -> Result<Observed> {
        self.inner.may_make()?;
        let id = launch.spec.id;
        self.in_turn(id, |driver| async move { driver.create_sandbox(launch).await }).await
    }

    async fn start(&self, id: SandboxId, policy: Policy) -> Result<Observed> {
        self.inner.may_make()?;
        self.in_turn(id, move |driver| async move { driver.start_sandbox(id, policy).await }).await
    }

    async fn stop(&self, id: SandboxId, reason: EndReason) -> Result<()> {
        self.inner.fence.check()?;
        self.in_turn(id, move |driver| async move { driver.stop_sandbox(id, reason).await }).await
    }

    async fn pause(&self, id: SandboxId) -> Result<()> {
        self.inner.fence.check()?;
        self.set_frozen(id, true).await
    }

    async fn resume(&self, id: SandboxId) -> Result<()> {
        self.inner.fence.check()?;
        self.set_frozen(id, false).await
    }

    async fn remove(&self, id: SandboxId, reason: EndReason) -> Result<()> {
        self.inner.fence.check()?;
        self.in_turn(id, move |driver| async move { driver.remove_sandbox(id, reason).await }).await
    }

    async fn update(&self, id: SandboxId, update: Update) -> Result<()> {
        self.inner.fence.check()?;
        self.in_turn(id, move |driver| async move { driver.update_sandbox(id, update).await }).await
    }

    async fn observe(&self, id: SandboxId) -> Result<Option<Observed>> {
        Ok(self.inner.live().get(&id).map(Entry::observed))
    }

    async fn list(&self) -> Result<Vec<Observed>> {
        Ok(self.inner.live().values().map(Entry::observed).collect())
    }

    fn guest(&self, id: SandboxId) -> Result<Guest> {
        let live = self.inner.live();
        let running = existing(&live, id)?.running.as_ref();
        let not_running = || Error::wrong_state(format!("sandbox {id} does not run"));
        running.map(|running| running.guest.clone()).ok_or_else(not_running)
    }

    fn used_elsewhere(&self, id: SandboxId) -> Option<UsedElsewhere> {
        view::used_elsewhere(&self.inner.layout, id)
    }

    async fn usage(&self, id: SandboxId) -> Result<Usage> {
        let Some(record) = self.inner.running_record(id)? else { return Ok(Usage::default()) };
        let disk_bytes = self.inner.pool.used_bytes(&id.bare());
        Ok(Usage { disk_bytes, ..crate::usage::read(&record) })
    }

    async fn cpu_usec(&self, id: SandboxId) -> Result<u64> {
        let record = self.inner.running_record(id)?;
        Ok(record.map_or(0, |record| crate::usage::cpu_usec(&record)))
    }

    async fn accesses(&self, id: SandboxId, after: Option<u64>, max: usize) -> Result<AccessPage> {
        LinuxDriver::accesses(self, id, after, max).await
    }

    async fn maintenance(&self, id: SandboxId) -> Result<Maintenance> {
        self.inner.may_make()?;
        self.in_turn(id, move |driver| async move { driver.maintain(id).await }).await
    }

    fn take_exits(&self) -> Option<mpsc::Receiver<Exit>> {
        self.inner.exits_receiver.lock().expect("no holder of this lock panics").take()
    }

    fn take_relays(&self) -> Option<mpsc::Receiver<RelayConnection>> {
        self.inner.relays.lock().expect("no holder of this lock panics").take()
    }

    async fn templates(&self) -> Result<Vec<Template>> {
        let templates = self.inner.templates.clone();
        let listed = tokio::task::spawn_blocking(move || templates.list());
        let built = listed.await.context("list templates")??;
        let all = built.into_iter().map(|built| built.template);
        Ok(all.filter(|template| is_for_all(&template.name)).collect())
    }

    async fn template(&self, name: &TemplateName) -> Result<Option<Template>> {
        let built = self.inner.templates.get(name)?.filter(|_| !name.is_of_agent());
        Ok(built.map(|built| built.template))
    }

    async fn remove_template(&self, name: &TemplateName) -> Result<bool> {
        self.inner.fence.check()?;
        self.remove_built(name).await
    }

    async fn pull(&self, wanted: &ImageWanted) -> Result<Template> {
        self.pull_image(wanted).await
    }

    async fn collect(&self) -> Result<Collected> {
        self.inner.fence.check()?;
        self.mend_pool().await;
        self.collect_builds().await;
        self.forget_tombstones().await?;
        self.collect_orphans().await
    }
}

/// Whether anybody may make sandboxes of it alone.
fn is_for_all(name: &TemplateName) -> bool {
    !name.is_of_agent() && !name.is_of_code()
}

/// The spec that every path of this driver shares the shape of.
fn bare(spec: &SandboxSpec) -> String {
    spec.id.bare()
}

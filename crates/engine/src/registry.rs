//! The index of every sandbox: by id, by owner, by name. Built anew at every start; what it says of
//! a sandbox is what the sandbox's task published last.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use guest_proto::Guest;
use jiff::{SignedDuration, Timestamp};
use model::quota::InUse;
use model::{
    Conflict, EndReason, Error, ExecId, Name, OwnerId, Phase, Quota, Result, SandboxId, SandboxRef,
    SandboxSpec, Tier, reaper,
};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::activity::Activity;
use crate::agents::{self, AgentStatus};
use crate::core::TOMBSTONE_FOR;
use crate::machine::Ask;
use crate::pool::PoolState;
use crate::workspace::SaveAsk;
use crate::{Caller, Sandbox};

/// What a sandbox's task publishes.
#[derive(Debug, Clone)]
pub(crate) struct State {
    pub(crate) spec: Arc<SandboxSpec>,
    pub(crate) phase: Phase,
    pub(crate) generation: u64,
    pub(crate) incarnation: Option<Arc<str>>,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) end_reason: Option<EndReason>,
    pub(crate) destroyed_at: Option<Timestamp>,
    pub(crate) rootfs: Arc<str>,
    /// Only while it runs.
    pub(crate) guest: Option<Guest>,
}

/// One sandbox.
pub(crate) struct Cell {
    pub(crate) id: SandboxId,
    pub(crate) owner: OwnerId,
    pub(crate) tier: Tier,
    pub(crate) pool: Arc<PoolState>,
    pub(crate) state: watch::Receiver<State>,
    pub(crate) queue: mpsc::Sender<Ask>,
    pub(crate) activity: Activity,
    /// Streamed commands that may still run while nobody reads them.
    pub(crate) detached: Mutex<Vec<ExecId>>,
    /// Present while the workspace of a stopped sandbox is read or written.
    pub(crate) maintenance: Mutex<Option<CancellationToken>>,
    /// Saves its workspace, if it has one.
    pub(crate) keeper: Mutex<Option<mpsc::Sender<SaveAsk>>>,
    /// What is known of the agent of a one-shot task.
    pub(crate) agent: Mutex<Option<AgentStatus>>,
    disk_gb: u32,
    /// Counts against the quota and takes room in the pool. Changed under the registry's lock.
    counted: AtomicBool,
}

#[derive(Default)]
pub(crate) struct Registry(RwLock<Index>);

#[derive(Default)]
struct Index {
    cells: HashMap<SandboxId, Arc<Cell>>,
    owners: HashMap<OwnerId, Owned>,
}

#[derive(Default)]
struct Owned {
    ids: BTreeSet<SandboxId>,
    names: HashMap<Name, SandboxId>,
    ephemeral: InUse,
    persistent: InUse,
}

/// Everything but what [`Cell`] makes itself.
pub(crate) struct NewCell {
    pub(crate) pool: Arc<PoolState>,
    pub(crate) state: watch::Receiver<State>,
    pub(crate) queue: mpsc::Sender<Ask>,
    pub(crate) activity: Activity,
}

impl Cell {
    pub(crate) fn new(new: NewCell) -> Self {
        let spec = Arc::clone(&new.state.borrow().spec);
        Self {
            id: spec.id,
            owner: spec.owner.clone(),
            tier: spec.tier,
            pool: new.pool,
            state: new.state,
            queue: new.queue,
            activity: new.activity,
            detached: Mutex::default(),
            maintenance: Mutex::default(),
            keeper: Mutex::default(),
            agent: Mutex::default(),
            disk_gb: spec.limits.disk_gb,
            counted: AtomicBool::new(false),
        }
    }

    pub(crate) fn view(&self) -> Sandbox {
        self.view_of(&self.state.borrow())
    }

    pub(crate) fn view_of(&self, state: &State) -> Sandbox {
        Sandbox {
            spec: SandboxSpec::clone(&state.spec),
            phase: state.phase,
            generation: state.generation,
            incarnation: state.incarnation.as_deref().map(str::to_owned),
            started_at: state.started_at,
            last_activity_at: self.activity.last(),
            deadline: reaper::deadline(state.spec.clocks, state.spec.created_at),
            end_reason: state.end_reason,
            rootfs: state.rootfs.to_string(),
            pool: self.pool.name.clone(),
            agent: agents::status(
                &state.spec,
                *self.agent.lock().unwrap_or_else(PoisonError::into_inner),
            ),
        }
    }

    /// What the reaper decides on.
    pub(crate) fn observed(&self, warned: bool) -> reaper::Observed {
        let state = self.state.borrow();
        reaper::Observed {
            phase: state.phase,
            clocks: state.spec.clocks,
            created_at: state.spec.created_at,
            last_activity_at: self.activity.last(),
            busy: self.activity.busy(),
            client_attached: self.activity.client_attached(),
            warned,
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        self.state.borrow().phase
    }

    fn is_counted(&self) -> bool {
        self.counted.load(Ordering::Acquire)
    }

    /// Destroyed for longer than it is shown.
    pub(crate) fn is_forgotten(&self, now: Timestamp) -> bool {
        let shown_for = SignedDuration::try_from(TOMBSTONE_FOR).unwrap_or_default();
        let destroyed_at = self.state.borrow().destroyed_at;
        destroyed_at.is_some_and(|at| now >= at + shown_for)
    }
}

impl Registry {
    /// The caller's sandbox; everybody else's does not exist. A name means the live one of that
    /// name, or else the last one that had it and is still shown.
    pub(crate) fn find(
        &self,
        caller: &Caller,
        sandbox: &SandboxRef,
        now: Timestamp,
    ) -> Result<Arc<Cell>> {
        let index = self.read();
        let found = match sandbox {
            SandboxRef::Id(id) => index.cells.get(id).filter(|cell| cell.owner == caller.owner),
            SandboxRef::Name(name) => index.by_name(&caller.owner, name),
        };
        let found = found.filter(|cell| !cell.is_forgotten(now)).cloned();
        found.ok_or_else(|| Error::no_sandbox(sandbox))
    }

    pub(crate) fn get(&self, id: SandboxId) -> Option<Arc<Cell>> {
        self.read().cells.get(&id).cloned()
    }

    pub(crate) fn of_owner(&self, owner: &OwnerId) -> Vec<Arc<Cell>> {
        let index = self.read();
        index.owned(owner).cloned().collect()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Cell>> {
        self.read().cells.values().cloned().collect()
    }

    /// Reserves everything that one more sandbox needs: its name, its share of the quota, and room
    /// in its pool. `NameTaken` leaves nothing reserved.
    pub(crate) fn reserve(&self, cell: &Arc<Cell>, quota: &Quota, now: Timestamp) -> Result<()> {
        let mut index = self.write();
        let name = cell.state.borrow().spec.name.clone();
        index.name_is_free(&cell.owner, &name)?;
        index.admit(cell, quota, now)?;
        index.insert(cell, Some(name));
        Ok(())
    }

    /// Reserves a share of the quota and room again, for a start.
    pub(crate) fn admit(&self, cell: &Arc<Cell>, quota: &Quota, now: Timestamp) -> Result<()> {
        self.write().admit(cell, quota, now)
    }

    /// Whether the quota has room for one more sandbox like this when `going` do not count any more.
    pub(crate) fn would_admit(
        &self,
        spec: &SandboxSpec,
        going: &BTreeSet<SandboxId>,
        quota: &Quota,
        now: Timestamp,
    ) -> Result<()> {
        let index = self.read();
        let stays = |cell: &&Arc<Cell>| cell.is_counted() && !going.contains(&cell.id);
        let stay: Vec<_> = index.owned(&spec.owner).filter(stays).collect();
        let of_tier = stay.iter().filter(|cell| cell.tier == spec.tier);
        let in_use = of_tier.fold(InUse::default(), |sum, cell| InUse {
            count: sum.count + 1,
            disk_gb: sum.disk_gb + cell.disk_gb,
        });
        quota.admit(spec.tier, in_use, spec.limits.disk_gb).map_err(|detail| {
            let retry_after = earliest_end(stay.iter().copied(), now);
            Error::Exhausted { detail, retry_after }
        })
    }

    /// From now on it counts, whatever the quota says: what runs already, runs.
    pub(crate) fn count_anyway(&self, cell: &Cell) {
        let mut index = self.write();
        if !cell.is_counted() {
            cell.pool.take_room_anyway();
            index.count(cell);
        }
    }

    /// It has no compute any more.
    pub(crate) fn uncount(&self, cell: &Cell) {
        let mut index = self.write();
        if !cell.counted.swap(false, Ordering::AcqRel) {
            return;
        }
        cell.pool.give_room();
        let in_use = index.in_use(cell);
        in_use.count = in_use.count.saturating_sub(1);
        in_use.disk_gb = in_use.disk_gb.saturating_sub(cell.disk_gb);
    }

    /// Adds a sandbox that exists already. One whose name is taken is found by its id only.
    pub(crate) fn adopt(&self, cell: &Arc<Cell>) {
        let mut index = self.write();
        let (name, phase) = {
            let state = cell.state.borrow();
            (state.spec.name.clone(), state.phase)
        };
        let free = phase != Phase::Destroyed && index.name_is_free(&cell.owner, &name).is_ok();
        index.insert(cell, free.then_some(name));
    }

    /// Takes a second name, to be given back by [`Registry::free_name`].
    pub(crate) fn take_name(&self, cell: &Cell, name: &Name) -> Result<()> {
        let mut index = self.write();
        index.name_is_free(&cell.owner, name)?;
        index.owners.entry(cell.owner.clone()).or_default().names.insert(name.clone(), cell.id);
        Ok(())
    }

    /// The name is this sandbox's now, whoever had it before: the store says so.
    pub(crate) fn point(&self, cell: &Cell, name: &Name) {
        let mut index = self.write();
        index.owners.entry(cell.owner.clone()).or_default().names.insert(name.clone(), cell.id);
    }

    pub(crate) fn free_name(&self, cell: &Cell, name: &Name) {
        let mut index = self.write();
        let Some(owned) = index.owners.get_mut(&cell.owner) else { return };
        if owned.names.get(name) == Some(&cell.id) {
            owned.names.remove(name);
        }
    }

    pub(crate) fn remove(&self, id: SandboxId) {
        let mut index = self.write();
        let Some(cell) = index.cells.remove(&id) else { return };
        let Some(owned) = index.owners.get_mut(&cell.owner) else { return };
        owned.ids.remove(&id);
        owned.names.retain(|_, of| *of != id);
        if owned.ids.is_empty() {
            index.owners.remove(&cell.owner);
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Index> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Index> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Index {
    fn owned(&self, owner: &OwnerId) -> impl Iterator<Item = &Arc<Cell>> {
        let ids = self.owners.get(owner).into_iter().flat_map(|owned| &owned.ids);
        ids.filter_map(|id| self.cells.get(id))
    }

    fn by_name(&self, owner: &OwnerId, name: &Name) -> Option<&Arc<Cell>> {
        let live = self.owners.get(owner)?.names.get(name);
        if let Some(id) = live {
            return self.cells.get(id);
        }
        let had_it = |cell: &&Arc<Cell>| {
            let state = cell.state.borrow();
            state.phase == Phase::Destroyed && state.spec.name == *name
        };
        self.owned(owner).filter(had_it).last()
    }

    fn name_is_free(&self, owner: &OwnerId, name: &Name) -> Result<()> {
        if self.owners.get(owner).is_some_and(|owned| owned.names.contains_key(name)) {
            let detail = format!("you already have a sandbox named {name}");
            return Err(Error::Conflict { code: Conflict::NameTaken, detail });
        }
        Ok(())
    }

    fn admit(&mut self, cell: &Cell, quota: &Quota, now: Timestamp) -> Result<()> {
        if cell.is_counted() {
            return Ok(());
        }
        let in_use = *self.in_use(cell);
        quota.admit(cell.tier, in_use, cell.disk_gb).map_err(|detail| {
            let counted = self.owned(&cell.owner).filter(|cell| cell.is_counted());
            let retry_after = earliest_end(counted, now);
            Error::Exhausted { detail, retry_after }
        })?;
        if !cell.pool.take_room() {
            return Err(Error::NoCapacity {
                detail: "no pool has room for one more sandbox".into(),
            });
        }
        self.count(cell);
        Ok(())
    }

    fn count(&mut self, cell: &Cell) {
        cell.counted.store(true, Ordering::Release);
        let in_use = self.in_use(cell);
        in_use.count += 1;
        in_use.disk_gb += cell.disk_gb;
    }

    /// What the owner has of the sandbox's tier.
    fn in_use(&mut self, cell: &Cell) -> &mut InUse {
        let owned = self.owners.entry(cell.owner.clone()).or_default();
        match cell.tier {
            Tier::Ephemeral => &mut owned.ephemeral,
            Tier::Persistent => &mut owned.persistent,
        }
    }

    fn insert(&mut self, cell: &Arc<Cell>, name: Option<Name>) {
        let owned = self.owners.entry(cell.owner.clone()).or_default();
        owned.ids.insert(cell.id);
        if let Some(name) = name {
            owned.names.insert(name, cell.id);
        }
        self.cells.insert(cell.id, Arc::clone(cell));
    }
}

/// How long until one of these ends by itself, an hour at most (ruling 15).
fn earliest_end<'a>(
    cells: impl Iterator<Item = &'a Arc<Cell>>,
    now: Timestamp,
) -> std::time::Duration {
    let hour = SignedDuration::from_hours(1);
    let ends = cells.filter_map(|cell| reaper::next_check(&cell.observed(true)));
    let wait = ends.min().map_or(hour, |end| end.duration_since(now).min(hour));
    let wait = wait.max(SignedDuration::from_secs(1));
    std::time::Duration::try_from(wait).unwrap_or(std::time::Duration::from_secs(1))
}

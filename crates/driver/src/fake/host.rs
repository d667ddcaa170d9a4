//! What the fake's machine holds: specs, directories as disks, guests as tasks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::Context;
use guest_proto::{Address, Guest};
use jiff::Timestamp;
use model::{EndReason, Error, Phase, Result, SandboxId, SandboxSpec};
use tempfile::TempDir;
use tokio::sync::mpsc;

use super::faults::Faults;
use super::guest::{Agents, GuestServer};
use super::holds::Holds;
use crate::{Ended, Exit, Launch, Maintenance, Observed, Tombstone, Update, Usage};

/// How long a tombstone is kept (ruling 7).
const TOMBSTONE_SECONDS: i64 = 60;
const EXITS_MAX: usize = 1024;

pub(super) struct Host {
    pub(super) faults: Faults,
    pub(super) holds: Holds,
    dir: TempDir,
    /// Guests live on the runtime that the fake was made on, not on that of its caller.
    runtime: tokio::runtime::Handle,
    kept: Mutex<Kept>,
    incarnations: AtomicU64,
    cpu_usec: AtomicU64,
    agents: Agents,
}

#[derive(Default)]
struct Kept {
    sandboxes: BTreeMap<SandboxId, Slot>,
    exits: Option<mpsc::Sender<Exit>>,
}

struct Slot {
    spec: SandboxSpec,
    has_disk: bool,
    compute: Option<Compute>,
    end_reason: Option<EndReason>,
    ended: Option<Ended>,
    greeted: bool,
    deleting: bool,
    tombstone: Option<Tombstone>,
}

struct Compute {
    incarnation: String,
    started_at: Timestamp,
    ready: bool,
    paused: bool,
    server: GuestServer,
    guest: Guest,
}

impl Host {
    pub(super) fn new() -> Self {
        Self {
            faults: Faults::default(),
            holds: Holds::default(),
            dir: tempfile::tempdir().expect("a temporary directory can be made"),
            runtime: tokio::runtime::Handle::current(),
            kept: Mutex::default(),
            incarnations: AtomicU64::new(0),
            cpu_usec: AtomicU64::new(0),
            agents: Agents::default(),
        }
    }

    pub(super) fn set_cpu_usec(&self, cpu_usec: u64) {
        self.cpu_usec.store(cpu_usec, Ordering::Relaxed);
    }

    pub(super) fn set_agents(&self, port: u16) {
        self.agents.store(port, Ordering::Relaxed);
    }

    pub(super) fn ids(&self) -> Vec<SandboxId> {
        self.kept(|kept| kept.sandboxes.keys().copied().collect())
    }

    pub(super) fn count(&self) -> usize {
        self.kept(|kept| kept.sandboxes.values().filter(|slot| slot.tombstone.is_none()).count())
    }

    pub(super) fn insert(&self, launch: Launch) -> Result<()> {
        let id = launch.spec.id;
        self.kept(|kept| {
            if kept.sandboxes.contains_key(&id) {
                return Err(Error::wrong_state(format!("sandbox {id} exists")));
            }
            let slot = Slot {
                spec: launch.spec,
                has_disk: false,
                compute: None,
                end_reason: None,
                ended: None,
                greeted: false,
                deleting: false,
                tombstone: None,
            };
            kept.sandboxes.insert(id, slot);
            Ok(())
        })
    }

    pub(super) fn make_disk(&self, id: SandboxId) -> Result<()> {
        std::fs::create_dir_all(self.root(id).join("workspace")).context("make a workspace")?;
        std::fs::create_dir_all(self.root(id).join("tmp")).context("make a directory")?;
        self.slot(id, |slot| slot.has_disk = true)
    }

    pub(super) fn make_compute(&self, id: SandboxId) -> Result<()> {
        let number = self.incarnations.fetch_add(1, Ordering::Relaxed);
        let incarnation = format!("{}-{number}", id.bare());
        let socket = self.dir.path().join(format!("{number}.sock"));
        let env = self.slot(id, |slot| slot.spec.env.clone())?;
        let server = self.serve(&socket, id, env, &incarnation)?;
        let compute = Compute {
            incarnation,
            started_at: Timestamp::now(),
            ready: false,
            paused: false,
            server,
            guest: Guest::new(Address::Unix(socket)),
        };
        self.slot(id, |slot| slot.compute = Some(compute))
    }

    pub(super) fn ready(&self, id: SandboxId) {
        let _ = self.slot(id, |slot| {
            slot.end_reason = None;
            slot.ended = None;
            slot.greeted = true;
            if let Some(compute) = &mut slot.compute {
                compute.ready = true;
            }
        });
    }

    /// What a failed start takes back.
    pub(super) fn forget_compute(&self, id: SandboxId) {
        let _ = self.slot(id, |slot| slot.compute = None);
    }

    pub(super) fn end_compute(&self, id: SandboxId, reason: EndReason) {
        self.kept(|kept| {
            let Some(slot) = kept.sandboxes.get_mut(&id) else { return };
            let Some(compute) = slot.compute.take() else { return };
            slot.end_reason = Some(reason);
            slot.ended = Some(self.ended(&compute));
            let exit = Exit { id, incarnation: compute.incarnation, reason };
            if let Some(exits) = &kept.exits {
                // Nobody listens between two servers; `list` tells the truth then.
                let _ = exits.try_send(exit);
            }
        });
    }

    pub(super) fn forget_end(&self, id: SandboxId) {
        self.kept(|kept| {
            if let Some(slot) = kept.sandboxes.get_mut(&id) {
                slot.ended = None;
            }
        });
    }

    pub(super) fn stop(&self, id: SandboxId, reason: EndReason) -> Result<()> {
        self.slot(id, |slot| {
            if let Some(compute) = slot.compute.take() {
                slot.end_reason = Some(reason);
                slot.ended = Some(self.ended(&compute));
            }
        })
    }

    pub(super) fn set_paused(&self, id: SandboxId, paused: bool) -> Result<()> {
        self.slot(id, |slot| {
            let Some(compute) = &mut slot.compute else {
                return Err(Error::wrong_state(format!("sandbox {id} does not run")));
            };
            compute.paused = paused;
            compute.server.set_paused(paused);
            Ok(())
        })?
    }

    pub(super) fn begin_removal(&self, id: SandboxId) {
        let _ = self.slot(id, |slot| {
            if let Some(compute) = slot.compute.take() {
                slot.ended = Some(self.ended(&compute));
            }
            slot.deleting = true;
        });
    }

    pub(super) fn finish_removal(&self, id: SandboxId, reason: EndReason) {
        let _ = std::fs::remove_dir_all(self.root(id));
        let _ = self.slot(id, |slot| {
            slot.has_disk = false;
            let tombstone = Tombstone { destroyed_at: Timestamp::now(), end_reason: reason };
            slot.tombstone.get_or_insert(tombstone);
        });
    }

    pub(super) fn update(&self, id: SandboxId, update: Update) -> Result<()> {
        self.slot(id, |slot| {
            if let Some(name) = update.name {
                slot.spec.name = name;
            }
            if let Some((policy, _)) = update.policy {
                slot.spec.policy = policy;
            }
        })
    }

    pub(super) fn observe(&self, id: SandboxId) -> Option<Observed> {
        self.kept(|kept| {
            let slot = kept.sandboxes.get(&id)?;
            let compute = slot.compute.as_ref();
            Some(Observed {
                spec: slot.spec.clone(),
                phase: slot.phase(),
                incarnation: compute.map(|compute| compute.incarnation.clone()),
                started_at: compute.map(|compute| compute.started_at),
                end_reason: slot.end_reason,
                tombstone: slot.tombstone.clone(),
                digest: None,
                ended: slot.ended.clone(),
                greeted: slot.greeted,
            })
        })
    }

    pub(super) fn guest(&self, id: SandboxId) -> Option<Guest> {
        self.kept(|kept| {
            let compute = kept.sandboxes.get(&id)?.compute.as_ref()?;
            Some(compute.guest.clone())
        })
    }

    pub(super) fn usage(&self, id: SandboxId) -> Option<Usage> {
        let runs = self.slot(id, |slot| slot.compute.is_some()).ok()?;
        let cpu_usec = self.cpu_usec.load(Ordering::Relaxed);
        Some(if runs { Usage { cpu_usec, ..Usage::default() } } else { Usage::default() })
    }

    pub(super) fn maintenance(&self, id: SandboxId) -> Result<Maintenance> {
        let phase = self.slot(id, |slot| slot.phase())?;
        if phase != Phase::Stopped {
            return Err(Error::wrong_state(format!("sandbox {id} is {phase}")));
        }
        let number = self.incarnations.fetch_add(1, Ordering::Relaxed);
        let socket = self.dir.path().join(format!("{number}.sock"));
        let server = self.serve(&socket, id, BTreeMap::new(), "maintenance")?;
        let guest = Guest::new(Address::Unix(socket));
        Ok(Maintenance { guest, workspace: "/workspace".into(), hold: Box::new(server) })
    }

    /// One listener at a time; a new one when the last is gone, as after a restart of the server.
    pub(super) fn take_exits(&self) -> Option<mpsc::Receiver<Exit>> {
        self.kept(|kept| {
            if kept.exits.as_ref().is_some_and(|exits| !exits.is_closed()) {
                return None;
            }
            let (sender, receiver) = mpsc::channel(EXITS_MAX);
            kept.exits = Some(sender);
            Some(receiver)
        })
    }

    pub(super) fn collect(&self) {
        let now = Timestamp::now();
        let old = |tombstone: &Tombstone| {
            now.duration_since(tombstone.destroyed_at).as_secs() >= TOMBSTONE_SECONDS
        };
        self.kept(|kept| {
            kept.sandboxes.retain(|_, slot| !slot.tombstone.as_ref().is_some_and(old));
        });
    }

    fn serve(
        &self,
        socket: &Path,
        id: SandboxId,
        env: BTreeMap<String, String>,
        incarnation: &str,
    ) -> Result<GuestServer> {
        let _entered = self.runtime.enter();
        GuestServer::start(socket, self.root(id), env, (incarnation, self.agents.clone()))
    }

    fn ended(&self, compute: &Compute) -> Ended {
        Ended {
            incarnation: compute.incarnation.clone(),
            started_at: compute.started_at,
            ended_at: Timestamp::now(),
            cpu_usec: self.cpu_usec.load(Ordering::Relaxed),
        }
    }

    fn root(&self, id: SandboxId) -> PathBuf {
        self.dir.path().join(id.bare())
    }

    fn slot<T>(&self, id: SandboxId, change: impl FnOnce(&mut Slot) -> T) -> Result<T> {
        self.kept(|kept| {
            let live = kept.sandboxes.get_mut(&id).filter(|slot| slot.tombstone.is_none());
            live.map(change)
        })
        .ok_or_else(|| Error::no_sandbox(id))
    }

    fn kept<T>(&self, change: impl FnOnce(&mut Kept) -> T) -> T {
        change(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Slot {
    fn phase(&self) -> Phase {
        match &self.compute {
            _ if self.tombstone.is_some() => Phase::Destroyed,
            _ if self.deleting => Phase::Deleting,
            None if !self.has_disk => Phase::Creating,
            None => Phase::Stopped,
            Some(compute) if !compute.ready => Phase::Booting,
            Some(compute) if compute.paused => Phase::Paused,
            Some(_) => Phase::Running,
        }
    }
}

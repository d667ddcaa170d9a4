//! 000's workspaces in a sandbox: restored before it runs, saved every minute and before it goes. The copy in
//! the sandbox is the newer one while it lives; what is in storage follows it, file by file.
//!
//! ```text
//!  create ──► restore ──► running ──► stop, delete ──► the last save ──► gone
//!                 ▲           │ every minute                 │ fails
//!                 │           ▼                              ▼
//!              storage ◄── save what changed           kept as `deleting`, tried again
//! ```
//!
//! One task per sandbox owns what is known to be saved. Two sandboxes may have the same workspace; then of
//! each file the last writer wins.

mod manifest;
mod restore;
mod save;

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use blobs::{Blobs, Used};
use guest_proto::Guest;
use model::{Error, EventKind, OwnerId, Phase, Result, SandboxId, WorkspaceId};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tracing::warn;

use crate::Engine;
use crate::core::Core;
use crate::engine::later;
use crate::registry::Cell;
use crate::sweep::report;
pub(crate) use crate::workspace::manifest::Manifest;

/// A crash of the whole machine loses at most this.
const SAVE_EVERY: Duration = Duration::from_secs(60);
/// One save; what it has done until then counts.
const SAVE_MAX: Duration = Duration::from_secs(600);
const RESTORE_MAX: Duration = Duration::from_secs(300);
/// Saves that wait for the one that is under way.
const QUEUE_MAX: usize = 4;

/// Where the workspace is in a sandbox that runs.
pub(crate) const ROOT: &str = "/workspace";

/// Where to save from, and whom to tell.
pub(crate) struct SaveAsk {
    guest: Guest,
    root: String,
    reply: oneshot::Sender<Result<()>>,
}

/// What is needed to move files of one workspace.
#[derive(Clone)]
pub(crate) struct Files {
    pub(crate) blobs: Blobs,
    pub(crate) owner: OwnerId,
    pub(crate) workspace: WorkspaceId,
    /// Of one save: what a guest sends is not believed beyond what its disk can hold.
    pub(crate) bytes_max: u64,
}

/// The task of one sandbox's workspace.
struct Keeper {
    core: Arc<Core>,
    cell: Arc<Cell>,
    files: Files,
    /// What storage is known to have; unknown after a restart, until storage was asked.
    saved: Option<Manifest>,
    failing: bool,
}

impl Engine {
    /// Whether a sandbox of this owner has the workspace now, or still has to save it.
    pub fn is_mounted(&self, owner: &OwnerId, workspace: &WorkspaceId) -> bool {
        self.core.registry.of_owner(owner).iter().any(|cell| {
            let state = cell.state.borrow();
            state.phase != Phase::Destroyed && state.spec.workspace.as_ref() == Some(workspace)
        })
    }

    /// Saves now what changed in the workspace of a sandbox that runs.
    pub async fn save_workspace(&self, sandbox: SandboxId) -> Result<()> {
        let none = || Error::no_sandbox(sandbox);
        let cell = self.core.registry.get(sandbox).ok_or_else(none)?;
        let guest = cell.state.borrow().guest.clone().ok_or_else(none)?;
        self.core.save_workspace(&cell, guest, ROOT).await
    }
}

impl Core {
    /// Of a sandbox that has a workspace.
    pub(crate) fn files_of(&self, cell: &Cell) -> Option<Result<Files>> {
        let spec = Arc::clone(&cell.state.borrow().spec);
        let workspace = spec.workspace.clone()?;
        let files = |blobs: &Blobs| Files {
            blobs: blobs.clone(),
            owner: cell.owner.clone(),
            workspace: workspace.clone(),
            bytes_max: u64::from(spec.limits.disk_gb) << 30,
        };
        let none = || Error::unavailable("this server has no storage for workspaces");
        Some(self.config.blobs.as_ref().map(files).ok_or_else(none))
    }

    /// Puts what is saved into a sandbox that nobody uses yet.
    pub(crate) async fn restore(&self, cell: &Cell, guest: &Guest) -> Result<Option<Manifest>> {
        let Some(files) = self.files_of(cell) else { return Ok(None) };
        let files = files?;
        let late = || Error::unavailable("the workspace could not be restored in time");
        let restored = timeout(RESTORE_MAX, restore::restore(&files, guest, cell.id)).await;
        let (manifest, used) = restored.map_err(|_| late())??;
        self.counted(&files, used).await;
        Ok(Some(manifest))
    }

    /// A size that is not written down is counted again when somebody asks for it.
    async fn counted(&self, files: &Files, Used { bytes, files: count }: Used) {
        let (owner, workspace) = (&files.owner, &files.workspace);
        let told = self.store.set_workspace_size(owner, workspace, (bytes, count), self.now());
        if let Err(failure) = told.await {
            report("write down the size of a workspace", failure);
        }
    }

    /// Begins to save a sandbox's workspace, unless that is done already.
    pub(crate) fn keep_workspace(self: &Arc<Self>, cell: &Arc<Cell>, saved: Option<Manifest>) {
        let files = match self.files_of(cell) {
            None => return,
            Some(Ok(files)) => files,
            Some(Err(failure)) => {
                let error = failure.to_string();
                return warn!(sandbox.id = %cell.id, error, "nothing of {} is saved", cell.id);
            }
        };
        let mut keeper = cell.keeper.lock().unwrap_or_else(PoisonError::into_inner);
        if keeper.as_ref().is_some_and(|asks| !asks.is_closed()) {
            return;
        }
        let (sender, asks) = mpsc::channel(QUEUE_MAX);
        *keeper = Some(sender);
        let (core, cell) = (Arc::clone(self), Arc::clone(cell));
        let task = Keeper { core, cell, files, saved, failing: false };
        self.tasks.spawn(task.run(asks));
    }

    /// Saves what changed, from that guest. `Ok` without a workspace.
    pub(crate) async fn save_workspace(&self, cell: &Cell, guest: Guest, root: &str) -> Result<()> {
        let keeper = cell.keeper.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(keeper) = keeper else { return Ok(()) };
        let (reply, answer) = oneshot::channel();
        let ended = || Error::unavailable("the workspace cannot be saved: the server is ending");
        let ask = SaveAsk { guest, root: root.to_owned(), reply };
        keeper.send(ask).await.map_err(|_| ended())?;
        answer.await.map_err(|_| ended())?
    }
}

impl Cell {
    /// There is nothing left to save.
    pub(crate) fn forget_workspace(&self) {
        self.keeper.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl Keeper {
    async fn run(mut self, mut asks: mpsc::Receiver<SaveAsk>) {
        let (closing, clock) = (self.core.closing.clone(), self.core.config.clock.clone());
        loop {
            let Ok(next) = later(self.core.now(), SAVE_EVERY) else { return };
            tokio::select! {
                biased;
                ask = asks.recv() => {
                    let Some(SaveAsk { guest, root, reply }) = ask else { return };
                    // Whoever asked may have gone; what is saved is saved.
                    let _ = reply.send(self.save(&guest, &root).await);
                }
                () = closing.cancelled() => return,
                () = clock.sleep_until(next) => {
                    let running = self.running();
                    if let Some(guest) = running {
                        // Told by `save`; tried again in a minute.
                        let _ = self.save(&guest, ROOT).await;
                    }
                }
            }
        }
    }

    fn running(&self) -> Option<Guest> {
        let state = self.cell.state.borrow();
        state.guest.clone().filter(|_| state.phase == Phase::Running)
    }

    async fn save(&mut self, guest: &Guest, root: &str) -> Result<()> {
        let late = || Error::unavailable("the workspace could not be saved in time");
        let id = self.cell.id;
        let before = self.saved.as_ref().map(Manifest::size);
        let saving = save::save(&self.files, (guest, root), &mut self.saved, id);
        let outcome = timeout(SAVE_MAX, saving).await.map_err(|_| late()).flatten();
        self.account(before).await;
        match &outcome {
            Ok(()) => self.failing = false,
            Err(failure) => {
                let error = failure.to_string();
                warn!(sandbox.id = %id, error, "could not save the workspace of {id}");
                if !std::mem::replace(&mut self.failing, true) {
                    let data = serde_json::json!({ "detail": error });
                    let told = self.core.tell(&self.cell, EventKind::WorkspaceNotSaved, data);
                    self.core.record(&self.cell, vec![told]);
                }
            }
        }
        outcome
    }

    /// Says how much more there is in storage than before.
    async fn account(&self, before: Option<Used>) {
        let Some(now) = self.saved.as_ref().map(Manifest::size) else { return };
        let Files { blobs, owner, workspace, .. } = &self.files;
        let Some(before) = before else {
            // What it saved before a restart is in storage, and so is what others have there.
            match blobs.used(owner, workspace).await {
                Ok(used) => self.core.counted(&self.files, used.unwrap_or_default()).await,
                Err(failure) => report("count a workspace", failure),
            }
            return;
        };
        let more = (more(before.bytes, now.bytes), more(before.files, now.files));
        if more == (0, 0) {
            return;
        }
        let changed = self.core.store.change_workspace_size(owner, workspace, more);
        if let Err(failure) = changed.await {
            report("write down the size of a workspace", failure);
        }
    }
}

fn more(before: u64, now: u64) -> i64 {
    let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    signed(now) - signed(before)
}

//! One launch: from a plan to a running PID 1. Runs in a process of its own, forked by the keeper.
//!
//! ```text
//!  launcher (root)                         init (the sandbox's PID 1)
//!  ─ cgroups made and entered              ┐
//!  ─ the guest's socket                    │ begin: what needs no plan, so that a launcher that waits
//!  ─ become the range's base uid           │ for one may have done it for the sandbox that comes next
//!  ─ clone3(user, pid) ──────────────────► │
//!  ─ id maps, limits                       │ unshare(net, mount, ipc, uts): 0.5 ms
//!  ◄────────────────────────── namespaces ─│
//!  ─ egress sockets in its network         │ root inside, unshare(cgroup), /proc, /sys and the like,
//!  ◄─────────────────────────────── ready ─│ seccomp, capabilities, exec guestd, which waits
//!                                          ┘
//!  ─ wait until the server has made the disks
//!  ─ idmapped trees                        ┐ finish
//!  ─ name the socket, run record           │
//!  ─ join the sandbox: overlay, mounts, pivot_root, which takes the guest along
//!  ─ nonce, user, workdir ───────────────► │ guestd serves
//!  ─ the old root goes                     ┘
//! ```
//!
//! A failing step kills what was started; the keeper removes the cgroups (and the run record, which a launcher that
//! has joined the sandbox cannot reach), the driver the disks.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use anyhow::Context;
use rustix::process::Pid;

use crate::cgroup::{self, Hierarchy};
use crate::plan::{LaunchPlan, Outline, RunRecord};
use crate::privilege::Privilege;
use crate::seccomp;
use crate::{egress, run_record, sys};

pub(crate) mod asker;
mod begun;
mod init;
mod rlimits;
pub mod root;
mod trace;

pub use asker::Asker;
pub use begun::open_egress;
pub(crate) use begun::{Begun, begin};
use root::Trees;
use trace::Trace;

/// What every launch shares, made once by the keeper.
pub struct Shared {
    pub filters: Filters,
    pub boot_id: String,
    pub hierarchy: Hierarchy,
    pub privilege: Privilege,
    /// An empty directory to put `/dev` together at, where that has to be done somewhere.
    pub devices_at: PathBuf,
    /// Where sockets of guests wait for their names, by incarnation.
    pub sockets_at: PathBuf,
    /// Print what each step cost.
    pub trace: bool,
}

impl Shared {
    /// Whether what has `begun` can still become what is `wanted`. Limits can change where the cgroups have them all.
    pub(crate) fn fits(&self, begun: &Outline, wanted: &Outline) -> bool {
        let limits = if self.hierarchy.bounds_all() { wanted.limits } else { begun.limits };
        Outline { limits, ..begun.clone() } == *wanted
    }
}

/// What a sandbox may ask of the kernel, without and with `nesting`.
pub struct Filters {
    plain: seccomp::Program,
    nesting: seccomp::Program,
}

impl Filters {
    pub fn compile() -> anyhow::Result<Self> {
        let (plain, nesting) = (seccomp::program(false)?, seccomp::program(true)?);
        Ok(Self { plain, nesting })
    }

    fn of(&self, nesting: bool) -> &seccomp::Program {
        if nesting { &self.nesting } else { &self.plain }
    }
}

/// A launch whose guest gets ready. What is missing is [`Launched::finish`], without which it ends with this value.
pub struct Launched {
    pub pid: Pid,
    pub egress: Option<egress::Sockets>,
    begun: Begun,
    _trees: Trees,
}

impl Launched {
    /// Takes the old root away, and lets the guest outlive this process. Until then nobody may have it run anything.
    pub fn finish(&mut self) -> anyhow::Result<()> {
        root::leave_old()?;
        self.begun.release()
    }
}

/// Carries out `plan`, from a process that [`cgroup::enter`]ed the cgroups of `incarnation`. On
/// failure no process is left; the cgroups are the caller's to remove once this process is gone.
pub fn launch(
    plan: &LaunchPlan,
    incarnation: &str,
    (shared, asker): (&Shared, Asker<'_>),
    devices: OwnedFd,
) -> anyhow::Result<Launched> {
    asker.must_wait()?;
    let begun = begin(&plan.outline(), incarnation, shared, devices)?;
    finish(begun, plan, incarnation, (shared, asker))
}

/// The rest of a launch, of which there is a beginning that is for this plan's outline.
///
/// Whoever wants it must want it still when the guest is let go, after the run record was written: so
/// the successor of a server that died finds a record of every guest that runs.
pub(crate) fn finish(
    begun: Begun,
    plan: &LaunchPlan,
    incarnation: &str,
    (shared, asker): (&Shared, Asker<'_>),
) -> anyhow::Result<Launched> {
    let mut trace = Trace::new(shared.trace);
    let (mut begun, trees) = match announce(begun, plan, incarnation, (shared, asker), &mut trace) {
        Ok(announced) => announced,
        Err(error) => {
            let _ = std::fs::remove_file(&plan.record);
            return Err(error);
        }
    };
    begun.build_root(&trees, plan, shared.privilege)?;
    asker.must_wait()?;
    trace.step("mounts");
    // It gets ready while the kernel takes its time for the old root.
    begun.tell(plan)?;
    trace.step("guest");
    trace.print(&plan.sandbox);
    Ok(Launched { pid: begun.pid(), egress: begun.egress.take(), begun, _trees: trees })
}

/// All that is done in sight of the host: the trees to mount, and the record of who runs.
fn announce(
    mut begun: Begun,
    plan: &LaunchPlan,
    incarnation: &str,
    (shared, asker): (&Shared, Asker<'_>),
    trace: &mut Trace,
) -> anyhow::Result<(Begun, Trees)> {
    asker.must_wait()?;
    if plan.disks_follow {
        asker.must_have_made_disks()?;
        trace.step("disks");
    }
    let trees = trees(plan, shared, &begun.user_ns)?;
    trace.step("trees");
    begun.put_socket(&plan.guest.socket)?;
    let mut leaf = shared.hierarchy.leaf(incarnation);
    if let Some(io) = &plan.io {
        leaf.legacy.extend(shared.hierarchy.limit_io(incarnation, begun.pid(), io)?);
    }
    cgroup::delegate_to(&leaf, plan.uid_base)?;
    let pid = begun.pid().as_raw_nonzero().get();
    let record = RunRecord {
        incarnation: incarnation.to_owned(),
        nonce: plan.nonce.clone(),
        pid,
        boot_id: shared.boot_id.clone(),
        uid_base: plan.uid_base,
        started_ticks: begun.started_ticks,
        unified: leaf.unified,
        legacy: leaf.legacy,
        socket: plan.guest.socket.clone(),
        started_at: jiff::Timestamp::now(),
    };
    run_record::write(&plan.record, &record)?;
    trace.step("socket and run record");
    Ok((begun, trees))
}

/// Moves a descriptor above the numbers that the guest's own are placed at.
fn high(fd: impl Into<OwnedFd>) -> anyhow::Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(fd.into(), 64).context("move a descriptor")
}

fn trees(plan: &LaunchPlan, shared: &Shared, user_ns: &File) -> anyhow::Result<Trees> {
    // Mounts map ids for the host's root only; a namespace's sandboxes have the ids of the disk.
    let map = (shared.privilege == Privilege::Host).then(|| user_ns.as_fd());
    let read_only = sys::MOUNT_ATTR_RDONLY | sys::MOUNT_ATTR_NODEV;
    let mut layers = Vec::new();
    for layer in &plan.root.layers {
        layers.push(root::detached(layer, map, read_only)?);
    }
    let mut binds = Vec::new();
    for (source, target) in &plan.root.binds {
        let attributes = read_only | sys::MOUNT_ATTR_NOSUID;
        binds.push((root::detached(source, map, attributes)?, target.clone()));
    }
    Ok(Trees {
        layers,
        upper: root::detached(&plan.root.upper, map, sys::MOUNT_ATTR_NODEV)?,
        workspace: root::detached(
            &plan.workspace,
            map,
            sys::MOUNT_ATTR_NODEV | sys::MOUNT_ATTR_NOSUID,
        )?,
        binds,
    })
}

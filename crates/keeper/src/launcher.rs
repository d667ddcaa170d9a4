//! One launch: from a plan to a running PID 1. Runs in a process of its own, forked by the keeper.
//!
//! ```text
//!  launcher (root)                         init (the sandbox's PID 1)
//!  ─ cgroups made and entered, then it waits for a plan
//!  ─ become the range's base uid
//!  ─ clone3(user, pid) ──────────────────► unshare(net, mount, ipc, uts)
//!  ─ limits                                (0.5 ms, on the other core)
//!  ─ wait until the server has made the disks
//!  ─ id maps, idmapped trees, record
//!  ─ go ─────────────────────────────────► become root inside, unshare(cgroup)
//!  ─ egress sockets in its network         mounts, pivot_root, seccomp, capabilities
//!  ◄──────────────── end of file, or the step that failed ─ exec guestd
//! ```
//!
//! A failing step kills what was started; the keeper removes the cgroups, the driver the disks.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::set_thread_res_uid;

use crate::cgroup::{self, Hierarchy, Leaf};
use crate::plan::{LaunchPlan, RunRecord};
use crate::privilege::Privilege;
use crate::seccomp;
use crate::sys::{self, Fork};
use crate::{egress, incarnation, run_record};

pub(crate) mod asker;
mod init;
mod rlimits;
pub mod root;

pub use asker::Asker;
use init::Handed;

/// A launch that takes longer has failed; the whole of it is 3 ms.
const INIT_SECONDS_MAX: i64 = 20;

/// What every launch shares, made once by the keeper.
pub struct Shared {
    pub filters: Filters,
    pub boot_id: String,
    pub hierarchy: Hierarchy,
    pub privilege: Privilege,
    /// An empty directory to put `/dev` together at, where that has to be done somewhere.
    pub devices_at: PathBuf,
    /// Print what each step cost.
    pub trace: bool,
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

/// A launch that worked.
pub struct Launched {
    pub pid: Pid,
    pub egress: Option<egress::Sockets>,
}

/// Carries out `plan`, from a process that [`cgroup::enter`]ed the cgroups of `incarnation`. On
/// failure no process is left; the cgroups are the caller's to remove once this process is gone.
///
/// Whoever wants it must want it still when the guest is let go, after the run record was written: so
/// the successor of a server that died finds a record of every guest that runs.
pub fn launch(
    plan: &LaunchPlan,
    incarnation: &str,
    (shared, asker): (&Shared, Asker<'_>),
    devices: OwnedFd,
) -> anyhow::Result<Launched> {
    asker.must_wait()?;
    let mut trace = Trace::new(shared.trace);
    let listener = high(listen(plan)?)?;
    let open = |path: &PathBuf| high(File::open(path).context("open the guest's programs")?);
    let agents = plan.guest.agents.as_ref().map(open).transpose()?;
    let programs = init::Programs { guest: open(&plan.guest.binary)?, agents };
    let (go_read, go_write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let (said_read, said_write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let said_write = high(said_write)?;
    rustix::process::chdir(&plan.root.mount_point).context("go to the mount point")?;
    trace.step("listen and pipes");
    if shared.privilege != Privilege::Host {
        rlimits::before_clone(&plan.limits, &shared.hierarchy, plan.uid_base)?;
    }
    let pid = match clone_as(plan.uid_base, shared.privilege)? {
        Fork::Child => {
            // The other ends stay open here until exec: the descriptor table is shared.
            init::run(
                plan,
                shared,
                init::Ends { go: go_read, said: said_write },
                &listener,
                &programs,
            )
        }
        Fork::Parent(pid) => pid,
    };
    trace.step("clone");
    let leaf = shared.hierarchy.leaf(incarnation);
    let begun = Begun { plan, incarnation, leaf, pid, devices };
    let pipes = (go_write, said_read, said_write);
    let outcome = attend(begun, (shared, asker), pipes, &mut trace);
    if outcome.is_err() {
        undo(plan, pid);
    }
    outcome
}

/// Clones PID 1 with the range's base uid as its creator, so that the kernel's budgets (inotify,
/// pipes, keys, namespaces) are its own and no neighbour's.
fn clone_as(uid: u32, privilege: Privilege) -> anyhow::Result<Fork> {
    let base = rustix::process::Uid::from_raw(uid);
    set_thread_res_uid(None, base, None).context("become the base uid")?;
    if privilege != Privilege::Host {
        stay_visible()?;
    }
    let flags = libc::CLONE_NEWUSER | libc::CLONE_NEWPID | libc::CLONE_FILES;
    let side = sys::clone(flags);
    if !matches!(side, Ok(Fork::Child)) {
        let root = rustix::process::Uid::ROOT;
        set_thread_res_uid(None, root, None).context("become root again")?;
    }
    side.context("clone")
}

/// A change of user makes the kernel hide a process's `/proc` from all but the root of where its
/// program began, which for an ordinary user is somebody else.
pub(super) fn stay_visible() -> anyhow::Result<()> {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};
    set_dumpable_behavior(DumpableBehavior::Dumpable).context("stay visible to the launcher")
}

fn listen(plan: &LaunchPlan) -> anyhow::Result<UnixListener> {
    match std::fs::remove_file(&plan.guest.socket) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).context("remove the old guest socket"),
    }
    UnixListener::bind(&plan.guest.socket).context("bind the guest socket")
}

/// Moves a descriptor above the numbers that the guest's own are placed at.
fn high(fd: impl Into<OwnedFd>) -> anyhow::Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(fd.into(), 64).context("move a descriptor")
}

type Pipes = (OwnedFd, OwnedFd, OwnedFd);

/// A launch whose PID 1 exists.
struct Begun<'a> {
    plan: &'a LaunchPlan,
    incarnation: &'a str,
    leaf: Leaf,
    pid: Pid,
    devices: OwnedFd,
}

fn attend(
    mut begun: Begun<'_>,
    (shared, asker): (&Shared, Asker<'_>),
    (go, said, our_copy): Pipes,
    trace: &mut Trace,
) -> anyhow::Result<Launched> {
    let Begun { plan, pid, .. } = begun;
    shared.hierarchy.limit(begun.incarnation, &plan.limits)?;
    if let Some(io) = &plan.io {
        let made = shared.hierarchy.limit_io(begun.incarnation, pid, io)?;
        begun.leaf.legacy.extend(made);
    }
    cgroup::delegate_to(&begun.leaf, plan.uid_base)?;
    trace.step("limits");
    if plan.disks_follow {
        asker.must_have_made_disks()?;
        trace.step("disks");
    }
    let id = pid.as_raw_nonzero();
    for file in ["uid_map", "gid_map"] {
        let own = match shared.privilege {
            Privilege::Host => String::new(),
            Privilege::Namespace { .. } => std::fs::read_to_string(format!("/proc/self/{file}"))?,
        };
        let map = shared.privilege.map_of_sandbox(plan.uid_base, &own);
        std::fs::write(format!("/proc/{id}/{file}"), map)
            .with_context(|| format!("write {file}"))?;
    }
    let user_ns = File::open(format!("/proc/{id}/ns/user")).context("open the user namespace")?;
    record(&begun, shared)?;
    let trees = trees(plan, shared, begun.devices, &user_ns)?;
    trace.step("run record, id maps and trees");
    asker.must_wait()?;
    let handed = Handed::numbers(&trees);
    let mut go = File::from(go);
    go.write_all(handed.as_bytes()).context("let the guest go")?;
    drop(go);
    let mut said = File::from(said);
    let process = pidfd_open(pid, PidfdFlags::empty()).context("open the process")?;
    // The first byte says that init has a descriptor table of its own, so that closing ours leaves
    // its copy as the last writer.
    let mut first = [0u8; 1];
    hear(&said, &process)?;
    said.read_exact(&mut first).context("init died before it began")?;
    drop(our_copy);
    trace.step("init ready");
    let egress = match plan.egress {
        true => Some(open_egress(pid, shared.privilege.steering())?),
        false => None,
    };
    let mut words = Vec::new();
    if first != *b"." {
        words.push(first[0]);
    }
    hear(&said, &process)?;
    said.read_to_end(&mut words).context("hear from init")?;
    trace.step("mounts and exec");
    trace.print(&plan.sandbox);
    if !words.is_empty() {
        bail!("{}", String::from_utf8_lossy(&words));
    }
    Ok(Launched { pid, egress })
}

/// Waits until init says something, closes its end, or dies.
fn hear(said: &File, process: &OwnedFd) -> anyhow::Result<()> {
    let mut fds = [PollFd::new(said, PollFlags::IN), PollFd::new(process, PollFlags::IN)];
    let limit = Timespec { tv_sec: INIT_SECONDS_MAX, tv_nsec: 0 };
    if poll(&mut fds, Some(&limit)).context("wait for init")? == 0 {
        bail!("init did not finish in {INIT_SECONDS_MAX} s");
    }
    if fds[0].revents().is_empty() {
        bail!("init was killed");
    }
    Ok(())
}

fn trees(
    plan: &LaunchPlan,
    shared: &Shared,
    devices: OwnedFd,
    user_ns: &File,
) -> anyhow::Result<root::Trees> {
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
    Ok(root::Trees {
        layers,
        upper: root::detached(&plan.root.upper, map, sys::MOUNT_ATTR_NODEV)?,
        workspace: root::detached(
            &plan.workspace,
            map,
            sys::MOUNT_ATTR_NODEV | sys::MOUNT_ATTR_NOSUID,
        )?,
        binds,
        devices,
    })
}

fn record(begun: &Begun<'_>, shared: &Shared) -> anyhow::Result<()> {
    let plan = begun.plan;
    let record = RunRecord {
        incarnation: begun.incarnation.to_owned(),
        nonce: plan.nonce.clone(),
        pid: begun.pid.as_raw_nonzero().get(),
        boot_id: shared.boot_id.clone(),
        uid_base: plan.uid_base,
        started_ticks: incarnation::started_ticks(begun.pid.as_raw_nonzero().get())
            .context("init died before it began")?,
        unified: begun.leaf.unified.clone(),
        legacy: begun.leaf.legacy.clone(),
        socket: plan.guest.socket.clone(),
        started_at: jiff::Timestamp::now(),
    };
    run_record::write(&plan.record, &record)
}

/// Opens the egress sockets in the network of `pid`, which this process enters for good.
pub fn open_egress(pid: Pid, steering: egress::Steering) -> anyhow::Result<egress::Sockets> {
    let network = File::open(format!("/proc/{}/ns/net", pid.as_raw_nonzero()))
        .context("open the network namespace")?;
    let kind = Some(rustix::thread::LinkNameSpaceType::Network);
    rustix::thread::move_into_link_name_space(network.as_fd(), kind)
        .context("enter the network namespace")?;
    egress::open_in_current_netns(steering).context("open egress sockets")
}

/// Kills what was started (a PID 1 takes its namespace along) and removes its traces.
fn undo(plan: &LaunchPlan, pid: Pid) {
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
    let _ = std::fs::remove_file(&plan.record);
    let _ = std::fs::remove_file(&plan.guest.socket);
}

/// What each step of a launch cost, printed to the keeper's log when asked for.
struct Trace {
    on: bool,
    last: Timespec,
    line: String,
}

impl Trace {
    fn new(on: bool) -> Self {
        Self { on, last: now(), line: String::new() }
    }

    fn step(&mut self, name: &str) {
        if self.on {
            let now = now();
            let nanos =
                (now.tv_sec - self.last.tv_sec) * 1_000_000_000 + (now.tv_nsec - self.last.tv_nsec);
            self.last = now;
            self.line += &format!(" {name}={}us", nanos / 1000);
        }
    }

    fn print(&self, sandbox: &str) {
        if self.on {
            let line = format!("launch {sandbox}:{}\n", self.line);
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
    }
}

fn now() -> Timespec {
    rustix::time::clock_gettime(rustix::time::ClockId::Monotonic)
}

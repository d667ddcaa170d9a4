//! One launch: from a plan to a running PID 1. Runs in a process of its own, forked by the keeper.
//!
//! ```text
//!  launcher (root)                         init (the sandbox's PID 1)
//!  ─ cgroups made and entered, then it waits for a plan
//!  ─ become the range's base uid
//!  ─ clone3(user, pid) ──────────────────► unshare(net, mount, ipc, uts)
//!  ─ limits                                (0.5 ms, on the other core)
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

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::set_thread_res_uid;

use crate::cgroup::{self, Hierarchy, Leaf};
use crate::plan::{LaunchPlan, RunRecord};
use crate::seccomp;
use crate::sys::{self, Fork};
use crate::{egress, run_record};

mod init;
pub(crate) mod root;

use init::Handed;

/// A launch that takes longer has failed; the whole of it is 3 ms.
const INIT_SECONDS_MAX: i64 = 20;

/// What every launch shares, made once by the keeper.
pub(crate) struct Shared {
    pub(crate) filter: seccomp::Program,
    /// The `/dev` tree.
    pub(crate) devices: OwnedFd,
    pub(crate) boot_id: String,
    pub(crate) hierarchy: Hierarchy,
    /// Print what each step cost.
    pub(crate) trace: bool,
}

/// A launch that worked.
pub(crate) struct Launched {
    pub(crate) pid: Pid,
    pub(crate) egress: Option<egress::Sockets>,
}

/// Carries out `plan`, from a process that [`cgroup::enter`]ed the cgroups of `incarnation`. On
/// failure no process is left; the cgroups are the caller's to remove once this process is gone.
pub(crate) fn launch(
    plan: &LaunchPlan,
    incarnation: &str,
    shared: &Shared,
) -> anyhow::Result<Launched> {
    let mut trace = Trace::new(shared.trace);
    let listener = high(listen(plan)?)?;
    let guest = high(File::open(&plan.guest.binary).context("open the guest")?)?;
    let (go_read, go_write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let (said_read, said_write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    rustix::process::chdir(&plan.root.mount_point).context("go to the mount point")?;
    trace.step("listen and pipes");
    let pid = match clone_as(plan.uid_base)? {
        Fork::Child => {
            // The other ends stay open here until exec: the descriptor table is shared.
            init::run(plan, shared, init::Ends { go: go_read, said: said_write }, &listener, &guest)
        }
        Fork::Parent(pid) => pid,
    };
    trace.step("clone");
    let begun = Begun { plan, incarnation, leaf: shared.hierarchy.leaf(incarnation), pid };
    let outcome = attend(&begun, shared, (go_write, said_read, said_write), &mut trace);
    if outcome.is_err() {
        undo(plan, pid);
    }
    outcome
}

/// Clones PID 1 with the range's base uid as its creator, so that the kernel's budgets (inotify,
/// pipes, keys, namespaces) are its own and no neighbour's.
fn clone_as(uid: u32) -> anyhow::Result<Fork> {
    let base = rustix::process::Uid::from_raw(uid);
    set_thread_res_uid(None, base, None).context("become the base uid")?;
    let flags = libc::CLONE_NEWUSER | libc::CLONE_NEWPID | libc::CLONE_FILES;
    let side = sys::clone(flags);
    if !matches!(side, Ok(Fork::Child)) {
        let root = rustix::process::Uid::ROOT;
        set_thread_res_uid(None, root, None).context("become root again")?;
    }
    side.context("clone")
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
}

fn attend(
    begun: &Begun<'_>,
    shared: &Shared,
    (go, said, our_copy): Pipes,
    trace: &mut Trace,
) -> anyhow::Result<Launched> {
    let Begun { plan, pid, .. } = *begun;
    for (file, value) in shared.hierarchy.limit_writes(begun.incarnation, &plan.limits) {
        cgroup::set(&file, &value)?;
    }
    cgroup::delegate_to(&begun.leaf, plan.uid_base)?;
    let cgroup_dir = File::open(&begun.leaf.unified).context("open the cgroup")?;
    trace.step("limits");
    let id = pid.as_raw_nonzero();
    let map = format!("0 {} 65536", plan.uid_base);
    std::fs::write(format!("/proc/{id}/uid_map"), &map).context("write uid_map")?;
    std::fs::write(format!("/proc/{id}/gid_map"), &map).context("write gid_map")?;
    let user_ns = File::open(format!("/proc/{id}/ns/user")).context("open the user namespace")?;
    let trees = trees(plan, shared, &user_ns)?;
    trace.step("id maps and trees");
    record(begun, shared)?;
    trace.step("run record");
    let handed = Handed::numbers(&trees, &cgroup_dir);
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
        true => Some(open_egress(pid)?),
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

fn trees(plan: &LaunchPlan, shared: &Shared, user_ns: &File) -> anyhow::Result<root::Trees> {
    let map = user_ns.as_fd();
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
        devices: shared_devices(shared)?,
    })
}

fn shared_devices(shared: &Shared) -> anyhow::Result<OwnedFd> {
    use rustix::mount::{OpenTreeFlags, open_tree};
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    open_tree(&shared.devices, "", flags).context("clone /dev")
}

fn record(begun: &Begun<'_>, shared: &Shared) -> anyhow::Result<()> {
    let plan = begun.plan;
    let record = RunRecord {
        incarnation: begun.incarnation.to_owned(),
        nonce: plan.nonce.clone(),
        pid: begun.pid.as_raw_nonzero().get(),
        boot_id: shared.boot_id.clone(),
        uid_base: plan.uid_base,
        unified: begun.leaf.unified.clone(),
        legacy: begun.leaf.legacy.clone(),
        socket: plan.guest.socket.clone(),
        started_at: jiff::Timestamp::now(),
    };
    run_record::write(&plan.record, &record)
}

/// Opens the egress sockets in the network of `pid`, which this process enters for good.
pub(crate) fn open_egress(pid: Pid) -> anyhow::Result<egress::Sockets> {
    let network = File::open(format!("/proc/{}/ns/net", pid.as_raw_nonzero()))
        .context("open the network namespace")?;
    let kind = Some(rustix::thread::LinkNameSpaceType::Network);
    rustix::thread::move_into_link_name_space(network.as_fd(), kind)
        .context("enter the network namespace")?;
    egress::open_in_current_netns().context("open egress sockets")
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

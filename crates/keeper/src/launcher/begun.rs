//! The first part of a launch, which can be done before there is a plan: PID 1 behind its walls, with its limits, its
//! network and the kernel's file systems, which has become the guest and waits to be told what for.

use std::fs::File;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use model::Limits;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces, set_thread_res_uid};

use super::root::{self, Trees, Ways};
use super::{Shared, high, init, rlimits};
use crate::cgroup::Hierarchy;
use crate::plan::{LaunchPlan, Outline};
use crate::privilege::Privilege;
use crate::sys::{self, Fork};
use crate::{egress, incarnation};

/// Connections to a guest that wait while it is busy.
const BACKLOG: i32 = 128;

/// A launch that takes longer has failed; the whole of it is 3 ms.
const INIT_SECONDS_MAX: i64 = 20;

/// PID 1 of a sandbox that has no plan yet. It ends with this value, or with this process.
pub(crate) struct Begun {
    outline: Outline,
    init: Init,
    process: OwnedFd,
    /// When it started, by which its pid is known again.
    pub(super) started_ticks: u64,
    pub(super) user_ns: File,
    socket: Socket,
    pub(super) egress: Option<egress::Sockets>,
    orders: UnixStream,
    said: File,
}

/// Where a guest will listen, or does. Removed with this value.
struct Socket(Option<PathBuf>);

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Ended and waited for with this value. A PID 1 takes its namespace along.
struct Init {
    pid: Pid,
    /// Whether it is the guest by now, and somebody else's to end.
    released: bool,
}

impl Drop for Init {
    fn drop(&mut self) {
        if !self.released {
            let _ = rustix::process::kill_process(self.pid, rustix::process::Signal::KILL);
            let _ = rustix::process::waitpid(Some(self.pid), rustix::process::WaitOptions::empty());
        }
    }
}

/// From a process that [`crate::cgroup::enter`]ed the cgroups of `incarnation`. On failure no process is left.
///
/// With egress it enters the sandbox's network for good.
pub(crate) fn begin(
    outline: &Outline,
    incarnation: &str,
    shared: &Shared,
    devices: OwnedFd,
) -> anyhow::Result<Begun> {
    let (orders, inits_orders) = UnixStream::pair().context("socket pair")?;
    orders.set_write_timeout(Some(Duration::from_secs(INIT_SECONDS_MAX.cast_unsigned())))?;
    let (said, inits_said) = pipe_with(PipeFlags::CLOEXEC)?;
    // Before this process enters the sandbox's network, which shows the names of its sockets inside.
    let (listener, socket) = listen_at(shared.sockets_at.join(incarnation))?;
    let open = |path: &PathBuf| high(File::open(path).context("open the guest's programs")?);
    let given = init::Given {
        orders: high(inits_orders)?.into(),
        launcher: pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?,
        devices,
        listener,
        guest: open(&outline.binary)?,
        agents: outline.agents.as_ref().map(open).transpose()?,
    };
    let inits_said = high(inits_said)?;
    rustix::process::chdir(&outline.mount_point).context("go to the mount point")?;
    if shared.privilege != Privilege::Host {
        rlimits::before_clone(&outline.limits, &shared.hierarchy, outline.uid_base)?;
    }
    let pid = match clone_as(outline.uid_base, shared.privilege)? {
        Fork::Child => init::run(shared, outline, (given, inits_said)),
        Fork::Parent(pid) => pid,
    };
    drop((given, inits_said));
    let init = Init { pid, released: false };
    let mut begun = Begun {
        outline: outline.clone(),
        process: pidfd_open(pid, PidfdFlags::empty()).context("open the process")?,
        init,
        started_ticks: incarnation::started_ticks(pid.as_raw_nonzero().get())
            .context("init died before it began")?,
        user_ns: File::open(format!("/proc/{}/ns/user", pid.as_raw_nonzero()))
            .context("open the user namespace")?,
        socket,
        egress: None,
        orders,
        said: File::from(said),
    };
    begun.map_ids(shared.privilege)?;
    shared.hierarchy.limit(incarnation, &outline.limits)?;
    begun.hear(init::HAS_NAMESPACES)?;
    if outline.egress {
        begun.egress = Some(open_egress(pid, shared.privilege.steering())?);
    }
    Ok(begun)
}

fn listen_at(path: PathBuf) -> anyhow::Result<(OwnedFd, Socket)> {
    let listener =
        socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let address = SocketAddrUnix::new(&path).context("name the guest's socket")?;
    bind(&listener, &address).context("bind the guest's socket")?;
    let socket = Socket(Some(path));
    listen(&listener, BACKLOG).context("listen at the guest's socket")?;
    Ok((high(listener)?, socket))
}

impl Begun {
    pub(super) fn pid(&self) -> Pid {
        self.init.pid
    }

    /// Whether it can still become the guest of `outline`.
    pub(crate) fn is_for(&self, outline: &Outline, shared: &Shared) -> bool {
        let mut fds = [PollFd::new(&self.process, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        shared.fits(&self.outline, outline)
            && poll(&mut fds, Some(&now)).is_ok_and(|ended| ended == 0)
    }

    /// Gives it the limits of the sandbox that it becomes.
    pub(crate) fn limit(
        mut self,
        limits: Limits,
        hierarchy: &Hierarchy,
        incarnation: &str,
    ) -> anyhow::Result<Self> {
        if self.outline.limits != limits {
            hierarchy.limit(incarnation, &limits)?;
            self.outline.limits = limits;
        }
        Ok(self)
    }

    fn map_ids(&mut self, privilege: Privilege) -> anyhow::Result<()> {
        let id = self.pid().as_raw_nonzero();
        for file in ["uid_map", "gid_map"] {
            let own = match privilege {
                Privilege::Host => String::new(),
                Privilege::Namespace { .. } => {
                    std::fs::read_to_string(format!("/proc/self/{file}"))?
                }
            };
            let map = privilege.map_of_sandbox(self.outline.uid_base, &own);
            std::fs::write(format!("/proc/{id}/{file}"), map)
                .with_context(|| format!("write {file}"))?;
        }
        self.orders.write_all(init::IDS_ARE_MAPPED).context("speak to init")
    }

    /// Moves the guest's socket to where it is dialled.
    pub(super) fn put_socket(&mut self, path: &Path) -> anyhow::Result<()> {
        let made = self.socket.0.as_ref().context("the socket was moved before")?;
        std::fs::rename(made, path).context("name the guest's socket")?;
        self.socket.0 = Some(path.to_owned());
        Ok(())
    }

    /// Joins the sandbox for good, and builds the root that it and this process have then. Nothing of the host is in
    /// reach any more: if this or what follows fails, the run record and the socket are others' to remove.
    pub(super) fn build_root(
        &mut self,
        trees: &Trees,
        plan: &LaunchPlan,
        privilege: Privilege,
    ) -> anyhow::Result<()> {
        self.hear(init::IS_READY)?;
        self.socket.0 = None;
        let one_id = privilege.has_one_id();
        let kinds = ThreadNameSpaceType::USER
            | ThreadNameSpaceType::MOUNT
            | ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME;
        move_into_thread_name_spaces(self.process.as_fd(), kinds).context("join the sandbox")?;
        init::become_root_inside(one_id)?;
        rustix::system::sethostname(plan.guest.hostname.as_bytes()).context("set hostname")?;
        let ways = Ways {
            volatile: plan.root.volatile,
            one_id,
            nesting: plan.guest.nesting,
            config_uid: plan.root.config_uid,
        };
        root::enter(trees, ways)
    }

    /// Tells the guest what for. It ends with this value all the same.
    pub(super) fn tell(&mut self, plan: &LaunchPlan) -> anyhow::Result<()> {
        let arguments = init::arguments(plan)?;
        let told = self.orders.write_all(arguments.as_bytes());
        if let Err(error) = told.and_then(|()| self.orders.shutdown(Shutdown::Write)) {
            // One that could not become the guest says why.
            self.hear_end(Vec::new())?;
            return Err(error).context("speak to the guest");
        }
        Ok(())
    }

    /// Lets the guest go, which outlives this process.
    pub(super) fn release(&mut self) -> anyhow::Result<()> {
        self.hear_end(Vec::new())?;
        self.init.released = true;
        Ok(())
    }

    /// Waits for one word, or for why it does not come.
    fn hear(&mut self, word: &[u8; 1]) -> anyhow::Result<()> {
        let mut first = [0u8; 1];
        self.wait()?;
        self.said.read_exact(&mut first).context("init died before it began")?;
        if first == *word {
            return Ok(());
        }
        self.hear_end(first.to_vec())
    }

    /// Waits until init says nothing more, because it became the guest. What it says instead is why not.
    fn hear_end(&mut self, mut words: Vec<u8>) -> anyhow::Result<()> {
        self.wait()?;
        self.said.read_to_end(&mut words).context("hear from init")?;
        if !words.is_empty() {
            bail!("{}", String::from_utf8_lossy(&words));
        }
        Ok(())
    }

    /// Waits until init says something, closes its end, or dies.
    fn wait(&self) -> anyhow::Result<()> {
        let mut fds =
            [PollFd::new(&self.said, PollFlags::IN), PollFd::new(&self.process, PollFlags::IN)];
        let limit = Timespec { tv_sec: INIT_SECONDS_MAX, tv_nsec: 0 };
        if poll(&mut fds, Some(&limit)).context("wait for init")? == 0 {
            bail!("init did not finish in {INIT_SECONDS_MAX} s");
        }
        if fds[0].revents().is_empty() {
            bail!("init was killed");
        }
        Ok(())
    }
}

/// Clones PID 1 with the range's base uid as its creator, so that the kernel's budgets (inotify,
/// pipes, keys, namespaces) are its own and no neighbour's.
fn clone_as(uid: u32, privilege: Privilege) -> anyhow::Result<Fork> {
    let base = rustix::process::Uid::from_raw(uid);
    set_thread_res_uid(None, base, None).context("become the base uid")?;
    if privilege != Privilege::Host {
        stay_visible()?;
    }
    let flags = libc::CLONE_NEWUSER | libc::CLONE_NEWPID;
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

/// Opens the egress sockets in the network of `pid`, which this process enters for good.
pub fn open_egress(pid: Pid, steering: egress::Steering) -> anyhow::Result<egress::Sockets> {
    let network = File::open(format!("/proc/{}/ns/net", pid.as_raw_nonzero()))
        .context("open the network namespace")?;
    let kind = Some(rustix::thread::LinkNameSpaceType::Network);
    rustix::thread::move_into_link_name_space(network.as_fd(), kind)
        .context("enter the network namespace")?;
    egress::open_in_current_netns(steering).context("open egress sockets")
}

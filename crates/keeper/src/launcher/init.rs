//! What PID 1 does between `clone` and `exec`: from a forked launcher to an isolated guest.

use std::borrow::Cow;
use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use anyhow::{Context, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{
    CapabilitySet, CapabilitySets, UnshareFlags, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};
use serde::{Deserialize, Serialize};

use super::Shared;
use super::rlimits;
use super::root::{self, Ahead, Trees};
use crate::plan::LaunchPlan;
use crate::privilege::Privilege;
use crate::{sys, wire};

/// The number of the listening socket in the guest.
const LISTEN_FD: RawFd = 3;
const CGROUP_FD: RawFd = 4;

/// What PID 1 becomes, and what it may start.
pub(super) struct Programs {
    pub(super) guest: OwnedFd,
    pub(super) agents: Option<OwnedFd>,
}

/// What init says and hears before it has a plan, and after.
pub(super) const HAS_NAMESPACES: &[u8; 1] = b"n";
pub(super) const IDS_ARE_MAPPED: &[u8; 1] = b"m";
pub(super) const HAS_TABLE: &[u8; 1] = b"t";
pub(super) const GO: &[u8; 1] = b"g";

/// What init has of the launcher.
pub(super) struct Ends {
    pub(super) orders: OwnedFd,
    pub(super) said: OwnedFd,
    /// The launcher's process.
    pub(super) launcher: OwnedFd,
}

/// A plan, and what the launcher opened for it in the shared table, by number.
#[derive(Serialize, Deserialize)]
pub(super) struct Order<'a> {
    plan: Cow<'a, LaunchPlan>,
    listener: RawFd,
    guest: RawFd,
    agents: Option<RawFd>,
    upper: RawFd,
    workspace: RawFd,
    layers: Vec<RawFd>,
    binds: Vec<RawFd>,
}

impl<'a> Order<'a> {
    pub(super) fn new(
        plan: &'a LaunchPlan,
        listener: &OwnedFd,
        programs: &Programs,
        trees: &Trees,
    ) -> Self {
        Self {
            plan: Cow::Borrowed(plan),
            listener: listener.as_raw_fd(),
            guest: programs.guest.as_raw_fd(),
            agents: programs.agents.as_ref().map(AsRawFd::as_raw_fd),
            upper: trees.upper.as_raw_fd(),
            workspace: trees.workspace.as_raw_fd(),
            layers: trees.layers.iter().map(AsRawFd::as_raw_fd).collect(),
            binds: trees.binds.iter().map(|(tree, _)| tree.as_raw_fd()).collect(),
        }
    }

    /// In a process that has left the shared table, which owns its copies.
    fn adopt(self) -> Adopted {
        let targets = self.plan.root.binds.iter().map(|(_, target)| target.clone());
        let trees = Trees {
            layers: self.layers.into_iter().map(take).collect(),
            upper: take(self.upper),
            workspace: take(self.workspace),
            binds: self.binds.into_iter().map(take).zip(targets).collect(),
        };
        let programs = Programs { guest: take(self.guest), agents: self.agents.map(take) };
        let plan = self.plan.into_owned();
        Adopted { plan, listener: take(self.listener), programs, trees }
    }
}

struct Adopted {
    plan: LaunchPlan,
    listener: OwnedFd,
    programs: Programs,
    trees: Trees,
}

#[expect(unsafe_code, reason = "descriptors arrive as numbers in a table that was shared")]
fn take(number: RawFd) -> OwnedFd {
    // SAFETY: the launcher opened this number in our table and names each once.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// Never returns: becomes the guest, or says which step failed and ends.
pub(super) fn run(shared: &Shared, ends: Ends, (devices, ahead): (OwnedFd, Ahead)) -> ! {
    let mut said = File::from(ends.said);
    let orders = UnixStream::from(ends.orders);
    let error = become_guest(shared, (&orders, &mut said), &ends.launcher, (devices, ahead));
    let _ = said.write_all(format!("{error:#}").as_bytes());
    sys::exit_now(111)
}

fn become_guest(
    shared: &Shared,
    (orders, said): (&UnixStream, &mut File),
    launcher: &OwnedFd,
    (devices, ahead): (OwnedFd, Ahead),
) -> anyhow::Error {
    let begun = begin(shared, (orders, &mut *said), launcher, (devices, ahead));
    let isolated = begun.and_then(|cgroup| isolate(shared, (orders, said), cgroup));
    match isolated {
        Ok((plan, programs, placed)) => {
            let failed = exec(&plan, &programs, &placed);
            anyhow::Error::from(failed).context("exec the guest")
        }
        Err(error) => error,
    }
}

/// What needs no plan. Gives the sandbox's own cgroup.
fn begin(
    shared: &Shared,
    (orders, said): (&UnixStream, &mut File),
    launcher: &OwnedFd,
    (devices, ahead): (OwnedFd, Ahead),
) -> anyhow::Result<Option<OwnedFd>> {
    tie_to(launcher)?;
    let first =
        UnshareFlags::NEWNET | UnshareFlags::NEWNS | UnshareFlags::NEWIPC | UnshareFlags::NEWUTS;
    sys::unshare(first).context("unshare namespaces")?;
    said.write_all(HAS_NAMESPACES).context("report")?;
    wait_for(IDS_ARE_MAPPED, orders)?;
    let one_id = shared.privilege.has_one_id();
    become_root_inside(one_id)?;
    if shared.privilege != Privilege::Host {
        super::begun::stay_visible()?;
    }
    // The kernel forgets it at a change of user.
    tie_to(launcher)?;
    sys::unshare(UnshareFlags::NEWCGROUP).context("unshare cgroup namespace")?;
    loopback_up().context("bring up loopback")?;
    let kind = (shared.privilege, shared.hierarchy.has_groups());
    let cgroup = root::prepare(devices, kind, ahead)?;
    bound_files()?;
    bound_capabilities()?;
    sys::unblock_signals();
    let _ = rustix::process::setsid();
    Ok(cgroup)
}

/// A launcher that is killed must not leave an init that waits for it for ever.
fn tie_to(launcher: &OwnedFd) -> anyhow::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .context("tie to the launcher")?;
    // It may have died just before.
    let mut fds = [PollFd::new(launcher, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    ensure!(poll(&mut fds, Some(&now)).is_ok_and(|ended| ended == 0), "the launcher died");
    Ok(())
}

fn isolate(
    shared: &Shared,
    (orders, said): (&UnixStream, &mut File),
    cgroup: Option<OwnedFd>,
) -> anyhow::Result<(LaunchPlan, Programs, Placed)> {
    let (order, _) = wire::receive::<Order<'static>>(orders).context("wait for a plan")?;
    sys::unshare(UnshareFlags::FILES).context("unshare descriptors")?;
    said.write_all(HAS_TABLE).context("report")?;
    let Adopted { plan, listener, programs, trees } = order.adopt();
    rustix::system::sethostname(plan.guest.hostname.as_bytes()).context("set hostname")?;
    let ways = root::Ways {
        volatile: plan.root.volatile,
        one_id: shared.privilege.has_one_id(),
        nesting: plan.guest.nesting,
        config_uid: plan.root.config_uid,
    };
    root::enter(&trees, ways)?;
    // Their numbers are wanted for the guest's own; closed later they would take those along.
    drop(trees);
    if plan.guest.no_new_privs {
        set_no_new_privs(true).context("no_new_privs")?;
    }
    if shared.privilege != Privilege::Host {
        rlimits::inside(&plan.limits, &shared.hierarchy)?;
    }
    sys::seccomp(shared.filters.of(plan.guest.nesting)).context("seccomp")?;
    keep_capabilities()?;
    let placed = place_descriptors(&listener, cgroup, programs.agents.as_ref())?;
    wait_for(GO, orders)?;
    // Nobody is waited for any more, and the guest must outlive the launcher.
    rustix::process::set_parent_process_death_signal(None).context("untie from the launcher")?;
    Ok((plan, programs, placed))
}

fn wait_for(word: &[u8; 1], mut orders: &UnixStream) -> anyhow::Result<()> {
    let mut said = [0u8; 1];
    orders.read_exact(&mut said).context("wait for the launcher")?;
    ensure!(said == *word, "the launcher spoke out of turn");
    Ok(())
}

/// Local servers must work even where nothing else does. A request of the socket layer, because it
/// is one call where route netlink takes a message and its answer.
fn loopback_up() -> anyhow::Result<()> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    #[repr(C)]
    struct InterfaceFlags {
        name: [u8; 16],
        flags: i16,
        rest: [u8; 22],
    }
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let mut request = InterfaceFlags { name: [0; 16], flags: 1, rest: [0; 22] };
    request.name[..2].copy_from_slice(b"lo");
    sys::ioctl(&socket, libc::SIOCSIFFLAGS, &mut request)?;
    Ok(())
}

fn become_root_inside(one_id: bool) -> anyhow::Result<()> {
    let gid = rustix::process::Gid::ROOT;
    set_thread_res_gid(gid, gid, gid).context("become group 0 inside")?;
    // The kernel lets nobody drop groups where only one is known.
    if !one_id {
        set_thread_groups(&[]).context("drop groups")?;
    }
    let uid = rustix::process::Uid::ROOT;
    set_thread_res_uid(uid, uid, uid).context("become root inside")
}

/// Open files of one process. Root inside cannot raise it: that takes a capability over the host.
const FILES_MAX: u64 = 16_384;

fn bound_files() -> anyhow::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let ours = getrlimit(Resource::Nofile).maximum.unwrap_or(FILES_MAX).min(FILES_MAX);
    let limit = Rlimit { current: Some(ours), maximum: Some(ours) };
    setrlimit(Resource::Nofile, limit).context("bound open files")
}

/// What root inside may keep: enough to install packages and to change users.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::SETFCAP);

/// For whatever is executed from here on.
fn bound_capabilities() -> anyhow::Result<()> {
    for bit in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        if KEPT.contains(capability) {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // Past the last capability that this kernel knows.
            Err(rustix::io::Errno::INVAL) => break,
            Err(errno) => return Err(errno).context("drop a capability"),
        }
    }
    Ok(())
}

fn keep_capabilities() -> anyhow::Result<()> {
    let sets =
        CapabilitySets { effective: KEPT, permitted: KEPT, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).context("set capabilities")
}

/// What was placed beside the listening socket, by number.
struct Placed {
    cgroup: Option<RawFd>,
    agents: Option<RawFd>,
}

/// Listening socket at 3, cgroup at 4, the standard three at /dev/null, the agent daemon's program
/// where it is; the rest is close-on-exec.
fn place_descriptors(
    listener: &OwnedFd,
    cgroup: Option<OwnedFd>,
    agents: Option<&OwnedFd>,
) -> anyhow::Result<Placed> {
    // The listener and the programs were opened above the numbers that are placed here; what has one
    // of them is moved and closed before.
    let cgroup = cgroup.map(super::high).transpose()?;
    let null = super::high(
        File::options().read(true).write(true).open("/dev/null").context("open /dev/null")?,
    )?;
    for standard in 0..=2 {
        sys::dup_to(null.as_fd(), standard).context("standard descriptors")?;
    }
    sys::dup_to(listener.as_fd(), LISTEN_FD).context("place the listener")?;
    let mut first_other = CGROUP_FD;
    if let Some(cgroup) = &cgroup {
        sys::dup_to(cgroup.as_fd(), CGROUP_FD).context("place the cgroup")?;
        first_other += 1;
    }
    sys::close_from_at_exec(first_other.cast_unsigned()).context("close the rest")?;
    if let Some(agents) = agents {
        // It stays where it is: lower numbers are still in use here.
        rustix::io::fcntl_setfd(agents, rustix::io::FdFlags::empty())
            .context("keep the agent daemon")?;
    }
    let agents = agents.map(AsRawFd::as_raw_fd);
    Ok(Placed { cgroup: cgroup.map(|_| CGROUP_FD), agents })
}

fn exec(plan: &LaunchPlan, programs: &Programs, placed: &Placed) -> std::io::Error {
    let listen = LISTEN_FD.to_string();
    let mut words = vec![
        "guestd",
        "--listen-fd",
        &listen,
        "--nonce",
        &plan.nonce,
        "--user",
        &plan.guest.user,
        "--workdir",
        &plan.guest.workdir,
    ];
    let (cgroup, agents) =
        (placed.cgroup.map(|n| n.to_string()), placed.agents.map(|n| n.to_string()));
    words.extend(cgroup.iter().flat_map(|number| ["--cgroup-fd", number.as_str()]));
    words.extend(agents.iter().flat_map(|number| ["--agents-fd", number.as_str()]));
    let argv: Result<Vec<CString>, _> = words.iter().map(|word| CString::new(*word)).collect();
    let Ok(argv) = argv else {
        return std::io::Error::other("a guest argument contains a NUL byte");
    };
    let path = c"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned();
    sys::execveat(programs.guest.as_fd(), &argv, &[path])
}

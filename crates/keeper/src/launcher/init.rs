//! What PID 1 does between `clone` and `exec`: from a forked launcher to an isolated guest.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use anyhow::Context;
use rustix::thread::{
    CapabilitySet, CapabilitySets, UnshareFlags, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use super::Shared;
use super::rlimits;
use super::root::{self, Trees};
use crate::plan::LaunchPlan;
use crate::privilege::Privilege;
use crate::sys;

/// The number of the listening socket in the guest.
const LISTEN_FD: RawFd = 3;
const CGROUP_FD: RawFd = 4;

/// What PID 1 becomes, and what it may start.
pub(super) struct Programs {
    pub(super) guest: OwnedFd,
    pub(super) agents: Option<OwnedFd>,
}

/// init's ends of the two pipes.
pub(super) struct Ends {
    pub(super) go: OwnedFd,
    pub(super) said: OwnedFd,
}

/// Numbers of descriptors that the launcher opened in the shared table after the clone.
pub(super) struct Handed(String);

impl Handed {
    pub(super) fn numbers(trees: &Trees) -> Self {
        let mut numbers =
            vec![trees.upper.as_raw_fd(), trees.workspace.as_raw_fd(), trees.devices.as_raw_fd()];
        numbers.extend(trees.layers.iter().map(AsRawFd::as_raw_fd));
        numbers.extend(trees.binds.iter().map(|(tree, _)| tree.as_raw_fd()));
        Self(numbers.iter().map(|n| format!("{n} ")).collect())
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// Never returns: becomes the guest, or says which step failed and ends.
pub(super) fn run(
    plan: &LaunchPlan,
    shared: &Shared,
    ends: Ends,
    listener: &OwnedFd,
    programs: &Programs,
) -> ! {
    let mut said = File::from(ends.said);
    let error = become_guest(plan, shared, (ends.go, &mut said), listener, programs);
    let _ = said.write_all(format!("{error:#}").as_bytes());
    sys::exit_now(111)
}

fn become_guest(
    plan: &LaunchPlan,
    shared: &Shared,
    (go, said): (OwnedFd, &mut File),
    listener: &OwnedFd,
    programs: &Programs,
) -> anyhow::Error {
    match isolate(plan, shared, (go, said), (listener, programs)) {
        Ok(placed) => {
            let failed = exec(plan, programs, &placed);
            anyhow::Error::from(failed).context("exec the guest")
        }
        Err(error) => error,
    }
}

fn isolate(
    plan: &LaunchPlan,
    shared: &Shared,
    (go, said): (OwnedFd, &mut File),
    (listener, programs): (&OwnedFd, &Programs),
) -> anyhow::Result<Placed> {
    // A launcher that is killed must not leave an init that waits for it for ever.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .context("tie to the launcher")?;
    let first =
        UnshareFlags::NEWNET | UnshareFlags::NEWNS | UnshareFlags::NEWIPC | UnshareFlags::NEWUTS;
    sys::unshare(first).context("unshare namespaces")?;
    let numbers = wait_for(go)?;
    sys::unshare(UnshareFlags::FILES).context("unshare descriptors")?;
    said.write_all(b".").context("report")?;
    let trees = adopt(plan, &numbers)?;
    let one_id = shared.privilege.has_one_id();
    become_root_inside(one_id)?;
    if shared.privilege != Privilege::Host {
        super::stay_visible()?;
    }
    // Nobody is waited for any more, and the guest must outlive the launcher. The kernel forgets it at
    // a change of user too, but with one id there was none.
    rustix::process::set_parent_process_death_signal(None).context("untie from the launcher")?;
    sys::unshare(UnshareFlags::NEWCGROUP).context("unshare cgroup namespace")?;
    rustix::system::sethostname(plan.guest.hostname.as_bytes()).context("set hostname")?;
    loopback_up().context("bring up loopback")?;
    let groups = shared.hierarchy.has_groups();
    let ways = root::Ways {
        volatile: plan.root.volatile,
        one_id,
        groups,
        nesting: plan.guest.nesting,
        config_uid: plan.root.config_uid,
    };
    let cgroup = root::enter(&trees, ways)?;
    // Their numbers are wanted for the guest's own; closed later they would take those along.
    drop(trees);
    bound_files()?;
    sys::unblock_signals();
    let _ = rustix::process::setsid();
    if plan.guest.no_new_privs {
        set_no_new_privs(true).context("no_new_privs")?;
    }
    if shared.privilege != Privilege::Host {
        rlimits::inside(&plan.limits, &shared.hierarchy)?;
    }
    sys::seccomp(shared.filters.of(plan.guest.nesting)).context("seccomp")?;
    drop_capabilities()?;
    place_descriptors(listener, cgroup, programs.agents.as_ref())
}

fn wait_for(go: OwnedFd) -> anyhow::Result<Vec<RawFd>> {
    let mut text = String::new();
    let mut go = File::from(go);
    // The launcher's end is in the shared table and so never reads as end-of-file by itself: the
    // message is one write, well under what a pipe passes whole.
    let mut buffer = [0u8; 1024];
    let count = go.read(&mut buffer).context("wait for the launcher")?;
    text.push_str(std::str::from_utf8(&buffer[..count])?);
    let numbers: Result<Vec<RawFd>, _> = text.split_whitespace().map(str::parse).collect();
    // Close-on-exec ends it; dropping it here would close the launcher's number too.
    std::mem::forget(go);
    numbers.context("numbers from the launcher")
}

/// Takes the descriptors that the launcher opened before this process left the shared table.
fn adopt(plan: &LaunchPlan, numbers: &[RawFd]) -> anyhow::Result<Trees> {
    let mut fds = numbers.iter().map(|number| take(*number));
    let mut next = || fds.next().context("too few descriptors from the launcher");
    let upper = next()?;
    let workspace = next()?;
    let devices = next()?;
    let mut layers = Vec::new();
    for _ in &plan.root.layers {
        layers.push(next()?);
    }
    let mut binds = Vec::new();
    for (_, target) in &plan.root.binds {
        binds.push((next()?, target.clone()));
    }
    Ok(Trees { layers, upper, workspace, binds, devices })
}

#[expect(unsafe_code, reason = "descriptors arrive as numbers in a table that was shared")]
fn take(number: RawFd) -> OwnedFd {
    // SAFETY: the launcher opened this number in our table and names each once.
    unsafe { OwnedFd::from_raw_fd(number) }
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

fn drop_capabilities() -> anyhow::Result<()> {
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

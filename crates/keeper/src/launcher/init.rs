//! What PID 1 does between `clone` and `exec`: from a forked launcher to a guest that waits behind its walls.

use std::convert::Infallible;
use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use anyhow::{Context, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::set_parent_process_death_signal;
use rustix::thread::{
    CapabilitySet, CapabilitySets, UnshareFlags, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use super::{Shared, rlimits, root};
use crate::plan::{LaunchPlan, Outline};
use crate::privilege::Privilege;
use crate::sys;

/// The number of the listening socket in the guest.
const LISTEN_FD: RawFd = 3;
const CGROUP_FD: RawFd = 4;

/// What init says and hears.
pub(super) const HAS_NAMESPACES: &[u8; 1] = b"n";
pub(super) const IDS_ARE_MAPPED: &[u8; 1] = b"m";
pub(super) const IS_READY: &[u8; 1] = b"r";

/// Behind the last argument of the guest.
const GO: &str = "--go";

/// What the launcher opened for init.
pub(super) struct Given {
    pub(super) orders: UnixStream,
    /// The launcher's process.
    pub(super) launcher: OwnedFd,
    pub(super) devices: OwnedFd,
    pub(super) listener: OwnedFd,
    /// The program that PID 1 becomes, and the one that it may start.
    pub(super) guest: OwnedFd,
    pub(super) agents: Option<OwnedFd>,
}

/// What the guest is told once there is a plan: how it answers and as whom it runs commands.
pub(super) fn arguments(plan: &LaunchPlan) -> anyhow::Result<String> {
    let guest = &plan.guest;
    let words = ["--nonce", &plan.nonce, "--user", &guest.user, "--workdir", &guest.workdir, GO];
    ensure!(!words.iter().any(|word| word.contains('\0')), "a guest argument contains a NUL byte");
    Ok(words.map(|word| format!("{word}\0")).concat())
}

/// Never returns: becomes the guest, or says which step failed and ends.
pub(super) fn run(shared: &Shared, outline: &Outline, (given, said): (Given, OwnedFd)) -> ! {
    let mut said = File::from(said);
    let Err(error) = become_guest(shared, outline, given, &mut said);
    let _ = said.write_all(format!("{error:#}").as_bytes());
    sys::exit_now(111)
}

fn become_guest(
    shared: &Shared,
    outline: &Outline,
    given: Given,
    said: &mut File,
) -> anyhow::Result<Infallible> {
    let Given { orders, launcher, devices, listener, guest, agents } = given;
    let cgroup = isolate(shared, outline, (&orders, &mut *said, &launcher), devices)?;
    confine(shared, outline)?;
    let mut words = place_descriptors(&listener, cgroup, agents.as_ref())?;
    said.write_all(IS_READY).context("report")?;
    if outline.can_wait {
        fcntl_setfd(&orders, FdFlags::empty()).context("keep the way to the launcher")?;
        words.extend(["--arguments-fd".to_owned(), orders.as_raw_fd().to_string()]);
    } else {
        words.extend(rest_of_arguments(&orders)?);
    }
    // A guest that runs outlives the launcher, and one that waits hears of its end.
    set_parent_process_death_signal(None).context("untie from the launcher")?;
    let words = words.into_iter().map(CString::new);
    let words: Vec<_> = words.collect::<Result<_, _>>().context("an argument")?;
    let path = c"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned();
    Err(sys::execveat(guest.as_fd(), &words, &[path])).context("exec the guest")
}

/// For a guest that has to have them all when it is started.
fn rest_of_arguments(mut orders: &UnixStream) -> anyhow::Result<Vec<String>> {
    let mut text = String::new();
    orders.read_to_string(&mut text).context("wait for the launcher")?;
    let text = text.strip_suffix(&format!("{GO}\0")).context("nobody wants it any more")?;
    Ok(text.split_terminator('\0').map(str::to_owned).collect())
}

/// Gives the sandbox's own cgroup.
fn isolate(
    shared: &Shared,
    outline: &Outline,
    (orders, said, launcher): (&UnixStream, &mut File, &OwnedFd),
    devices: OwnedFd,
) -> anyhow::Result<Option<OwnedFd>> {
    tie_to(launcher)?;
    // The keeper's are not for sandboxes.
    let _ = sys::set_turn(0);
    let first =
        UnshareFlags::NEWNET | UnshareFlags::NEWNS | UnshareFlags::NEWIPC | UnshareFlags::NEWUTS;
    sys::unshare(first).context("unshare namespaces")?;
    said.write_all(HAS_NAMESPACES).context("report")?;
    wait_for(IDS_ARE_MAPPED, orders)?;
    become_root_inside(shared.privilege.has_one_id())?;
    if shared.privilege != Privilege::Host {
        super::begun::stay_visible()?;
    }
    // The kernel forgets it at a change of user.
    tie_to(launcher)?;
    sys::unshare(UnshareFlags::NEWCGROUP).context("unshare cgroup namespace")?;
    loopback_up().context("bring up loopback")?;
    let kind = (shared.privilege, shared.hierarchy.has_groups());
    root::prepare(devices, kind, outline.nesting)
}

/// A launcher that is killed must not leave an init that waits for it for ever.
fn tie_to(launcher: &OwnedFd) -> anyhow::Result<()> {
    set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .context("tie to the launcher")?;
    // It may have died just before.
    let mut fds = [PollFd::new(launcher, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    ensure!(poll(&mut fds, Some(&now)).is_ok_and(|ended| ended == 0), "the launcher died");
    Ok(())
}

/// All walls but the root directory, which the launcher moves it into.
fn confine(shared: &Shared, outline: &Outline) -> anyhow::Result<()> {
    bound_files()?;
    bound_capabilities()?;
    sys::unblock_signals();
    let _ = rustix::process::setsid();
    if outline.no_new_privs {
        set_no_new_privs(true).context("no_new_privs")?;
    }
    if shared.privilege != Privilege::Host {
        rlimits::inside(&outline.limits, &shared.hierarchy)?;
    }
    sys::seccomp(shared.filters.of(outline.nesting)).context("seccomp")?;
    keep_capabilities()
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

pub(super) fn become_root_inside(one_id: bool) -> anyhow::Result<()> {
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

/// Listening socket at 3, cgroup at 4, the standard three at /dev/null, the agent daemon's program
/// where it is; the rest is close-on-exec. Gives the arguments that say so.
fn place_descriptors(
    listener: &OwnedFd,
    cgroup: Option<OwnedFd>,
    agents: Option<&OwnedFd>,
) -> anyhow::Result<Vec<String>> {
    // The listener and the programs were opened above the numbers that are placed here; what has one
    // of them is moved and closed before.
    let cgroup = cgroup.map(super::high).transpose()?;
    let null = super::high(
        File::options().read(true).write(true).open("/dev/null").context("open /dev/null")?,
    )?;
    for standard in 0..=2 {
        sys::dup_to(null.as_fd(), standard).context("standard descriptors")?;
    }
    let mut words = vec!["guestd".to_owned(), "--listen-fd".to_owned(), LISTEN_FD.to_string()];
    sys::dup_to(listener.as_fd(), LISTEN_FD).context("place the listener")?;
    let mut first_other = CGROUP_FD;
    if let Some(cgroup) = &cgroup {
        sys::dup_to(cgroup.as_fd(), CGROUP_FD).context("place the cgroup")?;
        first_other += 1;
        words.extend(["--cgroup-fd".to_owned(), CGROUP_FD.to_string()]);
    }
    sys::close_from_at_exec(first_other.cast_unsigned()).context("close the rest")?;
    if let Some(agents) = agents {
        // It stays where it is: lower numbers are still in use here.
        fcntl_setfd(agents, FdFlags::empty()).context("keep the agent daemon")?;
        words.extend(["--agents-fd".to_owned(), agents.as_raw_fd().to_string()]);
    }
    Ok(words)
}

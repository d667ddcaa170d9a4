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
use super::root::{self, Trees};
use crate::plan::LaunchPlan;
use crate::sys;

/// The number of the listening socket in the guest.
const LISTEN_FD: RawFd = 3;
/// The number of its cgroup directory.
const CGROUP_FD: RawFd = 4;

/// init's ends of the two pipes.
pub(super) struct Ends {
    pub(super) go: OwnedFd,
    pub(super) said: OwnedFd,
}

/// Numbers of descriptors that the launcher opened in the shared table after the clone.
pub(super) struct Handed(String);

impl Handed {
    pub(super) fn numbers(trees: &Trees, cgroup: &File) -> Self {
        let mut numbers = vec![
            cgroup.as_raw_fd(),
            trees.upper.as_raw_fd(),
            trees.workspace.as_raw_fd(),
            trees.devices.as_raw_fd(),
        ];
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
    guest: &OwnedFd,
) -> ! {
    let mut said = File::from(ends.said);
    let error = become_guest(plan, shared, (ends.go, &mut said), listener, guest);
    let _ = said.write_all(format!("{error:#}").as_bytes());
    sys::exit_now(111)
}

fn become_guest(
    plan: &LaunchPlan,
    shared: &Shared,
    (go, said): (OwnedFd, &mut File),
    listener: &OwnedFd,
    guest: &OwnedFd,
) -> anyhow::Error {
    match isolate(plan, shared, (go, said), listener) {
        Ok(()) => anyhow::Error::from(exec(plan, guest)).context("exec the guest"),
        Err(error) => error,
    }
}

fn isolate(
    plan: &LaunchPlan,
    shared: &Shared,
    (go, said): (OwnedFd, &mut File),
    listener: &OwnedFd,
) -> anyhow::Result<()> {
    // A launcher that is killed must not leave an init that waits for it for ever. The kernel
    // forgets this at the change of user below, when nobody is waited for any more.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .context("tie to the launcher")?;
    let first =
        UnshareFlags::NEWNET | UnshareFlags::NEWNS | UnshareFlags::NEWIPC | UnshareFlags::NEWUTS;
    unshare(first).context("unshare namespaces")?;
    let numbers = wait_for(go)?;
    unshare(UnshareFlags::FILES).context("unshare descriptors")?;
    said.write_all(b".").context("report")?;
    let (trees, cgroup) = adopt(plan, &numbers)?;
    become_root_inside()?;
    unshare(UnshareFlags::NEWCGROUP).context("unshare cgroup namespace")?;
    rustix::system::sethostname(plan.guest.hostname.as_bytes()).context("set hostname")?;
    loopback_up().context("bring up loopback")?;
    root::enter(&trees, plan.root.volatile)?;
    sys::unblock_signals();
    let _ = rustix::process::setsid();
    if plan.guest.no_new_privs {
        set_no_new_privs(true).context("no_new_privs")?;
    }
    sys::seccomp(&shared.filter).context("seccomp")?;
    drop_capabilities()?;
    place_descriptors(listener, &cgroup)
}

#[expect(unsafe_code, reason = "unsharing descriptors needs a promise about who else uses them")]
fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    // SAFETY: single-threaded; the launcher's descriptors that this process uses are open.
    unsafe { rustix::thread::unshare_unsafe(flags) }
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
#[expect(unsafe_code, reason = "descriptors arrive as numbers in a table that was shared")]
fn adopt(plan: &LaunchPlan, numbers: &[RawFd]) -> anyhow::Result<(Trees, OwnedFd)> {
    let mut fds = numbers.iter().map(|&number| {
        // SAFETY: the launcher opened this number in our table and names each once.
        unsafe { OwnedFd::from_raw_fd(number) }
    });
    let mut next = || fds.next().context("too few descriptors from the launcher");
    let cgroup = next()?;
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
    Ok((Trees { layers, upper, workspace, binds, devices }, cgroup))
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

fn become_root_inside() -> anyhow::Result<()> {
    let gid = rustix::process::Gid::ROOT;
    set_thread_res_gid(gid, gid, gid).context("become group 0 inside")?;
    set_thread_groups(&[]).context("drop groups")?;
    let uid = rustix::process::Uid::ROOT;
    set_thread_res_uid(uid, uid, uid).context("become root inside")
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

/// Listening socket at 3, cgroup at 4, the standard three at /dev/null; the rest is close-on-exec.
fn place_descriptors(listener: &OwnedFd, cgroup: &OwnedFd) -> anyhow::Result<()> {
    let null =
        File::options().read(true).write(true).open("/dev/null").context("open /dev/null")?;
    // The listener and the guest's file were opened above the numbers that are placed here.
    let cgroup = rustix::io::fcntl_dupfd_cloexec(cgroup, 64).context("move the cgroup")?;
    for standard in 0..=2 {
        sys::dup_to(null.as_fd(), standard).context("standard descriptors")?;
    }
    sys::dup_to(listener.as_fd(), LISTEN_FD).context("place the listener")?;
    sys::dup_to(cgroup.as_fd(), CGROUP_FD).context("place the cgroup")?;
    sys::close_from_at_exec(5).context("close the rest")
}

fn exec(plan: &LaunchPlan, guest: &OwnedFd) -> std::io::Error {
    let listen = LISTEN_FD.to_string();
    let cgroup = CGROUP_FD.to_string();
    let words = [
        "guestd",
        "--listen-fd",
        &listen,
        "--cgroup-fd",
        &cgroup,
        "--nonce",
        &plan.nonce,
        "--user",
        &plan.guest.user,
        "--workdir",
        &plan.guest.workdir,
    ];
    let argv: Result<Vec<CString>, _> = words.iter().map(|word| CString::new(*word)).collect();
    let Ok(argv) = argv else {
        return std::io::Error::other("a guest argument contains a NUL byte");
    };
    let path = c"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned();
    sys::execveat(guest.as_fd(), &argv, &[path])
}

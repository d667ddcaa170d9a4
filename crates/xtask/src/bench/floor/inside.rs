//! The floor's side inside: from a cloned process to an isolated PID 1 that runs `/bin/true`.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags,
    UnmountFlags, fsconfig_create, fsconfig_set_fd, fsconfig_set_flag, fsmount, fsopen, mount,
    mount_change, move_mount, unmount,
};
use rustix::process::{Gid, Signal, Uid, chdir, pivot_root, set_parent_process_death_signal};
use rustix::thread::{
    CapabilitySet, CapabilitySets, UnshareFlags, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use super::sys;

pub(super) struct Handed {
    pub(super) control: OwnedFd,
    pub(super) answers: OwnedFd,
    /// Holds `upper` and `work`.
    pub(super) dir: PathBuf,
    /// A directory with `lower` and `root` to mount on.
    pub(super) scratch: PathBuf,
}

pub(super) fn main(handed: Handed) -> ! {
    let Handed { control, answers, dir, scratch } = handed;
    let mut answers = File::from(answers);
    let ended = run(File::from(control), &mut answers, &dir, &scratch);
    if let Err(error) = ended {
        let _ = answers.write_all(format!("-{error:#}").as_bytes());
    }
    std::process::exit(0)
}

fn run(mut control: File, answers: &mut File, dir: &Path, scratch: &Path) -> anyhow::Result<()> {
    let lower = read_number(&mut control)?;
    sys::unshare(UnshareFlags::FILES).context("unshare descriptors")?;
    answers.write_all(b".")?;
    let lower = sys::adopt(lower);
    set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT)?;
    set_thread_groups(&[])?;
    set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT)?;
    // Only now: the kernel forgets it when a process changes its user.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    sys::unshare(UnshareFlags::NEWCGROUP)?;
    rustix::system::sethostname(b"floor")?;
    root(&lower, dir, scratch)?;
    drop_capabilities()?;
    set_no_new_privs(true)?;
    sys::seccomp(&REFUSED).context("seccomp")?;
    let mut byte = [0];
    while control.read(&mut byte)? == 1 {
        let status = Command::new("/bin/true").env_clear().status().context("run /bin/true")?;
        if !status.success() {
            bail!("/bin/true: {status}");
        }
        answers.write_all(b"+")?;
    }
    Ok(())
}

fn read_number(control: &mut File) -> anyhow::Result<i32> {
    let mut text = [0; 16];
    let length = control.read(&mut text)?;
    let text = std::str::from_utf8(&text[..length])?;
    text.trim().parse().with_context(|| format!("not a descriptor: {text:?}"))
}

fn root(lower: &OwnedFd, dir: &Path, at: &Path) -> anyhow::Result<()> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    attach(lower, &at.join("lower"))?;
    // The overlay takes only what is in our own mount namespace, so these are opened here.
    let (upper, work) = (File::open(dir.join("upper"))?, File::open(dir.join("work"))?);
    let overlay = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_fd(overlay.as_fd(), "lowerdir+", lower.as_fd()).context("lower")?;
    fsconfig_set_fd(overlay.as_fd(), "upperdir", upper.as_fd()).context("upper")?;
    fsconfig_set_fd(overlay.as_fd(), "workdir", work.as_fd()).context("work")?;
    fsconfig_set_flag(overlay.as_fd(), "userxattr")?;
    fsconfig_set_flag(overlay.as_fd(), "volatile")?;
    fsconfig_create(overlay.as_fd()).context("overlay")?;
    let flags = FsMountFlags::FSMOUNT_CLOEXEC;
    let tree = fsmount(overlay.as_fd(), flags, MountAttrFlags::MOUNT_ATTR_NODEV)?;
    let root = at.join("root");
    attach(&tree, &root)?;
    chdir(&root)?;
    let usual = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", "proc", "proc", usual, None).context("proc")?;
    mount("tmpfs", "dev", "tmpfs", MountFlags::NOSUID, None).context("dev")?;
    for device in ["null", "zero", "full", "random", "urandom", "tty"] {
        let (host, ours) = (format!("/dev/{device}"), format!("dev/{device}"));
        File::create(&ours)?;
        mount(&host, &ours, "", MountFlags::BIND, None).with_context(|| host.clone())?;
    }
    mount("tmpfs", "tmp", "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, None)?;
    for hidden in ["proc/sys", "proc/irq", "proc/bus"] {
        mount(hidden, hidden, "", MountFlags::BIND, None)?;
        let flags = MountFlags::BIND | MountFlags::RDONLY;
        rustix::mount::mount_remount(hidden, flags, "").with_context(|| hidden.to_owned())?;
    }
    pivot_root(".", ".").context("pivot_root")?;
    unmount(".", UnmountFlags::DETACH)?;
    chdir("/").map_err(Into::into)
}

fn attach(tree: &OwnedFd, at: &Path) -> anyhow::Result<()> {
    move_mount(tree, "", rustix::fs::CWD, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .with_context(|| format!("attach to {}", at.display()))
}

fn drop_capabilities() -> anyhow::Result<()> {
    let kept = CapabilitySet::CHOWN | CapabilitySet::SETUID | CapabilitySet::SETGID;
    let kept = kept | CapabilitySet::DAC_OVERRIDE | CapabilitySet::KILL | CapabilitySet::SYS_ADMIN;
    for bit in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        match remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // Past the last capability that this kernel knows.
            Err(rustix::io::Errno::INVAL) => break,
            Err(errno) => return Err(errno).context("drop a capability"),
        }
    }
    let sets =
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).context("set capabilities")
}

/// Fifty calls that no program here needs, `io_uring` among them: the length of a usual deny list.
/// `clone3` (435), with which the C library starts programs, is between the two ranges.
const REFUSED: [u32; 50] = {
    let mut calls = [0; 50];
    let (mut index, mut call) = (0, 425);
    while index < 50 {
        calls[index] = call;
        index += 1;
        call = if call == 434 { 460 } else { call + 1 };
    }
    calls
};

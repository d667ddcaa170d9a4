//! How an ordinary user becomes root of a user namespace, with mounts of its own.
//!
//! Servers and keepers of one data directory share one namespace, because only who is in it may
//! enter the namespaces of its sandboxes: a server joins the namespace of the keeper, or of a sandbox,
//! that runs already, and makes one otherwise. The namespace lives as long as somebody is in it.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{WaitOptions, getgid, getuid, waitpid};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use super::{Privilege, subids};
use crate::sys::{self, Fork};
use crate::{process, run_record};

/// Makes this process root: of the host if it is that already, else of a user namespace, the one in
/// which the sandboxes of `data_dir` run if any do. The process must have a single thread.
///
/// # Errors
/// What the host does not let an ordinary user do, and how that is changed.
pub fn enter(data_dir: &Path) -> anyhow::Result<Privilege> {
    if rustix::process::geteuid().is_root() {
        return Ok(Privilege::current());
    }
    match namespace_of(data_dir) {
        Some(namespace) => {
            let kind = Some(LinkNameSpaceType::User);
            move_into_link_name_space(namespace.as_fd(), kind)
                .context("join the user namespace of this data directory's sandboxes")?;
        }
        None => make()?,
    }
    // Linux security modules let the namespace be made and then take its rights away.
    sys::unshare(UnshareFlags::NEWNS)
        .map_err(|errno| refused("user namespaces have no rights on this host", &errno))?;
    let privilege = Privilege::current();
    if !privilege.has_one_id() {
        share_out();
    }
    Ok(privilege)
}

/// The kernel counts what sandboxes use for whoever made their user namespace, each somebody else,
/// and all of it for the user: nobody gets more than a part. A kernel that refuses has no such count.
fn share_out() {
    for (limit, default) in [("max_inotify_instances", 32), ("max_inotify_watches", 16_384)] {
        let _ = fs::write(Path::new("/proc/sys/user").join(limit), default.to_string());
    }
}

/// The user namespace of the keeper of a data directory, or the one that its guests' were made in.
fn namespace_of(data_dir: &Path) -> Option<OwnedFd> {
    namespace_of_keeper(data_dir).or_else(|| namespace_of_guests(data_dir))
}

fn namespace_of_keeper(data_dir: &Path) -> Option<OwnedFd> {
    let connection = UnixStream::connect(process::socket_path(data_dir)).ok()?;
    let peer = rustix::net::sockopt::socket_peercred(&connection).ok()?;
    let pid = peer.pid.as_raw_nonzero();
    File::open(format!("/proc/{pid}/ns/user")).ok().map(OwnedFd::from)
}

fn namespace_of_guests(data_dir: &Path) -> Option<OwnedFd> {
    let boot_id = run_record::boot_id().ok()?;
    for entry in fs::read_dir(data_dir.join("sandboxes")).ok()?.flatten() {
        let Ok(Some(record)) = run_record::read(&entry.path().join("run.json")) else { continue };
        if record.boot_id != boot_id || !crate::incarnation::holds(&record) {
            continue;
        }
        let Ok(guest) = File::open(format!("/proc/{}/ns/user", record.pid)) else { continue };
        if let Ok(parent) = sys::parent_namespace(&guest) {
            return Some(parent);
        }
    }
    None
}

fn make() -> anyhow::Result<()> {
    let (uid, gid) = (getuid().as_raw(), getgid().as_raw());
    match subids::of_user(uid, gid) {
        Ok(maps) => make_with_range(&maps),
        Err(_) => make_with_one_id(uid, gid),
    }
}

/// The programs that may write a map of many ids check that they are asked by the user from outside
/// the namespace, so a child stays outside to ask them.
fn make_with_range(maps: &subids::Maps) -> anyhow::Result<()> {
    let (go_read, go_write) = pipe_with(PipeFlags::CLOEXEC)?;
    let (said_read, said_write) = pipe_with(PipeFlags::CLOEXEC)?;
    let target = rustix::process::getpid();
    match sys::fork().context("fork")? {
        Fork::Child => {
            drop(go_write);
            let mut go = File::from(go_read);
            let mut byte = [0u8; 1];
            if go.read_exact(&mut byte).is_ok() {
                let target = target.as_raw_nonzero().to_string();
                let words = map_ids(&target, maps);
                let _ = File::from(said_write).write_all(words.as_bytes());
            }
            sys::exit_now(0)
        }
        Fork::Parent(child) => {
            drop(said_write);
            let made = new_user_namespace();
            if made.is_ok() {
                File::from(go_write).write_all(b".").context("ask for the map")?;
            } else {
                drop(go_write);
            }
            let mut words = String::new();
            let heard = File::from(said_read).read_to_string(&mut words);
            let _ = waitpid(Some(child), WaitOptions::empty());
            made?;
            heard.context("hear about the map")?;
            if !words.is_empty() {
                bail!(
                    "{words}\nhint: see newuidmap(1); newuidmap and newgidmap must be setuid root"
                );
            }
            Ok(())
        }
    }
}

/// What went wrong, or nothing.
fn map_ids(target: &str, maps: &subids::Maps) -> String {
    for (program, numbers) in [(&maps.new_uid_map, &maps.uids), (&maps.new_gid_map, &maps.gids)] {
        let numbers = numbers.iter().map(u32::to_string);
        let output = Command::new(program).arg(target).args(numbers).output();
        match output {
            Ok(output) if output.status.success() => {}
            Ok(output) => return String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            Err(error) => return format!("run {}: {error}", program.display()),
        }
    }
    String::new()
}

fn make_with_one_id(uid: u32, gid: u32) -> anyhow::Result<()> {
    new_user_namespace()?;
    let write = |file: &str, text: &str| {
        fs::write(format!("/proc/self/{file}"), text)
            .map_err(|error| refused(&format!("write {file}"), &error))
    };
    write("setgroups", "deny")?;
    write("uid_map", &format!("0 {uid} 1"))?;
    write("gid_map", &format!("0 {gid} 1"))
}

fn new_user_namespace() -> anyhow::Result<()> {
    sys::unshare(UnshareFlags::NEWUSER)
        .map_err(|errno| refused("make a user namespace, which running without root needs", &errno))
}

/// The hint comes last, where it is looked for.
fn refused(what: &str, error: &dyn std::error::Error) -> anyhow::Error {
    anyhow::anyhow!("{what}: {error}\nhint: {}", hint())
}

/// The switch of this host that is most likely off.
fn hint() -> &'static str {
    let is = |file: &str, value: &str| {
        fs::read_to_string(Path::new("/proc/sys").join(file)).is_ok_and(|text| text.trim() == value)
    };
    if is("kernel/apparmor_restrict_unprivileged_userns", "1") {
        return "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0, or run as root";
    }
    if is("kernel/unprivileged_userns_clone", "0") {
        return "sudo sysctl kernel.unprivileged_userns_clone=1, or run as root";
    }
    if is("user/max_user_namespaces", "0") {
        return "sudo sysctl user.max_user_namespaces=15000, or run as root";
    }
    "run as root; in a container, its seccomp profile has to allow unshare"
}

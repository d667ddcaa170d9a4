//! One cgroup per command, made under the guest's own (version 2, handed in as a directory), so that
//! ending a command ends everything that it started, whatever sessions that went into.
//!
//! Making and removing a cgroup costs more than starting a small program, so cgroups that have run
//! empty are used again.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::sys::ChildCgroup;
use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, openat, unlinkat};

/// Empty cgroups that are kept.
const SPARE_MAX: u32 = 4;

/// Where the cgroups of commands are made.
#[derive(Debug)]
pub(crate) struct Cgroups {
    root: OwnedFd,
    next: AtomicU64,
    /// Those whose command has ended; most of them are empty.
    left: Mutex<Vec<Cgroup>>,
}

/// The cgroup of one command.
#[derive(Debug)]
pub(crate) struct Cgroup {
    name: String,
    directory: OwnedFd,
    procs: OwnedFd,
    /// Whatever is born in a cgroup that was killed once is killed too (the kernel compares how
    /// often with the parent's cgroup), so such a one is not used again.
    killed: AtomicBool,
}

impl Cgroups {
    pub(crate) fn new(root: OwnedFd) -> Arc<Self> {
        Arc::new(Self { root, next: AtomicU64::new(1), left: Mutex::new(Vec::new()) })
    }

    /// An empty cgroup, used before or new.
    pub(crate) fn take(&self) -> io::Result<Cgroup> {
        {
            let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(index) = left.iter().position(Cgroup::is_usable) {
                return Ok(left.swap_remove(index));
            }
        }
        let name = format!("x-{}", self.next.fetch_add(1, Ordering::Relaxed));
        mkdirat(&self.root, &name, Mode::from_raw_mode(0o755))?;
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let directory = openat(&self.root, &name, flags, Mode::empty())?;
        let procs =
            openat(&directory, "cgroup.procs", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Cgroup { name, directory, procs, killed: AtomicBool::new(false) })
    }

    /// Takes back the cgroup of a command that has ended, though what it started may still run.
    pub(crate) fn give_back(&self, cgroup: Cgroup) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.push(cgroup);
        let mut spare = 0;
        left.retain(|cgroup| {
            if !cgroup.is_empty() {
                return true;
            }
            spare += u32::from(cgroup.is_usable());
            (spare <= SPARE_MAX && cgroup.is_usable())
                || unlinkat(&self.root, &cgroup.name, AtFlags::REMOVEDIR).is_err()
        });
    }
}

impl Cgroup {
    pub(crate) fn for_child(&self) -> ChildCgroup<'_> {
        ChildCgroup { directory: self.directory.as_fd(), procs: self.procs.as_fd() }
    }

    /// Ends everything in it.
    pub(crate) fn kill(&self) -> io::Result<()> {
        self.killed.store(true, Ordering::Relaxed);
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let kill = openat(&self.directory, "cgroup.kill", flags, Mode::empty())?;
        rustix::io::write(&kill, b"1")?;
        Ok(())
    }

    fn is_usable(&self) -> bool {
        !self.killed.load(Ordering::Relaxed) && self.is_empty()
    }

    fn is_empty(&self) -> bool {
        is_empty(self.directory.as_fd())
    }

    /// To see when everything in it is gone, whoever has it then.
    pub(crate) fn members(&self) -> io::Result<Members> {
        Ok(Members(self.directory.try_clone()?))
    }
}

/// What is in a cgroup.
pub(crate) struct Members(OwnedFd);

impl Members {
    pub(crate) fn are_gone(&self) -> bool {
        is_empty(self.0.as_fd())
    }
}

/// One that was removed is empty.
fn is_empty(directory: BorrowedFd<'_>) -> bool {
    let mut events = [0; 128];
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    match openat(directory, "cgroup.events", flags, Mode::empty()) {
        Ok(file) => rustix::io::read(&file, &mut events)
            .is_ok_and(|len| events[..len].starts_with(b"populated 0")),
        Err(errno) => errno == rustix::io::Errno::NOENT,
    }
}

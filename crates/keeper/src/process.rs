//! The keeper: a small process that outlives the server. It is the parent (subreaper) of every
//! guest, keeps their egress sockets, and forks one launcher per launch.
//!
//! It deliberately has no threads, no runtime, no secret and no opinion: it never unmounts,
//! deletes or stops anything. When the server is killed, guests and keeper go on; when the keeper is
//! killed, guests go on and a new keeper is started, which has to make egress sockets anew.
//!
//! ```text
//!  server ──connect──► keeper ──fork──► launcher ──clone──► guest (reparented to the keeper)
//!                        ▲                 │
//!                        └── registration ─┘  (pid, incarnation, egress sockets)
//! ```

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::cgroup::{self, Hierarchy};
use crate::egress::Sockets;
use crate::launcher::{Filters, Shared};
use crate::plan::{Reply, Request};
use crate::privilege::Privilege;
use crate::run_record;
use crate::spread::Spread;
use crate::{sys, wire};

mod launches;

use launches::{Guess, Launching, SPARES_FEW, SPARES_HIGH, SPARES_LOW, Spare};

/// How long a connected server may take to say what it wants.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the keeper must be idle before it makes spares. A launch is as silent for 3 ms.
const NEEDED_NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
const NEEDED_SOON: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
const QUIET: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

/// A tenth of a millisecond, the least that there is.
const TURN_NANOS: u64 = 100_000;

/// Ends that wait for their registration; more cannot be, but a bound is a bound.
const EARLY_MAX: usize = 1024;

/// Runs the keeper of the data directory `dir` until it is killed.
pub fn main(dir: &Path) -> ExitCode {
    match run(dir) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "keeper: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The socket of the keeper of `dir`.
pub fn socket_path(dir: &Path) -> PathBuf {
    dir.join("run/keeper.sock")
}

/// What must end with the keeper: a child that kept it would make the next keeper wait for it.
struct Own {
    listener: UnixListener,
    _lock: File,
}

struct Keeper {
    /// `None` in children.
    own: Option<Own>,
    shared: Shared,
    /// Where ends of guests are noted, by incarnation.
    exits: PathBuf,
    /// Where such a note is made before it gets its name. `None` where that cannot be, as on a full disk.
    new_exits: Option<Spread>,
    /// Launchers tell here what they started.
    register: (OwnedFd, OwnedFd),
    guests: HashMap<i32, String>,
    /// Forked and not yet reaped.
    launchers: HashMap<i32, Launching>,
    /// Launchers that sit in their cgroups and wait for a plan.
    spares: Vec<Spare>,
    /// Of what may be asked next, once something was.
    guess: Option<Guess>,
    /// Children that ended before their registration was read.
    early: HashMap<i32, i32>,
    egress: HashMap<String, Sockets>,
    /// Asked to end: does so once its launchers are gone and their cgroups with them.
    quitting: bool,
}

fn run(dir: &Path) -> anyhow::Result<()> {
    // Nothing of whoever started us may live on in guests.
    sys::close_from(3).context("close inherited descriptors")?;
    let lock = lock(dir)?;
    // Somebody waits for each thing it does, and none of them takes long. Inherited by launchers.
    let _ = sys::set_turn(TURN_NANOS);
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .context("become subreaper")?;
    let children = sys::signalfd(&[libc::SIGCHLD, libc::SIGHUP, libc::SIGINT, libc::SIGPIPE])
        .context("signalfd")?;
    let path = socket_path(dir);
    match std::fs::remove_file(&path) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).context("remove the old keeper socket"),
    }
    let listener = UnixListener::bind(&path).context("bind the keeper socket")?;
    listener.set_nonblocking(true).context("keeper socket")?;
    let privilege = Privilege::current();
    let mut keeper = Keeper {
        own: Some(Own { listener, _lock: lock }),
        shared: Shared {
            filters: Filters::compile()?,
            privilege,
            devices_at: devices_at(dir)?,
            sockets_at: sockets_at(dir)?,
            boot_id: run_record::boot_id()?,
            hierarchy: Hierarchy::detect(
                std::fs::read_to_string(dir.join("instance")).context("read instance")?.trim(),
            )?,
            trace: dir.join("run/trace-launch").exists(),
        },
        exits: dir.join("run/exits"),
        new_exits: Spread::open(dir.join("run/ends")).ok(),
        register: wire::seqpacket_pair()?,
        guests: HashMap::new(),
        launchers: HashMap::new(),
        spares: Vec::new(),
        guess: None,
        early: HashMap::new(),
        egress: HashMap::new(),
        quitting: false,
    };
    std::fs::create_dir_all(&keeper.exits).context("make the directory of exits")?;
    keeper.remove_old_sockets().context("remove sockets that nobody waits at")?;
    while !(keeper.quitting && keeper.launchers.is_empty() && keeper.guests.is_empty()) {
        keeper.turn(&children)?;
    }
    std::fs::remove_file(&path).context("remove the keeper socket")
}

/// Where launchers may put the `/dev` of a sandbox together.
pub fn devices_at(dir: &Path) -> anyhow::Result<PathBuf> {
    let path = dir.join("run/dev");
    std::fs::create_dir_all(&path).context("make the place of /dev")?;
    Ok(path)
}

/// Where sockets of guests may wait for their names.
pub fn sockets_at(dir: &Path) -> anyhow::Result<PathBuf> {
    let path = dir.join("run/next");
    std::fs::create_dir_all(&path).context("make the place of sockets to come")?;
    Ok(path)
}

/// One keeper a directory: the lock is held for the life of the process.
fn lock(dir: &Path) -> anyhow::Result<File> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(dir.join("run/keeper.lock"))
        .context("open the keeper's lock")?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)
        .context("another keeper runs on this directory")?;
    Ok(file)
}

impl Keeper {
    /// Those of launchers that were killed with an earlier keeper.
    fn remove_old_sockets(&self) -> anyhow::Result<()> {
        for entry in std::fs::read_dir(&self.shared.sockets_at)? {
            let entry = entry?;
            let incarnation = entry.file_name();
            let leaf = self.shared.hierarchy.leaf(&incarnation.to_string_lossy());
            if !leaf.unified.is_some_and(|dir| cgroup::is_populated(&dir)) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
        Ok(())
    }

    fn turn(&mut self, children: &OwnedFd) -> anyhow::Result<()> {
        let own = self.own.as_ref().context("a child runs the keeper's loop")?;
        let mut fds = [
            PollFd::new(&own.listener, PollFlags::IN),
            PollFd::new(children, PollFlags::IN),
            PollFd::new(&self.register.0, PollFlags::IN),
        ];
        // New spares are made when nobody waits for anything, which takes as long as a launch: between two
        // requests when few are left, else once it is quiet.
        let pause = match self.spares.len() {
            _ if self.quitting => None,
            0..SPARES_FEW => Some(&NEEDED_NOW),
            SPARES_FEW..SPARES_LOW => Some(&NEEDED_SOON),
            _ if self.next_to_begin().is_some() => Some(&NEEDED_SOON),
            SPARES_LOW..SPARES_HIGH => Some(&QUIET),
            _ => None,
        };
        match poll(&mut fds, pause) {
            Ok(0) => {
                match self.next_to_begin() {
                    Some(_) if self.spares.len() >= SPARES_LOW => self.begin(),
                    _ => self.add_spares(),
                }
                return Ok(());
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno).context("poll"),
        }
        let [asked, ended, started] = fds.map(|fd| !fd.revents().is_empty());
        if started {
            self.registrations();
        }
        if ended {
            self.reap(children);
        }
        if asked {
            while let Some(Ok((connection, _))) = self.own.as_ref().map(|own| own.listener.accept())
            {
                self.serve(&connection);
            }
        }
        Ok(())
    }

    /// Answers one request, or forks a launcher that does.
    fn serve(&mut self, connection: &UnixStream) {
        let _ = connection.set_nonblocking(false);
        let _ = connection.set_read_timeout(Some(REQUEST_TIMEOUT));
        let _ = connection.set_write_timeout(Some(REQUEST_TIMEOUT));
        let request = match wire::receive(connection) {
            Ok((request, _)) => request,
            Err(error) => return log(&format!("bad request: {error:#}")),
        };
        match request {
            Request::Ping => {
                let pid = rustix::process::getpid().as_raw_nonzero().get();
                answer(connection, &Reply::Pong { pid, disks_may_follow: true }, &[]);
            }
            Request::Forget { incarnation } => {
                self.egress.remove(&incarnation);
                answer(connection, &Reply::Done, &[]);
            }
            Request::Busy => {
                let all = self.launchers.values();
                let incarnations = all.map(|one| one.incarnation.clone()).collect();
                answer(connection, &Reply::Busy { incarnations }, &[]);
            }
            Request::Quit if self.guests.is_empty() => {
                self.quitting = true;
                self.spares.clear();
                answer(connection, &Reply::Done, &[]);
            }
            Request::Quit => {
                answer(connection, &failed("quit", &anyhow::anyhow!("sandboxes run")), &[]);
            }
            Request::Launch(plan) => self.start_launch(*plan, connection),
            Request::Egress { incarnation, pid } => match self.egress.get(&incarnation) {
                Some(sockets) => answer_egress(connection, sockets),
                None => self.in_child(connection, Launching::nothing(), |keeper| {
                    keeper.open_egress(&incarnation, pid, connection);
                    true
                }),
            },
        }
    }

    fn registrations(&mut self) {
        while let Ok(Some((text, fds))) = wire::receive_packet(&self.register.0) {
            let Some((pid, incarnation)) = text.split_once(' ') else { continue };
            if let Ok(sockets) = <[OwnedFd; 4]>::try_from(fds) {
                self.egress.insert(incarnation.to_owned(), Sockets::from_array(sockets));
            }
            let Some(pid) = pid.parse().ok().filter(|pid| *pid > 0) else { continue };
            self.guests.insert(pid, incarnation.to_owned());
            if let Some(status) = self.early.remove(&pid) {
                self.ended(pid, status);
            }
        }
    }

    fn reap(&mut self, children: &OwnedFd) {
        let mut drained = [0u8; 1024];
        while rustix::io::read(children, &mut drained).is_ok_and(|count| count > 0) {}
        while let Some((pid, status)) = sys::reap_one() {
            self.registrations();
            if let Some(launching) = self.launchers.remove(&pid) {
                if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) != 0 {
                    // It has ended its guest, of which it may have told.
                    self.guests.retain(|_, guest| *guest != launching.incarnation);
                    self.egress.remove(&launching.incarnation);
                }
                // Killed after it had told of its guest, it has done what it was for; or its server misses its second
                // answer and ends the guest, as the next server does with one that is not whole.
                if !self.guests.values().any(|guest| *guest == launching.incarnation) {
                    self.launcher_ended(&launching, status);
                }
                continue;
            }
            if self.guests.contains_key(&pid) {
                self.ended(pid, status);
            } else if self.early.len() < EARLY_MAX {
                // A guest whose registration is still on its way.
                self.early.insert(pid, status);
            }
        }
    }

    /// A launcher that failed (or a spare that was never used) leaves cgroups with nothing in them.
    fn launcher_ended(&mut self, launching: &Launching, status: i32) {
        if status == 0 || launching.incarnation.is_empty() {
            return;
        }
        let leaf = self.shared.hierarchy.leaf(&launching.incarnation);
        let is_dead = match &leaf.unified {
            Some(unified) => cgroup::kill(unified).is_ok(),
            // One that was not killed has ended its guest.
            None => libc::WIFEXITED(status),
        };
        let _ = std::fs::remove_file(self.shared.sockets_at.join(&launching.incarnation));
        if is_dead {
            launching.forget_record();
        }
        if let (true, Some(unified)) = (is_dead, &leaf.unified) {
            cgroup::remove(unified, &leaf.legacy);
        }
    }

    /// Notes how a guest ended, for a server that may not be there now.
    fn ended(&mut self, pid: i32, status: i32) {
        let Some(incarnation) = self.guests.remove(&pid) else { return };
        self.egress.remove(&incarnation);
        let note = self.exits.join(&incarnation);
        let new = self.new_exits.as_ref().map(|spread| spread.place(&incarnation));
        let new = new.unwrap_or_else(|| note.clone());
        let written = std::fs::write(&new, status.to_string());
        if let Err(error) = written.and_then(|()| std::fs::rename(new, note)) {
            log(&format!("could not note the end of {incarnation}: {error}"));
        }
    }
}

fn answer_egress(connection: &UnixStream, sockets: &Sockets) {
    match sockets.duplicate() {
        Ok(copy) => {
            let fds = copy.into_array();
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            answer(connection, &Reply::Egress, &fds);
        }
        Err(error) => answer(connection, &failed("egress sockets", &error.into()), &[]),
    }
}

fn answer(connection: &UnixStream, reply: &Reply, fds: &[std::os::fd::BorrowedFd<'_>]) {
    if let Err(error) = wire::send(connection, reply, fds) {
        log(&format!("could not answer: {error:#}"));
    }
}

fn failed(step: &str, error: &anyhow::Error) -> Reply {
    Reply::Failed { step: step.to_owned(), error: format!("{error:#}") }
}

/// The keeper's standard error is its log file.
fn log(line: &str) {
    let _ = std::io::stderr().write_all(format!("keeper: {line}\n").as_bytes());
}

//! Launchers: the keeper's children that carry out one launch each, some of them waiting for it.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use anyhow::Context;
use rustix::event::{Timespec, poll};
use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use super::{Keeper, REQUEST_TIMEOUT, answer, answer_egress, failed, log};
use crate::egress::Sockets;
use crate::launcher::{self, Asker, Begun, Launched};
use crate::plan::{LaunchPlan, Outline, Reply};
use crate::privilege::Privilege;
use crate::run_record;
use crate::sys::{self, Fork};
use crate::{cgroup, devices, wire};

/// How many launchers wait at most. With fewer than `SPARES_LOW` it is time to make more, and with fewer than
/// `SPARES_FEW` there is no time to lose. A burst beyond them forks its own.
pub(super) const SPARES_FEW: usize = 4;
pub(super) const SPARES_LOW: usize = 8;
pub(super) const SPARES_HIGH: usize = 16;
/// How many of them have begun with a sandbox that may be asked for next. Each takes some 0.7 MiB, and what the kernel has for it.
const BEGUN_MAX: usize = 4;

/// A launcher that waits for a plan on the other end of this socket.
pub(super) struct Spare {
    pid: i32,
    orders: UnixStream,
    /// What it was told to begin with.
    begun: Option<Outline>,
}

/// What a spare is told.
#[derive(Serialize, Deserialize)]
enum Task {
    Begin(Outline),
    Launch(Box<LaunchPlan>),
}

/// What the next sandboxes may be like.
pub(super) struct Guess {
    /// The last one's.
    outline: Outline,
    uid_bases: Vec<u32>,
}

/// A child that was forked and is not yet reaped.
pub(super) struct Launching {
    pub(super) incarnation: String,
    /// Where it writes that its guest runs, once it has a plan.
    record: Option<PathBuf>,
}

impl Keeper {
    /// By a spare that waits, best one that has begun with what can become this; else by a launcher of its own.
    pub(super) fn start_launch(&mut self, plan: LaunchPlan, connection: &UnixStream) {
        self.guess(&plan);
        let outline = plan.outline();
        let record = Some(plan.record.clone());
        let task = Task::Launch(Box::new(plan));
        while let Some(place) = self.spare_for(&outline) {
            let spare = self.spares.swap_remove(place);
            if wire::send(&spare.orders, &task, &[connection.as_fd()]).is_ok() {
                if let Some(launching) = self.launchers.get_mut(&spare.pid) {
                    launching.record = record;
                }
                return;
            }
            // It was killed; the next one may live.
        }
        let Task::Launch(plan) = task else { return };
        let Some(incarnation) = new_incarnation() else { return };
        let launching = Launching { incarnation: incarnation.clone(), record };
        self.in_child(connection, launching, |keeper| {
            let launched = keeper.enter(&incarnation).and_then(|devices| {
                let asker = Asker(Some(connection));
                launcher::launch(&plan, &incarnation, (&keeper.shared, asker), devices)
            });
            keeper.answer_launched(launched, &incarnation, (&plan, connection))
        });
    }

    fn spare_for(&self, outline: &Outline) -> Option<usize> {
        let is_for = |spare: &Spare| {
            spare.begun.as_ref().is_some_and(|begun| self.shared.fits(begun, outline))
        };
        let begun = self.spares.iter().position(is_for);
        begun.or_else(|| self.spares.iter().position(|spare| spare.begun.is_none()))
    }

    /// What has begun with a range that others will have is of no use any more.
    fn guess(&mut self, plan: &LaunchPlan) {
        let uid_bases = &plan.next_uid_bases;
        let wanted = |base: u32| base == plan.uid_base || uid_bases.contains(&base);
        self.spares.retain(|spare| spare.begun.as_ref().is_none_or(|begun| wanted(begun.uid_base)));
        self.guess = Some(Guess { outline: plan.outline(), uid_bases: uid_bases.clone() });
    }

    /// The first of the sandboxes to come that no spare has begun with, if one more is to.
    pub(super) fn next_to_begin(&self) -> Option<Outline> {
        // An ordinary user's sandboxes begin with limits of the launcher's own.
        if self.shared.privilege != Privilege::Host {
            return None;
        }
        let guess = self.guess.as_ref()?;
        let begun = || self.spares.iter().filter_map(|spare| spare.begun.as_ref());
        let is_begun = |base: u32| begun().any(|outline| outline.uid_base == base);
        let bases = guess.uid_bases.iter().take(BEGUN_MAX);
        let uid_base = *bases.into_iter().find(|base| !is_begun(**base))?;
        let room = begun().count() < BEGUN_MAX;
        room.then(|| Outline { uid_base, ..guess.outline.clone() })
    }

    /// Has spares begin with the sandboxes to come.
    pub(super) fn begin(&mut self) {
        while let Some(outline) = self.next_to_begin() {
            let Some(place) = self.spares.iter().position(|spare| spare.begun.is_none()) else {
                return;
            };
            let spare = &mut self.spares[place];
            match wire::send(&spare.orders, &Task::Begin(outline.clone()), &[]) {
                Ok(()) => spare.begun = Some(outline),
                // It was killed.
                Err(_) => drop(self.spares.swap_remove(place)),
            }
        }
    }

    /// As many as are missing, all at once: their moves into their cgroups share one wait of the
    /// kernel, during which nobody on the host can make a cgroup.
    pub(super) fn add_spares(&mut self) {
        while self.spares.len() < SPARES_HIGH && self.add_spare() {}
    }

    /// Whether there is one more.
    fn add_spare(&mut self) -> bool {
        let Ok((ours, theirs)) = UnixStream::pair() else { return false };
        let Some(incarnation) = new_incarnation() else { return false };
        match sys::fork() {
            Ok(Fork::Parent(pid)) => {
                let _ = ours.set_write_timeout(Some(REQUEST_TIMEOUT));
                let pid = pid.as_raw_nonzero().get();
                self.launchers.insert(pid, Launching { incarnation, record: None });
                self.spares.push(Spare { pid, orders: ours, begun: None });
                true
            }
            Ok(Fork::Child) => {
                drop(ours);
                self.become_child();
                let good = self.wait_for_order(&theirs, &incarnation);
                sys::exit_now(i32::from(!good))
            }
            Err(error) => {
                log(&format!("could not fork a spare: {error}"));
                false
            }
        }
    }

    /// Other spares' order sockets, the listener and the lock must end with the keeper.
    fn become_child(&mut self) {
        self.spares.clear();
        self.own = None;
    }

    /// In a spare: enters its cgroups, then waits for as long as the keeper lives.
    fn wait_for_order(&self, orders: &UnixStream, incarnation: &str) -> bool {
        let mut devices = Some(self.enter(incarnation));
        let mut begun = None;
        loop {
            let Ok((task, fds)) = wire::receive::<Task>(orders) else { return false };
            let mut begin = |outline: &Outline| {
                let devices = devices.take().unwrap_or_else(|| self.devices())?;
                launcher::begin(outline, incarnation, &self.shared, devices)
            };
            let plan = match task {
                Task::Begin(outline) => {
                    begun = begin(&outline).inspect_err(|error| log(&format!("{error:#}"))).ok();
                    continue;
                }
                Task::Launch(plan) => plan,
            };
            let Some(connection) = fds.into_iter().next().map(UnixStream::from) else {
                return false;
            };
            let asker = Asker(Some(&connection));
            let outline = plan.outline();
            // What did not begin, or was killed since, begins now.
            let begun = begun.filter(|begun: &Begun| begun.is_for(&outline, &self.shared));
            let begun = begun.map_or_else(
                || begin(&outline),
                |begun| begun.limit(plan.limits, &self.shared.hierarchy, incarnation),
            );
            let launched = begun.and_then(|begun| {
                launcher::finish(begun, &plan, incarnation, (&self.shared, asker))
            });
            return self.answer_launched(launched, incarnation, (&plan, &connection));
        }
    }

    /// What can be done before there is a plan; gives the sandbox's `/dev`.
    fn enter(&self, incarnation: &str) -> anyhow::Result<OwnedFd> {
        cgroup::enter(&self.shared.hierarchy.leaf(incarnation))?;
        self.devices()
    }

    fn devices(&self) -> anyhow::Result<OwnedFd> {
        devices::make(self.shared.privilege, &self.shared.devices_at).context("make /dev")
    }

    /// Runs `work` in a process of its own, which tells whether it went well by its exit code.
    pub(super) fn in_child(
        &mut self,
        connection: &UnixStream,
        launching: Launching,
        work: impl FnOnce(&Self) -> bool,
    ) {
        match sys::fork() {
            Ok(Fork::Parent(pid)) => {
                self.launchers.insert(pid.as_raw_nonzero().get(), launching);
            }
            Ok(Fork::Child) => {
                self.become_child();
                let good = work(self);
                sys::exit_now(i32::from(!good))
            }
            Err(error) => answer(connection, &failed("fork", &error.into()), &[]),
        }
    }

    /// In a launcher: registers and answers. Whether it worked.
    fn answer_launched(
        &self,
        launched: anyhow::Result<Launched>,
        incarnation: &str,
        (plan, connection): (&LaunchPlan, &UnixStream),
    ) -> bool {
        let finished = launched.and_then(|mut launched| {
            let unfinished = plan.takes_two_answers;
            if !unfinished {
                launched.finish()?;
            }
            let pid = launched.pid.as_raw_nonzero().get();
            self.tell_keeper(pid, incarnation, launched.egress.as_ref());
            let fds = launched.egress.take().map(Sockets::into_array);
            let fds: Vec<_> = fds.iter().flatten().map(AsFd::as_fd).collect();
            answer(connection, &Reply::Launched { pid, unfinished }, &fds);
            if unfinished {
                launched.finish()?;
                answer(connection, &Reply::Done, &[]);
            }
            Ok(launched)
        });
        match finished {
            Ok(_launched) => {
                leave_the_processor();
                true
            }
            Err(error) => {
                answer(connection, &failed("launch", &error), &[]);
                false
            }
        }
    }

    pub(super) fn open_egress(&self, incarnation: &str, pid: i32, connection: &UnixStream) {
        let steering = self.shared.privilege.steering();
        let opened = Pid::from_raw(pid)
            .context("bad pid")
            .and_then(|pid| launcher::open_egress(pid, steering));
        match opened {
            Ok(sockets) => {
                self.tell_keeper(0, incarnation, Some(&sockets));
                answer_egress(connection, &sockets);
            }
            Err(error) => answer(connection, &failed("egress sockets", &error), &[]),
        }
    }

    /// In a launcher: the keeper must know the guest before the launcher is gone.
    fn tell_keeper(&self, pid: i32, incarnation: &str, egress: Option<&Sockets>) {
        let sockets = egress.and_then(|sockets| sockets.duplicate().ok()).map(Sockets::into_array);
        let fds: Vec<_> = sockets.iter().flatten().map(AsFd::as_fd).collect();
        let text = format!("{pid} {incarnation}");
        if let Err(error) = wire::send_packet(&self.register.1, text.as_bytes(), &fds) {
            log(&format!("could not register {incarnation}: {error:#}"));
        }
    }
}

impl Launching {
    /// One that makes no guest.
    pub(super) fn nothing() -> Self {
        Self { incarnation: String::new(), record: None }
    }

    /// Its guest, if it came to one, is dead, and nobody was told that it ran: nor must a server that
    /// starts now read that.
    pub(super) fn forget_record(&self) {
        let Some(path) = &self.record else { return };
        let Ok(Some(record)) = run_record::read(path) else { return };
        if record.incarnation == self.incarnation {
            let _ = std::fs::remove_file(path);
            let _ = std::fs::remove_file(&record.socket);
        }
    }
}

/// Whoever has the answer goes on with it now. To end takes a process 0.1 ms.
fn leave_the_processor() {
    let _ = poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: 1_000_000 }));
}

fn new_incarnation() -> Option<String> {
    crate::random_hex::<8>().inspect_err(|error| log(&format!("{error:#}"))).ok()
}

//! Launchers: the keeper's children that carry out one launch each, some of them waiting for it.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use anyhow::Context;
use rustix::process::Pid;

use super::{Keeper, REQUEST_TIMEOUT, answer, answer_egress, failed, log};
use crate::egress::Sockets;
use crate::launcher::{self, Asker};
use crate::plan::{LaunchPlan, Reply};
use crate::run_record;
use crate::sys::{self, Fork};
use crate::{cgroup, devices, wire};

/// How many launchers wait at most. With fewer than `SPARES_LOW` it is time to make more, and with fewer than
/// `SPARES_FEW` there is no time to lose. A burst beyond them forks its own.
pub(super) const SPARES_FEW: usize = 4;
pub(super) const SPARES_LOW: usize = 8;
pub(super) const SPARES_HIGH: usize = 16;

/// A launcher that waits for a plan on the other end of this socket.
pub(super) struct Spare {
    pid: i32,
    orders: UnixStream,
}

/// A child that was forked and is not yet reaped.
pub(super) struct Launching {
    pub(super) incarnation: String,
    /// Where it writes that its guest runs, once it has a plan.
    record: Option<PathBuf>,
}

impl Keeper {
    /// By a spare that waits, else by a launcher of its own.
    pub(super) fn start_launch(&mut self, plan: &LaunchPlan, connection: &UnixStream) {
        while let Some(spare) = self.spares.pop() {
            if wire::send(&spare.orders, plan, &[connection.as_fd()]).is_ok() {
                if let Some(launching) = self.launchers.get_mut(&spare.pid) {
                    launching.record = Some(plan.record.clone());
                }
                return;
            }
            // It was killed; the next one may live.
        }
        let Some(incarnation) = new_incarnation() else { return };
        let record = Some(plan.record.clone());
        let launching = Launching { incarnation: incarnation.clone(), record };
        self.in_child(connection, launching, |keeper| {
            let outcome = keeper.enter(&incarnation);
            keeper.launch_and_answer(outcome, plan, &incarnation, connection)
        });
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
                self.spares.push(Spare { pid, orders: ours });
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
        let outcome = self.enter(incarnation);
        let Ok((plan, fds)) = wire::receive::<LaunchPlan>(orders) else { return false };
        let Some(connection) = fds.into_iter().next().map(UnixStream::from) else { return false };
        self.launch_and_answer(outcome, &plan, incarnation, &connection)
    }

    /// What can be done before there is a plan; gives the sandbox's `/dev`.
    fn enter(&self, incarnation: &str) -> anyhow::Result<OwnedFd> {
        cgroup::enter(&self.shared.hierarchy.leaf(incarnation))?;
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

    /// In a launcher: carries out the plan, registers, answers. Whether it worked.
    fn launch_and_answer(
        &self,
        entered: anyhow::Result<OwnedFd>,
        plan: &LaunchPlan,
        incarnation: &str,
        connection: &UnixStream,
    ) -> bool {
        let launched = entered.and_then(|devices| {
            let asker = Asker(Some(connection));
            launcher::launch(plan, incarnation, (&self.shared, asker), devices)
        });
        let launched = match launched {
            Ok(launched) => launched,
            Err(error) => {
                answer(connection, &failed("launch", &error), &[]);
                return false;
            }
        };
        let pid = launched.pid.as_raw_nonzero().get();
        self.tell_keeper(pid, incarnation, launched.egress.as_ref());
        let fds = launched.egress.map(Sockets::into_array);
        let fds: Vec<_> = fds.iter().flatten().map(AsFd::as_fd).collect();
        answer(connection, &Reply::Launched { pid }, &fds);
        true
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

fn new_incarnation() -> Option<String> {
    crate::random_hex::<8>().inspect_err(|error| log(&format!("{error:#}"))).ok()
}

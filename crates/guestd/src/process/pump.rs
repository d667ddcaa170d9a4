//! Carries what a process writes into its [`Output`], learns how it ended, and says so. One task a
//! process.

use std::cell::RefCell;
use std::future::{pending, poll_fn};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep_until, timeout};

use super::{Channel, Ended, Output, Process, Status, Until};
use crate::reaper::Exit;
use crate::state::State;

/// Read at once, which is also how much a pipe holds.
const PIECE_BYTES: usize = 64 << 10;

/// Both pipes may be read before the next look at the room.
const ROUND_BYTES: usize = 2 * PIECE_BYTES;

/// How long after the exit output may still come from what the process left behind.
const GRACE: Duration = Duration::from_millis(50);

thread_local! {
    static PIECE: RefCell<Box<[u8]>> = RefCell::new(vec![0; PIECE_BYTES].into());
}

/// Where output comes from, until its end.
#[derive(Debug)]
pub(super) struct Source {
    channel: Channel,
    file: Option<Arc<AsyncFd<OwnedFd>>>,
}

pub(super) struct Pump {
    state: Arc<State>,
    process: Arc<Process>,
    sources: Vec<Source>,
    key: u64,
    started_at: Instant,
}

/// What one look at a source gave.
enum Looked {
    Took,
    Nothing,
    Closed,
}

impl Source {
    pub(super) fn new(channel: Channel, file: Arc<AsyncFd<OwnedFd>>) -> Self {
        Self { channel, file: Some(file) }
    }

    /// Whether anything happened. If not, the task is woken when something does.
    fn poll_take(&mut self, cx: &mut Context<'_>, output: &Output) -> bool {
        let Some(file) = self.file.clone() else { return false };
        while let Poll::Ready(ready) = file.poll_read_ready(cx) {
            let Ok(mut ready) = ready else { return false };
            match look(&file, |bytes| output.write(self.channel, bytes)) {
                Looked::Took => return true,
                Looked::Nothing => ready.clear_ready(),
                Looked::Closed => {
                    self.file = None;
                    return true;
                }
            }
        }
        false
    }
}

impl Pump {
    pub(super) fn new(
        state: Arc<State>,
        process: Arc<Process>,
        sources: Vec<Source>,
        key: u64,
    ) -> Self {
        Self { state, process, sources, key, started_at: Instant::now() }
    }

    pub(super) async fn run(mut self, exit: Exit) {
        let status = self.carry(exit).await;
        self.drain().await;
        if self.is_open() && self.process.start.until == Until::Exit {
            let _ = timeout(GRACE, self.carry_until_closed()).await;
        }
        let ended = Ended {
            status,
            timed_out: self.process.timed_out.load(Ordering::Relaxed),
            duration: self.started_at.elapsed(),
        };
        self.process.input.close();
        self.process.output.finish(ended);
        self.state.process_ended(self.key);
        // Whoever waits for the end is answered before anything is put away.
        tokio::task::yield_now().await;
        super::let_the_answered_go_on();
        self.give_cgroup_back();
        if self.process.start.until == Until::Exit {
            self.discard().await;
        }
    }

    /// Until the process has exited and, if its output lasts longer than itself, that has ended too.
    async fn carry(&mut self, mut exit: Exit) -> Status {
        let deadline = self.process.start.timeout.map(|timeout| self.started_at + timeout);
        let mut timed_out = false;
        let mut status = None;
        loop {
            let told_to_end = self.process.told_to_end.load(Ordering::Relaxed);
            let waits_for_pipes = self.process.start.until == Until::Closed && !told_to_end;
            if let Some(status) = status
                && !(waits_for_pipes && self.is_open())
            {
                return status;
            }
            let process = Arc::clone(&self.process);
            tokio::select! {
                () = self.take_some() => {}
                ended = exit.wait(), if status.is_none() => {
                    status = Some(ended);
                    process.reaped.send_replace(true);
                }
                () = at(deadline), if !timed_out => {
                    timed_out = true;
                    process.time_out();
                }
            }
        }
    }

    async fn carry_until_closed(&mut self) {
        while self.is_open() {
            self.take_some().await;
        }
    }

    fn is_open(&self) -> bool {
        self.sources.iter().any(|source| source.file.is_some())
    }

    /// Takes what one source has, when one has something. Nothing is lost when this is given up.
    async fn take_some(&mut self) {
        if !self.is_open() {
            return pending().await;
        }
        self.wait_for_room().await;
        let process = &self.process;
        let sources = &mut self.sources;
        poll_fn(|cx| {
            let mut took = false;
            for source in sources.iter_mut() {
                took |= source.poll_take(cx, &process.output);
            }
            if took { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Until no attached reader would lose what is read next.
    async fn wait_for_room(&self) {
        let output = &self.process.output;
        while let Err(until) = output.room(ROUND_BYTES) {
            let room = poll_fn(|cx| output.poll_room(cx, ROUND_BYTES));
            let _ = tokio::time::timeout_at(until, room).await;
        }
    }

    /// What is in the pipes now that the process has exited.
    async fn drain(&mut self) {
        loop {
            self.wait_for_room().await;
            let mut took = false;
            for source in &mut self.sources {
                let Some(file) = &source.file else { continue };
                match look(file, |bytes| self.process.output.write(source.channel, bytes)) {
                    Looked::Took => took = true,
                    Looked::Nothing => {}
                    Looked::Closed => source.file = None,
                }
            }
            if !took {
                return;
            }
        }
    }

    /// What runs on in the background must not die of a closed pipe.
    async fn discard(&mut self) {
        for source in &mut self.sources {
            let Some(file) = source.file.take() else { continue };
            while let Ok(mut ready) = file.readable().await {
                match look(&file, |_| {}) {
                    Looked::Took => {}
                    Looked::Nothing => ready.clear_ready(),
                    Looked::Closed => break,
                }
            }
        }
    }

    fn give_cgroup_back(&self) {
        let cgroup = self.process.cgroup.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let (Some(cgroups), Some(cgroup)) = (&self.state.cgroups, cgroup) {
            cgroups.give_back(cgroup);
        }
    }
}

/// One read that does not wait.
fn look(file: &AsyncFd<OwnedFd>, take: impl FnOnce(&[u8])) -> Looked {
    PIECE.with_borrow_mut(|piece| match rustix::io::read(file.get_ref(), &mut piece[..]) {
        Ok(0) => Looked::Closed,
        Ok(len) => {
            take(&piece[..len]);
            Looked::Took
        }
        Err(rustix::io::Errno::INTR) => Looked::Took,
        Err(rustix::io::Errno::AGAIN) => Looked::Nothing,
        // A terminal whose last process has gone says EIO.
        Err(_) => Looked::Closed,
    })
}

async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => pending().await,
    }
}

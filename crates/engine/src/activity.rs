//! Whether a sandbox is in use (ruling 9), and who is attached to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use jiff::Timestamp;
use tokio::sync::broadcast;

use crate::registry::Cell;
use crate::{CancelReason, Clock};

/// Notices that a slow client may be behind; it needs only the last.
const NOTICES_MAX: usize = 16;

/// What an attached client is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// A cooperative cancel, or (`Timeout`) the warning 10 s before the hard lifetime.
    Cancel(CancelReason),
    /// The sandbox is being destroyed.
    Destroyed,
}

/// An attached client. The sandbox counts as in use until this is dropped.
pub struct Attachment {
    pub notices: broadcast::Receiver<Notice>,
    _client: Guard,
}

/// Counters that every call touches; no lock, no message.
pub(crate) struct Activity {
    clock: Clock,
    in_flight: AtomicU32,
    clients: AtomicU32,
    /// Microseconds since 1970.
    last: AtomicI64,
    notices: broadcast::Sender<Notice>,
}

/// A call in flight, or an attached client.
pub(crate) struct Guard {
    cell: Arc<Cell>,
    is_client: bool,
}

impl Activity {
    pub(crate) fn new(clock: Clock, last: Timestamp) -> Self {
        Self {
            clock,
            in_flight: AtomicU32::new(0),
            clients: AtomicU32::new(0),
            last: AtomicI64::new(last.as_microsecond()),
            notices: broadcast::Sender::new(NOTICES_MAX),
        }
    }

    /// Something happened just now.
    pub(crate) fn touch(&self) {
        self.last.fetch_max(self.clock.now().as_microsecond(), Ordering::Relaxed);
    }

    /// Something happened then, elsewhere.
    pub(crate) fn touch_at(&self, at: Timestamp) {
        let at = at.min(self.clock.now());
        self.last.fetch_max(at.as_microsecond(), Ordering::Relaxed);
    }

    pub(crate) fn last(&self) -> Timestamp {
        let last = self.last.load(Ordering::Relaxed);
        Timestamp::from_microsecond(last).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    pub(crate) fn busy(&self) -> bool {
        self.in_flight.load(Ordering::Acquire) > 0
    }

    pub(crate) fn client_attached(&self) -> bool {
        self.clients.load(Ordering::Acquire) > 0
    }

    /// Tells attached clients; whether any heard it.
    pub(crate) fn notify(&self, notice: Notice) -> bool {
        self.notices.send(notice).is_ok()
    }
}

impl Guard {
    pub(crate) fn begin(cell: &Arc<Cell>) -> Self {
        cell.activity.in_flight.fetch_add(1, Ordering::AcqRel);
        cell.activity.touch();
        Self { cell: Arc::clone(cell), is_client: false }
    }
}

impl Attachment {
    pub(crate) fn begin(cell: &Arc<Cell>) -> Self {
        let mut client = Guard::begin(cell);
        cell.activity.clients.fetch_add(1, Ordering::AcqRel);
        client.is_client = true;
        Self { notices: cell.activity.notices.subscribe(), _client: client }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let activity = &self.cell.activity;
        // First the time, then the count: who sees nobody in flight must see when that began.
        activity.touch();
        if self.is_client {
            activity.clients.fetch_sub(1, Ordering::AcqRel);
        }
        activity.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

//! Whether a sandbox is in use (ruling 9), and who is attached to it.

use tokio::sync::broadcast;

use crate::CancelReason;

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
}

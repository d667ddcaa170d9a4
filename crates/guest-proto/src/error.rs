//! What can go wrong between host and guest, by what the host can do about it.

use std::io;

/// Closed on purpose: the host matches every variant once, where it turns this into its own error.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// The file, command or watcher is not there.
    #[error("not found")]
    NotFound,
    /// The request cannot be carried out as asked; the text says what is wrong with it.
    #[error("{0}")]
    Invalid(String),
    #[error("already exists")]
    Exists,
    /// A body or a line is longer than its limit.
    #[error("too large")]
    TooLarge,
    /// The disk, or the sandbox's share of it, is full.
    #[error("the disk of the sandbox is full")]
    DiskFull,
    /// The kernel refused it (permissions, a read-only file system).
    #[error("{0}")]
    Denied(String),
    /// The token or the user is wrong; the text names the user.
    #[error("{0}")]
    Unauthenticated(String),
    /// A limit of the guest is used up (commands, watchers, connections).
    #[error("{0}")]
    Busy(String),
    /// Nothing listens on that port inside the sandbox.
    #[error("the port is not open")]
    PortClosed,
    /// The guest cannot be reached, or went away in the middle.
    #[error("the guest cannot be reached")]
    Unreachable(#[source] io::Error),
    /// The guest did not answer in time.
    #[error("the guest did not answer in time")]
    TimedOut,
    /// The guest says that it failed.
    #[error("the guest failed: {0}")]
    Failed(String),
    /// The guest said something that the protocol does not allow.
    #[error("the guest broke the protocol: {0}")]
    Protocol(String),
    /// The caller's own body stream failed; nothing is wrong with the guest.
    #[error("the body could not be read")]
    Body(#[source] io::Error),
}

impl GuestError {
    pub(crate) fn protocol(detail: impl Into<String>) -> Self {
        Self::Protocol(detail.into())
    }

    /// What an answer of the guest means. The inverse is in the guest's extension.
    pub(crate) fn from_status(status: u16, message: String) -> Self {
        match status {
            400 | 415 | 416 => Self::Invalid(message),
            401 => Self::Unauthenticated(message),
            403 => Self::Denied(message),
            404 => Self::NotFound,
            409 => Self::Exists,
            413 => Self::TooLarge,
            429 => Self::Busy(message),
            500 => Self::Failed(message),
            502 => Self::PortClosed,
            504 => Self::TimedOut,
            507 => Self::DiskFull,
            other => Self::Protocol(format!("status {other}: {message}")),
        }
    }
}

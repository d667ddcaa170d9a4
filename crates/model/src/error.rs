//! The one error of the workspace: what a caller may *do* something about. Everything else is
//! `Internal`, with its context inside. Only `server` turns it into HTTP status codes.

use std::io;
use std::time::Duration;

pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, by what the caller can do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The thing does not exist, or belongs to somebody else (indistinguishable on purpose).
    #[error("no such {what}: {id}")]
    NotFound { what: &'static str, id: String },
    /// The request is well formed but the state of the thing forbids it.
    #[error("{detail}")]
    Conflict { code: Conflict, detail: String },
    /// A field of the request is wrong. `field` is its name in the public API (`disk_gb`).
    #[error("{field}: {detail}")]
    Invalid { field: String, detail: String },
    /// A quota or a rate is used up; try again after `retry_after`.
    #[error("{detail}")]
    Exhausted { detail: String, retry_after: Duration },
    /// The owner has no credit left.
    #[error("{detail}")]
    NoCredit { detail: String },
    /// No room anywhere for one more sandbox.
    #[error("{detail}")]
    NoCapacity { detail: String },
    /// The disk (or the sandbox's share of it) is full.
    #[error("{detail}")]
    DiskFull { detail: String },
    /// What we store on cannot be written to, though it can be read.
    #[error("{detail}")]
    ReadOnly { detail: String },
    /// The same idempotency key came with another request.
    #[error("{detail}")]
    IdempotencyMismatch { detail: String },
    /// Known and valid, but not built yet. `code` is stable (`image_pull_not_available`).
    #[error("{detail}")]
    NotImplemented { code: &'static str, detail: String },
    /// A part we need does not answer; the same request may work later.
    #[error("{detail}")]
    Unavailable { detail: String },
    /// A bug or a broken host. The caller sees one sentence, the log gets the chain.
    #[error("internal error")]
    Internal(#[source] anyhow::Error),
}

/// Stable codes of a conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conflict {
    /// The sandbox is in a state from which this makes no sense.
    WrongState,
    /// The owner already has a sandbox of that name.
    NameTaken,
}

impl Error {
    pub fn invalid(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::Invalid { field: field.into(), detail: detail.into() }
    }

    #[expect(clippy::needless_pass_by_value, reason = "an id and a borrowed text alike")]
    pub fn no_sandbox(id: impl ToString) -> Self {
        Self::NotFound { what: "sandbox", id: id.to_string() }
    }

    pub fn wrong_state(detail: impl Into<String>) -> Self {
        Self::Conflict { code: Conflict::WrongState, detail: detail.into() }
    }

    pub fn unavailable(detail: impl Into<String>) -> Self {
        Self::Unavailable { detail: detail.into() }
    }

    /// The disk of the deployment, not that of one sandbox.
    pub fn machine_full() -> Self {
        let detail = "no room on the disk of this server\n\
                      hint: delete sandboxes, or make room on its data directory, and ask again";
        Self::DiskFull { detail: detail.into() }
    }

    /// The disk of the deployment, not that of one sandbox.
    pub fn machine_read_only() -> Self {
        let detail = "the disk of this server is read-only\n\
                      hint: what was asked for is possible again once it can be written to";
        Self::ReadOnly { detail: detail.into() }
    }
}

impl From<anyhow::Error> for Error {
    /// Recovers an `Error` that travelled inside an `anyhow` chain, tells what a disk refused, else
    /// wraps it.
    fn from(error: anyhow::Error) -> Self {
        match error.downcast::<Self>() {
            Ok(ours) => ours,
            Err(other) => of_disk(&other).unwrap_or(Self::Internal(other)),
        }
    }
}

fn of_disk(error: &anyhow::Error) -> Option<Error> {
    error.chain().find_map(|cause| match cause.downcast_ref::<io::Error>()?.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Some(Error::machine_full()),
        io::ErrorKind::ReadOnlyFilesystem => Some(Error::machine_read_only()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[track_caller]
    fn check(kind: io::ErrorKind, expected: fn(&Error) -> bool) {
        let failed = Err::<(), _>(io::Error::from(kind)).context("write").context("make it");
        let told = Error::from(failed.unwrap_err());
        assert!(expected(&told), "{told:?}");
    }

    #[test]
    fn what_a_disk_refused_is_told_from_what_is_broken() {
        check(io::ErrorKind::StorageFull, |told| matches!(told, Error::DiskFull { .. }));
        check(io::ErrorKind::QuotaExceeded, |told| matches!(told, Error::DiskFull { .. }));
        check(io::ErrorKind::ReadOnlyFilesystem, |told| matches!(told, Error::ReadOnly { .. }));
        check(io::ErrorKind::PermissionDenied, |told| matches!(told, Error::Internal(_)));
    }
}

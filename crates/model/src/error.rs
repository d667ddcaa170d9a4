//! The one error of the workspace: what a caller may *do* something about. Everything else is
//! `Internal`, with its context inside. Only `server` turns it into HTTP status codes.

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
    /// No room anywhere for one more sandbox.
    #[error("{detail}")]
    NoCapacity { detail: String },
    /// The disk (or the sandbox's share of it) is full.
    #[error("{detail}")]
    DiskFull { detail: String },
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
}

impl From<anyhow::Error> for Error {
    /// Recovers an `Error` that travelled inside an `anyhow` chain, else wraps it.
    fn from(error: anyhow::Error) -> Self {
        match error.downcast::<Self>() {
            Ok(ours) => ours,
            Err(other) => Self::Internal(other),
        }
    }
}

//! What can go wrong with an image, by what one can do about it.

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not a reference, or an image that this machine cannot use.
    #[error("{0}")]
    Invalid(String),
    /// The registry says that there is no such image.
    #[error("{0}")]
    Unknown(String),
    /// The registry wants other credentials, or any.
    #[error("{0}")]
    Denied(String),
    /// The registry does not answer, or not now.
    #[error("{0}")]
    Unavailable(String),
    /// What was sent is not what its digest says, or breaks the format.
    #[error("{0}")]
    Corrupt(String),
    /// More than the limits allow.
    #[error("{0}")]
    TooLarge(String),
    #[error("no room on the disk for the image")]
    DiskFull,
    #[error("{0:#}")]
    Internal(anyhow::Error),
}

impl Error {
    /// A failure of a file operation of ours.
    pub(crate) fn file(error: std::io::Error, what: &str) -> Self {
        if error.kind() == std::io::ErrorKind::StorageFull
            || error.kind() == std::io::ErrorKind::QuotaExceeded
        {
            return Self::DiskFull;
        }
        Self::Internal(anyhow::Error::from(error).context(what.to_owned()))
    }
}

//! Why a request is not carried out. One value for both faces: Connect's code names and plain HTTP
//! statuses.

use std::io;

use http::StatusCode;

pub(crate) type Result<T> = std::result::Result<T, Refusal>;

/// A code that a client can act on, and one sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: Code,
    pub(crate) message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    InvalidArgument,
    FailedPrecondition,
    Unauthenticated,
    PermissionDenied,
    NotFound,
    AlreadyExists,
    ResourceExhausted,
    DeadlineExceeded,
    Unimplemented,
    Internal,
    // What only plain HTTP can say.
    MethodNotAllowed,
    NotAcceptable,
    TooLarge,
    UnsupportedMedia,
    RangeNotSatisfiable,
    PortClosed,
    DiskFull,
}

impl Code {
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::InvalidArgument | Self::FailedPrecondition => StatusCode::BAD_REQUEST,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::PermissionDenied => StatusCode::FORBIDDEN,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::AlreadyExists => StatusCode::CONFLICT,
            Self::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Self::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            Self::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::NotAcceptable => StatusCode::NOT_ACCEPTABLE,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UnsupportedMedia => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::RangeNotSatisfiable => StatusCode::RANGE_NOT_SATISFIABLE,
            Self::PortClosed => StatusCode::BAD_GATEWAY,
            Self::DiskFull => StatusCode::INSUFFICIENT_STORAGE,
        }
    }

    /// What Connect calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::InvalidArgument | Self::NotAcceptable | Self::UnsupportedMedia => {
                "invalid_argument"
            }
            Self::FailedPrecondition => "failed_precondition",
            Self::RangeNotSatisfiable => "out_of_range",
            Self::Unauthenticated => "unauthenticated",
            Self::PermissionDenied => "permission_denied",
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::ResourceExhausted | Self::TooLarge | Self::DiskFull => "resource_exhausted",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::Unimplemented | Self::MethodNotAllowed => "unimplemented",
            Self::Internal => "internal",
            Self::PortClosed => "unavailable",
        }
    }
}

impl Refusal {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(Code::NotFound, message)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(Code::Internal, message)
    }

    /// What the kernel said about `what`.
    pub(crate) fn io(what: &str, error: &io::Error) -> Self {
        let code = match error.raw_os_error() {
            Some(libc::ENOENT) => Code::NotFound,
            Some(libc::EEXIST) => Code::AlreadyExists,
            Some(libc::EACCES | libc::EPERM | libc::EROFS | libc::ETXTBSY) => {
                Code::PermissionDenied
            }
            Some(libc::ENOSPC | libc::EDQUOT) => Code::DiskFull,
            Some(libc::EFBIG) => Code::TooLarge,
            Some(libc::EMFILE | libc::ENFILE | libc::EAGAIN | libc::ENOMEM) => {
                Code::ResourceExhausted
            }
            Some(
                libc::ENOTDIR
                | libc::EISDIR
                | libc::EINVAL
                | libc::ELOOP
                | libc::ENAMETOOLONG
                | libc::ENOTEMPTY
                | libc::ENXIO
                | libc::EXDEV
                | libc::E2BIG
                | libc::ENOEXEC,
            ) => Code::InvalidArgument,
            _ => Code::Internal,
        };
        Self::new(code, format!("{what}: {error}"))
    }

    pub(crate) fn errno(what: &str, errno: rustix::io::Errno) -> Self {
        Self::io(what, &errno.into())
    }
}

//! Why a model did not answer, as far as somebody can do something about it.

use std::time::Duration;

/// What went wrong between us and a model.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(crate) enum Fault {
    /// Nobody answered.
    #[error("cannot reach the model at {host}: {why}")]
    Unreachable { host: String, why: String },
    /// It answered that it will not.
    #[error("the model's endpoint answered {status}: {message}")]
    Status { status: u16, message: String, retry_after: Option<Duration> },
    /// It said in its stream that it cannot go on.
    #[error("the model gave up: {message}")]
    Failed { message: String, passing: bool },
    /// What it was sent is more than it can read.
    #[error("the conversation is longer than the model can read: {message}")]
    ContextFull { message: String },
    #[error("the model's answer was cut off")]
    Cut,
    #[error("the model's answer cannot be read: {0}")]
    Garbage(String),
    #[error("the model's answer is too long: more than {bytes_max} bytes of {what}")]
    TooLong { what: &'static str, bytes_max: usize },
    #[error("the model said nothing for {} seconds", .0.as_secs_f32())]
    Silent(Duration),
    #[error("the model's answer took longer than {} seconds", .0.as_secs_f32())]
    Slow(Duration),
    /// We cannot ask at all: a setting is wrong.
    #[error("{0}")]
    Unusable(String),
}

impl Fault {
    /// Stable, for programs.
    pub(crate) fn code(&self) -> String {
        match self {
            Self::Unreachable { .. } => "model_unreachable".to_owned(),
            Self::Status { status, .. } => format!("api_error_{status}"),
            Self::Failed { .. } => "model_failed".to_owned(),
            Self::ContextFull { .. } => "context_length_exceeded".to_owned(),
            Self::Cut => "model_stream_cut".to_owned(),
            Self::Garbage(_) => "model_stream_garbage".to_owned(),
            Self::TooLong { .. } => "model_answer_too_long".to_owned(),
            Self::Silent(_) | Self::Slow(_) => "model_timeout".to_owned(),
            Self::Unusable(_) => "model_unusable".to_owned(),
        }
    }

    /// Asking again may help.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Cut => true,
            Self::Status { status, .. } => *status == 429 || *status == 408 || *status >= 500,
            Self::Failed { passing, .. } => *passing,
            Self::ContextFull { .. }
            | Self::Garbage(_)
            | Self::TooLong { .. }
            | Self::Silent(_)
            | Self::Slow(_)
            | Self::Unusable(_) => false,
        }
    }

    /// When it said that it may be asked again.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            Self::Unreachable { .. }
            | Self::Failed { .. }
            | Self::ContextFull { .. }
            | Self::Cut
            | Self::Garbage(_)
            | Self::TooLong { .. }
            | Self::Silent(_)
            | Self::Slow(_)
            | Self::Unusable(_) => None,
        }
    }
}

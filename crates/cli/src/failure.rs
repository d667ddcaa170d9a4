//! What went wrong, for the person at the terminal: one lower-case line, perhaps a hint, and the
//! exit code.

use std::io;

/// Ends a command. The exit code is 1 unless said otherwise; clap answers 2 for wrong usage.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub message: String,
    pub hint: Option<String>,
}

impl Failure {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None }
    }

    /// A library's hint is on a line of its own.
    fn told(text: &str) -> Self {
        match text.split_once("\nhint: ") {
            Some((message, hint)) => Self::new(message).hint(hint),
            None => Self::new(text),
        }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::told(&format!("{error:#}"))
    }
}

impl From<model::Error> for Failure {
    fn from(error: model::Error) -> Self {
        match error {
            model::Error::Internal(inner) => Self::told(&format!("{inner:#}")),
            other => Self::told(&other.to_string()),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::new(error.to_string().to_lowercase())
    }
}

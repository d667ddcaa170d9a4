//! What can go wrong, as the contract names it. The HTTP forms are made in one place elsewhere.

use std::fmt;

/// Every failure of the daemon that a client sees.
#[derive(Debug, Clone, PartialEq)]
pub enum Error {
    InvalidRequest { message: String },
    UnsupportedAgent { agent: String },
    ModeNotSupported { agent: String, mode: String },
    TokenInvalid,
    AgentNotInstalled { agent: String },
    SessionNotFound { session_id: String },
    SessionAlreadyExists { session_id: String },
    InstallFailed { agent: String, stderr: Option<String> },
    AgentProcessExited { agent: String, exit_code: Option<i32>, stderr: Option<String> },
    Stream { message: String },
    Timeout { message: String },
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::InvalidRequest { message: message.into() }
    }

    /// The agent's program or server does not do what was expected of it.
    pub fn stream(message: impl Into<String>) -> Self {
        Self::Stream { message: message.into() }
    }

    pub fn timeout(message: impl Into<String>) -> Self {
        Self::Timeout { message: message.into() }
    }

    pub fn install_failed(agent: impl Into<String>, stderr: impl Into<String>) -> Self {
        Self::InstallFailed { agent: agent.into(), stderr: Some(stderr.into()) }
    }
}

/// The text of `detail`.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidRequest { message } => write!(f, "invalid request: {message}"),
            Self::UnsupportedAgent { agent } => write!(f, "unsupported agent: {agent}"),
            Self::ModeNotSupported { agent, mode } => {
                write!(f, "mode not supported: {agent} {mode}")
            }
            Self::TokenInvalid => write!(f, "token invalid"),
            Self::AgentNotInstalled { agent } => write!(f, "agent not installed: {agent}"),
            Self::SessionNotFound { session_id } => write!(f, "session not found: {session_id}"),
            Self::SessionAlreadyExists { session_id } => {
                write!(f, "session already exists: {session_id}")
            }
            Self::InstallFailed { agent, .. } => write!(f, "install failed: {agent}"),
            Self::AgentProcessExited { agent, .. } => write!(f, "agent process exited: {agent}"),
            Self::Stream { message } => write!(f, "stream error: {message}"),
            Self::Timeout { .. } => write!(f, "timeout"),
        }
    }
}

impl std::error::Error for Error {}

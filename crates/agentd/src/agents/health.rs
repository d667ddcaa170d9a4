//! How a process that sessions share is doing, and when it may be started again.

use std::time::Duration;

use tokio::time::Instant;

use crate::api::{ServerStatus, ServerStatusInfo};
use crate::error::Error;

const BACK_OFF: Duration = Duration::from_millis(500);
const BACK_OFF_MAX: Duration = Duration::from_secs(30);
/// One that lived for so long did not die of what the one before it died of.
const STEADY: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Health {
    deaths: u64,
    /// In a row, each soon after its start.
    failures: u32,
    not_before: Option<Instant>,
    last_error: Option<String>,
}

impl Health {
    /// It ended by itself.
    pub(super) fn died(&mut self, message: String, lived: Duration) {
        self.deaths += 1;
        if lived > STEADY {
            self.failures = 0;
        }
        self.failed(message);
    }

    /// It did not even start.
    pub(super) fn refused(&mut self, error: &Error) {
        self.failed(match error {
            Error::Stream { message } => message.clone(),
            other => other.to_string(),
        });
    }

    fn failed(&mut self, message: String) {
        let wait = BACK_OFF.saturating_mul(1 << self.failures.min(10)).min(BACK_OFF_MAX);
        self.failures += 1;
        self.not_before = Some(Instant::now() + wait);
        self.last_error = Some(message);
    }

    /// When the next start may be.
    pub(super) fn not_before(&self) -> Option<Instant> {
        self.not_before
    }

    /// `uptime` if one runs.
    pub(super) fn info(
        &self,
        uptime: Option<Duration>,
        base_url: Option<String>,
    ) -> ServerStatusInfo {
        let last_error = self.last_error.clone().filter(|_| uptime.is_none());
        ServerStatusInfo {
            status: match (uptime, &last_error) {
                (Some(_), _) => ServerStatus::Running,
                (None, Some(_)) => ServerStatus::Error,
                (None, None) => ServerStatus::Stopped,
            },
            base_url,
            uptime_ms: uptime.map(|up| u64::try_from(up.as_millis()).unwrap_or(u64::MAX)),
            restart_count: self.deaths,
            last_error,
        }
    }
}

#[cfg(test)]
mod tests;

//! The wall clock. Deadlines and idle times are read off this and not off the system, so that a
//! test can let two hours pass.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;

/// Where the engine gets the time from; clones share it.
#[derive(Debug, Clone)]
pub struct Clock(Source);

#[derive(Debug, Clone)]
enum Source {
    System,
    Manual(Arc<watch::Sender<Timestamp>>),
}

impl Clock {
    /// The system's.
    pub fn system() -> Self {
        Self(Source::System)
    }

    /// One that stands still until [`Clock::advance`].
    pub fn manual(start: Timestamp) -> Self {
        Self(Source::Manual(Arc::new(watch::Sender::new(start))))
    }

    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::System => Timestamp::now(),
            Source::Manual(now) => *now.borrow(),
        }
    }

    /// Moves a manual clock. Does nothing to the system's.
    pub fn advance(&self, by: Duration) {
        let by = SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
        match &self.0 {
            Source::System => {}
            Source::Manual(now) => now.send_modify(|at| *at += by),
        }
    }

    /// Returns once [`Clock::now`] is `at` or later.
    pub async fn sleep_until(&self, at: Timestamp) {
        match &self.0 {
            Source::System => loop {
                let left = at.duration_since(Timestamp::now());
                let Ok(left) = Duration::try_from(left) else { return };
                if left.is_zero() {
                    return;
                }
                // In slices, because the wall clock can be set while we sleep.
                tokio::time::sleep(left.min(SLICE)).await;
            },
            Source::Manual(now) => {
                let mut watched = now.subscribe();
                // The sender lives in `self`, so waiting cannot fail.
                let _ = watched.wait_for(|now| *now >= at).await;
            }
        }
    }
}

const SLICE: Duration = Duration::from_secs(10);

//! The one place of the benchmark that looks at the clock, and that sleeps.
#![expect(clippy::disallowed_methods, reason = "measures real time, without a runtime")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub(super) struct Stopwatch(Instant);

impl Stopwatch {
    pub(super) fn start() -> Self {
        Self(Instant::now())
    }

    pub(super) fn time(&self) -> Duration {
        self.0.elapsed()
    }
}

/// As an agent says when it made something.
pub(super) fn micros_since_1970() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

pub(super) fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Asks every few milliseconds until `done`, or `limit` has passed.
pub(super) fn wait_until(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let watch = Stopwatch::start();
    while !done() {
        if watch.time() > limit {
            return false;
        }
        pause(Duration::from_millis(5));
    }
    true
}

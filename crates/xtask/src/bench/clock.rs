//! The one place of the benchmark that looks at the clock, and that sleeps.
#![expect(clippy::disallowed_methods, reason = "measures real time, without a runtime")]

use std::time::{Duration, Instant};

pub(super) struct Stopwatch(Instant);

impl Stopwatch {
    pub(super) fn start() -> Self {
        Self(Instant::now())
    }

    pub(super) fn time(&self) -> Duration {
        self.0.elapsed()
    }
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

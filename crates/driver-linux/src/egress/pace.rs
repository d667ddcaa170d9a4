//! A limit on how often a sandbox may make the server work: so many steps a second, in windows of a
//! tenth of a second. A sandbox that asks more often waits, the server does not work harder.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

const WINDOW: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Pace {
    steps_max: u32,
    steps: u32,
    window_ends: Option<Instant>,
}

impl Pace {
    pub(super) fn per_second(steps: u32) -> Self {
        Self { steps_max: (steps / 10).max(1), steps: 0, window_ends: None }
    }

    /// Whether one more step fits now.
    pub(super) fn take(&mut self) -> bool {
        let now = Instant::now();
        if self.window_ends.is_none_or(|end| end <= now) {
            self.window_ends = Some(now + WINDOW);
            self.steps = 0;
        }
        self.steps += 1;
        self.steps <= self.steps_max
    }

    /// Waits until one more step fits.
    pub(super) async fn step(&mut self) {
        while !self.take() {
            sleep_until(self.window_ends.unwrap_or_else(Instant::now)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_thousand_steps_at_a_hundred_a_second_take_ten_seconds() {
        let began = Instant::now();
        let mut pace = Pace::per_second(100);
        for _ in 0..1000 {
            pace.step().await;
        }
        let took = began.elapsed();
        assert!((9..=11).contains(&took.as_secs()), "{took:?}");
    }
}

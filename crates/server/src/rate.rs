//! How often somebody may ask for something, counted in memory, in windows of a minute. Where the leader alone is
//! asked, several servers count together.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::SignedDuration;
use tokio::time::Instant;

use crate::refusal::Refusal;

const WINDOW: Duration = Duration::from_secs(60);
const CLEAR_EVERY: Duration = Duration::from_secs(1);
/// Who is counted at once; those whose window is over make room. More than that are not counted.
const COUNTED_MAX: usize = 100_000;

pub(crate) struct Rate {
    per_minute: u32,
    windows: Mutex<Windows>,
}

#[derive(Default)]
struct Windows {
    of: HashMap<String, Window>,
    cleared: Option<Instant>,
}

struct Window {
    began: Instant,
    count: u32,
}

impl Rate {
    pub(crate) fn per_minute(per_minute: u32) -> Self {
        Self { per_minute, windows: Mutex::default() }
    }

    /// Counts one, or says when to ask again.
    pub(crate) fn count(&self, who: &str) -> Result<(), Refusal> {
        let now = Instant::now();
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        if !windows.of.contains_key(who) {
            if !windows.has_room(now) {
                return Ok(());
            }
            windows.of.insert(who.to_owned(), Window { began: now, count: 0 });
        }
        let Some(window) = windows.of.get_mut(who) else { return Ok(()) };
        let age = now.duration_since(window.began);
        if age >= WINDOW {
            *window = Window { began: now, count: 0 };
        }
        if window.count >= self.per_minute {
            let left = WINDOW.saturating_sub(age);
            let retry_after = SignedDuration::try_from(left).unwrap_or(SignedDuration::MAX);
            return Err(Refusal::RateLimited { retry_after });
        }
        window.count += 1;
        Ok(())
    }
}

impl Windows {
    /// Looks through all of them at most once a second, however many come.
    fn has_room(&mut self, now: Instant) -> bool {
        let lately = self.cleared.is_some_and(|at| now.duration_since(at) < CLEAR_EVERY);
        if self.of.len() >= COUNTED_MAX && !lately {
            self.cleared = Some(now);
            self.of.retain(|_, window| now.duration_since(window.began) < WINDOW);
        }
        self.of.len() < COUNTED_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_owner_has_a_count_of_its_own_that_begins_anew_after_a_minute() {
        let rate = Rate::per_minute(3);
        let (ann, bob) = ("usr_ann", "usr_bob");
        for _ in 0..3 {
            rate.count(ann).unwrap();
        }
        tokio::time::advance(Duration::from_secs(20)).await;
        let Err(Refusal::RateLimited { retry_after }) = rate.count(ann) else { panic!() };
        assert_eq!(retry_after, SignedDuration::from_secs(40));
        rate.count(bob).unwrap();
        tokio::time::advance(Duration::from_secs(40)).await;
        rate.count(ann).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_is_bounded_and_refuses_nobody() {
        let rate = Rate::per_minute(1);
        for i in 0..COUNTED_MAX + 10 {
            rate.count(&i.to_string()).unwrap();
        }
        let counted = || rate.windows.lock().unwrap().of.len();
        assert_eq!(counted(), COUNTED_MAX);
        assert!(rate.count("0").is_err());
        tokio::time::advance(WINDOW).await;
        rate.count("somebody else").unwrap();
        assert_eq!(counted(), 1);
    }
}

//! How often one owner may ask for something, counted in windows of a minute. Asked of the leader alone,
//! so several servers count together.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::SignedDuration;
use model::OwnerId;
use tokio::time::Instant;

use crate::refusal::Refusal;

const WINDOW: Duration = Duration::from_secs(60);
/// Owners that are counted at once; those whose window is over go first.
const OWNERS_MAX: usize = 100_000;

pub(crate) struct Rate {
    per_minute: u32,
    windows: Mutex<HashMap<OwnerId, Window>>,
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
    pub(crate) fn count(&self, owner: &OwnerId) -> Result<(), Refusal> {
        let now = Instant::now();
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        if windows.len() >= OWNERS_MAX {
            windows.retain(|_, window| now.duration_since(window.began) < WINDOW);
        }
        let window = windows.entry(owner.clone()).or_insert(Window { began: now, count: 0 });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_owner_has_a_count_of_its_own_that_begins_anew_after_a_minute() {
        let rate = Rate::per_minute(3);
        let (ann, bob) = ("usr_ann".parse().unwrap(), "usr_bob".parse().unwrap());
        for _ in 0..3 {
            rate.count(&ann).unwrap();
        }
        tokio::time::advance(Duration::from_secs(20)).await;
        let Err(Refusal::RateLimited { retry_after }) = rate.count(&ann) else { panic!() };
        assert_eq!(retry_after, SignedDuration::from_secs(40));
        rate.count(&bob).unwrap();
        tokio::time::advance(Duration::from_secs(40)).await;
        rate.count(&ann).unwrap();
    }
}

//! `flood COUNT [RATE]`: that many pieces of one message, so many a second or as fast as they are taken. For
//! those who want to know how much a client, or what is in between, can bear.
//!
//! Each piece says its number and when it was made, in microseconds since 1970: an event of about 300 bytes.

use std::time::Duration;

use events::{ItemKind, ItemRole};
use jiff::Timestamp;
use tokio::time::{Instant, sleep_until};

use crate::conversion::{Conversion, Item};

/// Of one turn.
const COUNT_MAX: u64 = 10_000_000;
/// Between two looks at the clock, and at what was ordered meanwhile.
const TICK: Duration = Duration::from_millis(1);
/// At full speed, before others get their turn.
const AT_ONCE: u64 = 64;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Flood {
    name: String,
    count: u64,
    /// A second.
    rate: Option<u64>,
    said: u64,
    begun: Instant,
}

/// What comes next.
#[derive(Debug, PartialEq)]
pub(super) enum Next {
    Say(Vec<Conversion>),
    /// That is all.
    Over,
}

impl Flood {
    /// `None` if a message asks for something else.
    pub(super) fn asked(turn: u64, message: &str) -> Option<Self> {
        let mut words = message.split_whitespace();
        if words.next()? != "flood" {
            return None;
        }
        let count = words.next()?.parse().ok().filter(|count| (1..=COUNT_MAX).contains(count))?;
        let rate = match words.next() {
            Some(rate) => Some(rate.parse().ok().filter(|rate| *rate > 0)?),
            None => None,
        };
        let name = format!("mock_{turn}_flood");
        Some(Self { name, count, rate, said: 0, begun: Instant::now() })
    }

    /// Waits for its time. Nothing is lost if the wait is given up.
    pub(super) async fn next(&mut self) -> Next {
        if self.said == self.count {
            return Next::Over;
        }
        let due = loop {
            let due = self.due();
            if due > self.said {
                break due;
            }
            sleep_until(Instant::now() + TICK).await;
        };
        // At full speed nothing else is waited for.
        tokio::task::yield_now().await;
        let mut next = Vec::new();
        if self.said == 0 {
            let item = Item::new(&self.name, ItemKind::Message, ItemRole::Assistant);
            next.push(item.started());
        }
        while self.said < due {
            self.said += 1;
            let made = Timestamp::now().as_microsecond();
            let delta = format!("{:08} {made:016}\n", self.said);
            next.push(Conversion::ItemDelta { native_item_id: self.name.clone(), delta });
        }
        if self.said == self.count {
            let item = Item::new(&self.name, ItemKind::Message, ItemRole::Assistant);
            next.push(item.completed());
        }
        Next::Say(next)
    }

    /// How many should have been said by now.
    fn due(&self) -> u64 {
        let due = match self.rate {
            None => self.said + AT_ONCE,
            Some(rate) => {
                let micros = u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX);
                micros.saturating_mul(rate) / 1_000_000
            }
        };
        due.min(self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_piece_comes_once_and_not_before_its_time() {
        for message in ["flood 1000", "flood 1000 500"] {
            let mut flood = Flood::asked(3, message).unwrap();
            let begun = Instant::now();
            let mut deltas = Vec::new();
            while let Next::Say(all) = flood.next().await {
                deltas.extend(all.into_iter().filter_map(|one| match one {
                    Conversion::ItemDelta { delta, .. } => delta[..8].parse::<u64>().ok(),
                    _ => None,
                }));
            }
            assert_eq!(deltas, (1..=1000).collect::<Vec<_>>(), "{message}");
            let expected = if flood.rate.is_some() { 2000 } else { 0 };
            assert_eq!(begun.elapsed().as_millis(), expected, "{message}");
        }
    }

    #[test]
    fn anything_else_is_said_back() {
        for message in ["flood", "flood x", "flood 0", "flood 1 0", "flood 99999999", "flooding 5"]
        {
            assert_eq!(Flood::asked(1, message), None, "{message}");
        }
    }
}

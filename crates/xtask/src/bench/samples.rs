//! Measured times, and what they come to.

use std::time::Duration;

use serde_json::{Value, json};

#[derive(Debug, Clone, Default)]
pub(super) struct Samples(Vec<Duration>);

impl Samples {
    pub(super) fn push(&mut self, time: Option<Duration>) {
        self.0.extend(time);
        self.0.sort_unstable();
    }

    pub(super) fn extend(&mut self, times: impl IntoIterator<Item = Duration>) {
        self.0.extend(times);
        self.0.sort_unstable();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn median(&self) -> Duration {
        self.at(50)
    }

    pub(super) fn min(&self) -> Duration {
        self.at(0)
    }

    /// The worst but one in a hundred; of fewer samples the worst.
    pub(super) fn p99(&self) -> Duration {
        self.at(99)
    }

    fn at(&self, percent: usize) -> Duration {
        let index = (self.0.len() * percent / 100).min(self.0.len().saturating_sub(1));
        self.0.get(index).copied().unwrap_or_default()
    }

    pub(super) fn shown(&self) -> String {
        if self.is_empty() {
            return "-".into();
        }
        format!("{} / {} / {}", ms(self.median()), ms(self.min()), ms(self.p99()))
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "samples": self.0.len(), "median_ms": millis(self.median()),
            "min_ms": millis(self.min()), "p99_ms": millis(self.p99()),
        })
    }
}

/// How many times longer `other` takes.
pub(super) fn times(other: Duration, than: Duration) -> f64 {
    other.as_secs_f64() / than.as_secs_f64().max(1e-9)
}

pub(super) fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

/// Milliseconds with as many digits as mean something.
pub(super) fn ms(time: Duration) -> String {
    let millis = time.as_secs_f64() * 1e3;
    match millis {
        0.0..0.1 => format!("{millis:.3}"),
        0.1..10.0 => format!("{millis:.2}"),
        10.0..100.0 => format!("{millis:.1}"),
        _ => format!("{millis:.0}"),
    }
}

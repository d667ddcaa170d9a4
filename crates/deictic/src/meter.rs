//! What a turn has used so far, of all its agents.

use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use crate::model::Usage;

#[derive(Debug, Default)]
pub(crate) struct Meter(Mutex<Used>);

#[derive(Debug, Clone, Copy, Default)]
struct Used {
    usage: Usage,
    model_calls: u64,
    tool_calls: u64,
}

impl Meter {
    pub(crate) fn answered(&self, usage: Usage) {
        self.change(|used| {
            used.usage.add(usage);
            used.model_calls += 1;
        });
    }

    pub(crate) fn called(&self) {
        self.change(|used| used.tool_calls += 1);
    }

    pub(crate) fn tokens(&self) -> u64 {
        self.change(|used| used.usage.total())
    }

    /// For whoever meters; begins again.
    pub(crate) fn take(&self, vendor: &str, model: &str) -> Value {
        let used = self.change(std::mem::take);
        json!({
            "type": "usage",
            "vendor": vendor,
            "model": model,
            "input_tokens": used.usage.input,
            "output_tokens": used.usage.output,
            "cached_input_tokens": used.usage.cached,
            "reasoning_tokens": used.usage.reasoning,
            "model_calls": used.model_calls,
            "tool_calls": used.tool_calls,
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut Used) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

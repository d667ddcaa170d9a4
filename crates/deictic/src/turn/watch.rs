//! Whether a model gets anywhere: one that makes the same call again and again, calls what is not there, or
//! waits for what never comes, is stopped.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};

use super::Trouble;
use crate::model::Call;
use crate::tools::{End, Outcome};

/// The same call with the same result, one after the other.
const SAME_IN_A_ROW_MAX: u32 = 6;

/// And in all.
const SAME_MAX: u32 = 30;

/// Calls of tools that are not there, one after the other.
const UNKNOWN_MAX: u32 = 3;

/// Calls that took too long, one after the other.
const LATE_MAX: u32 = 2;

#[derive(Debug, Default)]
pub(super) struct Watch {
    seen: HashMap<u64, u32>,
    last: u64,
    in_a_row: u32,
    unknown: u32,
    late: u32,
}

impl Watch {
    pub(super) fn unknown(&mut self, call: &Call) -> Option<Trouble> {
        self.unknown += 1;
        let message = format!("the model keeps calling tools that are not there: {}", call.name);
        (self.unknown >= UNKNOWN_MAX).then(|| Trouble::other("unknown_tool", message))
    }

    pub(super) fn called(&mut self, call: &Call, outcome: &Outcome) -> Option<Trouble> {
        self.unknown = 0;
        match outcome.end {
            End::DiskFull => {
                return Some(Trouble::other("disk_full", outcome.output.clone()));
            }
            End::TimedOut => {
                self.late += 1;
                let message = format!("a tool does not end: {}", call.name);
                if self.late >= LATE_MAX {
                    return Some(Trouble::other("tool_timeout", message));
                }
            }
            End::Fine | End::Failed => self.late = 0,
        }
        let mut hasher = DefaultHasher::new();
        (&call.name, &call.arguments, &outcome.output).hash(&mut hasher);
        let hash = hasher.finish();
        self.in_a_row = if hash == self.last { self.in_a_row + 1 } else { 1 };
        self.last = hash;
        let in_all = self.seen.entry(hash).or_default();
        *in_all += 1;
        let looping = self.in_a_row >= SAME_IN_A_ROW_MAX || *in_all >= SAME_MAX;
        let message = format!("the model makes the same call again and again: {}", call.name);
        looping.then(|| Trouble::other("tool_loop", message))
    }
}

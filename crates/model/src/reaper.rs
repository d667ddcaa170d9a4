//! When a sandbox ends by itself: one pure decision, made every 10 s and by a timer per sandbox
//! (000 *TTL rules*, 003 *Reaping*, rulings 8, 9 and 23).

use jiff::{SignedDuration, Timestamp};

use crate::{Clocks, Phase};

/// How long before the hard lifetime an attached client is warned.
pub const WARNING_BEFORE: SignedDuration = SignedDuration::from_secs(10);
/// How long past its deadline a sandbox is kept (003 *Reaping*).
pub const DEADLINE_GRACE: SignedDuration = SignedDuration::from_secs(60);

/// What is known of a sandbox at the time of the decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observed {
    pub phase: Phase,
    pub clocks: Clocks,
    pub created_at: Timestamp,
    /// The later of: reached `running`, last activity ended.
    pub last_activity_at: Timestamp,
    /// A call, an attached client or a task is in flight now (ruling 9).
    pub busy: bool,
    /// A WebSocket client is attached.
    pub client_attached: bool,
    /// The warning was sent already.
    pub warned: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    DestroyForLifetime,
    Warn,
    DestroyForIdle,
    StopForIdle,
    DestroyForDeadline,
}

/// What to do with this sandbox now, if anything. Order: hard lifetime, warning, idle destroy,
/// idle stop, deadline.
pub fn decide(now: Timestamp, sandbox: &Observed) -> Option<Action> {
    if matches!(sandbox.phase, Phase::Deleting | Phase::Destroyed) {
        return None;
    }
    if let Some(end) = lifetime_end(sandbox) {
        if now >= end {
            return Some(Action::DestroyForLifetime);
        }
        let warn = sandbox.client_attached && !sandbox.warned && has_guest(sandbox.phase);
        if warn && now >= end - WARNING_BEFORE {
            return Some(Action::Warn);
        }
    }
    if sandbox.phase == Phase::Running && !sandbox.busy {
        let idle_for = now.duration_since(sandbox.last_activity_at);
        if idle_for >= idle_timeout(sandbox) {
            return Some(Action::DestroyForIdle);
        }
        if idle_for >= auto_stop(sandbox) {
            return Some(Action::StopForIdle);
        }
    }
    match deadline(sandbox.clocks, sandbox.created_at) {
        Some(deadline) if now >= deadline + DEADLINE_GRACE => Some(Action::DestroyForDeadline),
        Some(_) | None => None,
    }
}

/// The earliest moment at which [`decide`] could answer something, if nothing changes before.
pub fn next_check(sandbox: &Observed) -> Option<Timestamp> {
    let lifetime = lifetime_end(sandbox);
    let warning = lifetime.filter(|_| !sandbox.warned).map(|end| end - WARNING_BEFORE);
    let idle = (sandbox.phase == Phase::Running && !sandbox.busy)
        .then(|| idle_timeout(sandbox).min(auto_stop(sandbox)))
        .filter(|after| *after != SignedDuration::MAX)
        .map(|after| sandbox.last_activity_at + after);
    let deadline = deadline(sandbox.clocks, sandbox.created_at).map(|at| at + DEADLINE_GRACE);
    [lifetime, warning, idle, deadline].into_iter().flatten().min()
}

/// 003's `deadline`: `auto_delete_hours` after creation.
pub fn deadline(clocks: Clocks, created_at: Timestamp) -> Option<Timestamp> {
    let seconds = clocks.auto_delete_hours?.checked_mul(3600)?;
    Some(created_at + seconds_of(seconds))
}

fn lifetime_end(sandbox: &Observed) -> Option<Timestamp> {
    let seconds = sandbox.clocks.max_lifetime_seconds?;
    Some(sandbox.created_at + seconds_of(seconds))
}

fn idle_timeout(sandbox: &Observed) -> SignedDuration {
    sandbox.clocks.idle_timeout_seconds.map_or(SignedDuration::MAX, seconds_of)
}

fn auto_stop(sandbox: &Observed) -> SignedDuration {
    match sandbox.clocks.auto_stop_minutes {
        None | Some(0) => SignedDuration::MAX,
        Some(minutes) => seconds_of(minutes.saturating_mul(60)),
    }
}

fn has_guest(phase: Phase) -> bool {
    matches!(phase, Phase::Running | Phase::Paused)
}

/// Clamped to a century, so that adding it to a timestamp of today cannot overflow.
fn seconds_of(seconds: u64) -> SignedDuration {
    const CENTURY: u64 = 100 * 365 * 24 * 3600;
    SignedDuration::from_secs(i64::try_from(seconds.min(CENTURY)).expect("clamped"))
}

#[cfg(test)]
mod tests;

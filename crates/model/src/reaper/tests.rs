use proptest::prelude::*;

use super::*;

const START: Timestamp = Timestamp::UNIX_EPOCH;

fn sandbox() -> Observed {
    Observed {
        phase: Phase::Running,
        clocks: Clocks::default(),
        created_at: START,
        last_activity_at: START,
        busy: false,
        client_attached: false,
        warned: false,
    }
}

fn at(seconds: i64) -> Timestamp {
    START + SignedDuration::from_secs(seconds)
}

#[track_caller]
fn check(sandbox: Observed, seconds: i64, want: Option<Action>) {
    assert_eq!(decide(at(seconds), &sandbox), want, "at {seconds} s: {sandbox:?}");
}

#[test]
fn idle_destroys_a_template_sandbox() {
    let clocks = Clocks { idle_timeout_seconds: Some(60), ..Clocks::default() };
    let idle = Observed { clocks, ..sandbox() };
    check(idle, 59, None);
    check(idle, 60, Some(Action::DestroyForIdle));
    check(Observed { busy: true, ..idle }, 600, None);
    check(Observed { phase: Phase::Paused, ..idle }, 600, None);
    check(Observed { last_activity_at: at(30), ..idle }, 89, None);
}

#[test]
fn idle_stops_an_image_sandbox_and_zero_disables() {
    let clocks = Clocks { auto_stop_minutes: Some(15), ..Clocks::default() };
    check(Observed { clocks, ..sandbox() }, 899, None);
    check(Observed { clocks, ..sandbox() }, 900, Some(Action::StopForIdle));
    let off = Clocks { auto_stop_minutes: Some(0), ..Clocks::default() };
    check(Observed { clocks: off, ..sandbox() }, 1_000_000, None);
}

#[test]
fn the_lifetime_ends_everything_and_warns_once_with_a_client() {
    let clocks = Clocks { max_lifetime_seconds: Some(100), ..Clocks::default() };
    let busy = Observed { clocks, busy: true, ..sandbox() };
    check(busy, 95, None);
    let attached = Observed { client_attached: true, ..busy };
    check(attached, 89, None);
    check(attached, 90, Some(Action::Warn));
    check(Observed { warned: true, ..attached }, 95, None);
    check(attached, 100, Some(Action::DestroyForLifetime));
    check(Observed { phase: Phase::Stopped, ..busy }, 100, Some(Action::DestroyForLifetime));
    check(Observed { phase: Phase::Paused, ..busy }, 100, Some(Action::DestroyForLifetime));
}

#[test]
fn the_deadline_has_a_minute_of_grace() {
    let clocks = Clocks { auto_delete_hours: Some(1), ..Clocks::default() };
    let any = Observed { clocks, busy: true, ..sandbox() };
    check(any, 3659, None);
    check(any, 3660, Some(Action::DestroyForDeadline));
    check(Observed { phase: Phase::Stopped, ..any }, 3660, Some(Action::DestroyForDeadline));
    check(Observed { phase: Phase::Deleting, ..any }, 99_999, None);
}

#[test]
fn the_earliest_clock_wins() {
    let clocks = Clocks {
        idle_timeout_seconds: Some(60),
        auto_stop_minutes: Some(1),
        max_lifetime_seconds: Some(60),
        auto_delete_hours: Some(0),
    };
    check(Observed { clocks, ..sandbox() }, 60, Some(Action::DestroyForLifetime));
    let clocks = Clocks { max_lifetime_seconds: None, ..clocks };
    check(Observed { clocks, ..sandbox() }, 60, Some(Action::DestroyForIdle));
}

proptest! {
    /// A timer set to `next_check` never misses an action.
    #[test]
    fn nothing_happens_before_the_next_check(
        idle in proptest::option::of(0u64..500),
        life in proptest::option::of(0u64..500),
        stop in proptest::option::of(0u64..10),
        hours in proptest::option::of(0u64..2),
        busy: bool, client_attached: bool, now in 0i64..8000,
    ) {
        let clocks = Clocks {
            idle_timeout_seconds: idle,
            max_lifetime_seconds: life,
            auto_stop_minutes: stop,
            auto_delete_hours: hours,
        };
        let sandbox = Observed { clocks, busy, client_attached, ..sandbox() };
        if decide(at(now), &sandbox).is_some() {
            prop_assert!(next_check(&sandbox).unwrap() <= at(now));
        }
    }

    #[test]
    fn huge_clocks_do_not_overflow(n in any::<u64>()) {
        let clocks = Clocks {
            idle_timeout_seconds: Some(n),
            max_lifetime_seconds: Some(n),
            auto_stop_minutes: Some(n),
            auto_delete_hours: Some(n),
        };
        decide(Timestamp::now(), &Observed { clocks, ..sandbox() });
        next_check(&Observed { clocks, ..sandbox() });
    }
}

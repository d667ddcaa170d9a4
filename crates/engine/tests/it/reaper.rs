//! Sandboxes that end by themselves: clocks, activity, warnings (rulings 8, 9, 12 and 23). The sweep
//! is switched off where a timer must do it.

use std::time::Duration;

use engine::{CancelReason, Command, Notice, Sandbox};
use model::{Clocks, EndReason, EventKind, NewSandbox, Phase};

use crate::{Fixture, alice, by_id, image, persistent, template};

/// Nothing but timers per sandbox.
async fn without_sweep() -> Fixture {
    Fixture::with(|config| config.sweep_every = Duration::from_secs(1_000_000)).await
}

fn clocked(wanted: NewSandbox, clocks: Clocks) -> NewSandbox {
    NewSandbox { asked_clocks: clocks, ..wanted }
}

/// Everything that was told, once `last` was.
async fn told(fixture: &Fixture, last: EventKind) -> Vec<(EventKind, Option<EndReason>)> {
    for _ in 0..500 {
        let after = Some(store::EventId(0));
        let backlog = fixture.store().backlog(&alice().owner, after, 100).await.unwrap();
        if backlog.events.iter().any(|stored| stored.event.kind == last) {
            let events = backlog.events.into_iter().map(|stored| stored.event);
            return events.map(|event| (event.kind, event.reason)).collect();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{last:?} was not told");
}

#[track_caller]
fn assert_ended(seen: &Sandbox, phase: Phase, reason: EndReason) {
    assert_eq!((seen.phase, seen.end_reason), (phase, Some(reason)));
}

#[tokio::test]
async fn an_idle_template_sandbox_is_destroyed_after_a_minute() {
    let fixture = without_sweep().await;
    let made = fixture.create(template()).await.unwrap();
    fixture.pass(59).await;
    assert_eq!(fixture.phase(&made).await, Phase::Running);
    fixture.pass(2).await;
    let gone = fixture.until_phase(&made, Phase::Destroyed).await;
    assert_ended(&gone, Phase::Destroyed, EndReason::Idle);
    fixture.assert_empty().await;
    let kinds = told(&fixture, EventKind::Destroyed).await;
    assert!(kinds.contains(&(EventKind::IdleDestroy, Some(EndReason::Idle))), "{kinds:?}");
    assert!(kinds.contains(&(EventKind::Destroyed, Some(EndReason::Idle))), "{kinds:?}");
    assert!(kinds.iter().any(|(kind, _)| *kind == EventKind::SandboxHour), "{kinds:?}");
}

#[tokio::test]
async fn an_idle_image_sandbox_is_stopped_after_a_quarter_of_an_hour() {
    let fixture = without_sweep().await;
    let made = fixture.create(image()).await.unwrap();
    fixture.pass(899).await;
    assert_eq!(fixture.phase(&made).await, Phase::Running);
    fixture.pass(2).await;
    let stopped = fixture.until_phase(&made, Phase::Stopped).await;
    assert_ended(&stopped, Phase::Stopped, EndReason::Idle);
    let kinds = told(&fixture, EventKind::Stopped).await;
    assert!(kinds.contains(&(EventKind::IdleStop, Some(EndReason::Idle))), "{kinds:?}");
}

#[tokio::test]
async fn zero_minutes_disable_the_idle_stop() {
    let fixture = without_sweep().await;
    let clocks = Clocks { auto_stop_minutes: Some(0), ..Clocks::default() };
    let made = fixture.create(clocked(persistent(), clocks)).await.unwrap();
    fixture.pass(10_000_000).await;
    assert_eq!(fixture.phase(&made).await, Phase::Running);
}

#[tokio::test]
async fn the_deadline_has_a_minute_of_grace_and_holds_for_stopped_ones_too() {
    let fixture = without_sweep().await;
    let clocks = Clocks { auto_delete_hours: Some(1), ..Clocks::default() };
    let made = fixture.create(clocked(image(), clocks)).await.unwrap();
    assert_eq!(made.deadline.unwrap().duration_since(made.spec.created_at).as_hours(), 1);
    fixture.engine.stop(&alice(), &by_id(&made)).await.unwrap();
    fixture.pass(3600 + 59).await;
    assert_eq!(fixture.phase(&made).await, Phase::Stopped);
    fixture.pass(2).await;
    let gone = fixture.until_phase(&made, Phase::Destroyed).await;
    assert_ended(&gone, Phase::Destroyed, EndReason::Deadline);
    let kinds = told(&fixture, EventKind::Destroyed).await;
    assert!(kinds.contains(&(EventKind::Deadline, Some(EndReason::Deadline))), "{kinds:?}");
    assert!(fixture.create(persistent()).await.unwrap().deadline.is_none());
}

#[tokio::test]
async fn the_hard_lifetime_ends_a_busy_sandbox_and_warns_its_client_once() {
    let fixture = without_sweep().await;
    let clocks = Clocks { max_lifetime_seconds: Some(100), ..Clocks::default() };
    let made = fixture.create(clocked(template(), clocks)).await.unwrap();
    let mut client = fixture.engine.attach(&alice(), &by_id(&made)).await.unwrap();
    fixture.pass(89).await;
    assert!(client.notices.try_recv().is_err());
    fixture.pass(2).await;
    assert_eq!(client.notices.recv().await.unwrap(), Notice::Cancel(CancelReason::Timeout));
    fixture.pass(5).await;
    assert!(client.notices.try_recv().is_err(), "warned once");
    assert_eq!(fixture.phase(&made).await, Phase::Running);
    fixture.pass(5).await;
    assert_eq!(client.notices.recv().await.unwrap(), Notice::Destroyed);
    let gone = fixture.until_phase(&made, Phase::Destroyed).await;
    assert_ended(&gone, Phase::Destroyed, EndReason::Lifetime);
    let kinds = told(&fixture, EventKind::Destroyed).await;
    assert!(kinds.iter().any(|(kind, _)| *kind == EventKind::LifetimeWarning), "{kinds:?}");
}

#[tokio::test]
async fn nobody_is_warned_when_nobody_is_attached() {
    let fixture = without_sweep().await;
    let clocks = Clocks { max_lifetime_seconds: Some(50), ..Clocks::default() };
    let made = fixture.create(clocked(template(), clocks)).await.unwrap();
    fixture.pass(45).await;
    fixture.pass(6).await;
    fixture.until_phase(&made, Phase::Destroyed).await;
    let kinds = told(&fixture, EventKind::Destroyed).await;
    assert!(!kinds.iter().any(|(kind, _)| *kind == EventKind::LifetimeWarning), "{kinds:?}");
}

#[tokio::test]
async fn an_attached_client_keeps_a_sandbox_from_idling_and_its_going_starts_the_clock() {
    let fixture = without_sweep().await;
    let made = fixture.create(template()).await.unwrap();
    let client = fixture.engine.attach(&alice(), &by_id(&made)).await.unwrap();
    for _ in 0..5 {
        fixture.pass(50).await;
    }
    assert_eq!(fixture.phase(&made).await, Phase::Running);
    drop(client);
    fixture.pass(59).await;
    assert_eq!(fixture.phase(&made).await, Phase::Running);
    fixture.pass(2).await;
    fixture.until_phase(&made, Phase::Destroyed).await;
}

#[tokio::test]
async fn every_call_refreshes_the_last_activity() {
    let fixture = without_sweep().await;
    let made = fixture.create(template()).await.unwrap();
    for _ in 0..5 {
        fixture.pass(40).await;
        fixture.engine.exec(&alice(), &by_id(&made), Command::shell("true")).await.unwrap();
        let seen = fixture.get(&made).await.unwrap();
        assert_eq!(seen.last_activity_at.as_microsecond(), fixture.clock.now().as_microsecond());
    }
    assert_eq!(fixture.phase(&made).await, Phase::Running);
}

#[tokio::test]
async fn a_call_in_flight_keeps_a_sandbox_from_idling() {
    let fixture = without_sweep().await;
    let made = fixture.create(template()).await.unwrap();
    let sandbox = by_id(&made);
    let caller = alice();
    let wait = Command::shell("while [ ! -e go ]; do sleep 0.02; done");
    let exec = fixture.engine.exec(&caller, &sandbox, wait);
    let later = async {
        for _ in 0..3 {
            fixture.pass(50).await;
        }
        assert_eq!(fixture.phase(&made).await, Phase::Running);
        let go = Command::shell("touch go");
        fixture.engine.exec(&caller, &sandbox, go).await.unwrap();
    };
    let (done, ()) = tokio::join!(exec, later);
    assert_eq!(done.unwrap().exit_code, 0);
}

#[tokio::test]
async fn a_streamed_command_that_nobody_reads_keeps_a_sandbox_from_idling() {
    streamed_command_keeps_from_idling(false).await;
}

#[tokio::test]
async fn so_does_one_that_was_started_before_a_restart() {
    streamed_command_keeps_from_idling(true).await;
}

async fn streamed_command_keeps_from_idling(restarted: bool) {
    let mut fixture = without_sweep().await;
    let made = fixture.create(template()).await.unwrap();
    let sandbox = by_id(&made);
    let wait = Command::shell("while [ ! -e go ]; do sleep 0.02; done");
    let (exec, output) = fixture.engine.exec_start(&alice(), &sandbox, wait).await.unwrap();
    drop(output);
    if restarted {
        fixture.restart().await;
    }
    for _ in 0..3 {
        fixture.pass(61).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert_eq!(fixture.phase(&made).await, Phase::Running);
    fixture.engine.exec(&alice(), &sandbox, Command::shell("touch go")).await.unwrap();
    let attached = fixture.engine.exec_attach(&alice(), &sandbox, &exec, 0).await.unwrap();
    futures_util::StreamExt::collect::<Vec<_>>(attached).await;
    fixture.pass(61).await;
    fixture.until_phase(&made, Phase::Destroyed).await;
}

#[tokio::test]
async fn a_paused_sandbox_does_not_idle_but_its_lifetime_runs() {
    let fixture = without_sweep().await;
    let clocks = Clocks { max_lifetime_seconds: Some(1000), ..Clocks::default() };
    let made = fixture.create(clocked(template(), clocks)).await.unwrap();
    fixture.engine.pause(&alice(), &by_id(&made)).await.unwrap();
    fixture.pass(500).await;
    assert_eq!(fixture.phase(&made).await, Phase::Paused);
    fixture.engine.resume(&alice(), &by_id(&made)).await.unwrap();
    fixture.pass(59).await;
    assert_eq!(fixture.phase(&made).await, Phase::Running, "it idles from its resume on");
    fixture.engine.pause(&alice(), &by_id(&made)).await.unwrap();
    fixture.pass(500).await;
    fixture.until_phase(&made, Phase::Destroyed).await;
}

#[tokio::test]
async fn what_a_failed_end_left_is_tried_again() {
    let fixture = Fixture::new().await;
    let made = fixture.create(template()).await.unwrap();
    fixture.driver.fail(driver::fake::Step::Remove, 1);
    fixture.pass(61).await;
    let gone = fixture.swept_until(&made, Phase::Destroyed).await;
    assert_ended(&gone, Phase::Destroyed, EndReason::Idle);
}

//! A create or a delete that was answered, and of which the store has heard nothing or only a part.

use driver::{Driver, Launch};
use jiff::{SignedDuration, Timestamp};
use model::{EndReason, Event, EventKind, Phase, Policy, SandboxSpec};
use store::{Change, Leg, LegEnd, Transition};

use super::{spec_of, told_of};
use crate::{Fixture, alice, by_name, image, named};

#[track_caller]
fn assert_kinds(events: &[Event], kinds: &[EventKind]) {
    assert_eq!(events.iter().map(|event| event.kind).collect::<Vec<_>>(), kinds);
}

/// What a create had written when its answer was given: the rest was lost with the server.
async fn answered_and_lost(fixture: &mut Fixture) -> SandboxSpec {
    let made = fixture.create(image()).await.unwrap();
    let spec = spec_of(&made, SignedDuration::ZERO);
    let launch = Launch { spec: spec.clone(), policy: Policy::none() };
    fixture.driver.create(launch).await.unwrap();
    let answer = "{}".to_owned();
    let times = store::Remembered {
        from: Timestamp::now(),
        until: Timestamp::now() + SignedDuration::from_hours(24),
    };
    let key = "once".to_owned();
    let request = Change::ClaimRequest { key, body_sha256: [1; 32], answer, times };
    let claims = vec![Change::ClaimName(spec.name.clone()), request];
    fixture.store().apply(alice().owner, spec.id, claims).await.unwrap();
    spec
}

#[tokio::test]
async fn an_answered_create_whose_compute_died_with_the_server_is_kept_and_billed() {
    let mut fixture = Fixture::new().await;
    let spec = answered_and_lost(&mut fixture).await;
    fixture.driver.set_cpu_usec(2_500_000);
    fixture.driver.kill(spec.id, EndReason::Oom);
    fixture.restart().await;
    let seen = fixture.engine.get(&alice(), &by_name("orphan")).await.unwrap();
    assert_eq!((seen.phase, seen.end_reason), (Phase::Stopped, Some(EndReason::Oom)));
    let events = told_of(&fixture, spec.id).await;
    assert_kinds(&events, &[EventKind::Running, EventKind::SandboxHour, EventKind::Stopped]);
    assert_eq!(events[1].data["cpu_seconds"], 2.5, "{:?}", events[1]);
    fixture.restart().await;
    assert_eq!(told_of(&fixture, spec.id).await.len(), 3, "nothing is told twice");
    let again = fixture.create_with_key(named("orphan"), "once", 1).await.unwrap();
    assert!(again.replayed);
    assert_eq!(again.sandbox.spec.id, spec.id);
}

#[tokio::test]
async fn a_delete_that_was_answered_and_lost_is_told_and_billed_however_late() {
    let mut fixture = Fixture::new().await;
    let spec = answered_and_lost(&mut fixture).await;
    fixture.driver.remove(spec.id, EndReason::UserRequest).await.unwrap();
    fixture.pass(3600).await;
    fixture.restart().await;
    let events = told_of(&fixture, spec.id).await;
    assert_kinds(&events, &[EventKind::Running, EventKind::SandboxHour, EventKind::Destroyed]);
    assert_eq!(fixture.store().unfinished_requests().await.unwrap(), [], "its key answers on");
    fixture.create(named("orphan")).await.unwrap();
}

/// What comes after a write that was refused may be taken: that a sandbox was removed says nothing of before.
async fn made_good_after_it_was_told(before: impl FnOnce(String) -> Vec<Change>) -> Vec<EventKind> {
    let mut fixture = Fixture::new().await;
    let spec = answered_and_lost(&mut fixture).await;
    let observed = fixture.driver.observe(spec.id).await.unwrap().unwrap();
    let mut changes = before(observed.incarnation.unwrap());
    fixture.driver.remove(spec.id, EndReason::UserRequest).await.unwrap();
    let owner = alice().owner;
    let event = Event {
        owner: owner.clone(),
        sandbox: spec.id,
        kind: EventKind::Destroyed,
        reason: Some(EndReason::UserRequest),
        at: Timestamp::now() + SignedDuration::from_mins(1),
        data: serde_json::Value::Null,
    };
    let told = Change::Tell(event, Transition(EventKind::Destroyed.name()));
    changes.extend([Change::Release, told]);
    fixture.store().apply(owner, spec.id, changes).await.unwrap();
    fixture.restart().await;
    let told = told_of(&fixture, spec.id).await;
    let request = fixture.store().request(&alice().owner, "once", Timestamp::now()).await.unwrap();
    assert!(request.is_some_and(|request| request.done), "its key answers on");
    told.iter().map(|event| event.kind).collect()
}

#[tokio::test]
async fn what_ran_and_was_not_written_is_made_good_though_the_end_was_told() {
    let told = made_good_after_it_was_told(|_| vec![Change::Settle { answer: None }]).await;
    assert_eq!(told, [EventKind::Destroyed, EventKind::Running, EventKind::SandboxHour]);
}

#[tokio::test]
async fn a_create_that_was_not_settled_is_though_the_end_was_told() {
    let ran = |incarnation: String| {
        let at = Timestamp::now();
        let (memory_mib, disk_gb) = (512, 1);
        let begun = Leg { incarnation, started_at: at, payer: None, memory_mib, disk_gb };
        let ended = LegEnd { incarnation: begun.incarnation.clone(), ended_at: at, cpu_usec: 0 };
        vec![Change::BeginLeg(begun), Change::EndLeg(ended)]
    };
    assert!(made_good_after_it_was_told(ran).await.contains(&EventKind::Destroyed));
}

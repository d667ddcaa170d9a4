//! What owners are told, in order, once, and resumable; and what is billed.

use std::time::Duration;

use driver::Driver;
use engine::{EventId, EventStream, StoredEvent, Told};
use futures_util::StreamExt;
use model::{Change, EndReason, EventKind};

use crate::{Fixture, alice, bob, by_id, image, template};

async fn next(events: &mut EventStream) -> Told {
    let next = tokio::time::timeout(Duration::from_secs(20), events.next());
    next.await.expect("something is told").unwrap().unwrap()
}

pub(crate) async fn event(events: &mut EventStream) -> StoredEvent {
    match next(events).await {
        Told::Event(stored) => stored,
        Told::Lost => panic!("nothing was lost"),
    }
}

/// The kinds of everything that an owner was told, after waiting for the last one.
async fn kinds(fixture: &Fixture, last: EventKind) -> Vec<(EventKind, Option<EndReason>)> {
    let mut events = fixture.engine.events(&alice(), Some(EventId(0))).await.unwrap();
    let mut kinds = Vec::new();
    loop {
        let told = event(&mut events).await.event;
        kinds.push((told.kind, told.reason));
        if told.kind == last {
            return kinds;
        }
    }
}

#[tokio::test]
async fn every_change_of_state_is_told_in_order() {
    let fixture = Fixture::new().await;
    let engine = &fixture.engine;
    let sandbox = by_id(&fixture.create(image()).await.unwrap());
    engine.pause(&alice(), &sandbox).await.unwrap();
    engine.resume(&alice(), &sandbox).await.unwrap();
    let change =
        Change { name: Some("new".parse().unwrap()), policy: Some("open".parse().unwrap()) };
    engine.update(&alice(), &sandbox, change).await.unwrap();
    engine.stop(&alice(), &sandbox).await.unwrap();
    engine.start_sandbox(&alice(), &sandbox).await.unwrap();
    engine.delete(&alice(), &sandbox).await.unwrap();
    let asked = Some(EndReason::UserRequest);
    let expected = [
        (EventKind::Created, None),
        (EventKind::Running, None),
        (EventKind::Paused, None),
        (EventKind::Resumed, None),
        (EventKind::Renamed, None),
        (EventKind::PolicyChanged, None),
        (EventKind::SandboxHour, None),
        (EventKind::Stopped, asked),
        (EventKind::Running, None),
        (EventKind::SandboxHour, None),
        (EventKind::Destroyed, asked),
    ];
    assert_eq!(kinds(&fixture, EventKind::Destroyed).await, expected);
}

#[tokio::test]
async fn a_stream_goes_on_from_an_id_and_others_are_told_nothing() {
    let fixture = Fixture::new().await;
    let mut live = fixture.engine.events(&alice(), None).await.unwrap();
    let mut others = fixture.engine.events(&bob(), None).await.unwrap();
    let made = fixture.create(image()).await.unwrap();
    let created = event(&mut live).await;
    assert_eq!((created.event.kind, created.event.sandbox), (EventKind::Created, made.spec.id));
    assert_eq!(event(&mut live).await.event.kind, EventKind::Running);

    let mut resumed = fixture.engine.events(&alice(), Some(created.id)).await.unwrap();
    assert_eq!(event(&mut resumed).await.event.kind, EventKind::Running);
    fixture.engine.stop(&alice(), &by_id(&made)).await.unwrap();
    assert_eq!(event(&mut resumed).await.event.kind, EventKind::SandboxHour);
    let waited = tokio::time::timeout(Duration::from_millis(50), others.next()).await;
    assert!(waited.is_err(), "{waited:?}");
}

#[tokio::test]
async fn a_long_backlog_is_told_whole_and_once() {
    let fixture = Fixture::new().await;
    let sandbox = by_id(&fixture.create(image()).await.unwrap());
    let caller = alice();
    let cancels = (0..600)
        .map(|_| fixture.engine.cancel(&caller, &sandbox, engine::CancelReason::UserRequest));
    for cancelled in futures_util::future::join_all(cancels).await {
        cancelled.unwrap();
    }
    fixture.clock.advance(Duration::from_secs(1));
    fixture.engine.stop(&alice(), &sandbox).await.unwrap();
    let mut events = fixture.engine.events(&alice(), Some(EventId(0))).await.unwrap();
    let mut last = EventId(0);
    loop {
        let stored = event(&mut events).await;
        assert!(stored.id > last, "in order, none twice");
        last = stored.id;
        if stored.event.kind == EventKind::Stopped {
            break;
        }
    }
}

#[tokio::test]
async fn a_listener_that_falls_behind_misses_nothing() {
    let fixture = Fixture::new().await;
    let made = fixture.create(image()).await.unwrap();
    let mut slow = fixture.engine.events(&alice(), None).await.unwrap();
    let store = fixture.engine_store.clone();
    let mut last = None;
    for number in 0..3000 {
        let event = model::Event {
            owner: alice().owner,
            sandbox: made.spec.id,
            kind: EventKind::Cancel,
            reason: None,
            at: fixture.clock.now(),
            data: serde_json::json!(number),
        };
        let told = store::Change::Tell(event, store::Transition(format!("cancel:{number}")));
        last = Some(store.apply(alice().owner, made.spec.id, vec![told]));
    }
    last.unwrap().await.unwrap();
    let mut expected = 0;
    while expected < 3000 {
        let told = event(&mut slow).await.event;
        if told.kind == EventKind::Cancel {
            assert_eq!(told.data, expected);
            expected += 1;
        }
    }
}

#[tokio::test]
async fn an_id_older_than_what_is_kept_is_answered_with_lost_first() {
    let fixture = Fixture::new().await;
    fixture.create(image()).await.unwrap();
    fixture.pass(25 * 3600).await;
    let (mut lost, begun) = (false, fixture.clock.now());
    fixture.create(image()).await.unwrap();
    for _ in 0..60 {
        // The sweep prunes every 60th time.
        fixture.pass(10).await;
        let mut events = fixture.engine.events(&alice(), Some(EventId(1))).await.unwrap();
        lost = next(&mut events).await == Told::Lost;
        if lost {
            assert!(event(&mut events).await.event.at >= begun, "what is left is new");
            break;
        }
    }
    assert!(lost);
}

#[tokio::test]
async fn a_leg_is_billed_with_its_time_and_what_the_host_counted() {
    let fixture = Fixture::new().await;
    fixture.driver.set_cpu_usec(1_500_000);
    let made = fixture.create(image()).await.unwrap();
    fixture.pass(90).await;
    fixture.engine.stop(&alice(), &by_id(&made)).await.unwrap();
    let mut events = fixture.engine.events(&alice(), Some(EventId(0))).await.unwrap();
    loop {
        let told = event(&mut events).await.event;
        if told.kind == EventKind::SandboxHour {
            let seconds = told.data["seconds"].as_f64().unwrap();
            assert!((89.0..95.0).contains(&seconds), "{seconds}");
            assert_eq!(told.data["cpu_seconds"], 1.5);
            assert_eq!(told.data["incarnation"].as_str(), made.incarnation.as_deref());
            break;
        }
    }
}

#[tokio::test]
async fn an_end_that_nobody_asked_for_is_told_with_its_reason_and_billed_once() {
    let fixture = Fixture::new().await;
    let made = fixture.create(template()).await.unwrap();
    fixture.driver.kill(made.spec.id, EndReason::Oom);
    let expected = [
        (EventKind::Created, None),
        (EventKind::Running, None),
        (EventKind::SandboxHour, None),
        (EventKind::Destroyed, Some(EndReason::Oom)),
    ];
    assert_eq!(kinds(&fixture, EventKind::Destroyed).await, expected);
    fixture.pass(10).await;
    assert_eq!(kinds(&fixture, EventKind::Destroyed).await, expected);
    let observed = fixture.driver.observe(made.spec.id).await.unwrap().unwrap();
    assert_eq!(observed.tombstone.unwrap().end_reason, EndReason::Oom);
}

//! Events: order, owners, pruning, telling once.

use std::collections::HashSet;

use model::{EventKind, OwnerId, SandboxId};
use store::{Change, EventId, Leg, LegEnd, Store, Transition};

use crate::{Fixture, at, owner, tell};

async fn ids(store: &Store, owner: &OwnerId, after: i64) -> (Vec<i64>, bool) {
    let backlog = store.backlog(owner, Some(EventId(after)), 100).await.unwrap();
    (backlog.events.iter().map(|stored| stored.id.0).collect(), backlog.lost)
}

async fn told(store: &Store, owner: &OwnerId, seconds: i64) {
    let sandbox = SandboxId::generate();
    let event = tell(owner, sandbox, EventKind::Created, seconds);
    store.apply(owner.clone(), sandbox, vec![event]).await.unwrap();
}

#[tokio::test]
async fn events_are_read_back_in_order_and_by_owner() {
    let fixture = Fixture::new();
    let (alice, bob) = (owner("alice"), owner("bob"));
    for seconds in 0..3 {
        told(&fixture.store, &alice, seconds).await;
        told(&fixture.store, &bob, seconds).await;
    }
    let store = fixture.reopened();
    assert_eq!(ids(&store, &alice, 0).await, (vec![1, 3, 5], false));
    assert_eq!(ids(&store, &bob, 2).await, (vec![4, 6], false));
    let now = store.backlog(&alice, None, 100).await.unwrap();
    assert_eq!((now.events, now.newest), (Vec::new(), EventId(6)));
    let first = store.backlog(&alice, Some(EventId(0)), 2).await.unwrap();
    assert_eq!(first.events.len(), 2, "a page has a limit");
    assert_eq!(first.events[1].event.at, at(1));
}

#[tokio::test]
async fn what_was_pruned_counts_as_lost_and_numbers_are_not_used_again() {
    let fixture = Fixture::new();
    let alice = owner("alice");
    for seconds in [0, 10, 20] {
        told(&fixture.store, &alice, seconds).await;
    }
    fixture.store.prune(at(0), at(15)).await.unwrap();
    assert_eq!(ids(&fixture.store, &alice, 1).await, (vec![3], true));
    assert_eq!(ids(&fixture.store, &alice, 2).await, (vec![3], false));
    fixture.store.prune(at(0), at(1000)).await.unwrap();
    assert_eq!(ids(&fixture.store, &alice, 2).await, (vec![], true));
    assert_eq!(ids(&fixture.store, &alice, 3).await, (vec![], false));
    assert_eq!(ids(&fixture.store, &alice, 99).await, (vec![], true), "not one of ours");
    told(&fixture.store, &alice, 2000).await;
    assert_eq!(ids(&fixture.store, &alice, 3).await, (vec![4], false));
}

#[tokio::test]
async fn a_transition_is_told_once_and_only_when_it_is_durable() {
    let fixture = Fixture::new();
    let (alice, sandbox) = (owner("alice"), SandboxId::generate());
    let mut heard = fixture.store.listen();
    for _ in 0..2 {
        let event = tell(&alice, sandbox, EventKind::Running, 5);
        fixture.store.apply(alice.clone(), sandbox, vec![event]).await.unwrap();
    }
    let first = heard.recv().await.unwrap();
    assert_eq!((first.id, first.event.sandbox), (EventId(1), sandbox));
    assert!(heard.try_recv().is_err());
    assert_eq!(ids(&fixture.reopened(), &alice, 0).await.0, [1]);
}

#[tokio::test]
async fn ended_legs_are_known_of_what_was_told_since_a_moment() {
    let fixture = Fixture::new();
    let (alice, created) = (owner("alice"), Transition(EventKind::Created.name()));
    let [before, then, other, runs] = std::array::from_fn(|_| SandboxId::generate());
    for (sandbox, kind, seconds) in [
        (before, EventKind::Created, 9),
        (then, EventKind::Created, 10),
        (other, EventKind::Destroyed, 10),
        (runs, EventKind::Created, 10),
    ] {
        let Change::Tell(event, _) = tell(&alice, sandbox, kind, seconds) else { panic!() };
        let event = Change::Tell(event, Transition(kind.name()));
        let (incarnation, at) = ("one".to_owned(), at(seconds));
        let (memory_mib, disk_gb) = (512, 1);
        let leg = Leg { incarnation, started_at: at, payer: None, memory_mib, disk_gb };
        let end = LegEnd { incarnation: "one".to_owned(), ended_at: at, cpu_usec: 0 };
        let mut changes = vec![event, Change::BeginLeg(leg)];
        changes.extend((sandbox != runs).then_some(Change::EndLeg(end)));
        fixture.store.apply(alice.clone(), sandbox, changes).await.unwrap();
    }
    let told = fixture.store.ended_legs_of_told(created, at(10)).await.unwrap();
    assert_eq!(told, HashSet::from([(then, "one".to_owned())]));
}

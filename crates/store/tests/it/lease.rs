//! Epochs, and what several processes read of each other's sandboxes.

use model::{Error, SandboxId, SandboxRef};
use store::{Change, Leg, LegEnd};

use crate::{Fixture, at, owner};

#[tokio::test]
async fn who_holds_an_older_epoch_writes_nothing_about_sandboxes() {
    let fixture = Fixture::new();
    let (alice, id) = (owner("alice"), SandboxId::generate());
    let first = fixture.store.next_epoch().await.unwrap();
    let old = fixture.store.fenced(first);
    let claim = |name: &str| vec![Change::ClaimName(name.parse().unwrap())];
    old.apply(alice.clone(), id, claim("one")).await.unwrap();

    let other = fixture.reopened();
    let second = other.next_epoch().await.unwrap();
    assert!(second > first);
    let refused = old.apply(alice.clone(), SandboxId::generate(), claim("two")).await;
    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    let refused = old.prune(at(0), at(0)).await;
    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    // What is nobody's alone is still written.
    old.create_key(&alice, model::Plan::Free, store::KeyFormat::Live, "laptop").await.unwrap();

    let new = other.fenced(second);
    new.apply(alice, SandboxId::generate(), claim("two")).await.unwrap();
    let names: Vec<_> = new.names().await.unwrap().into_iter().map(|claim| claim.name).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

#[tokio::test]
async fn what_runs_is_what_was_answered_and_has_not_ended() {
    let fixture = Fixture::new();
    let (alice, id) = (owner("alice"), SandboxId::generate());
    let name: model::Name = "one".parse().unwrap();
    let other = fixture.reopened();
    let running = async |by: &SandboxRef| other.running(&alice, by).await.unwrap();
    let (by_id, by_name) = (SandboxRef::Id(id), SandboxRef::Name(name.clone()));
    let apply = async |change| fixture.store.apply(alice.clone(), id, vec![change]).await.unwrap();

    apply(Change::ClaimName(name)).await;
    apply(Change::BeginLeg(Leg {
        incarnation: "i1".into(),
        started_at: at(0),
        payer: None,
        memory_mib: 512,
        disk_gb: 5,
    }))
    .await;
    assert_eq!(running(&by_id).await, None, "not answered yet");
    apply(Change::Settle { answer: None }).await;
    assert_eq!(running(&by_id).await, Some((id, "i1".into())));
    assert_eq!(running(&by_name).await, Some((id, "i1".into())));
    assert_eq!(other.running(&owner("bob"), &by_id).await.unwrap(), None);
    assert_eq!(other.running(&owner("bob"), &by_name).await.unwrap(), None);
    let end = LegEnd { incarnation: "i1".into(), ended_at: at(9), cpu_usec: 0 };
    apply(Change::EndLeg(end)).await;
    assert_eq!(running(&by_id).await, None);
}

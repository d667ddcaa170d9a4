//! The outbox of conversations: numbered once, bounded, and gone when nobody needs it.

use model::{OwnerId, SandboxId};
use store::{Appended, Change, Store};

use crate::{Fixture, at, owner};

fn events(range: std::ops::RangeInclusive<u64>) -> Vec<(u64, String)> {
    range.map(|sequence| (sequence, format!("{{\"n\":{sequence},\"t\":\"ü\"}}"))).collect()
}

/// A sandbox with an agent, whose conversation is kept.
async fn begun(store: &Store, owner: &OwnerId) -> (SandboxId, String) {
    let sandbox = SandboxId::generate();
    store.apply(owner.clone(), sandbox, vec![Change::KeepOrder(b"o".into())]).await.unwrap();
    let id = sandbox.to_string();
    store.persist(&id, owner, b"sealed".into()).await.unwrap();
    (sandbox, id)
}

async fn append(store: &Store, id: &str, origin: &str, events: Vec<(u64, String)>) -> Appended {
    store.append_persisted(id, origin, events, at(1)).await.unwrap()
}

#[tokio::test]
async fn events_of_a_source_are_kept_once_and_numbered_in_one_row() {
    let fixture = Fixture::new();
    let (store, ann) = (&fixture.store, owner("ann"));
    let (_, id) = begun(store, &ann).await;
    assert_eq!(append(store, &id, "a", events(1..=3)).await, Appended::Kept);
    assert_eq!(append(store, &id, "b", events(1..=2)).await, Appended::Kept);
    // Again, and more; and somebody who is late.
    assert_eq!(append(store, &id, "a", events(2..=5)).await, Appended::Kept);
    assert_eq!(append(store, &id, "a", events(1..=1)).await, Appended::Kept);
    let store = fixture.reopened();
    let kept = store.persisted_events(&id, 0, 100).await.unwrap();
    assert!(kept.iter().map(|one| one.sequence).eq(1..=7));
    let texts: Vec<_> = kept.iter().map(|one| one.event.clone()).collect();
    let expected = [events(1..=3), events(1..=2), events(4..=5)].concat();
    assert!(texts.iter().eq(expected.iter().map(|(_, text)| text)));
    let mut origins = store.persisted_origins(&id).await.unwrap();
    origins.sort();
    assert_eq!(origins, [("a".to_owned(), 5), ("b".to_owned(), 2)]);
    let known = store.persisted(&id).await.unwrap().unwrap();
    assert_eq!((known.appended, known.delivered, known.sending, known.base), (7, 0, 0, None));
    assert_eq!(store.persisted_waiting("").await.unwrap(), [(id.clone(), ann.clone())]);
    assert_eq!(store.persisted_waiting(&id).await.unwrap(), []);
}

#[tokio::test]
async fn what_is_delivered_is_forgotten_and_its_numbers_are_not_given_again() {
    let fixture = Fixture::new();
    let (store, ann) = (&fixture.store, owner("ann"));
    let (sandbox, id) = begun(store, &ann).await;
    append(store, &id, "a", events(1..=5)).await;
    store.set_persisted_base(&id, 70).await.unwrap();
    store.send_persisted(&id, 3).await.unwrap();
    store.forget_persisted(&id, 3).await.unwrap();
    let known = store.persisted(&id).await.unwrap().unwrap();
    assert_eq!((known.appended, known.delivered, known.sending, known.base), (5, 3, 3, Some(70)));
    assert_eq!(known.waiting_bytes, 2 * "{\"n\":4,\"t\":\"ü\"}".chars().count() as u64);
    // Told once more, by somebody who did not hear.
    store.forget_persisted(&id, 2).await.unwrap();
    store.forget_persisted(&id, 5).await.unwrap();
    assert_eq!(store.persisted_waiting("").await.unwrap(), []);
    append(store, &id, "a", events(4..=6)).await;
    let kept = store.persisted_events(&id, 0, 100).await.unwrap();
    assert_eq!(kept.iter().map(|one| one.sequence).collect::<Vec<_>>(), [6]);
    // It stays as long as its sandbox, or as something waits.
    store.apply(ann, sandbox, vec![Change::Release]).await.unwrap();
    store.prune(at(2), at(1)).await.unwrap();
    assert_eq!(fixture.count("persisted"), 1);
    store.forget_persisted(&id, 6).await.unwrap();
    store.prune(at(2), at(1)).await.unwrap();
    for table in ["persisted", "persisted_origins", "persisted_events"] {
        assert_eq!(fixture.count(table), 0, "{table}");
    }
    // Whoever comes late does not begin it anew: everything would get other numbers.
    store.persist(&id, &owner("ann"), b"sealed".into()).await.unwrap();
    assert_eq!(append(store, &id, "a", events(1..=6)).await, Appended::Unknown);
}

#[tokio::test]
async fn what_waits_is_bounded_for_each_conversation_and_each_owner() {
    let fixture = Fixture::new();
    let (store, ann, bob) = (&fixture.store, owner("ann"), owner("bob"));
    let (_, id) = begun(store, &ann).await;
    let large = |from: u64| vec![(from, format!("\"{}\"", "x".repeat(8 << 20)))];
    for sequence in 1..=4 {
        assert_eq!(append(store, &id, "a", large(sequence)).await, Appended::Kept);
    }
    assert_eq!(append(store, &id, "a", large(5)).await, Appended::Full);
    let known = store.persisted(&id).await.unwrap().unwrap();
    assert_eq!((known.appended, known.sending), (4, 0));
    // Another of its owner's has room until they are too many together.
    let mut kept = 0;
    for _ in 0..8 {
        let (_, id) = begun(store, &ann).await;
        for sequence in 1..=4 {
            kept += i32::from(append(store, &id, "a", large(sequence)).await == Appended::Kept);
        }
    }
    assert_eq!(kept, 28);
    let (_, others) = begun(store, &bob).await;
    assert_eq!(append(store, &others, "a", large(1)).await, Appended::Kept);
    store.forget_persisted(&id, 1).await.unwrap();
    assert_eq!(append(store, &id, "a", large(5)).await, Appended::Kept);
}

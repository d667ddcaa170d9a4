//! The audit log loses what is too old, from its beginning alone, and can be checked all the same.

use store::{AUDIT_BEGINS, AuditEntry, AuditRecord, Store};

use crate::{Fixture, at};

async fn write(store: &Store, second: i64) {
    let entry = AuditEntry {
        at: at(second),
        actor: "usr_ann".into(),
        action: "POST /v1/api-keys".into(),
        target: format!("key_{second}"),
        outcome: "201".into(),
        address: "192.0.2.1".into(),
    };
    store.audit(entry).await.unwrap();
}

/// All entries, each of which follows the one before.
async fn whole(store: &Store) -> Vec<AuditRecord> {
    let (mut number, mut digest) = store.audit_page(0, 1).await.unwrap().0;
    let all = store.audit_log(0, 1000).await.unwrap();
    for one in &all {
        number += 1;
        digest = one.entry.digest(&digest, number);
        assert_eq!((one.number, one.digest), (number, digest));
    }
    all
}

#[tokio::test]
async fn what_is_too_old_goes_from_the_beginning_and_the_chain_holds() {
    let fixture = Fixture::new();
    let store = &fixture.store;
    assert_eq!(store.audit_page(0, 1).await.unwrap().0, (0, AUDIT_BEGINS));
    assert_eq!(store.prune_audit(at(100), at(100)).await.unwrap(), 0, "nothing is there");
    for second in 1..=10 {
        write(store, second).await;
    }
    let before = whole(store).await;
    assert_eq!(store.prune_audit(at(1), at(20)).await.unwrap(), 0, "nothing is so old");
    assert_eq!(store.prune_audit(at(5), at(20)).await.unwrap(), 4);
    assert_eq!(store.audit_page(0, 1).await.unwrap().0, (4, before[3].digest));
    let after = whole(store).await;
    assert_eq!(after[..6], before[4..]);
    let pruned = &after[6];
    assert_eq!((pruned.number, pruned.entry.action.as_str()), (11, "audit.prune"));
    assert_eq!(pruned.entry.target, "1-4");
    // Everything but what says so, and what comes then goes on.
    let store = fixture.reopened();
    assert_eq!(store.prune_audit(at(15), at(30)).await.unwrap(), 6);
    write(&store, 31).await;
    let left = whole(&store).await;
    assert_eq!(left.iter().map(|one| one.number).collect::<Vec<_>>(), [11, 12, 13]);
    // An entry in between that is younger keeps all after it.
    write(&store, 2).await;
    assert_eq!(store.prune_audit(at(15), at(40)).await.unwrap(), 0);
    assert_eq!(whole(&store).await.len(), 4);
}

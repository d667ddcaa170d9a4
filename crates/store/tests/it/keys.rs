//! Keys: made, shown once, verified, revoked.

use model::{Error, Plan};
use store::KeyFormat;

use crate::{Fixture, owner};

#[tokio::test]
async fn a_key_is_shown_once_and_known_by_its_secret() {
    let fixture = Fixture::new();
    let alice = owner("alice");
    let key =
        fixture.store.create_key(&alice, Plan::Operator, KeyFormat::Live, "laptop").await.unwrap();
    assert!(key.record.id.starts_with("key_") && key.record.id.len() == 36);
    assert!(key.secret.starts_with("e2a_live_") && key.secret.len() == 9 + 64);
    assert!(key.secret.starts_with(&key.record.prefix));

    for store in [fixture.store.clone(), fixture.reopened()] {
        for _ in 0..2 {
            let verified = store.verify(&key.secret).await.unwrap().unwrap();
            assert_eq!((verified.owner, verified.plan), (alice.clone(), Plan::Operator));
            assert_eq!(verified.key_id, key.record.id);
        }
        assert_eq!(store.list_keys(&alice).await.unwrap(), std::slice::from_ref(&key.record));
    }
}

#[tokio::test]
async fn no_secret_is_in_the_files_of_the_database() {
    let fixture = Fixture::new();
    let key = fixture
        .store
        .create_key(&owner("alice"), Plan::Free, KeyFormat::Live, "laptop")
        .await
        .unwrap();
    let tail = &key.secret.as_bytes()[20..];
    let mut searched = 0;
    for entry in std::fs::read_dir(fixture.dir.path()).unwrap() {
        let entry = entry.unwrap();
        let bytes = std::fs::read(entry.path()).unwrap();
        assert!(!bytes.windows(tail.len()).any(|window| window == tail));
        searched += bytes.len();
        let mode =
            std::os::unix::fs::PermissionsExt::mode(&entry.metadata().unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600, "for its owner alone");
    }
    assert!(searched > 0);
    assert!(!format!("{key:?}").contains(&key.secret));
}

#[tokio::test]
async fn a_revoked_key_is_refused_at_once() {
    let fixture = Fixture::new();
    let alice = owner("alice");
    let key =
        fixture.store.create_key(&alice, Plan::Free, KeyFormat::Live, "laptop").await.unwrap();
    assert!(fixture.store.verify(&key.secret).await.unwrap().is_some());

    let other = fixture.store.revoke_key(&owner("bob"), &key.record.id).await;
    assert!(matches!(other, Err(Error::NotFound { .. })), "{other:?}");
    assert!(fixture.store.verify(&key.secret).await.unwrap().is_some());

    for _ in 0..2 {
        fixture.store.revoke_key(&alice, &key.record.id).await.unwrap();
        assert_eq!(fixture.store.verify(&key.secret).await.unwrap(), None);
    }
    assert!(fixture.store.list_keys(&alice).await.unwrap()[0].revoked_at.is_some());
}

#[tokio::test]
async fn a_key_revoked_by_another_process_is_refused_at_once() {
    let fixture = Fixture::new();
    let alice = owner("alice");
    let key =
        fixture.store.create_key(&alice, Plan::Free, KeyFormat::Live, "laptop").await.unwrap();
    assert!(fixture.store.verify(&key.secret).await.unwrap().is_some());
    fixture.reopened().revoke_key(&alice, &key.record.id).await.unwrap();
    assert_eq!(fixture.store.verify(&key.secret).await.unwrap(), None);
}

#[tokio::test]
async fn what_is_not_a_secret_of_ours_is_nobodys() {
    let fixture = Fixture::new();
    fixture.store.create_key(&owner("alice"), Plan::Free, KeyFormat::Live, "laptop").await.unwrap();
    let long = format!("e2a_{}", "a".repeat(10_000));
    for secret in ["", "e2a_live_", "Bearer x", long.as_str(), "e2a_live_'; DROP TABLE api_keys"] {
        assert_eq!(fixture.store.verify(secret).await.unwrap(), None, "{secret}");
    }
    assert_eq!(fixture.store.list_keys(&owner("bob")).await.unwrap(), []);
}

#[tokio::test]
async fn a_key_needs_a_printable_name() {
    let fixture = Fixture::new();
    for name in ["", "a\nb", &"x".repeat(101)] {
        let made =
            fixture.store.create_key(&owner("alice"), Plan::Free, KeyFormat::Live, name).await;
        assert!(matches!(made, Err(Error::Invalid { .. })), "{name:?}");
    }
}

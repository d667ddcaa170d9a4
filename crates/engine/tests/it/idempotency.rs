//! The same key gives the same sandbox: again, at once, after a restart, and when it is gone
//! (ruling 20).

use model::{Error, Phase};
use store::{Change, Remembered};

use crate::{Fixture, alice, by_id, image, named};

#[tokio::test]
async fn the_same_key_gives_the_same_sandbox() {
    let fixture = Fixture::new().await;
    let first = fixture.create_with_key(image(), "once", 1).await.unwrap();
    let second = fixture.create_with_key(image(), "once", 1).await.unwrap();
    assert!(!first.replayed && second.replayed);
    assert_eq!(first.sandbox.spec, second.sandbox.spec);
    let other = fixture.create_with_key(image(), "twice", 1).await.unwrap();
    assert_ne!(other.sandbox.spec.id, first.sandbox.spec.id);
    assert_eq!(fixture.driver.count(), 2);
}

#[tokio::test]
async fn another_body_with_the_same_key_is_a_mismatch() {
    let fixture = Fixture::new().await;
    fixture.create_with_key(image(), "once", 1).await.unwrap();
    let other = fixture.create_with_key(image(), "once", 2).await;
    assert!(matches!(other, Err(Error::IdempotencyMismatch { .. })), "{other:?}");
    assert_eq!(fixture.driver.count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_requests_with_one_key_make_one_sandbox() {
    let fixture = Fixture::new().await;
    let attempts = (0..100).map(|_| fixture.create_with_key(image(), "once", 1));
    let outcomes: Vec<_> = futures_util::future::join_all(attempts).await;
    let outcomes: Vec<_> = outcomes.into_iter().map(Result::unwrap).collect();
    assert_eq!(outcomes.iter().filter(|created| !created.replayed).count(), 1);
    let id = outcomes[0].sandbox.spec.id;
    assert!(outcomes.iter().all(|created| created.sandbox.spec.id == id));
    assert_eq!(fixture.driver.count(), 1);
}

#[tokio::test]
async fn a_key_is_remembered_over_a_restart() {
    let mut fixture = Fixture::new().await;
    let first = fixture.create_with_key(image(), "once", 1).await.unwrap();
    fixture.restart().await;
    let second = fixture.create_with_key(image(), "once", 1).await.unwrap();
    assert!(second.replayed);
    assert_eq!(second.sandbox.spec, first.sandbox.spec);
    assert_eq!(second.sandbox.phase, Phase::Running);
}

/// Asked at once, while what the start of the engine undoes is still on its way to the disk.
#[tokio::test]
async fn a_create_that_a_crash_cut_off_is_not_answered_from_memory() {
    for _ in 0..20 {
        let mut fixture = Fixture::new().await;
        let made = fixture.create_with_key(named("mine"), "other", 1).await.unwrap();
        let cut_off = model::SandboxId::generate();
        let spec = model::SandboxSpec { id: cut_off, ..made.sandbox.spec.clone() };
        let answer = serde_json::json!({
            "spec": spec, "last_activity_at": made.sandbox.last_activity_at, "rootfs": "", "pool": "",
        });
        let now = jiff::Timestamp::now();
        let claim = Change::ClaimRequest {
            key: "once".into(),
            body_sha256: [1; 32],
            answer: answer.to_string(),
            times: Remembered { from: now, until: now + jiff::SignedDuration::from_hours(1) },
        };
        fixture.store().apply(alice().owner, cut_off, vec![claim]).await.unwrap();
        fixture.restart().await;
        let again = fixture.create_with_key(image(), "once", 1).await.unwrap();
        assert!(!again.replayed);
        assert!(fixture.list().await.contains(&again.sandbox.spec.id));
    }
}

#[tokio::test]
async fn the_answer_is_replayed_when_the_sandbox_is_gone() {
    let mut fixture = Fixture::new().await;
    let first = fixture.create_with_key(named("mine"), "once", 1).await.unwrap();
    fixture.engine.delete(&alice(), &by_id(&first.sandbox)).await.unwrap();
    for _ in 0..2 {
        let again = fixture.create_with_key(named("mine"), "once", 1).await.unwrap();
        assert!(again.replayed);
        assert_eq!(again.sandbox.spec, first.sandbox.spec);
        assert_eq!(again.sandbox.phase, Phase::Running, "as it was answered");
        assert_eq!(again.sandbox.rootfs, first.sandbox.rootfs);
        fixture.restart().await;
    }
    assert_eq!(fixture.driver.count(), 0);
    fixture.pass(24 * 3600 + 1).await;
    let new = fixture.create_with_key(named("mine"), "once", 1).await.unwrap();
    assert!(!new.replayed);
    assert_ne!(new.sandbox.spec.id, first.sandbox.spec.id);
}

#[tokio::test]
async fn owners_do_not_share_keys() {
    let fixture = Fixture::new().await;
    let first = fixture.create_with_key(image(), "once", 1).await.unwrap();
    let request = engine::Idempotency { key: "once".into(), body_sha256: [9; 32] };
    let other = fixture.engine.create(&crate::bob(), image(), Some(request)).await.unwrap();
    assert_ne!(other.sandbox.spec.id, first.sandbox.spec.id);
}

#[tokio::test]
async fn a_refused_create_does_not_use_up_its_key() {
    let fixture = Fixture::new().await;
    fixture.create(named("mine")).await.unwrap();
    fixture.create_with_key(named("mine"), "once", 1).await.unwrap_err();
    let other = fixture.create_with_key(named("other"), "once", 2).await.unwrap();
    assert!(!other.replayed);
}

#[tokio::test]
async fn no_environment_is_in_the_files_of_the_database() {
    let fixture = Fixture::new().await;
    let secret = "a-value-of-the-environment";
    let env = [("TOKEN".to_owned(), secret.to_owned())].into();
    let wanted = model::NewSandbox { env, ..image() };
    let made = fixture.create_with_key(wanted, "once", 1).await.unwrap();
    fixture.engine.delete(&alice(), &by_id(&made.sandbox)).await.unwrap();
    let mut searched = 0;
    for entry in std::fs::read_dir(fixture.dir.path()).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        assert!(!bytes.windows(secret.len()).any(|window| window == secret.as_bytes()));
        searched += bytes.len();
    }
    assert!(searched > 0);
}

//! Quotas and capacity: who is refused, with what, and for how long (ruling 15).

use std::time::Duration;

use engine::Sandbox;
use model::{Clocks, Error, NewSandbox, Plan, Quota, Result, Tier};

use crate::{Fixture, bob, by_id, image, persistent, template};

async fn make(fixture: &Fixture, wanted: NewSandbox) -> Result<Sandbox> {
    fixture.engine.create(&bob(), wanted, None).await.map(|created| created.sandbox)
}

#[track_caller]
fn retry_after<T: std::fmt::Debug>(outcome: Result<T>) -> Duration {
    match outcome {
        Err(Error::Exhausted { retry_after, .. }) => retry_after,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_free_owner_has_three_ephemeral_sandboxes_and_one_persistent() {
    let fixture = Fixture::new().await;
    for _ in 0..3 {
        make(&fixture, image()).await.unwrap();
    }
    retry_after(make(&fixture, image()).await);
    make(&fixture, persistent()).await.unwrap();
    retry_after(make(&fixture, persistent()).await);
    assert_eq!(fixture.driver.count(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_holds_under_a_race() {
    let fixture = Fixture::new().await;
    let attempts = (0..20).map(|_| make(&fixture, image()));
    let outcomes = futures_util::future::join_all(attempts).await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 3);
    assert_eq!(fixture.driver.count(), 3);
}

#[tokio::test]
async fn stopped_and_destroyed_sandboxes_do_not_count() {
    let fixture = Fixture::new().await;
    let first = make(&fixture, persistent()).await.unwrap();
    fixture.engine.stop(&bob(), &by_id(&first)).await.unwrap();
    let second = make(&fixture, persistent()).await.unwrap();
    retry_after(fixture.engine.start_sandbox(&bob(), &by_id(&first)).await);
    fixture.engine.delete(&bob(), &by_id(&second)).await.unwrap();
    fixture.engine.start_sandbox(&bob(), &by_id(&first)).await.unwrap();
    retry_after(make(&fixture, persistent()).await);
}

#[tokio::test]
async fn a_failed_create_gives_its_share_back() {
    let fixture = Fixture::new().await;
    fixture.driver.fail(driver::fake::Step::BootGuest, 5);
    for _ in 0..5 {
        assert!(matches!(make(&fixture, persistent()).await, Err(Error::Internal(_))));
    }
    make(&fixture, persistent()).await.unwrap();
}

#[tokio::test]
async fn the_disks_of_a_tier_have_a_ceiling() {
    let fixture = Fixture::new().await;
    let sized = |disk_gb| NewSandbox { disk_gb: Some(disk_gb), ..image() };
    make(&fixture, sized(15)).await.unwrap();
    retry_after(make(&fixture, sized(6)).await);
    make(&fixture, sized(5)).await.unwrap();
    // Another tier has a sum of its own.
    make(&fixture, NewSandbox { tier: Some(Tier::Persistent), ..sized(20) }).await.unwrap();
}

#[tokio::test]
async fn the_time_to_wait_is_that_of_the_owners_earliest_end() {
    let fixture = Fixture::with(|config| {
        let quota = Quota { ephemeral_max: Some(2), ..Quota::FREE };
        config.quotas.push((Plan::Free, quota));
    })
    .await;
    let clocks = Clocks { max_lifetime_seconds: Some(600), ..Clocks::default() };
    make(&fixture, NewSandbox { asked_clocks: clocks, ..image() }).await.unwrap();
    make(&fixture, image()).await.unwrap();
    fixture.pass(100).await;
    assert_eq!(retry_after(make(&fixture, image()).await), Duration::from_secs(500));
}

#[tokio::test]
async fn the_time_to_wait_is_an_hour_at_most() {
    let fixture = Fixture::new().await;
    let endless = Clocks { auto_stop_minutes: Some(0), ..Clocks::default() };
    let wanted = NewSandbox { asked_clocks: endless, ..persistent() };
    make(&fixture, wanted.clone()).await.unwrap();
    assert_eq!(retry_after(make(&fixture, wanted).await), Duration::from_secs(3600));
}

#[tokio::test]
async fn the_operator_has_no_quota() {
    let fixture = Fixture::new().await;
    for _ in 0..5 {
        fixture.create(persistent()).await.unwrap();
        fixture.create(template()).await.unwrap();
    }
}

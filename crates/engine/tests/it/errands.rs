//! Sandboxes that the platform makes on somebody's behalf: nobody sees them, somebody pays, none is left.

use std::time::Duration;

use engine::Errand;
use futures_util::FutureExt as _;
use model::{Error, OwnerId};

use crate::{Fixture, alice, bob};

const LIFETIME: Duration = Duration::from_secs(60);

async fn errand(fixture: &Fixture) -> Errand {
    let template = "standard".parse().unwrap();
    fixture.engine.errand(&alice(), template, LIFETIME).await.unwrap()
}

async fn until_count(fixture: &Fixture, count: usize) {
    for _ in 0..200 {
        if fixture.driver.count() == count {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} are left", fixture.driver.count());
}

#[tokio::test]
async fn nobody_sees_it_and_its_payer_pays() {
    let fixture = Fixture::new().await;
    let made = errand(&fixture).await;
    assert_eq!(fixture.driver.count(), 1);
    for caller in [alice(), bob()] {
        let listed = fixture.engine.list(&caller).await.unwrap();
        assert!(listed.sandboxes.is_empty());
    }
    until_paid_by(&fixture, &[alice().owner]).await;
    drop(made);
    until_count(&fixture, 0).await;
    until_paid_by(&fixture, &[]).await;
    fixture.assert_empty().await;
}

/// Waits until these owners pay for what runs.
async fn until_paid_by(fixture: &Fixture, owners: &[OwnerId]) {
    for _ in 0..200 {
        let legs = fixture.store().open_legs().await.unwrap();
        if legs.iter().map(|leg| &leg.owner).eq(owners) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{:?}", fixture.store().open_legs().await);
}

#[tokio::test]
async fn many_are_beside_the_quota() {
    let fixture = Fixture::new().await;
    let mut held = Vec::new();
    for _ in 0..10 {
        held.push(errand(&fixture).await);
    }
    assert_eq!(fixture.driver.count(), 10);
    drop(held);
    until_count(&fixture, 0).await;
}

#[tokio::test]
async fn one_that_outlives_its_server_is_removed_by_the_next() {
    let mut fixture = Fixture::new().await;
    let made = errand(&fixture).await;
    // As if killed: nothing is undone.
    std::mem::forget(made);
    fixture.restart().await;
    until_count(&fixture, 0).await;
}

#[tokio::test]
async fn a_caller_that_goes_away_while_it_is_made_leaves_none() {
    let fixture = Fixture::new().await;
    let template = "standard".parse().unwrap();
    let payer = alice();
    let making = fixture.engine.errand(&payer, template, LIFETIME);
    // Begun, and dropped.
    assert!(making.now_or_never().is_none(), "it was made at once");
    tokio::time::sleep(Duration::from_millis(200)).await;
    until_count(&fixture, 0).await;
}

#[tokio::test]
async fn a_template_that_is_not_here_is_named() {
    let fixture = Fixture::new().await;
    let made = fixture.engine.errand(&alice(), "none".parse().unwrap(), LIFETIME).await;
    match made {
        Err(Error::NotImplemented { code: "template_not_built", detail }) => {
            assert!(detail.contains("bastide template build none"), "{detail}");
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was made"),
    }
}

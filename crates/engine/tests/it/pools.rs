//! Several pools: partial lists, none reachable, none with room.

use driver::fake::FakeDriver;
use engine::{Engine, EngineConfig};
use model::{Error, Phase};
use store::Store;
use tempfile::TempDir;

use crate::{Fixture, alice, by_id, image, pool};

struct TwoPools {
    engine: Engine,
    one: FakeDriver,
    two: FakeDriver,
    dir: TempDir,
}

impl TwoPools {
    async fn new() -> Self {
        let (one, two) = (FakeDriver::new(), FakeDriver::new());
        let dir = tempfile::tempdir().unwrap();
        let engine = start(&one, &two, &dir).await;
        Self { engine, one, two, dir }
    }

    async fn create(&self) -> model::Result<engine::Sandbox> {
        self.engine.create(&alice(), image(), None).await.map(|created| created.sandbox)
    }
}

async fn start(one: &FakeDriver, two: &FakeDriver, dir: &TempDir) -> Engine {
    let store = Store::open(&dir.path().join("bastide.db")).unwrap();
    let pools = vec![pool("one", one, Some(1)), pool("two", two, Some(1))];
    Engine::start(EngineConfig::default(), pools, store).await.unwrap()
}

#[tokio::test]
async fn a_full_pool_is_passed_over_and_none_with_room_is_no_capacity() {
    let pools = TwoPools::new().await;
    let first = pools.create().await.unwrap();
    let second = pools.create().await.unwrap();
    assert_eq!((first.pool.as_str(), second.pool.as_str()), ("one", "two"));
    let third = pools.create().await;
    assert!(matches!(third, Err(Error::NoCapacity { .. })), "{third:?}");
    pools.engine.stop(&alice(), &by_id(&first)).await.unwrap();
    assert_eq!(pools.create().await.unwrap().pool, "one");
    let full = pools.engine.start_sandbox(&alice(), &by_id(&first)).await;
    assert!(matches!(full, Err(Error::NoCapacity { .. })), "{full:?}");
}

#[tokio::test]
async fn a_list_without_one_pool_is_partial_and_without_any_unavailable() {
    let pools = TwoPools::new().await;
    let first = pools.create().await.unwrap();
    let second = pools.create().await.unwrap();
    let whole = pools.engine.list(&alice()).await.unwrap();
    assert_eq!((whole.sandboxes.len(), whole.partial), (2, false));

    pools.one.set_reachable(false);
    let partial = pools.engine.list(&alice()).await.unwrap();
    assert!(partial.partial);
    assert_eq!(partial.sandboxes, [second]);
    assert_eq!(pools.engine.snapshot().pools_unreachable, 1);

    pools.two.set_reachable(false);
    let none = pools.engine.list(&alice()).await;
    assert!(matches!(none, Err(Error::Unavailable { .. })), "{none:?}");
    let create = pools.create().await;
    assert!(matches!(create, Err(Error::Unavailable { .. })), "{create:?}");

    pools.one.set_reachable(true);
    pools.two.set_reachable(true);
    let whole = pools.engine.list(&alice()).await.unwrap();
    assert_eq!((whole.sandboxes.len(), whole.partial), (2, false));
    assert_eq!(whole.sandboxes[0].spec.id, first.spec.id);
}

#[tokio::test]
async fn an_unreachable_pool_is_passed_over() {
    let pools = TwoPools::new().await;
    pools.one.set_reachable(false);
    assert_eq!(pools.create().await.unwrap().pool, "two");
}

#[tokio::test]
async fn a_slow_pool_makes_a_list_partial() {
    let pools = TwoPools::new().await;
    pools.create().await.unwrap();
    pools.one.delay(driver::fake::Step::Answer, std::time::Duration::from_secs(60));
    let listing = pools.engine.list(&alice()).await.unwrap();
    assert!(listing.partial);
    assert_eq!(listing.sandboxes, []);
}

#[tokio::test]
async fn a_pool_that_is_away_at_a_start_is_adopted_when_it_comes_back() {
    let mut fixture = Fixture::new().await;
    let made = fixture.create(image()).await.unwrap();
    fixture.driver.set_reachable(false);
    fixture.restart().await;
    assert!(matches!(fixture.engine.list(&alice()).await, Err(Error::Unavailable { .. })));
    fixture.driver.set_reachable(true);
    assert!(fixture.engine.list(&alice()).await.unwrap().partial, "not read yet");
    for _ in 0..50 {
        fixture.pass(10).await;
        if fixture.get(&made).await.is_ok() {
            break;
        }
    }
    assert_eq!(fixture.phase(&made).await, Phase::Running);
    assert!(!fixture.engine.list(&alice()).await.unwrap().partial);
    let command = engine::Command::shell("true");
    fixture.engine.exec(&alice(), &by_id(&made), command).await.unwrap();
}

#[tokio::test]
async fn sandboxes_of_every_pool_are_adopted() {
    let pools = TwoPools::new().await;
    let first = pools.create().await.unwrap();
    let second = pools.create().await.unwrap();
    pools.engine.shutdown().await;
    let engine = start(&pools.one, &pools.two, &pools.dir).await;
    let found: Vec<_> = engine.list(&alice()).await.unwrap().sandboxes;
    let found: Vec<_> = found.iter().map(|seen| (seen.spec.id, seen.pool.as_str())).collect();
    assert_eq!(found, [(first.spec.id, "one"), (second.spec.id, "two")]);
    let third = engine.create(&alice(), image(), None).await;
    assert!(matches!(third, Err(Error::NoCapacity { .. })), "what runs takes room");
}

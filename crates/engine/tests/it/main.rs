//! The engine against the fake driver and a real database.

#![expect(clippy::unwrap_used, reason = "a test that cannot unwrap fails")]
#![expect(clippy::needless_pass_by_value, reason = "assertions take an outcome as it comes")]

mod adopt;
mod create;
mod credit;
mod errands;
mod events;
mod exec;
mod files;
mod follow;
mod idempotency;
mod lifecycle;
mod pools;
mod quota;
mod random;
mod reaper;
mod workspaces;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use driver::Driver;
use driver::fake::FakeDriver;
use engine::{Caller, Clock, Created, Engine, EngineConfig, Idempotency, Pool, Sandbox};
use jiff::Timestamp;
use model::{
    Clocks, Error, NewSandbox, Phase, Plan, QuotaRow, Result, SandboxId, SandboxRef, Source, Tier,
};
use store::Store;
use tempfile::TempDir;

/// One machine: a host that outlives servers, a database, a clock, and a server on them.
struct Fixture {
    driver: FakeDriver,
    dir: TempDir,
    clock: Clock,
    config: EngineConfig,
    engine: Engine,
    /// The handle that the engine writes with.
    engine_store: Store,
}

impl Fixture {
    async fn new() -> Self {
        Self::with(|_| {}).await
    }

    async fn with(change: impl FnOnce(&mut EngineConfig)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let driver = FakeDriver::new();
        // Of now, because drivers stamp tombstones with the system's clock.
        let clock = Clock::manual(Timestamp::now());
        let mut config = EngineConfig { clock: clock.clone(), ..EngineConfig::default() };
        change(&mut config);
        let store = Store::open(&dir.path().join("bastide.db")).unwrap();
        let engine = Engine::start(config.clone(), pools(&driver), store.clone()).await.unwrap();
        Self { driver, dir, clock, config, engine, engine_store: store }
    }

    fn store(&self) -> Store {
        Store::open(&self.dir.path().join("bastide.db")).unwrap()
    }

    /// A new server on the same host and database; the old one is just dropped.
    async fn restart(&mut self) {
        let store = self.store();
        // The listener for exits is free once the old server's tasks have ended.
        self.engine.shutdown().await;
        let started = Engine::start(self.config.clone(), pools(&self.driver), store.clone()).await;
        self.engine = started.unwrap();
        self.engine_store = store;
    }

    async fn create(&self, wanted: NewSandbox) -> Result<Sandbox> {
        self.engine.create(&alice(), wanted, None).await.map(|created| created.sandbox)
    }

    async fn create_with_key(&self, wanted: NewSandbox, key: &str, body: u8) -> Result<Created> {
        let request = Idempotency { key: key.into(), body_sha256: [body; 32] };
        self.engine.create(&alice(), wanted, Some(request)).await
    }

    async fn get(&self, sandbox: &Sandbox) -> Result<Sandbox> {
        self.engine.get(&alice(), &by_id(sandbox)).await
    }

    async fn phase(&self, sandbox: &Sandbox) -> Phase {
        self.get(sandbox).await.unwrap().phase
    }

    async fn list(&self) -> Vec<SandboxId> {
        let listing = self.engine.list(&alice()).await.unwrap();
        listing.sandboxes.iter().map(|sandbox| sandbox.spec.id).collect()
    }

    /// Waits for what a task does by itself, in real time but bounded.
    async fn until(&self, sandbox: &Sandbox, what: impl Fn(&Sandbox) -> bool) -> Sandbox {
        for _ in 0..500 {
            let seen = self.get(sandbox).await.unwrap();
            if what(&seen) {
                return seen;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("did not happen: {:?}", self.get(sandbox).await);
    }

    async fn until_phase(&self, sandbox: &Sandbox, phase: Phase) -> Sandbox {
        self.until(sandbox, |seen| seen.phase == phase).await
    }

    /// Lets time pass, and every task that waited for it look at the clock.
    async fn pass(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Lets sweep after sweep pass until one has seen to it.
    async fn swept_until(&self, sandbox: &Sandbox, phase: Phase) -> Sandbox {
        for _ in 0..100 {
            self.pass(10).await;
            let seen = self.get(sandbox).await.unwrap();
            if seen.phase == phase {
                return seen;
            }
            // A sweep before this one may not be over.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("no sweep did it: {:?}", self.get(sandbox).await);
    }

    /// Nothing of any sandbox is left: not on the host, not in memory, not in the store.
    async fn assert_empty(&self) {
        assert_eq!(self.driver.count(), 0, "the driver has something left");
        let kept = self.driver.list().await.unwrap();
        assert!(kept.iter().all(|observed| observed.tombstone.is_some()), "{kept:?}");
        let listing = self.engine.list(&alice()).await.unwrap();
        let live = listing.sandboxes.iter().filter(|s| s.phase != Phase::Destroyed);
        assert_eq!(live.count(), 0, "{listing:?}");
        // A write of our own, so that those queued before it are done.
        let store = self.store();
        settled(&store).await;
        assert_eq!(store.names().await.unwrap(), []);
        assert_eq!(store.open_legs().await.unwrap(), []);
        assert_eq!(store.unfinished_requests().await.unwrap(), []);
    }
}

/// Waits until what other handles queued is written.
async fn settled(store: &Store) {
    for _ in 0..200 {
        let names = store.names().await.unwrap();
        let legs = store.open_legs().await.unwrap();
        if names.is_empty() && legs.is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn pools(driver: &FakeDriver) -> Vec<Pool> {
    vec![pool("local", driver, None)]
}

fn pool(name: &str, driver: &FakeDriver, max_sandboxes: Option<u32>) -> Pool {
    Pool { name: name.into(), driver: Arc::new(driver.clone()), max_sandboxes }
}

fn alice() -> Caller {
    Caller { owner: "usr_alice".parse().unwrap(), plan: Plan::Operator, quota: QuotaRow::default() }
}

fn bob() -> Caller {
    Caller { owner: "usr_bob".parse().unwrap(), plan: Plan::Free, quota: QuotaRow::default() }
}

fn by_id(sandbox: &Sandbox) -> SandboxRef {
    SandboxRef::Id(sandbox.spec.id)
}

fn by_name(name: &str) -> SandboxRef {
    SandboxRef::Name(name.parse().unwrap())
}

/// 000's shape.
fn template() -> NewSandbox {
    NewSandbox {
        source: Source::Template("standard".into()),
        name: None,
        tier: None,
        disk_gb: None,
        asked_clocks: Clocks::default(),
        policy: None,
        env: BTreeMap::new(),
        metadata: serde_json::Map::new(),
        vcpu: None,
        cpu_fraction: None,
        memory_mib: None,
        workspace: None,
        agent: None,
    }
}

/// 003's shape.
fn image() -> NewSandbox {
    NewSandbox { source: Source::Image("standard".into()), ..template() }
}

fn persistent() -> NewSandbox {
    NewSandbox { tier: Some(Tier::Persistent), ..image() }
}

fn named(name: &str) -> NewSandbox {
    NewSandbox { name: Some(name.parse().unwrap()), ..image() }
}

#[track_caller]
fn assert_wrong_state<T: std::fmt::Debug>(outcome: Result<T>) {
    let wrong = matches!(outcome, Err(Error::Conflict { code: model::Conflict::WrongState, .. }));
    assert!(wrong, "{outcome:?}");
}

#[track_caller]
fn assert_not_found<T: std::fmt::Debug>(outcome: Result<T>) {
    assert!(matches!(outcome, Err(Error::NotFound { what: "sandbox", .. })), "{outcome:?}");
}

#[track_caller]
fn assert_name_taken<T: std::fmt::Debug>(outcome: Result<T>) {
    let taken = matches!(outcome, Err(Error::Conflict { code: model::Conflict::NameTaken, .. }));
    assert!(taken, "{outcome:?}");
}

#[track_caller]
fn assert_invalid<T: std::fmt::Debug>(outcome: Result<T>, expected: &str) {
    match outcome {
        Err(Error::Invalid { field, .. }) if field == expected => {}
        other => panic!("expected {expected} to be refused: {other:?}"),
    }
}

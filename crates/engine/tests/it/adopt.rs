//! A server that dies and comes back: every running sandbox answers again, stopped ones are stopped,
//! half-made ones are finished or gone (DESIGN 6).

mod answered;

use std::time::Duration;

use driver::fake::Step;
use driver::{Driver, Launch};
use engine::{Command, Engine, Sandbox};
use jiff::{SignedDuration, Timestamp};
use model::{Clocks, EndReason, EventKind, NewSandbox, Phase, Policy, SandboxSpec};
use store::{Change, Store};

use crate::{
    Fixture, alice, assert_name_taken, assert_not_found, by_id, by_name, image, named, persistent,
    pools, template,
};

async fn answers(fixture: &Fixture, sandbox: &Sandbox) {
    let done = fixture.engine.exec(&alice(), &by_id(sandbox), Command::shell("echo hi")).await;
    assert_eq!(done.unwrap().output, "hi\n");
}

#[tokio::test]
async fn after_a_restart_everything_is_as_it_was() {
    let mut fixture = Fixture::new().await;
    let running = fixture.create(named("runs")).await.unwrap();
    let paused = fixture.create(image()).await.unwrap();
    fixture.engine.pause(&alice(), &by_id(&paused)).await.unwrap();
    let stopped = fixture.create(persistent()).await.unwrap();
    fixture.engine.stop(&alice(), &by_id(&stopped)).await.unwrap();
    let destroyed = fixture.create(named("gone")).await.unwrap();
    fixture.engine.delete(&alice(), &by_id(&destroyed)).await.unwrap();

    fixture.restart().await;
    let seen = fixture.get(&running).await.unwrap();
    assert_eq!(seen.phase, Phase::Running);
    assert_eq!(
        (seen.incarnation, seen.started_at),
        (running.incarnation.clone(), running.started_at)
    );
    assert_eq!((&seen.rootfs, &seen.spec), (&running.rootfs, &running.spec));
    answers(&fixture, &running).await;
    assert_eq!(fixture.phase(&paused).await, Phase::Paused);
    fixture.engine.resume(&alice(), &by_id(&paused)).await.unwrap();
    answers(&fixture, &paused).await;
    let seen = fixture.get(&stopped).await.unwrap();
    assert_eq!((seen.phase, seen.end_reason), (Phase::Stopped, Some(EndReason::UserRequest)));
    fixture.engine.start_sandbox(&alice(), &by_id(&stopped)).await.unwrap();
    let seen = fixture.get(&destroyed).await.unwrap();
    assert_eq!((seen.phase, seen.end_reason), (Phase::Destroyed, Some(EndReason::UserRequest)));
    assert_name_taken(fixture.create(named("runs")).await);
    fixture.create(named("gone")).await.unwrap();
    assert_eq!(fixture.list().await.len(), 5);
}

/// Waits until a leg of that sandbox has begun.
async fn until_billed(fixture: &Fixture, id: model::SandboxId) {
    for _ in 0..200 {
        let legs = fixture.store().open_legs().await.unwrap();
        if legs.iter().any(|leg| leg.sandbox == id) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it is not billed");
}

/// Waits until that many sandboxes are left on the host.
async fn until_count(fixture: &Fixture, count: usize) {
    for _ in 0..200 {
        if fixture.driver.count() == count {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} are left", fixture.driver.count());
}

/// A server in a runtime of its own, which a test can kill in the middle of anything.
struct Victim {
    runtime: tokio::runtime::Runtime,
    engine: Engine,
}

impl Victim {
    fn start(fixture: &Fixture) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.unwrap();
        let store = Store::open(&fixture.dir.path().join("bastide.db")).unwrap();
        let start = Engine::start(fixture.config.clone(), pools(&fixture.driver), store);
        let engine = std::thread::scope(|scope| {
            scope.spawn(|| runtime.block_on(start)).join().unwrap().unwrap()
        });
        Self { runtime, engine }
    }

    /// Begins `work` and kills the server when `when` is over.
    async fn killed_during<F, W>(self, work: W, when: Duration)
    where
        F: Future<Output: Send> + Send + 'static,
        W: FnOnce(Engine) -> F,
    {
        let handle = self.runtime.handle().clone();
        let tracker = tokio_util::task::TaskTracker::new();
        tracker.spawn_on(work(self.engine.clone()), &handle);
        tokio::time::sleep(when).await;
        self.runtime.shutdown_background();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_killed_at_any_step_of_a_create_leaves_nothing() {
    for step in Step::OF_CREATE {
        let mut fixture = Fixture::new().await;
        fixture.engine.shutdown().await;
        let victim = Victim::start(&fixture);
        fixture.driver.delay(step, Duration::from_secs(600));
        let create = |engine: Engine| async move {
            let request = engine::Idempotency { key: "once".into(), body_sha256: [1; 32] };
            engine.create(&alice(), named("mine"), Some(request)).await
        };
        victim.killed_during(create, Duration::from_millis(200)).await;
        fixture.driver.delay(step, Duration::ZERO);
        fixture.restart().await;
        until_count(&fixture, 0).await;
        fixture.assert_empty().await;
        let again = fixture.create_with_key(named("mine"), "once", 1).await;
        assert!(!again.unwrap_or_else(|e| panic!("{step:?}: {e:?}")).replayed, "{step:?}");
    }
}

/// As when keeper and launcher die with it: nobody is left to say that the guest never began.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_whose_guest_died_unheard_with_the_server_was_never_answered() {
    let mut fixture = Fixture::new().await;
    fixture.engine.shutdown().await;
    let victim = Victim::start(&fixture);
    fixture.driver.delay(Step::BootGuest, Duration::from_secs(600));
    let create = |engine: Engine| async move {
        let request = engine::Idempotency { key: "once".into(), body_sha256: [1; 32] };
        engine.create(&alice(), named("mine"), Some(request)).await
    };
    victim.killed_during(create, Duration::from_millis(200)).await;
    fixture.driver.delay(Step::BootGuest, Duration::ZERO);
    let left = fixture.driver.list().await.unwrap();
    assert_eq!(left.len(), 1);
    fixture.driver.kill(left[0].spec.id, EndReason::Unknown);
    let dead = fixture.driver.list().await.unwrap();
    assert!(dead[0].phase == Phase::Stopped && dead[0].ended.is_some(), "{dead:?}");
    fixture.restart().await;
    until_count(&fixture, 0).await;
    let again = fixture.create_with_key(named("mine"), "once", 1).await.unwrap();
    assert!(!again.replayed, "its key gives what is gone");
    assert_ne!(again.sandbox.spec.id, left[0].spec.id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_killed_during_a_start_keeps_the_workspace() {
    for step in [Step::Start, Step::MakeCompute, Step::BootGuest] {
        let mut fixture = Fixture::new().await;
        let made = fixture.create(persistent()).await.unwrap();
        fixture.engine.exec(&alice(), &by_id(&made), Command::shell("touch kept")).await.unwrap();
        fixture.engine.stop(&alice(), &by_id(&made)).await.unwrap();
        fixture.engine.shutdown().await;
        let victim = Victim::start(&fixture);
        fixture.driver.delay(step, Duration::from_secs(600));
        let sandbox = by_id(&made);
        let start = |engine: Engine| async move { engine.start_sandbox(&alice(), &sandbox).await };
        victim.killed_during(start, Duration::from_millis(200)).await;
        fixture.driver.delay(step, Duration::ZERO);
        fixture.restart().await;
        let settled = |seen: &Sandbox| matches!(seen.phase, Phase::Running | Phase::Stopped);
        fixture.until(&made, settled).await;
        fixture.engine.start_sandbox(&alice(), &by_id(&made)).await.unwrap();
        let ls = Command::shell("ls");
        let done = fixture.engine.exec(&alice(), &by_id(&made), ls).await.unwrap();
        assert_eq!(done.output, "kept\n", "{step:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_killed_during_a_delete_finishes_it() {
    for step in [Step::Remove, Step::RemoveDisk] {
        let mut fixture = Fixture::new().await;
        let made = fixture.create(named("mine")).await.unwrap();
        fixture.engine.shutdown().await;
        let victim = Victim::start(&fixture);
        fixture.driver.delay(step, Duration::from_secs(600));
        let sandbox = by_id(&made);
        let delete = |engine: Engine| async move { engine.delete(&alice(), &sandbox).await };
        victim.killed_during(delete, Duration::from_millis(200)).await;
        fixture.driver.delay(step, Duration::ZERO);
        fixture.restart().await;
        if step == Step::Remove {
            // Nothing had happened yet; the caller got no answer and tries again.
            fixture.engine.delete(&alice(), &by_id(&made)).await.unwrap();
        }
        fixture.until_phase(&made, Phase::Destroyed).await;
        fixture.assert_empty().await;
    }
}

#[tokio::test]
async fn what_ended_while_nobody_looked_ends_as_it_would_have() {
    let mut fixture = Fixture::new().await;
    let kept = fixture.create(image()).await.unwrap();
    let gone = fixture.create(template()).await.unwrap();
    let on_purpose = fixture.create(template()).await.unwrap();
    fixture.engine.stop(&alice(), &by_id(&on_purpose)).await.unwrap();
    fixture.engine.shutdown().await;
    fixture.driver.lose_host();
    fixture.restart().await;
    let kept = fixture.until_phase(&kept, Phase::Stopped).await;
    assert_eq!(kept.end_reason, Some(EndReason::HostLost));
    let gone = fixture.until_phase(&gone, Phase::Destroyed).await;
    assert_eq!(gone.end_reason, Some(EndReason::HostLost));
    assert_eq!(fixture.phase(&on_purpose).await, Phase::Stopped);
    crate::settled(&fixture.store()).await;
    assert_eq!(fixture.store().open_legs().await.unwrap(), [], "what ended is billed");
}

#[tokio::test]
async fn after_a_power_cut_a_sandbox_is_stopped_told_of_and_billed_for_what_was_counted() {
    let mut fixture = Fixture::new().await;
    let kept = fixture.create(image()).await.unwrap();
    fixture.engine.shutdown().await;
    fixture.driver.lose_power();
    fixture.restart().await;
    let seen = fixture.until_phase(&kept, Phase::Stopped).await;
    assert_eq!(seen.end_reason, Some(EndReason::HostLost));
    let events = told_of(&fixture, kept.spec.id).await;
    let stopped = events.iter().filter(|event| event.kind == EventKind::Stopped);
    let reasons: Vec<_> = stopped.map(|event| event.reason).collect();
    assert_eq!(reasons, [Some(EndReason::HostLost)]);
    assert_eq!(fixture.store().open_legs().await.unwrap(), [], "what ended is billed");
    fixture.restart().await;
    assert_eq!(told_of(&fixture, kept.spec.id).await.len(), events.len(), "nothing is told twice");
}

#[tokio::test]
async fn clocks_go_on_over_a_restart() {
    let mut fixture = Fixture::new().await;
    let clocks = Clocks { max_lifetime_seconds: Some(100), ..Clocks::default() };
    let wanted = NewSandbox { asked_clocks: clocks, ..image() };
    let made = fixture.create(wanted).await.unwrap();
    fixture.pass(50).await;
    fixture.restart().await;
    fixture.pass(49).await;
    assert_eq!(fixture.phase(&made).await, Phase::Running);
    fixture.pass(2).await;
    let gone = fixture.until_phase(&made, Phase::Destroyed).await;
    assert_eq!(gone.end_reason, Some(EndReason::Lifetime));
}

fn spec_of(made: &Sandbox, age: SignedDuration) -> SandboxSpec {
    SandboxSpec {
        id: model::SandboxId::generate(),
        name: "orphan".parse().unwrap(),
        created_at: Timestamp::now() - age,
        ..made.spec.clone()
    }
}

#[tokio::test]
async fn a_new_sandbox_that_nobody_was_told_of_is_removed_and_an_old_one_adopted() {
    for (age, kept) in [(SignedDuration::ZERO, false), (SignedDuration::from_hours(1), true)] {
        let mut fixture = Fixture::new().await;
        let made = fixture.create(image()).await.unwrap();
        let spec = spec_of(&made, age);
        let launch = Launch { spec: spec.clone(), policy: Policy::none() };
        fixture.driver.create(launch).await.unwrap();
        fixture.restart().await;
        let orphan = by_name("orphan");
        if kept {
            let adopted = fixture.engine.get(&alice(), &orphan).await.unwrap();
            answers(&fixture, &adopted).await;
            until_billed(&fixture, spec.id).await;
            assert_name_taken(fixture.create(named("orphan")).await);
            fixture.restart().await;
            fixture.engine.get(&alice(), &orphan).await.unwrap();
        } else {
            until_count(&fixture, 1).await;
            assert_not_found(fixture.engine.get(&alice(), &orphan).await.map(|s| s.phase));
            fixture.create(named("orphan")).await.unwrap();
        }
        answers(&fixture, &made).await;
    }
}

#[tokio::test]
async fn a_claim_without_a_sandbox_is_dropped() {
    let mut fixture = Fixture::new().await;
    let claim = vec![Change::ClaimName("mine".parse().unwrap())];
    let nobody = model::SandboxId::generate();
    fixture.store().apply(alice().owner, nobody, claim).await.unwrap();
    assert_name_taken(fixture.create(named("mine")).await);
    fixture.restart().await;
    crate::settled(&fixture.store()).await;
    fixture.create(named("mine")).await.unwrap();
}

#[tokio::test]
async fn a_hundred_sandboxes_are_adopted_by_one_start() {
    let mut fixture = Fixture::new().await;
    let made = futures_util::future::join_all((0..100).map(|_| fixture.create(image()))).await;
    fixture.restart().await;
    assert_eq!(fixture.list().await.len(), 100);
    for sandbox in made.iter().step_by(10) {
        answers(&fixture, sandbox.as_ref().unwrap()).await;
    }
    assert_eq!(fixture.store().open_legs().await.unwrap().len(), 100, "no leg is begun twice");
}

/// What was told of a sandbox, oldest first, once everything queued is written.
async fn told_of(fixture: &Fixture, id: model::SandboxId) -> Vec<model::Event> {
    fixture.engine_store.settled().await.unwrap();
    let backlog = fixture.store().backlog(&alice().owner, Some(store::EventId(0)), 100).await;
    let events = backlog.unwrap().events.into_iter().map(|stored| stored.event);
    events.filter(|event| event.sandbox == id).collect()
}

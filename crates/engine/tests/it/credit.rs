//! What runs is counted every minute, and ends when nobody pays for it any more. Time is moved by hand.

use std::time::Duration;

use engine::Sandbox;
use jiff::Timestamp;
use model::pricing::Prices;
use model::{Clocks, EndReason, Error, EventKind, NewSandbox, OwnerId, Phase, Plan, Tier};
use store::{DayUsage, EventId, KeyFormat, Movement, Store, Tariff};

use crate::{Fixture, bob, by_id, image, template};

/// A cent is a hundred seconds.
const PRICES: Prices =
    Prices { cpu_second: 0, sandbox_second: 10_000, memory_gib_second: 0, disk_gib_second: 0 };

fn lasting(wanted: NewSandbox) -> NewSandbox {
    let asked_clocks = Clocks {
        idle_timeout_seconds: (wanted.source == template().source).then_some(7200),
        auto_stop_minutes: Some(0),
        ..Clocks::default()
    };
    NewSandbox { asked_clocks, ..wanted }
}

fn persistent() -> NewSandbox {
    NewSandbox { tier: Some(Tier::Persistent), ..lasting(image()) }
}

/// Bob has that much, and everybody has to pay.
async fn paying(cents: i64) -> Fixture {
    let fixture = Fixture::with(|config| config.credit.enforced = true).await;
    fixture.engine_store.set_tariff(Tariff { prices: PRICES, signup_credit_cents: cents });
    fixture
}

async fn create(fixture: &Fixture, wanted: NewSandbox) -> Sandbox {
    fixture.engine.create(&bob(), wanted, None).await.unwrap().sandbox
}

async fn seen(fixture: &Fixture, sandbox: &Sandbox) -> (Phase, Option<EndReason>) {
    let seen = fixture.engine.get(&bob(), &by_id(sandbox)).await.unwrap();
    (seen.phase, seen.end_reason)
}

async fn until(fixture: &Fixture, sandbox: &Sandbox, phase: Phase) {
    for _ in 0..1000 {
        let now = seen(fixture, sandbox).await;
        if now.0 == phase {
            assert_eq!(now.1, Some(EndReason::CreditsExhausted));
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{:?}", seen(fixture, sandbox).await);
}

fn owner() -> OwnerId {
    bob().owner
}

async fn pay(store: &Store, cents: i64) {
    let (kind, description, at) = ("credit", "test".into(), Timestamp::now());
    let movement = Movement { cents, kind, description, reference: None, at };
    assert!(store.move_money(&owner(), movement).await.unwrap());
}

async fn used(store: &Store) -> DayUsage {
    let days = store.usage(&owner(), 0, 1_000_000).await.unwrap();
    days.iter().fold(DayUsage::default(), |all, day| DayUsage {
        cpu_usec: all.cpu_usec + day.cpu_usec,
        running_usec: all.running_usec + day.running_usec,
        sandboxes: all.sandboxes + day.sandboxes,
        charged_microcents: all.charged_microcents + day.charged_microcents,
        ..all
    })
}

/// Waits until at least so many seconds of running are counted, and says how many.
async fn counted(fixture: &Fixture, seconds: i64) -> i64 {
    for _ in 0..1000 {
        let counted = used(&fixture.engine_store).await.running_usec / 1_000_000;
        if counted >= seconds {
            return counted;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{:?}", used(&fixture.engine_store).await);
}

/// The clock began a moment before the sandbox did, or after it.
#[track_caller]
fn assert_about(seconds: i64, expected: i64) {
    assert!((expected - 2..=expected + 2).contains(&seconds), "{seconds} is not {expected}");
}

#[tokio::test]
async fn what_nobody_pays_for_ends_with_its_reason_and_starts_again_with_credit() {
    let fixture = paying(2).await;
    let kept = create(&fixture, persistent()).await;
    let going = create(&fixture, lasting(template())).await;
    fixture.pass(61).await;
    counted(&fixture, 120).await;
    assert_eq!(seen(&fixture, &kept).await, (Phase::Running, None), "120 of 200 s");
    fixture.pass(61).await;
    until(&fixture, &kept, Phase::Stopped).await;
    until(&fixture, &going, Phase::Destroyed).await;

    let balance = fixture.engine_store.balance(&owner()).await.unwrap();
    assert!(!balance.has_credit(), "{balance:?}");
    for refused in [
        fixture.engine.start_sandbox(&bob(), &by_id(&kept)).await.map(drop),
        fixture.engine.create(&bob(), image(), None).await.map(drop),
    ] {
        assert!(matches!(refused, Err(Error::NoCredit { .. })), "{refused:?}");
    }
    let told = fixture.engine_store.backlog(&owner(), Some(EventId(0)), 1000).await.unwrap();
    for id in [kept.spec.id, going.spec.id] {
        let why = told.events.iter().filter(|stored| {
            stored.event.sandbox == id && stored.event.kind == EventKind::CreditsExhausted
        });
        assert_eq!(why.count(), 1, "told once: {:?}", told.events);
    }
    // What is stopped costs nothing.
    let before = used(&fixture.engine_store).await;
    fixture.pass(600).await;
    assert_eq!(used(&fixture.engine_store).await, before);

    pay(&fixture.engine_store, 10).await;
    fixture.engine.start_sandbox(&bob(), &by_id(&kept)).await.unwrap();
    fixture.pass(61).await;
    counted(&fixture, before.running_usec / 1_000_000 + 60).await;
    assert_eq!(seen(&fixture, &kept).await, (Phase::Running, None));
}

#[tokio::test]
async fn who_has_the_operators_plan_or_does_not_have_to_pay_goes_on() {
    let fixture = paying(0).await;
    let store = &fixture.engine_store;
    let key = store.create_key(&owner(), Plan::Operator, KeyFormat::Live, "ci").await.unwrap();
    let caller = engine::Caller { plan: Plan::Operator, ..bob() };
    let made = fixture.engine.create(&caller, persistent(), None).await.unwrap().sandbox;
    fixture.pass(61).await;
    counted(&fixture, 60).await;
    fixture.pass(61).await;
    counted(&fixture, 120).await;
    assert_eq!(seen(&fixture, &made).await, (Phase::Running, None));
    // Without that plan it is like everybody's.
    store.revoke_key(&owner(), &key.record.id).await.unwrap();
    fixture.pass(61).await;
    until(&fixture, &made, Phase::Stopped).await;

    let free = Fixture::new().await;
    free.engine_store.set_tariff(Tariff { prices: PRICES, signup_credit_cents: 0 });
    let made = create(&free, persistent()).await;
    free.pass(61).await;
    counted(&free, 60).await;
    free.pass(61).await;
    counted(&free, 120).await;
    assert_eq!(seen(&free, &made).await, (Phase::Running, None), "it is counted, no more");
    assert!(free.engine_store.balance(&owner()).await.unwrap().unbilled_microcents > 0);
}

/// What a server that was started anew does first: its tasks look at the clock.
async fn begin(fixture: &Fixture) {
    fixture.engine_store.set_tariff(Tariff { prices: PRICES, signup_credit_cents: 1000 });
    fixture.pass(0).await;
}

#[tokio::test]
async fn every_minute_counts_once_also_over_restarts_and_time_without_a_server() {
    let mut fixture = paying(1000).await;
    fixture.driver.set_cpu_usec(5_000_000);
    let made = create(&fixture, persistent()).await;
    fixture.pass(61).await;
    assert_about(counted(&fixture, 59).await, 61);
    assert_eq!(used(&fixture.engine_store).await.cpu_usec, 5_000_000);

    // Half a minute is not counted yet when the server ends, and ten pass without one.
    fixture.pass(30).await;
    fixture.engine.shutdown().await;
    fixture.clock.advance(Duration::from_secs(600));
    fixture.driver.set_cpu_usec(9_000_000);
    fixture.restart().await;
    begin(&fixture).await;
    fixture.pass(61).await;
    assert_about(counted(&fixture, 700).await, 752);
    for _ in 0..3 {
        fixture.restart().await;
        begin(&fixture).await;
    }
    fixture.pass(10).await;
    fixture.engine.delete(&bob(), &by_id(&made)).await.unwrap();
    fixture.engine_store.settled().await.unwrap();
    let all = used(&fixture.engine_store).await;
    assert_about(all.running_usec / 1_000_000, 762);
    assert_eq!((all.cpu_usec, all.sandboxes), (9_000_000, 1));
    let balance = fixture.engine_store.balance(&owner()).await.unwrap();
    let charged = (1000 - balance.cents) * 1_000_000 + balance.unbilled_microcents;
    assert_eq!(charged, all.charged_microcents, "what is counted is what is paid for");
    assert_about(charged / 10_000, 762);
}

/// What a crash left open and nobody saw end: it is paid for as far as it was counted.
#[tokio::test]
async fn an_end_that_nobody_saw_is_not_charged_until_somebody_looks() {
    let mut fixture = paying(1000).await;
    let made = create(&fixture, persistent()).await;
    fixture.pass(61).await;
    let before = counted(&fixture, 59).await;
    fixture.engine.shutdown().await;
    // A new machine with an old database: nothing of the sandbox is left.
    fixture.driver = driver::fake::FakeDriver::new();
    fixture.clock.advance(Duration::from_secs(100_000));
    fixture.restart().await;
    fixture.engine_store.settled().await.unwrap();
    assert_eq!(fixture.engine_store.open_legs().await.unwrap(), []);
    assert_eq!(used(&fixture.engine_store).await.running_usec / 1_000_000, before);
    let gone = fixture.engine.get(&bob(), &by_id(&made)).await;
    assert!(matches!(gone, Err(Error::NotFound { .. })), "{gone:?}");
}

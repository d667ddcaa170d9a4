//! What was used is counted once, on its day.

use jiff::Timestamp;
use model::pricing::Prices;
use model::{OwnerId, SandboxId};
use store::{Change, DayUsage, Leg, LegEnd, Metered, Store, Tariff};

use crate::Fixture;

/// Seconds since 1970, so that days are where one expects them.
fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn open() -> (Store, tempfile::TempDir) {
    let Fixture { store, dir } = Fixture::new();
    (store, dir)
}

const DAY: i64 = 86_400;

fn ann() -> OwnerId {
    "usr_ann".parse().unwrap()
}

async fn begin(store: &Store, sandbox: SandboxId, incarnation: &str, second: i64) {
    let incarnation = incarnation.into();
    let leg =
        Leg { incarnation, started_at: at(second), payer: None, memory_mib: 1024, disk_gb: 2 };
    store.apply(ann(), sandbox, vec![Change::BeginLeg(leg)]).await.unwrap();
}

async fn meter(store: &Store, sandbox: SandboxId, (second, cpu): (i64, u64)) {
    let metered = Metered { incarnation: "i".into(), at: at(second), cpu_usec: cpu * 1_000_000 };
    store.apply(ann(), sandbox, vec![Change::Meter(metered)]).await.unwrap();
}

async fn end(store: &Store, sandbox: SandboxId, (second, cpu): (i64, u64)) {
    let end = LegEnd { incarnation: "i".into(), ended_at: at(second), cpu_usec: cpu * 1_000_000 };
    store.apply(ann(), sandbox, vec![Change::EndLeg(end)]).await.unwrap();
}

fn day(days: &[DayUsage], day: i64) -> (i64, i64, i64) {
    let found = days.iter().find(|one| one.day == day).copied().unwrap_or_default();
    (found.running_usec / 1_000_000, found.cpu_usec / 1_000_000, found.sandboxes)
}

#[tokio::test]
async fn a_leg_over_midnight_counts_on_both_days() {
    let (store, _dir) = open();
    let sandbox = SandboxId::generate();
    begin(&store, sandbox, "i", DAY - 100).await;
    meter(&store, sandbox, (DAY - 40, 10)).await;
    end(&store, sandbox, (2 * DAY + 30, 50)).await;
    let days = store.usage(&ann(), 0, 10).await.unwrap();
    assert_eq!(day(&days, 0), (100, 10, 1));
    assert_eq!(day(&days, 1), (DAY, 0, 0));
    assert_eq!(day(&days, 2), (30, 40, 0));
    assert_eq!(store.usage(&ann(), 1, 1).await.unwrap().len(), 1);
    assert!(store.usage(&"usr_bob".parse().unwrap(), 0, 10).await.unwrap().is_empty());
}

#[tokio::test]
async fn an_end_that_is_told_again_or_a_late_count_adds_nothing() {
    let (store, _dir) = open();
    let sandbox = SandboxId::generate();
    begin(&store, sandbox, "i", 0).await;
    begin(&store, sandbox, "i", 0).await;
    for _ in 0..3 {
        meter(&store, sandbox, (60, 5)).await;
        end(&store, sandbox, (100, 9)).await;
        meter(&store, sandbox, (160, 20)).await;
    }
    let days = store.usage(&ann(), 0, 10).await.unwrap();
    assert_eq!(day(&days, 0), (100, 9, 1));
    meter(&store, SandboxId::generate(), (60, 5)).await;
    assert_eq!(store.usage(&ann(), 0, 10).await.unwrap(), days);
}

#[tokio::test]
async fn recent_sandboxes_are_shown_with_their_sums() {
    let (store, _dir) = open();
    let prices = Prices { memory_gib_second: 10, disk_gib_second: 1, ..Prices::default() };
    store.set_tariff(Tariff { prices, ..Tariff::default() });
    let ids: Vec<SandboxId> = (0..5).map(|_| SandboxId::generate()).collect();
    for (i, id) in ids.iter().enumerate() {
        begin(&store, *id, "i", i64::try_from(i).unwrap()).await;
    }
    end(&store, ids[4], (104, 3)).await;
    begin(&store, ids[4], "second", 200).await;
    let (page, total) = store.recent_sandboxes(&ann(), 2, 0).await.unwrap();
    assert_eq!((page.len(), total), (2, 5));
    let newest = &page[0];
    assert_eq!(newest.sandbox, ids[4].to_string());
    assert_eq!((newest.starts, newest.running_usec, newest.cpu_usec), (2, 100_000_000, 3_000_000));
    assert_eq!(newest.charged_microcents, 100 * 10 + 100 * 2);
    assert_eq!(newest.last_ended_at, None, "it runs again");
    let (rest, _) = store.recent_sandboxes(&ann(), 10, 4).await.unwrap();
    assert_eq!(rest.len(), 1);
    assert_eq!(rest[0].sandbox, ids[0].to_string());
}

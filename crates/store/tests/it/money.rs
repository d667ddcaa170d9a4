//! The sum of the ledger is the balance, whatever happens at the same time and whenever the server is killed.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use jiff::Timestamp;
use model::pricing::Prices;
use model::{Error, OwnerId};
use store::{AutoTopup, Balance, Change, Leg, LegEnd, Metered, Movement, Store, Tariff};

use crate::Fixture;

/// Seconds since 1970, so that days are where one expects them.
fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn open() -> (Store, tempfile::TempDir) {
    let Fixture { store, dir } = Fixture::new();
    (store, dir)
}

const PLACE: &str = "BASTIDE_TEST_LEDGER";

fn ann() -> OwnerId {
    "usr_ann".parse().unwrap()
}

fn movement(cents: i64, reference: Option<String>) -> Movement {
    Movement { cents, kind: "credit", description: "test".into(), reference, at: at(1) }
}

async fn sum(store: &Store) -> i64 {
    let all = store.transactions(&ann(), 1_000_000, 0).await.unwrap();
    all.iter().map(|one| one.cents).sum()
}

#[tokio::test]
async fn hundreds_of_movements_at_once_add_up() {
    let (store, _dir) = open();
    store.set_tariff(Tariff { signup_credit_cents: 250, ..Tariff::default() });
    let mut tasks = tokio::task::JoinSet::new();
    let mut expected = 250;
    for i in 1..=400_i64 {
        let cents = if i % 3 == 0 { -i } else { i };
        expected += cents;
        let store = store.clone();
        // Each is told twice, as a payment may be.
        for _ in 0..2 {
            let (store, reference) = (store.clone(), Some(format!("move-{i}")));
            tasks.spawn(async move { store.move_money(&ann(), movement(cents, reference)).await });
        }
    }
    let mut first = 0;
    while let Some(moved) = tasks.join_next().await {
        first += i32::from(moved.unwrap().unwrap());
    }
    assert_eq!(first, 400);
    assert_eq!(store.balance(&ann()).await.unwrap().cents, expected);
    assert_eq!(sum(&store).await, expected);
}

/// Not a test of its own: what the next one starts and kills.
#[tokio::test]
async fn moves_money_until_it_is_killed() {
    let Some(place) = std::env::var_os(PLACE) else { return };
    let store = crate::open(Path::new(&place));
    store.set_tariff(Tariff {
        prices: Prices { sandbox_second: 700_000, ..Prices::default() },
        ..Tariff::default()
    });
    let run = std::process::id();
    let sandbox = model::SandboxId::generate();
    let leg =
        Leg { incarnation: "i".into(), started_at: at(0), payer: None, memory_mib: 1, disk_gb: 1 };
    store.apply(ann(), sandbox, vec![Change::BeginLeg(leg)]).await.unwrap();
    for i in 1..1_000_000_i64 {
        let cents = if i % 2 == 0 { -3 } else { 7 };
        let owner = ann();
        let told = store.move_money(&owner, movement(cents, Some(format!("{run}-{i}"))));
        let used = Metered { incarnation: "i".into(), at: at(i * 60), cpu_usec: 0 };
        let metered = store.apply(ann(), sandbox, vec![Change::Meter(used)]);
        let (told, metered) = tokio::join!(told, metered);
        metered.unwrap();
        assert!(told.unwrap());
        write_line(&format!("{run}-{i} {cents}"));
    }
}

fn write_line(text: &str) {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    writeln!(out, "ack {text}").unwrap();
    out.flush().unwrap();
}

#[tokio::test]
async fn a_server_that_is_killed_loses_no_movement_and_makes_none_twice() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path();
    let mut acknowledged: Vec<(String, i64)> = Vec::new();
    for kill_after in [3, 40, 90, 150] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "money::moves_money_until_it_is_killed", "--nocapture"])
            .env(PLACE, place)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let acks = lines.map_while(Result::ok).filter_map(|line| {
            let (reference, cents) = line.split_once("ack ")?.1.split_once(' ')?;
            Some((reference.to_owned(), cents.parse().unwrap()))
        });
        let mut count = 0;
        for ack in acks {
            acknowledged.push(ack);
            count += 1;
            if count == kill_after {
                // SIGKILL; what it said until then is read to the end.
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(count >= kill_after, "it ended by itself");
    }
    let store = crate::open(place);
    // What the last one had sent is committed by now, or never.
    store.settled().await.unwrap();
    let balance = store.balance(&ann()).await.unwrap();
    assert_eq!(sum(&store).await, balance.cents);
    let all = store.transactions(&ann(), 1_000_000, 0).await.unwrap();
    let used: i64 = all.iter().filter(|one| one.kind == "usage").map(|one| -one.cents).sum();
    let moved = all.iter().filter(|one| one.kind == "credit").count();
    assert!(moved >= acknowledged.len() && moved <= acknowledged.len() + 4, "{moved}");
    let told: i64 = acknowledged.iter().map(|(_, cents)| cents).sum();
    let credits: i64 = all.iter().filter(|one| one.kind == "credit").map(|one| one.cents).sum();
    assert!((credits - told).abs() <= 4 * 7, "{credits} {told}");
    // Usage: what is counted is what is charged, to the millionth.
    let days = store.usage(&ann(), 0, 1_000_000).await.unwrap();
    let charged: i64 = days.iter().map(|day| day.charged_microcents).sum();
    assert_eq!(charged, used * 1_000_000 + balance.unbilled_microcents);
    let running: i64 = days.iter().map(|day| day.running_usec).sum();
    assert_eq!(charged, running / 1_000_000 * 700_000);
}

#[tokio::test]
async fn usage_is_owed_at_once_and_becomes_rows_of_whole_cents() {
    let (store, _dir) = open();
    let prices = Prices { cpu_second: 400_000, ..Prices::default() };
    store.set_tariff(Tariff { prices, signup_credit_cents: 1 });
    let sandbox = model::SandboxId::generate();
    let leg =
        Leg { incarnation: "i".into(), started_at: at(0), payer: None, memory_mib: 1, disk_gb: 1 };
    store.apply(ann(), sandbox, vec![Change::BeginLeg(leg)]).await.unwrap();
    let meter = async |second: i64, cpu: u64| {
        let used = Metered { incarnation: "i".into(), at: at(second), cpu_usec: cpu * 1_000_000 };
        store.apply(ann(), sandbox, vec![Change::Meter(used)]).await.unwrap();
        store.balance(&ann()).await.unwrap()
    };
    let first = meter(400, 2).await;
    assert_eq!(first, Balance { cents: 1, unbilled_microcents: 800_000 });
    assert!(first.has_credit() && store.spent_owners().await.unwrap().is_empty());
    assert_eq!(meter(400, 2).await, first, "told again, it is counted once");
    assert_eq!(meter(300, 1).await, first, "and what is older not at all");
    let second = meter(800, 6).await;
    assert_eq!(second, Balance { cents: -1, unbilled_microcents: 400_000 });
    assert!(!second.has_credit());
    assert_eq!(store.spent_owners().await.unwrap(), [ann()]);
    let end = LegEnd { incarnation: "i".into(), ended_at: at(900), cpu_usec: 7_000_000 };
    store.apply(ann(), sandbox, vec![Change::EndLeg(end)]).await.unwrap();
    let ended = store.balance(&ann()).await.unwrap();
    assert_eq!(meter(1000, 50).await, ended, "what has ended uses no more");
    assert_eq!(sum(&store).await, ended.cents);
    assert!(store.spent_owners().await.unwrap().is_empty());
}

#[tokio::test]
async fn an_automatic_payment_is_one_at_a_time_and_counts_once() {
    let (store, _dir) = open();
    let wanted = AutoTopup { enabled: true, threshold_cents: 100, topup_cents: 500 };
    store.balance(&ann()).await.unwrap();
    store.set_auto_topup(&ann(), wanted).await.unwrap();
    assert_eq!(store.auto_topup(&ann()).await.unwrap(), wanted);
    assert!(store.due_topups(at(1)).await.unwrap().is_empty(), "nobody pays");
    store.set_payer(&ann(), "cus_1").await.unwrap();
    let due = store.due_topups(at(1)).await.unwrap();
    assert_eq!(due.len(), 1);
    assert_eq!((due[0].cents, due[0].customer.as_str()), (500, "cus_1"));
    assert_eq!(store.due_topups(at(2)).await.unwrap(), due, "the same one until its end is known");
    assert!(store.end_topup(&due[0].id, true, at(3)).await.unwrap());
    assert!(!store.end_topup(&due[0].id, true, at(4)).await.unwrap());
    assert!(!store.end_topup("top_unknown", true, at(4)).await.unwrap());
    assert_eq!(store.balance(&ann()).await.unwrap().cents, 500);
    assert!(store.due_topups(at(5)).await.unwrap().is_empty());

    store.move_money(&ann(), movement(-450, None)).await.unwrap();
    for failure in 0..3 {
        let due = store.due_topups(at(6 + failure)).await.unwrap();
        assert!(store.end_topup(&due[0].id, false, at(6)).await.unwrap());
    }
    assert!(store.due_topups(at(20)).await.unwrap().is_empty(), "a card that fails is left alone");
    assert_eq!(store.due_topups(at(90_000)).await.unwrap().len(), 1);
}

#[tokio::test]
async fn amounts_have_bounds() {
    let (store, _dir) = open();
    for cents in [0, 100_000_001, -100_000_001, i64::MAX, i64::MIN + 1] {
        let moved = store.move_money(&ann(), movement(cents, None)).await;
        assert!(matches!(moved, Err(Error::Invalid { .. })), "{cents}");
    }
}

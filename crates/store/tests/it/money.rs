//! Use and money: counted once, charged once, and a balance that is always the sum of its ledger.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use jiff::civil::date;
use model::{OwnerId, Prices, SandboxId};
use store::{AutoTopup, Change, Credit, Leg, LegEnd, PayingWith, Store};

use crate::{Fixture, at, owner};

const PRICES: Prices = Prices { cpu_second_micro_cents: 1_000_000, gib_second_micro_cents: 0 };

fn reading(incarnation: &str, seconds: i64, cpu_seconds: u64) -> LegEnd {
    let cpu_usec = cpu_seconds * 1_000_000;
    LegEnd { incarnation: incarnation.into(), ended_at: at(seconds), cpu_usec }
}

fn begin(incarnation: &str, seconds: i64) -> Change {
    let incarnation = incarnation.into();
    Change::BeginLeg(Leg { incarnation, started_at: at(seconds), memory_mib: 512 })
}

fn credit(amount_cents: i64, reference: &str) -> Credit {
    Credit { amount_cents, description: "test".into(), reference: reference.into() }
}

/// The balance, checked against all entries.
async fn balance(store: &Store, owner: &OwnerId) -> i64 {
    let balance = store.balance_cents(owner).await.unwrap();
    let (entries, total) = store.entries(owner, 100_000, 0).await.unwrap();
    assert_eq!(entries.len() as u64, total);
    assert_eq!(entries.iter().map(|entry| entry.amount_cents).sum::<i64>(), balance);
    assert_eq!(entries.first().map_or(0, |newest| newest.balance_cents), balance);
    balance
}

#[tokio::test]
async fn what_a_sandbox_uses_is_counted_once_whoever_tells_it_and_how_often() {
    let fixture = Fixture::new();
    let (store, ann, sandbox) = (&fixture.store, owner("ann"), SandboxId::generate());
    let apply = |changes| store.apply(ann.clone(), sandbox, changes);
    apply(vec![begin("i1", 0)]).await.unwrap();
    for _ in 0..2 {
        apply(vec![Change::Meter(reading("i1", 60, 5))]).await.unwrap();
        // A counter that went back, and a clock that did.
        apply(vec![Change::Meter(reading("i1", 30, 2))]).await.unwrap();
    }
    let other = fixture.reopened();
    let end = || vec![Change::EndLeg(reading("i1", 100, 7))];
    other.apply(ann.clone(), sandbox, end()).await.unwrap();
    apply(end()).await.unwrap();
    apply(vec![Change::Meter(reading("i1", 200, 9))]).await.unwrap();
    // Nobody saw what the second run used in the end.
    apply(vec![begin("i2", 300), Change::Meter(reading("i2", 310, 4))]).await.unwrap();
    apply(vec![Change::EndLeg(reading("i2", 320, 0))]).await.unwrap();
    let days = store.usage_by_day(&ann, date(2023, 11, 14), date(2023, 11, 16)).await.unwrap();
    assert_eq!(days.len(), 1, "{days:?}");
    assert_eq!((days[0].day, days[0].sandboxes), (date(2023, 11, 14), 1));
    assert_eq!((days[0].cpu_usec, days[0].mib_ms), (11_000_000, 512 * 120_000));
    let (past, total) = store.history(&ann, 20, 0).await.unwrap();
    assert_eq!((past.len(), total), (1, 1));
    assert_eq!((past[0].sandbox, past[0].runs, past[0].cpu_usec), (sandbox, 2, 11_000_000));
    assert_eq!((past[0].run_usec, past[0].ended_at), (120_000_000, Some(at(320))));
    let other = store.usage_by_day(&owner("bob"), date(2023, 1, 1), date(2024, 1, 1)).await;
    assert_eq!(other.unwrap(), []);
}

#[tokio::test]
async fn what_was_used_is_charged_once_and_less_than_a_cent_waits() {
    let fixture = Fixture::new();
    let (store, ann, sandbox) = (&fixture.store, owner("ann"), SandboxId::generate());
    let apply = |changes| store.apply(ann.clone(), sandbox, changes);
    store.credit(&ann, credit(100, "gift"), at(0)).await.unwrap().unwrap();
    apply(vec![begin("i1", 0), Change::Meter(reading("i1", 60, 30))]).await.unwrap();
    for _ in 0..3 {
        store.charge(PRICES, at(60)).await.unwrap();
    }
    assert_eq!(balance(store, &ann).await, 70);
    let half = Prices { cpu_second_micro_cents: 500_000, ..PRICES };
    for second in 61..=65 {
        let read = reading("i1", second, u64::try_from(second - 30).unwrap());
        apply(vec![Change::Meter(read)]).await.unwrap();
        store.charge(half, at(second)).await.unwrap();
    }
    assert_eq!(balance(store, &ann).await, 68, "two and a half cents");
    apply(vec![Change::Meter(reading("i1", 66, 36))]).await.unwrap();
    store.charge(half, at(66)).await.unwrap();
    assert_eq!(balance(store, &ann).await, 67);
    assert_eq!(store.owners_without_credit().await.unwrap(), []);
    apply(vec![Change::EndLeg(reading("i1", 99, 200))]).await.unwrap();
    store.charge(PRICES, at(99)).await.unwrap();
    assert_eq!(balance(store, &ann).await, 67 - 164);
    assert_eq!(store.owners_without_credit().await.unwrap(), [ann]);
}

#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_payments_and_charges_at_once_add_up() {
    let fixture = Fixture::new();
    let (ann, sandbox) = (owner("ann"), SandboxId::generate());
    let begun = vec![begin("i1", 0)];
    fixture.store.apply(ann.clone(), sandbox, begun).await.unwrap();
    let stores = [fixture.store.clone(), fixture.reopened()];
    let mut waiting = Vec::new();
    for round in 0..150_i64 {
        // Each payment is told to both, as a webhook that is sent again to another server.
        for store in &stores {
            let paid = credit(10, &format!("payment {round}"));
            waiting.push((store.credit(&ann, paid, at(round)), round));
        }
        let used = reading("i1", round, u64::try_from(round).unwrap());
        stores[0].apply(ann.clone(), sandbox, vec![Change::Meter(used)]).await.unwrap();
        stores[0].charge(PRICES, at(round)).await.unwrap();
    }
    let mut entered = Vec::new();
    for (pending, round) in waiting {
        entered.extend(pending.await.unwrap().map(|_| round));
    }
    assert_eq!(entered.len(), 150, "each of them once");
    assert_eq!(entered.iter().collect::<BTreeSet<_>>().len(), 150);
    assert_eq!(balance(&stores[1], &ann).await, 1500 - 149);
}

/// Not a test by itself: pays and charges until it is killed, and says what is durable.
#[tokio::test]
async fn pays_until_it_is_killed() {
    let Some(dir) = std::env::var_os("PAYS_IN") else { return };
    let store = Store::open(&std::path::Path::new(&dir).join("bastide.db")).unwrap();
    let (ann, sandbox) = (owner("ann"), SandboxId::generate());
    let run = std::env::var("PAYS_AS").unwrap();
    store.apply(ann.clone(), sandbox, vec![begin("i1", 0)]).await.unwrap();
    for round in 0..100_000_i64 {
        let used = reading("i1", round, u64::try_from(round).unwrap());
        let metered = store.apply(ann.clone(), sandbox, vec![Change::Meter(used)]);
        let charged = store.charge(PRICES, at(round));
        let paid = store.credit(&ann, credit(3, &format!("{run} {round}")), at(round));
        metered.await.unwrap();
        charged.await.unwrap();
        paid.await.unwrap().unwrap();
        println!("paid {run} {round}");
    }
}

#[tokio::test]
async fn nothing_that_was_acknowledged_is_lost_when_the_server_is_killed() {
    let fixture = Fixture::new();
    let ann = owner("ann");
    let mut paid = 0;
    for run in 0..5 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "money::pays_until_it_is_killed", "--nocapture"])
            .env("PAYS_IN", fixture.dir.path())
            .env("PAYS_AS", run.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let told =
            lines.by_ref().map(Result::unwrap).filter(|line| line.contains("paid ")).take(40);
        assert_eq!(told.count(), 40);
        child.kill().unwrap();
        child.wait().unwrap();
        let rest = lines.map_while(Result::ok).filter(|line| line.contains("paid ")).count();
        paid += 40 + i64::try_from(rest).unwrap();
        let store = Store::open(&fixture.dir.path().join("bastide.db")).unwrap();
        balance(&store, &ann).await;
        let (entries, _) = store.entries(&ann, 100_000, 0).await.unwrap();
        let payments = entries.iter().filter(|entry| entry.amount_cents == 3).count();
        let payments = i64::try_from(payments).unwrap();
        assert!((paid..=paid + 1).contains(&payments), "{payments} of {paid}");
        paid = payments;
        // What was metered is charged in the end, and no more.
        store.charge(PRICES, at(0)).await.unwrap();
        let days = store.usage_by_day(&ann, date(2023, 11, 14), date(2023, 11, 17)).await.unwrap();
        let used: i64 = days.iter().map(|day| day.cpu_usec / 1_000_000).sum();
        assert_eq!(balance(&store, &ann).await, 3 * payments - used);
    }
}

#[tokio::test]
async fn a_low_balance_is_filled_up_by_one_and_not_asked_for_again_at_once() {
    let fixture = Fixture::new();
    let (store, ann) = (&fixture.store, owner("ann"));
    let topup = AutoTopup { enabled: true, threshold_cents: 100, amount_cents: 500 };
    assert_eq!(store.auto_topup(&ann).await.unwrap(), AutoTopup::default());
    store.set_auto_topup(&ann, topup).await.unwrap();
    assert_eq!(store.auto_topup(&ann).await.unwrap(), topup);
    assert_eq!(store.claim_topups(10, at(0)).await.unwrap(), [], "nobody knows with what to pay");
    let with = PayingWith { customer: "cus_1".into(), payment_method: "pm_1".into() };
    store.set_paying_with(&ann, with.clone()).await.unwrap();
    let other = fixture.reopened();
    let (one, two) = tokio::join!(store.claim_topups(10, at(1)), other.claim_topups(10, at(1)));
    let claimed = [one.unwrap(), two.unwrap()].concat();
    assert_eq!(claimed.len(), 1);
    assert_eq!((&claimed[0].owner, claimed[0].amount_cents, &claimed[0].with), (&ann, 500, &with));
    assert_eq!(store.claim_topups(10, at(3000)).await.unwrap(), []);
    assert_eq!(store.claim_topups(10, at(3601)).await.unwrap().len(), 1, "it was never heard of");
    store.credit(&ann, credit(50, "p1"), at(3700)).await.unwrap();
    assert_eq!(store.claim_topups(10, at(3701)).await.unwrap().len(), 1, "still below");
    store.credit(&ann, credit(500, "p2"), at(3702)).await.unwrap();
    assert_eq!(store.claim_topups(10, at(9000)).await.unwrap(), []);
}

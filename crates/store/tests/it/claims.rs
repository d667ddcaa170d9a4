//! Claims of names and requests, billing legs, migrations.

use model::{Conflict, Error, Name, OwnerId, SandboxId};
use store::{Change, Leg, LegEnd, Remembered, Store};

use crate::{Fixture, at, owner, tell};

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn request(key: &str, answer: &str) -> Change {
    Change::ClaimRequest {
        key: key.into(),
        body_sha256: [7; 32],
        answer: answer.into(),
        times: Remembered { from: at(0), until: at(86_400) },
    }
}

#[track_caller]
fn is_name_taken(outcome: &model::Result<()>) -> bool {
    matches!(outcome, Err(Error::Conflict { code: Conflict::NameTaken, .. }))
}

async fn names_of(store: &Store, owner: &OwnerId) -> Vec<String> {
    let names = store.names().await.unwrap();
    let own = names.into_iter().filter(|claim| claim.owner == *owner);
    let mut own: Vec<String> = own.map(|claim| claim.name.to_string()).collect();
    own.sort();
    own
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_hundred_claims_of_one_name_exactly_one_succeeds() {
    let fixture = Fixture::new();
    let alice = owner("alice");
    let pending: Vec<_> = (0..100)
        .map(|_| {
            let claim = vec![Change::ClaimName(name("mine"))];
            fixture.store.apply(alice.clone(), SandboxId::generate(), claim)
        })
        .collect();
    let mut won = 0;
    for claim in pending {
        let outcome = claim.await;
        assert!(outcome.is_ok() || is_name_taken(&outcome), "{outcome:?}");
        won += usize::from(outcome.is_ok());
    }
    assert_eq!(won, 1);
    let others = vec![Change::ClaimName(name("mine"))];
    fixture.store.apply(owner("bob"), SandboxId::generate(), others).await.unwrap();
}

#[tokio::test]
async fn changes_are_applied_together_or_not_at_all() {
    let fixture = Fixture::new();
    let alice = owner("alice");
    let first = SandboxId::generate();
    let claim = vec![Change::ClaimName(name("taken"))];
    fixture.store.apply(alice.clone(), first, claim).await.unwrap();

    let second = SandboxId::generate();
    let created = tell(&alice, second, model::EventKind::Created, 1);
    let claims = vec![request("once", "{}"), created, Change::ClaimName(name("taken"))];
    let mut heard = fixture.store.listen();
    let refused = fixture.store.apply(alice.clone(), second, claims);
    // Queued right behind, so that both may share one commit.
    let beside = fixture.store.apply(alice.clone(), second, vec![Change::ClaimName(name("free"))]);
    assert!(is_name_taken(&refused.await));
    beside.await.unwrap();

    assert_eq!(fixture.store.request(&alice, "once", at(0)).await.unwrap(), None);
    assert_eq!(names_of(&fixture.store, &alice).await, ["free", "taken"]);
    assert!(heard.try_recv().is_err(), "nothing is told of what was undone");
}

#[tokio::test]
async fn an_answer_is_remembered_for_its_time_and_survives_a_restart() {
    let fixture = Fixture::new();
    let (alice, sandbox) = (owner("alice"), SandboxId::generate());
    let claims = vec![Change::ClaimName(name("mine")), request("once", "planned")];
    fixture.store.apply(alice.clone(), sandbox, claims).await.unwrap();
    assert_eq!(fixture.store.unfinished_requests().await.unwrap().len(), 1);

    let again =
        fixture.store.apply(alice.clone(), SandboxId::generate(), vec![request("once", "")]);
    assert!(matches!(again.await, Err(Error::Conflict { .. })));

    let settle = vec![Change::Settle { answer: Some("made".into()) }, Change::Release];
    fixture.store.apply(alice.clone(), sandbox, settle).await.unwrap();
    let store = fixture.reopened();
    let kept = store.request(&alice, "once", at(86_399)).await.unwrap().unwrap();
    assert_eq!((kept.sandbox, kept.answer.as_str(), kept.done), (sandbox, "made", true));
    assert_eq!(kept.body_sha256, [7; 32]);
    assert_eq!(store.request(&owner("bob"), "once", at(0)).await.unwrap(), None);
    assert_eq!(store.request(&alice, "once", at(86_400)).await.unwrap(), None);
    assert_eq!(store.unfinished_requests().await.unwrap(), []);

    let times = Remembered { from: at(86_400), until: at(90_000) };
    let (key, body_sha256) = ("once".to_owned(), [8; 32]);
    let again = Change::ClaimRequest { key, body_sha256, answer: "new".into(), times };
    let other = SandboxId::generate();
    store.apply(alice.clone(), other, vec![again]).await.unwrap();
    let kept = store.request(&alice, "once", at(86_400)).await.unwrap().unwrap();
    assert_eq!((kept.sandbox, kept.answer.as_str()), (other, "new"), "the expired one is replaced");

    store.prune(at(90_001), at(0)).await.unwrap();
    assert_eq!(store.request(&alice, "once", at(0)).await.unwrap(), None);
}

#[tokio::test]
async fn a_failed_create_frees_its_name_and_its_key() {
    let fixture = Fixture::new();
    let (alice, sandbox) = (owner("alice"), SandboxId::generate());
    let claims = || vec![Change::ClaimName(name("mine")), request("once", "")];
    fixture.store.apply(alice.clone(), sandbox, claims()).await.unwrap();
    fixture.store.apply(alice.clone(), sandbox, vec![Change::Unclaim]).await.unwrap();
    fixture.store.apply(alice.clone(), SandboxId::generate(), claims()).await.unwrap();
}

#[tokio::test]
async fn a_name_is_ready_once_its_create_was_settled() {
    let fixture = Fixture::new();
    let (alice, sandbox) = (owner("alice"), SandboxId::generate());
    let claim = vec![Change::ClaimName(name("mine"))];
    fixture.store.apply(alice.clone(), sandbox, claim).await.unwrap();
    assert!(!fixture.store.names().await.unwrap()[0].ready);
    let settle = vec![Change::Settle { answer: None }];
    fixture.store.apply(alice.clone(), sandbox, settle).await.unwrap();
    let claim = fixture.store.names().await.unwrap().remove(0);
    assert!(claim.ready);
    assert_eq!((claim.owner, claim.sandbox), (alice, sandbox));
}

#[tokio::test]
async fn a_rename_takes_a_free_name_only() {
    let fixture = Fixture::new();
    let alice = owner("alice");
    let (first, second) = (SandboxId::generate(), SandboxId::generate());
    for (sandbox, text) in [(first, "one"), (second, "two")] {
        let claim = vec![Change::ClaimName(name(text))];
        fixture.store.apply(alice.clone(), sandbox, claim).await.unwrap();
    }
    let rename = |to| vec![Change::Rename(name(to))];
    assert!(is_name_taken(&fixture.store.apply(alice.clone(), first, rename("two")).await));
    fixture.store.apply(alice.clone(), first, rename("one")).await.unwrap();
    fixture.store.apply(alice.clone(), first, rename("three")).await.unwrap();
    assert_eq!(names_of(&fixture.store, &alice).await, ["three", "two"]);
}

#[tokio::test]
async fn a_leg_is_billed_once() {
    let fixture = Fixture::new();
    let (alice, sandbox) = (owner("alice"), SandboxId::generate());
    let begin = || {
        Change::BeginLeg(Leg {
            incarnation: "i1".into(),
            started_at: at(0),
            payer: None,
            memory_mib: 512,
            disk_gb: 5,
        })
    };
    let end = |seconds| {
        Change::EndLeg(LegEnd {
            incarnation: "i1".into(),
            ended_at: at(seconds),
            cpu_usec: 1_500_000,
        })
    };
    let mut heard = fixture.store.listen();
    fixture.store.apply(alice.clone(), sandbox, vec![end(1)]).await.unwrap();
    fixture.store.apply(alice.clone(), sandbox, vec![begin(), begin()]).await.unwrap();
    assert_eq!(fixture.store.open_legs().await.unwrap().len(), 1);
    fixture.store.apply(alice.clone(), sandbox, vec![end(90), end(100)]).await.unwrap();
    fixture.store.apply(alice.clone(), sandbox, vec![begin(), end(200)]).await.unwrap();
    assert_eq!(fixture.store.open_legs().await.unwrap(), []);

    let told = heard.try_recv().unwrap().event;
    assert_eq!(told.kind, model::EventKind::SandboxHour);
    assert_eq!(told.data["seconds"], 90.0);
    assert_eq!(told.data["cpu_seconds"], 1.5);
    assert!(heard.try_recv().is_err(), "billed twice");
}

#[tokio::test]
async fn a_database_of_a_newer_version_is_refused() {
    let fixture = Fixture::new();
    let path = fixture.dir.path().join("bastide.db");
    let database = rusqlite::Connection::open(&path).unwrap();
    database.pragma_update(None, "user_version", 1000).unwrap();
    assert!(matches!(Store::open(&path), Err(Error::Internal(_))));
}

#[tokio::test]
async fn an_agents_order_is_replaced_by_who_saw_the_last_one_and_goes_with_its_sandbox() {
    let fixture = Fixture::new();
    let (alice, sandbox) = (owner("alice"), SandboxId::generate());
    let made = vec![Change::ClaimName(name("mine")), Change::KeepOrder(b"one".to_vec())];
    fixture.store.apply(alice.clone(), sandbox, made).await.unwrap();
    let kept = async || fixture.store.agent_order(sandbox).await.unwrap();
    let first = kept().await.unwrap();
    assert_eq!((&first.owner, first.sealed.as_slice()), (&alice, &b"one"[..]));
    let replace = async |before, with: &[u8]| {
        fixture.store.replace_agent_order(sandbox, before, with.to_vec()).await.unwrap()
    };
    assert!(replace(first.clone(), b"two").await);
    // Who read it before that does not bring the old one back.
    assert!(!replace(first, b"one sealed anew").await);
    assert_eq!(kept().await.unwrap().sealed, b"two");
    fixture.store.apply(alice, sandbox, vec![Change::Release]).await.unwrap();
    assert_eq!(kept().await, None);
}

//! Organisations and limits, and the audit log.

use model::{Error, OwnerId, Plan, QuotaRow, Role};
use store::{AUDIT_BEGINS, AuditEntry, KeyFormat, LimitRow, Limited, Store};

use crate::{Fixture, at};

async fn account(store: &Store, name: &str) -> OwnerId {
    let email = format!("{name}@example.com").parse().unwrap();
    store.open_account(&email, at(0)).await.unwrap().owner
}

fn quota(ephemeral_max: Option<u32>, persistent_max: Option<u32>) -> QuotaRow {
    QuotaRow { ephemeral_max, persistent_max, ..QuotaRow::default() }
}

#[tokio::test]
async fn what_is_said_about_an_owner_wins_over_its_organisation_and_that_over_its_key() {
    let fixture = Fixture::new();
    let (store, other) = (&fixture.store, fixture.reopened());
    let ann = account(store, "ann").await;
    let key = store.create_key(&ann, Plan::Free, KeyFormat::Live, "x").await.unwrap();
    let now = async || {
        let [here, there] = [store, &other].map(|store| store.verify(&key.secret));
        let (here, there) = (here.await.unwrap().unwrap(), there.await.unwrap().unwrap());
        assert_eq!(here, there, "every server goes by it at once");
        (here.plan, here.quota)
    };
    assert_eq!(now().await, (Plan::Free, QuotaRow::default()));
    let acme = store.create_organisation("Acme", at(0)).await.unwrap();
    store.put_member(&acme.id, &ann, Role::Member, at(1)).await.unwrap();
    let theirs = LimitRow { plan: Some(Plan::Operator), quota: quota(Some(9), Some(7)) };
    store.put_limits(&Limited::Organisation(acme.id.clone()), theirs).await.unwrap();
    assert_eq!(now().await, (Plan::Operator, quota(Some(9), Some(7))));
    assert_eq!(store.list_keys(&ann).await.unwrap()[0].plan, Plan::Operator);
    let own = LimitRow { plan: Some(Plan::Free), quota: quota(Some(1), None) };
    other.put_limits(&Limited::Owner(ann.clone()), own).await.unwrap();
    assert_eq!(now().await, (Plan::Free, quota(Some(1), Some(7))));
    assert_eq!(store.limits_of(&Limited::Owner(ann.clone())).await.unwrap(), own);
    other.remove_member(&acme.id, &ann).await.unwrap();
    assert_eq!(now().await, (Plan::Free, quota(Some(1), None)));
    store.put_limits(&Limited::Owner(ann.clone()), LimitRow::default()).await.unwrap();
    assert_eq!(now().await, (Plan::Free, QuotaRow::default()));
}

#[tokio::test]
async fn an_owner_is_in_one_organisation_with_one_role() {
    let fixture = Fixture::new();
    let store = &fixture.store;
    let (ann, bob) = (account(store, "ann").await, account(store, "bob").await);
    let acme = store.create_organisation("Acme", at(0)).await.unwrap().id;
    let other = store.create_organisation("Other", at(1)).await.unwrap().id;
    store.put_member(&acme, &ann, Role::Member, at(2)).await.unwrap();
    store.put_member(&acme, &ann, Role::Billing, at(3)).await.unwrap();
    assert_eq!(store.role_in(&acme, &ann).await.unwrap(), Some(Role::Billing));
    assert_eq!(store.role_in(&other, &ann).await.unwrap(), None);
    let refused = store.put_member(&other, &ann, Role::Owner, at(4)).await;
    assert!(matches!(refused, Err(Error::Conflict { .. })), "{refused:?}");
    let unknown = store.put_member(&acme, &crate::owner("nobody"), Role::Owner, at(4)).await;
    assert!(matches!(unknown, Err(Error::NotFound { .. })), "{unknown:?}");
    let unknown = store.put_member(&"org_none".parse().unwrap(), &bob, Role::Owner, at(4)).await;
    assert!(matches!(unknown, Err(Error::NotFound { .. })), "{unknown:?}");
    store.put_member(&acme, &bob, Role::Owner, at(5)).await.unwrap();
    let (found, members) = store.organisation(&acme).await.unwrap().unwrap();
    assert_eq!((found.name.as_str(), members.len()), ("Acme", 2));
    let unknown = store.remove_member(&other, &ann).await;
    assert!(matches!(unknown, Err(Error::NotFound { .. })), "{unknown:?}");
    let names: Vec<_> = store.organisations(10, 0).await.unwrap();
    assert_eq!(names.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["Other", "Acme"]);
    let name = "Robert'); DROP TABLE members; -- $1 ?1 \" %s \\";
    let odd = store.create_organisation(name, at(6)).await.unwrap();
    assert_eq!(store.organisation(&odd.id).await.unwrap().unwrap().0.name, name);
    for name in ["", "a\nb", &"x".repeat(101)] {
        let refused = store.create_organisation(name, at(0)).await;
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{name:?}");
    }
}

fn entry(target: &str) -> AuditEntry {
    AuditEntry {
        at: at(0),
        actor: "usr_ann".into(),
        action: "DELETE /v1/api-keys/{key_id}".into(),
        target: target.into(),
        outcome: "200".into(),
        address: "192.0.2.1".into(),
    }
}

#[tokio::test]
async fn each_entry_of_the_audit_log_covers_the_one_before_whoever_writes() {
    let fixture = Fixture::new();
    let other = fixture.reopened();
    let written: Vec<_> = (0..40)
        .map(|n| if n % 2 == 0 { &fixture.store } else { &other }.audit(entry(&n.to_string())))
        .collect();
    for one in written {
        one.await.unwrap();
    }
    let log = other.audit_log(0, 1000).await.unwrap();
    assert_eq!(log.len(), 40);
    let mut digest = AUDIT_BEGINS;
    for (index, record) in log.iter().enumerate() {
        assert_eq!(record.number, i64::try_from(index).unwrap() + 1);
        digest = record.entry.digest(&digest, record.number);
        assert_eq!(record.digest, digest);
    }
    assert_eq!(fixture.store.audit_log(38, 1).await.unwrap(), [log[38].clone()]);
}

#[test]
fn any_change_of_an_entry_changes_its_digest() {
    let before = entry("x");
    let digest = before.digest(&AUDIT_BEGINS, 1);
    let (mut actor, mut target, mut moved) = (before.clone(), before.clone(), before.clone());
    actor.actor = "usr_bob".into();
    target.target = "y".into();
    moved.actor.push('D');
    moved.action.remove(0);
    for changed in [actor, target, moved] {
        assert_ne!(changed.digest(&AUDIT_BEGINS, 1), digest);
    }
    assert_ne!(before.digest(&AUDIT_BEGINS, 2), digest);
    assert_ne!(before.digest(&[1; 32], 1), digest);
}

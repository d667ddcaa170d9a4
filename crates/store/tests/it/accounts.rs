//! Accounts, one-time codes and rates.

use jiff::SignedDuration;
use model::{Email, Plan};
use store::{Admission, KeyFormat, Rate};

use crate::{Fixture, at};

fn email(text: &str) -> Email {
    text.parse().unwrap()
}

#[tokio::test]
async fn an_email_has_one_account_whoever_asks_and_when() {
    let fixture = Fixture::new();
    let ann = email("ann@example.com");
    assert!(!fixture.store.has_account(&ann).await.unwrap());
    let other = fixture.reopened();
    let opened = tokio::join!(
        fixture.store.open_account(&ann, at(0)),
        other.open_account(&ann, at(1)),
        fixture.store.open_account(&ann, at(2)),
    );
    let first = opened.0.unwrap();
    assert_eq!(opened.1.unwrap(), first);
    assert_eq!(opened.2.unwrap(), first);
    assert!(first.owner.as_str().len() == 36 && first.owner.as_str().starts_with("usr_"));
    assert_eq!(first.email, Some(ann.clone()));
    assert_eq!(fixture.store.account(&first.owner).await.unwrap(), Some(first.clone()));
    assert!(fixture.store.has_account(&ann).await.unwrap());
    let bob = fixture.store.open_account(&email("bob@example.com"), at(3)).await.unwrap();
    assert_ne!(bob.owner, first.owner);
}

#[tokio::test]
async fn a_tenants_key_looks_as_documented() {
    let fixture = Fixture::new();
    let ann = fixture.store.open_account(&email("ann@example.com"), at(0)).await.unwrap();
    let key = fixture.store.create_key(&ann.owner, Plan::Free, KeyFormat::Tenant, "x").await;
    let key = key.unwrap();
    assert_eq!((key.secret.len(), key.record.prefix.len()), (4 + 64, 8));
    assert!(key.secret.starts_with(&key.record.prefix) && !key.secret.starts_with("e2a_live_"));
    assert_eq!(fixture.store.verify(&key.secret).await.unwrap().unwrap().owner, ann.owner);
}

#[tokio::test]
async fn a_code_is_good_once_for_ten_minutes() {
    let fixture = Fixture::new();
    let (store, ann) = (&fixture.store, email("ann@example.com"));
    let [right, wrong] = [[1; 32], [2; 32]];
    assert!(!store.take_code(&ann, right, at(0)).await.unwrap(), "none was sent");
    store.put_code(&ann, right, at(0)).await.unwrap();
    assert!(!store.take_code(&email("bob@example.com"), right, at(1)).await.unwrap());
    assert!(!store.take_code(&ann, wrong, at(1)).await.unwrap());
    assert!(store.take_code(&ann, right, at(599)).await.unwrap());
    assert!(!store.take_code(&ann, right, at(599)).await.unwrap(), "it was used");
    store.put_code(&ann, right, at(1000)).await.unwrap();
    assert!(!store.take_code(&ann, right, at(1600)).await.unwrap(), "it expired");
    store.put_code(&ann, wrong, at(2000)).await.unwrap();
    store.put_code(&ann, right, at(2001)).await.unwrap();
    assert!(!store.take_code(&ann, wrong, at(2002)).await.unwrap(), "another was sent since");
}

#[tokio::test]
async fn after_five_wrong_guesses_the_right_code_is_no_good_either() {
    let fixture = Fixture::new();
    let ann = email("ann@example.com");
    fixture.store.put_code(&ann, [7; 32], at(0)).await.unwrap();
    let other = fixture.reopened();
    for guess in 0..5 {
        let store = if guess % 2 == 0 { &fixture.store } else { &other };
        assert!(!store.take_code(&ann, [guess; 32], at(1)).await.unwrap());
    }
    assert!(!fixture.store.take_code(&ann, [7; 32], at(2)).await.unwrap());
}

#[tokio::test]
async fn a_rate_holds_in_any_stretch_of_time_over_all_servers() {
    let fixture = Fixture::new();
    let other = fixture.reopened();
    let rate = Rate { count: 3, per: SignedDuration::from_hours(1) };
    for (second, bucket, wait) in [
        (0, "a", None),
        (1800, "a", None),
        (3599, "a", None),
        (3599, "a", Some(1)),
        (3599, "b", None),
        (3600, "a", None),
        (3601, "a", Some(1799)),
        (5401, "a", None),
        (5402, "a", Some(1797)),
    ] {
        let store = if second % 2 == 0 { &fixture.store } else { &other };
        let admitted = store.admit(bucket, rate, at(second)).await.unwrap();
        let expected = match wait {
            None => Admission::Granted,
            Some(wait) => Admission::Refused { retry_after: SignedDuration::from_secs(wait) },
        };
        assert_eq!(admitted, expected, "{second} {bucket}");
    }
}

#[tokio::test]
async fn what_is_old_is_forgotten() {
    let fixture = Fixture::new();
    let rate = Rate { count: 1, per: SignedDuration::from_hours(1) };
    fixture.store.admit("a", rate, at(0)).await.unwrap();
    fixture.store.put_code(&email("ann@example.com"), [7; 32], at(0)).await.unwrap();
    fixture.store.prune(at(3600), at(0)).await.unwrap();
    for table in ["hits", "codes"] {
        assert_eq!(fixture.count(table), 0, "{table}");
    }
}

//! In the store.

use model::{Error, SandboxId};
use seal::Sealer;
use store::{Change, Store};
use tempfile::TempDir;
use tokio::task::JoinSet;
use vault::{Place, Vault};

use crate::{map, name, owner, resolved, values};

fn vault(dir: &TempDir) -> Vault {
    let store = Store::open(&dir.path().join("bastide.db")).unwrap();
    let sealer = Sealer::open(&dir.path().join("master.key")).unwrap();
    Vault::new(store, sealer, Place::Sealed, None)
}

/// Everything that lies in the directory but the key.
fn on_disk(dir: &TempDir) -> Vec<u8> {
    let files = std::fs::read_dir(dir.path()).unwrap().flatten().map(|entry| entry.path());
    files
        .filter(|path| !path.ends_with("master.key"))
        .flat_map(|p| std::fs::read(p).unwrap())
        .collect()
}

#[tokio::test]
async fn values_come_back_for_a_session_of_their_owner_and_lie_nowhere_readable() {
    let dir = tempfile::tempdir().unwrap();
    let vault = vault(&dir);
    let ann = owner("ann");
    let secret = "sk-ant-very-recognisable";
    vault.create(&ann, &name("keys"), values(&[("LLM_API_KEY", secret)])).await.unwrap();
    vault.create(&ann, &name("more"), values(&[("B", "2"), ("C", "")])).await.unwrap();
    let all = resolved(&vault, &ann, &["keys", "more"]).await;
    assert_eq!(all, map(&[("LLM_API_KEY", secret), ("B", "2"), ("C", "")]));
    let disk = on_disk(&dir);
    assert!(disk.windows(4).any(|part| part == b"keys"), "the database is looked at");
    assert!(!disk.windows(secret.len()).any(|part| part == secret.as_bytes()));
    assert!(matches!(
        vault.resolve(&owner("bob"), &[name("keys")]).await,
        Err(Error::NotFound { .. })
    ));
}

#[tokio::test]
async fn a_key_in_two_bundles_and_too_many_bundles_are_mistakes() {
    let dir = tempfile::tempdir().unwrap();
    let vault = vault(&dir);
    let ann = owner("ann");
    vault.create(&ann, &name("a"), values(&[("K", "hush")])).await.unwrap();
    vault.create(&ann, &name("b"), values(&[("K", "hush")])).await.unwrap();
    for names in [vec![name("a"), name("b")], vec![name("a"); 11]] {
        let error = vault.resolve(&ann, &names).await.unwrap_err();
        assert!(matches!(&error, Error::Invalid { field, .. } if field == "secrets"), "{error}");
        assert!(!error.to_string().contains("hush"));
    }
}

#[tokio::test]
async fn the_quota_holds_under_a_race() {
    let dir = tempfile::tempdir().unwrap();
    let vault = vault(&dir);
    let ann = owner("ann");
    let names: Vec<_> = (0..60).map(|i| name(&format!("b{i}"))).collect();
    let mut creates = JoinSet::new();
    for name in names.clone() {
        let (vault, ann) = (vault.clone(), ann.clone());
        creates.spawn(async move { vault.create(&ann, &name, values(&[("K", "v")])).await });
    }
    let mut refused = 0;
    while let Some(made) = creates.join_next().await {
        match made.unwrap() {
            Ok(_) => {}
            Err(Error::Exhausted { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(refused, 10);
    assert_eq!(vault.list(&ann).await.unwrap().len(), 50);
    let there = vault.list(&ann).await.unwrap().remove(0).name;
    let again = vault.create(&ann, &there, values(&[("K", "v")])).await;
    assert!(matches!(again, Err(Error::Conflict { .. })), "one that exists is a conflict");
    vault.delete(&ann, &there).await.unwrap();
    vault.create(&ann, &name("one-more"), values(&[("K", "v")])).await.unwrap();
    vault.create(&owner("bob"), &names[0], values(&[("K", "v")])).await.unwrap();
}

#[tokio::test]
async fn after_a_new_master_key_everything_is_sealed_anew_and_the_old_one_can_go() {
    let dir = tempfile::tempdir().unwrap();
    let vault = vault(&dir);
    let ann = owner("ann");
    for i in 0..45 {
        vault.create(&ann, &name(&format!("b{i}")), values(&[("K", "v")])).await.unwrap();
    }
    assert_eq!(vault.reseal().await.unwrap(), 0);
    let key = dir.path().join("master.key");
    seal::add_key(&key).unwrap();
    assert_eq!(vault.reseal().await.unwrap(), 45);
    assert_eq!(vault.reseal().await.unwrap(), 0);
    assert_eq!(seal::forget_old_keys(&key).unwrap(), 1);
    let later = super::sealed::vault(&dir);
    assert_eq!(resolved(&later, &ann, &["b7"]).await, map(&[("K", "v")]));
    assert_eq!(later.get(&ann, &name("b7")).await.unwrap().rotated_at, None);
}

#[tokio::test]
async fn what_agents_are_to_do_is_sealed_anew_and_no_change_of_it_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let vault = vault(&dir);
    let (ann, sandbox) = (owner("ann"), SandboxId::generate());
    let sealed = vault.seal_order(&ann, b"sk-secret").unwrap();
    let made = vec![Change::ClaimName("mine".parse().unwrap()), Change::KeepOrder(sealed)];
    let store = Store::open(&dir.path().join("bastide.db")).unwrap();
    store.apply(ann.clone(), sandbox, made).await.unwrap();
    assert!(!on_disk(&dir).windows(9).any(|part| part == b"sk-secret"));

    let key = dir.path().join("master.key");
    seal::add_key(&key).unwrap();
    assert_eq!((vault.reseal().await.unwrap(), vault.reseal().await.unwrap()), (1, 0));
    assert_eq!(seal::forget_old_keys(&key).unwrap(), 1);
    let later = super::sealed::vault(&dir);
    assert_eq!(later.order(sandbox).await.unwrap(), Some((ann.clone(), b"sk-secret".to_vec())));

    let mut changes = JoinSet::new();
    for _ in 0..4 {
        let vault = later.clone();
        changes.spawn(async move {
            let more = |plain: &[u8]| Ok([plain, b"+"].concat());
            vault.change_order(sandbox, more).await.unwrap()
        });
    }
    assert_eq!(changes.join_all().await, [true; 4]);
    assert_eq!(later.order(sandbox).await.unwrap(), Some((ann, b"sk-secret++++".to_vec())));
    let none = later.change_order(SandboxId::generate(), |plain| Ok(plain.to_vec())).await;
    assert!(!none.unwrap(), "no such sandbox");
}

//! A database of any version before becomes one of this version, with everything in it kept.

use std::path::{Path, PathBuf};

use model::{OwnerId, Plan, SandboxId};
use sha2::{Digest, Sha256};
use store::{Change, EventId, LegEnd, Metered, Store, WorkspaceSize};

use crate::at;

fn secret() -> String {
    format!("e2a_live_{}", "7".repeat(64))
}

/// All that were ever made, in order.
fn migrations() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/migrations");
    let mut all: Vec<_> = std::fs::read_dir(dir).unwrap().map(|one| one.unwrap().path()).collect();
    all.sort();
    all
}

/// As a server of that version left it.
fn of_version(version: usize, path: &Path, sandbox: &str) {
    let db = rusqlite::Connection::open(path).unwrap();
    for migration in &migrations()[..version] {
        db.execute_batch(&std::fs::read_to_string(migration).unwrap()).unwrap();
    }
    let began = at(0).as_microsecond();
    db.execute("INSERT INTO owners (id, created_at) VALUES ('usr_ann', ?1)", [began]).unwrap();
    let digest = Sha256::digest(secret()).to_vec();
    db.execute(
        "INSERT INTO api_keys (id, owner, plan, name, prefix, sha256, bcrypt, created_at)
         VALUES ('key_1', 'usr_ann', 'free', 'old', 'e2a_live_777777', ?1, 'x', ?2)",
        rusqlite::params![digest, began],
    )
    .unwrap();
    let names = "INSERT INTO names (owner, name, sandbox, ready) VALUES ('usr_ann', 'kept', ?1, 1)";
    db.execute(names, [sandbox]).unwrap();
    db.execute(
        "INSERT INTO requests (owner, idempotency_key, body_sha256, sandbox, answer, done, expires_at)
         VALUES ('usr_ann', 'again', ?1, ?2, '{}', 1, ?3)",
        rusqlite::params![vec![7_u8; 32], sandbox, at(1_000_000).as_microsecond()],
    )
    .unwrap();
    db.execute(
        "INSERT INTO legs (sandbox, incarnation, owner, started_at) VALUES (?1, 'i', 'usr_ann', ?2)",
        rusqlite::params![sandbox, began],
    )
    .unwrap();
    let event = serde_json::json!({
        "owner": "usr_ann", "sandbox": sandbox, "kind": "lifecycle.running", "at": at(0)
    });
    db.execute(
        "INSERT INTO events (owner, sandbox, transition, body, at)
         VALUES ('usr_ann', ?1, 'lifecycle.running:i', ?2, ?3)",
        rusqlite::params![sandbox, event.to_string(), began],
    )
    .unwrap();
    let is_named = |table: &str| {
        let sql = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?1";
        db.query_row(sql, [table], |row| row.get::<_, i64>(0)).unwrap() == 1
    };
    if is_named("quotas") {
        db.execute("INSERT INTO quotas (subject, ephemeral_max) VALUES ('usr_ann', 9)", [])
            .unwrap();
    }
    if is_named("balances") {
        db.execute("INSERT INTO balances (owner, cents) VALUES ('usr_ann', 55)", []).unwrap();
        db.execute(
            "INSERT INTO ledger (id, owner, cents, kind, description, at)
             VALUES ('txn_1', 'usr_ann', 55, 'credit', 'old', ?1)",
            [began],
        )
        .unwrap();
    }
    db.pragma_update(None, "user_version", u32::try_from(version).unwrap()).unwrap();
}

#[tokio::test]
async fn what_was_there_is_there_and_goes_on() {
    let newest = migrations().len();
    assert!(newest >= 10);
    for version in 1..=newest {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bastide.db");
        let id = SandboxId::generate();
        of_version(version, &path, &id.to_string());
        let store = Store::open(&path).unwrap();
        let ann: OwnerId = "usr_ann".parse().unwrap();
        let key = store.verify(&secret()).await.unwrap().unwrap();
        assert_eq!((key.owner, key.plan), (ann.clone(), Plan::Free), "of version {version}");
        let max = key.quota.ephemeral_max;
        assert!(max.is_none() || max == Some(9), "of version {version}");
        let names = store.names().await.unwrap();
        assert_eq!((names.len(), names[0].name.as_str()), (1, "kept"), "of version {version}");
        assert!(store.request(&ann, "again", at(1)).await.unwrap().is_some());
        let told = store.backlog(&ann, Some(EventId(0)), 10).await.unwrap();
        assert_eq!(told.events.len(), 1, "of version {version}");
        let balance = store.balance(&ann).await.unwrap().cents;
        assert!(balance == 0 || balance == 55, "of version {version}");

        // The sandbox has been running since before, and is counted and ended as any other.
        let legs = store.open_legs().await.unwrap();
        let sandbox = legs[0].sandbox;
        assert_eq!((legs.len(), sandbox), (1, id));
        let used = Metered { incarnation: "i".into(), at: at(60), cpu_usec: 5_000_000 };
        store.apply(ann.clone(), sandbox, vec![Change::Meter(used)]).await.unwrap();
        let end = LegEnd { incarnation: "i".into(), ended_at: at(90), cpu_usec: 6_000_000 };
        store.apply(ann.clone(), sandbox, vec![Change::EndLeg(end)]).await.unwrap();
        let days = store.usage(&ann, 0, 1_000_000).await.unwrap();
        let sums = (days[0].running_usec, days[0].cpu_usec);
        assert_eq!(sums, (90_000_000, 6_000_000), "of version {version}");

        let workspace = model::WorkspaceId::new("a", "b").unwrap();
        store.set_workspace_size(&ann, &workspace, (1, 1), at(1)).await.unwrap();
        let expected = WorkspaceSize { bytes: 1, files: 1, counted_at: at(1) };
        assert_eq!(store.workspace_size(&ann, &workspace).await.unwrap(), Some(expected));
    }
}

#[test]
fn a_database_of_a_version_to_come_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bastide.db");
    of_version(migrations().len(), &path, &SandboxId::generate().to_string());
    let db = rusqlite::Connection::open(&path).unwrap();
    db.pragma_update(None, "user_version", 999).unwrap();
    drop(db);
    let refused = Store::open(&path).map(drop).unwrap_err();
    assert!(format!("{:#}", anyhow::Error::from(refused)).contains("newer version"));
}

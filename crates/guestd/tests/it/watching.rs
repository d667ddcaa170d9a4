//! Watching directories.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

use crate::guest::TestGuest;
use crate::wire::{call, open, send};

async fn create(guest: &TestGuest, message: Value) -> String {
    let created = call(guest, "filesystem.Filesystem/CreateWatcher", message).await.json();
    created["watcherId"].as_str().unwrap().to_owned()
}

/// Asks until as many events have come.
async fn events(guest: &TestGuest, id: &str, count: usize) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for _ in 0..200 {
        let message = json!({ "watcherId": id });
        let answer = call(guest, "filesystem.Filesystem/GetWatcherEvents", message).await.json();
        let events = answer["events"].as_array().cloned().unwrap_or_default();
        all.extend(events.iter().map(|event| {
            let kind = event["type"].as_str().unwrap().trim_start_matches("EVENT_TYPE_");
            (event["name"].as_str().unwrap().to_owned(), kind.to_owned())
        }));
        if all.len() >= count {
            // Whatever is too much should be seen, too.
            tokio::time::sleep(Duration::from_millis(20)).await;
            return all;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("only {all:?}");
}

fn expected(events: &[(&str, &str)]) -> Vec<(String, String)> {
    events.iter().map(|(name, kind)| ((*name).to_owned(), (*kind).to_owned())).collect()
}

#[tokio::test]
async fn changes_are_told_in_order() {
    let guest = TestGuest::start();
    let id = create(&guest, json!({ "path": "" })).await;
    fs::write(guest.path("a"), "x").unwrap();
    fs::rename(guest.path("a"), guest.path("b")).unwrap();
    fs::remove_file(guest.path("b")).unwrap();
    let told = events(&guest, &id, 5).await;
    let wanted =
        [("a", "CREATE"), ("a", "WRITE"), ("a", "RENAME"), ("b", "CREATE"), ("b", "REMOVE")];
    assert_eq!(told, expected(&wanted));
}

#[tokio::test]
async fn one_upload_gives_exactly_three_events() {
    let guest = TestGuest::start();
    let id = create(&guest, json!({ "path": "" })).await;
    let kind = ["Content-Type: application/octet-stream"];
    assert_eq!(send(&guest, "POST /files?path=up", &kind, b"data").await.status, 200);
    let wanted: &[_] = match rustix::process::geteuid().is_root() {
        true => &[("up", "CREATE"), ("up", "CHMOD"), ("up", "WRITE")],
        // Only root gives files away.
        false => &[("up", "CREATE"), ("up", "WRITE")],
    };
    assert_eq!(events(&guest, &id, wanted.len()).await, expected(wanted));
}

#[tokio::test]
async fn only_a_recursive_watcher_looks_below() {
    let guest = TestGuest::start();
    fs::create_dir(guest.path("old")).unwrap();
    let flat = create(&guest, json!({ "path": "" })).await;
    let deep = create(&guest, json!({ "path": "", "recursive": true })).await;
    fs::write(guest.path("old/file"), "").unwrap();
    // Made at once, so that some of it is there before the directory is watched.
    fs::create_dir_all(guest.path("new/er")).unwrap();
    fs::write(guest.path("new/er/file"), "").unwrap();
    let mut told = events(&guest, &deep, 4).await;
    told.sort();
    let created = |name| (name, "CREATE");
    let wanted = ["new", "new/er", "new/er/file", "old/file"].map(created);
    assert_eq!(told, expected(&wanted), "each once");
    assert_eq!(events(&guest, &flat, 1).await, expected(&[created("new")]));
}

#[tokio::test]
async fn a_moved_directory_is_watched_under_its_new_name() {
    let guest = TestGuest::start();
    fs::create_dir(guest.path("before")).unwrap();
    let id = create(&guest, json!({ "path": "", "recursive": true })).await;
    fs::rename(guest.path("before"), guest.path("after")).unwrap();
    assert_eq!(
        events(&guest, &id, 2).await,
        expected(&[("before", "RENAME"), ("after", "CREATE")])
    );
    fs::write(guest.path("after/file"), "").unwrap();
    assert_eq!(events(&guest, &id, 1).await, expected(&[("after/file", "CREATE")]));
}

#[tokio::test]
async fn a_stream_tells_its_start_and_entries() {
    let guest = TestGuest::start();
    let message = json!({ "path": "", "includeEntry": true });
    let mut stream = open(&guest, "filesystem.Filesystem/WatchDir", message).await;
    assert_eq!(stream.next().await, json!({ "start": {} }));
    fs::write(guest.path("file"), "x").unwrap();
    let event = stream.next().await["filesystem"].clone();
    assert_eq!(
        (event["name"].as_str(), event["type"].as_str()),
        (Some("file"), Some("EVENT_TYPE_CREATE"))
    );
    assert_eq!(event["entry"]["path"], guest.path("file"));
}

#[tokio::test]
async fn what_cannot_be_watched_is_refused() {
    let guest = TestGuest::start();
    fs::write(guest.path("file"), "").unwrap();
    for (path, code) in [("file", "invalid_argument"), ("missing", "not_found")] {
        let answer =
            call(&guest, "filesystem.Filesystem/CreateWatcher", json!({ "path": path })).await;
        assert_eq!(answer.json()["code"], code);
    }
    let id = create(&guest, json!({ "path": "" })).await;
    let message = json!({ "watcherId": id });
    assert_eq!(
        call(&guest, "filesystem.Filesystem/RemoveWatcher", message.clone()).await.status,
        200
    );
    for procedure in ["RemoveWatcher", "GetWatcherEvents"] {
        let gone =
            call(&guest, &format!("filesystem.Filesystem/{procedure}"), message.clone()).await;
        assert_eq!(gone.json()["code"], "not_found");
    }
}

#[tokio::test]
async fn watchers_are_bounded() {
    let guest = TestGuest::start();
    for _ in 0..64 {
        create(&guest, json!({ "path": "" })).await;
    }
    let one_more = call(&guest, "filesystem.Filesystem/CreateWatcher", json!({ "path": "" })).await;
    assert_eq!(
        (one_more.status, one_more.json()["code"].as_str()),
        (429, Some("resource_exhausted"))
    );
}

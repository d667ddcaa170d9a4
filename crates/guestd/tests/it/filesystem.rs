//! `filesystem.Filesystem` of envd, but for watching.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use serde_json::{Value, json};

use crate::guest::TestGuest;
use crate::wire::{Answer, call};

async fn ask(guest: &TestGuest, procedure: &str, message: Value) -> Answer {
    call(guest, &format!("filesystem.Filesystem/{procedure}"), message).await
}

#[track_caller]
fn refused(answer: &Answer, status: u16, code: &str) {
    assert_eq!(
        (answer.status, answer.json()["code"].as_str()),
        (status, Some(code)),
        "{}",
        answer.text()
    );
}

#[tokio::test]
async fn a_file_is_described() {
    let guest = TestGuest::start();
    let path = guest.path("file.txt");
    fs::write(&path, "12345").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let entry = ask(&guest, "Stat", json!({ "path": "file.txt" })).await.json()["entry"].clone();
    assert_eq!(entry["name"], "file.txt");
    assert_eq!(entry["type"], "FILE_TYPE_FILE");
    assert_eq!(entry["path"], path);
    assert_eq!(entry["size"], "5", "64 bits travel as text");
    assert_eq!(entry["mode"], 0o640);
    assert_eq!(entry["permissions"], "-rw-r-----");
    assert_eq!((entry["owner"].as_str(), entry["group"].as_str()), (Some("me"), Some("mine")));
    let modified = entry["modifiedTime"].as_str().unwrap();
    assert!(modified.starts_with("20") && modified.ends_with('Z'), "{modified}");
    assert!(entry.get("symlinkTarget").is_none());
    refused(&ask(&guest, "Stat", json!({ "path": "missing" })).await, 404, "not_found");
}

#[tokio::test]
async fn a_link_has_the_kind_of_its_target_and_permissions_of_its_own() {
    let guest = TestGuest::start();
    fs::create_dir(guest.path("real")).unwrap();
    symlink("real", guest.path("middle")).unwrap();
    symlink("middle", guest.path("link")).unwrap();
    let entry = ask(&guest, "Stat", json!({ "path": "link" })).await.json()["entry"].clone();
    assert_eq!(entry["type"], "FILE_TYPE_DIRECTORY");
    assert_eq!(entry["mode"], 0o755);
    assert_eq!(entry["permissions"], "Lrwxrwxrwx");
    assert_eq!(
        entry["symlinkTarget"],
        fs::canonicalize(guest.path("real")).unwrap().to_str().unwrap()
    );
    symlink("nowhere", guest.path("broken")).unwrap();
    let entry = ask(&guest, "Stat", json!({ "path": "broken" })).await.json()["entry"].clone();
    assert_eq!(entry["type"], "FILE_TYPE_SYMLINK");
}

#[tokio::test]
async fn directories_are_made_with_their_parents_but_once() {
    let guest = TestGuest::start();
    let made = ask(&guest, "MakeDir", json!({ "path": "a/b/c" })).await;
    assert_eq!(made.json()["entry"]["type"], "FILE_TYPE_DIRECTORY");
    assert!(guest.home().join("a/b/c").is_dir());
    refused(&ask(&guest, "MakeDir", json!({ "path": "a/b" })).await, 409, "already_exists");
    fs::write(guest.path("file"), "").unwrap();
    refused(&ask(&guest, "MakeDir", json!({ "path": "file" })).await, 400, "invalid_argument");
    refused(
        &ask(&guest, "MakeDir", json!({ "path": "file/below" })).await,
        400,
        "invalid_argument",
    );
}

#[tokio::test]
async fn listing_is_depth_first_by_name() {
    let guest = TestGuest::start();
    fs::create_dir_all(guest.path("top/b/c")).unwrap();
    for file in ["top/z", "top/a", "top/b/y", "top/b/c/x"] {
        fs::write(guest.path(file), "").unwrap();
    }
    symlink("top", guest.path("link")).unwrap();
    let list = async |path: &str, depth: u32| -> Vec<String> {
        let answer = ask(&guest, "ListDir", json!({ "path": path, "depth": depth })).await.json();
        let entries = answer["entries"].as_array().cloned().unwrap_or_default();
        let home = guest.path("");
        entries
            .iter()
            .map(|entry| entry["path"].as_str().unwrap().strip_prefix(&home).unwrap().to_owned())
            .collect()
    };
    assert_eq!(list("top", 0).await, ["top/a", "top/b", "top/z"]);
    assert_eq!(list("top", 2).await, ["top/a", "top/b", "top/b/c", "top/b/y", "top/z"]);
    assert_eq!(list("top", 9).await[2..4], ["top/b/c", "top/b/c/x"]);
    assert_eq!(
        list("link", 1).await,
        ["link/a", "link/b", "link/z"],
        "under the path that was asked"
    );
    // The link is an entry, and nothing below it.
    assert_eq!(list("", 2).await, ["link", "top", "top/a", "top/b", "top/z"]);
    refused(&ask(&guest, "ListDir", json!({ "path": "top/a" })).await, 400, "invalid_argument");
    refused(&ask(&guest, "ListDir", json!({ "path": "missing" })).await, 404, "not_found");
}

#[tokio::test]
async fn moving_makes_parents_and_needs_a_source() {
    let guest = TestGuest::start();
    fs::write(guest.path("from"), "moved").unwrap();
    let message = json!({ "source": "from", "destination": "new/place/to" });
    let moved = ask(&guest, "Move", message.clone()).await.json();
    assert_eq!(moved["entry"]["name"], "to");
    assert_eq!(fs::read(guest.path("new/place/to")).unwrap(), b"moved");
    refused(&ask(&guest, "Move", message).await, 404, "not_found");
}

#[tokio::test]
async fn removing_takes_trees_and_forgives_what_is_missing() {
    let guest = TestGuest::start();
    fs::create_dir_all(guest.path("tree/inner")).unwrap();
    fs::write(guest.path("tree/inner/file"), "").unwrap();
    fs::write(guest.path("kept"), "kept").unwrap();
    symlink(guest.path("kept"), guest.path("tree/link")).unwrap();
    for _ in 0..2 {
        assert_eq!(ask(&guest, "Remove", json!({ "path": "tree" })).await.json(), json!({}));
        assert!(!guest.home().join("tree").exists());
    }
    assert!(guest.home().join("kept").exists(), "a link is removed, not its target");
}

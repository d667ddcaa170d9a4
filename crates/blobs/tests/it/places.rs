//! What holds wherever files are.

use std::time::Duration;

use blobs::{Blobs, Key, Used};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use model::{Conflict, Error, OwnerId, WorkspaceId};

use crate::s3::S3;

fn owner(name: &str) -> OwnerId {
    format!("usr_{name}").parse().unwrap()
}

fn workspace(app: &str, capset: &str) -> WorkspaceId {
    WorkspaceId::new(app, capset).unwrap()
}

fn key(text: &str) -> Key {
    text.parse().unwrap()
}

async fn put(blobs: &Blobs, whose: (&OwnerId, &WorkspaceId), name: &str, bytes: &[u8]) {
    let pieces: Vec<_> = bytes.chunks(1 << 20).map(|p| Ok(Bytes::copy_from_slice(p))).collect();
    let size = blobs.put(whose.0, whose.1, &key(name), stream::iter(pieces)).await.unwrap();
    assert_eq!(size, bytes.len() as u64);
}

async fn get(blobs: &Blobs, whose: (&OwnerId, &WorkspaceId), name: &str) -> Option<Vec<u8>> {
    let (object, bytes) = blobs.get(whose.0, whose.1, &key(name)).await.unwrap()?;
    let bytes: Vec<Bytes> = bytes.try_collect().await.unwrap();
    let bytes = bytes.concat();
    assert_eq!(object.size, bytes.len() as u64);
    Some(bytes)
}

async fn names(
    blobs: &Blobs,
    whose: (&OwnerId, &WorkspaceId),
    prefix: &str,
    limit: usize,
) -> Vec<Vec<String>> {
    let (mut pages, mut after) = (Vec::new(), None::<Key>);
    loop {
        let page = blobs.page(whose.0, whose.1, (prefix, after.as_ref()), limit).await.unwrap();
        pages.push(page.objects.iter().map(|object| object.key.to_string()).collect());
        if !page.more {
            return pages;
        }
        after = Some(page.objects.last().unwrap().key.clone());
    }
}

async fn check_files(blobs: &Blobs) {
    let (ann, bob) = (owner("ann"), owner("bob"));
    let one = workspace("app", "default");
    let whose = (&ann, &one);
    assert_eq!(blobs.used(&ann, &one).await.unwrap(), None);
    assert_eq!(get(blobs, whose, "a").await, None);
    let large: Vec<u8> = (0..20_u32 << 20).map(|i| (i >> 7).to_le_bytes()[0]).collect();
    put(blobs, whose, "a", b"1").await;
    put(blobs, whose, "a", b"22").await;
    put(blobs, whose, "dir/large", &large).await;
    put(blobs, whose, "empty", b"").await;
    assert_eq!(get(blobs, whose, "a").await.unwrap(), b"22");
    assert_eq!(get(blobs, whose, "dir/large").await.unwrap(), large);
    assert_eq!(get(blobs, whose, "empty").await.unwrap(), b"");
    let used = Used { bytes: 2 + large.len() as u64, files: 3 };
    assert_eq!(blobs.used(&ann, &one).await.unwrap(), Some(used));
    assert_eq!(get(blobs, (&bob, &one), "a").await, None);
    assert_eq!(get(blobs, (&ann, &workspace("app", "other")), "a").await, None);

    assert!(!blobs.delete(&bob, &one, &key("a")).await.unwrap());
    assert!(blobs.delete(&ann, &one, &key("a")).await.unwrap());
    assert!(!blobs.delete(&ann, &one, &key("a")).await.unwrap());
    assert!(!blobs.remove(&bob, &one).await.unwrap());
    assert!(blobs.remove(&ann, &one).await.unwrap());
    assert!(!blobs.remove(&ann, &one).await.unwrap());
    assert_eq!(blobs.used(&ann, &one).await.unwrap(), None);
}

async fn check_lists(blobs: &Blobs) {
    let (ann, one) = (owner("ann"), workspace("lists", "default"));
    let whose = (&ann, &one);
    let files = ["a", "a b", "b/1", "b/2", "b/20", "b.txt", "ü/日本", "100%", "#x?y"];
    for name in files {
        put(blobs, whose, name, b"x").await;
    }
    let mut all: Vec<_> = names(blobs, whose, "", 2).await.concat();
    assert_eq!(all, names(blobs, whose, "", 1000).await.concat(), "the order is one order");
    all.sort();
    let mut sorted = files.map(String::from).to_vec();
    sorted.sort();
    assert_eq!(all, sorted);
    assert_eq!(names(blobs, whose, "b/2", 1).await, [["b/2"], ["b/20"]]);
    let mut b = names(blobs, whose, "b", 100).await.concat();
    b.sort();
    assert_eq!(b, ["b.txt", "b/1", "b/2", "b/20"]);
    assert!(names(blobs, whose, "none/", 1).await.concat().is_empty());
    assert!(names(blobs, whose, "../", 1).await.concat().is_empty());
    let everything: Vec<_> = blobs.all(&ann, &one).collect().await;
    assert_eq!(everything.len(), files.len());

    put(blobs, (&ann, &workspace("my.App_1", "x")), "f", b"123").await;
    let two = [workspace("lists", "default"), workspace("my.App_1", "x")];
    assert_eq!(blobs.workspaces(&ann, None, 10).await.unwrap(), (two.to_vec(), false));
    assert!(blobs.workspaces(&owner("an"), None, 10).await.unwrap().0.is_empty());
}

async fn check_pages_of_workspaces(blobs: &Blobs) {
    let zoe = owner("zoe");
    let mut all = Vec::new();
    for app in ["b", "B", "a.b", "a", "a-b"] {
        for capset in ["y", "x"] {
            all.push(workspace(app, capset));
            put(blobs, (&zoe, all.last().unwrap()), "f", b"x").await;
        }
    }
    all.sort();
    for limit in [1, 2, 3, 10, 11] {
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let (page, more) = blobs.workspaces(&zoe, after.as_ref(), limit).await.unwrap();
            assert!(page.len() <= limit);
            after = page.last().cloned();
            seen.extend(page);
            if !more {
                break;
            }
        }
        assert_eq!(seen, all, "by {limit}");
    }
}

/// In a bucket both can be; in a directory, whoever came first stays, and is not disturbed.
async fn check_a_file_in_the_way(blobs: &Blobs, both: bool) {
    let (ann, one) = (owner("ann"), workspace("ways", "default"));
    let whose = (&ann, &one);
    put(blobs, whose, "a", b"file").await;
    put(blobs, whose, "d/b", b"below").await;
    assert_eq!(get(blobs, whose, "a/b").await, None);
    assert_eq!(get(blobs, whose, "d").await, None);
    assert!(blobs.head(&ann, &one, &key("a/b/c")).await.unwrap().is_none());
    assert!(!blobs.delete(&ann, &one, &key("a/b")).await.unwrap());
    assert!(!blobs.delete(&ann, &one, &key("d")).await.unwrap());
    assert!(names(blobs, whose, "a/b/", 10).await.concat().is_empty());
    for (in_the_way, length) in [("a/b", 1), ("a/b", 20), ("d", 1), ("d", 20)] {
        let pieces = stream::iter((0..length).map(|_| Ok(Bytes::from(vec![1; 1 << 20]))));
        let outcome = blobs.put(&ann, &one, &key(in_the_way), pieces).await;
        let refused = matches!(&outcome, Err(Error::Conflict { code: Conflict::NameTaken, .. }));
        assert!(if both { outcome.is_ok() } else { refused }, "{in_the_way}: {outcome:?}");
    }
    assert_eq!(get(blobs, whose, "a").await.unwrap(), b"file");
    assert_eq!(get(blobs, whose, "d/b").await.unwrap(), b"below");
}

async fn check_notes_and_broken_writes(blobs: &Blobs) {
    let (ann, one) = (owner("ann"), workspace("notes", "default"));
    assert_eq!(blobs.note(&ann, &one).await.unwrap(), None);
    blobs.set_note(&ann, &one, Bytes::from_static(b"note")).await.unwrap();
    assert_eq!(blobs.note(&ann, &one).await.unwrap().unwrap(), "note");
    assert_eq!(blobs.used(&ann, &one).await.unwrap(), Some(Used::default()), "it is no file");
    assert_eq!(get(blobs, (&ann, &one), "note").await, None);

    for length in [1, 20] {
        let pieces = (0..length).map(|_| Ok(Bytes::from(vec![1; 1 << 20])));
        let broken = pieces.chain([Err(std::io::Error::other("the sender went away"))]);
        let put = blobs.put(&ann, &one, &key("half"), stream::iter(broken)).await;
        assert!(put.is_err());
        assert_eq!(get(blobs, (&ann, &one), "half").await, None, "whole or not at all");
    }
}

async fn check(blobs: &Blobs) {
    check_files(blobs).await;
    check_lists(blobs).await;
    check_pages_of_workspaces(blobs).await;
    check_notes_and_broken_writes(blobs).await;
}

#[tokio::test]
async fn files_in_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let blobs = Blobs::in_directory(&dir.path().join("blobs")).unwrap();
    check(&blobs).await;
    check_a_file_in_the_way(&blobs, false).await;
    let (ann, one, file) = (owner("ann"), workspace("a", "b"), key("f"));
    let signed = blobs.signed(http::Method::GET, (&ann, &one, &file), Duration::from_secs(60));
    assert_eq!(signed.await.unwrap(), None, "links are for the server to make");
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(dir.path().join("blobs")).unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o700);
}

#[tokio::test]
async fn files_in_a_bucket() {
    let s3 = S3::start();
    s3.make_bucket("town").await;
    check(&s3.blobs("town", "some/prefix")).await;
    check(&s3.blobs("town", "")).await;
    check_a_file_in_the_way(&s3.blobs("town", "ways"), true).await;
}

#[tokio::test]
async fn a_bucket_that_is_not_there_is_told_and_is_not_empty() {
    let s3 = S3::start();
    let blobs = s3.blobs("none", "");
    let listed: Vec<_> = blobs.all(&owner("ann"), &workspace("a", "b")).collect().await;
    assert!(matches!(listed[..], [Err(Error::Unavailable { .. })]), "{listed:?}");
}

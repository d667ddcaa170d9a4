//! Whole files for the control plane.

use std::io;

use bytes::Bytes;
use futures_util::stream;
use guest_proto::{Address, Guest, GuestError};

use crate::guest::TestGuest;

fn pieces(
    data: &[u8],
    piece: usize,
) -> impl futures_util::Stream<Item = io::Result<Bytes>> + use<> {
    let pieces: Vec<_> =
        data.chunks(piece).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
    stream::iter(pieces)
}

async fn read(guest: &TestGuest, path: &str) -> Result<Bytes, GuestError> {
    let file = guest.guest.read_file(path).await?;
    let size = file.size;
    let body = file.body.collect(64 << 20).await?;
    assert_eq!(body.len() as u64, size);
    Ok(body)
}

#[tokio::test]
async fn a_file_is_written_and_read() {
    let guest = TestGuest::start();
    let data: Vec<u8> =
        (0..3_000_000_u32).map(|n| n.to_le_bytes()[0] ^ n.to_le_bytes()[1]).collect();
    let path = guest.path("file");
    guest.guest.write_file(&path, pieces(&data, 70_000)).await.unwrap();
    assert_eq!(read(&guest, &path).await.unwrap(), data);
    guest.guest.write_file(&path, pieces(b"shorter", 3)).await.unwrap();
    assert_eq!(read(&guest, &path).await.unwrap(), "shorter");
    guest.guest.write_file(&path, pieces(b"", 1)).await.unwrap();
    assert_eq!(read(&guest, &path).await.unwrap(), "");
}

#[tokio::test]
async fn names_may_have_anything_in_them() {
    let guest = TestGuest::start();
    let path = guest.path("a b+c%41&path=x\"ü");
    guest.guest.write_file(&path, pieces(b"odd", 3)).await.unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"odd");
    assert_eq!(read(&guest, &path).await.unwrap(), "odd");
}

#[tokio::test]
async fn the_directory_of_a_written_file_must_exist() {
    let guest = TestGuest::start();
    let written = guest.guest.write_file(&guest.path("no/file"), pieces(b"x", 1)).await;
    assert!(
        matches!(&written, Err(GuestError::Invalid(text)) if text.contains("no such directory")),
        "{written:?}"
    );
    assert!(!guest.home().join("no").exists());
    // Even when it is much, the answer is seen.
    let much = vec![0; 8 << 20];
    let written = guest.guest.write_file(&guest.path("no/file"), pieces(&much, 60_000)).await;
    assert!(matches!(written, Err(GuestError::Invalid(_))), "{written:?}");
}

#[tokio::test]
async fn what_is_no_file_is_refused() {
    let guest = TestGuest::start();
    let missing = read(&guest, &guest.path("missing")).await;
    assert!(matches!(missing, Err(GuestError::NotFound)), "{missing:?}");
    let directory = read(&guest, guest.home().to_str().unwrap()).await;
    assert!(matches!(directory, Err(GuestError::Invalid(_))), "{directory:?}");
    let relative = read(&guest, "relative").await;
    assert!(matches!(relative, Err(GuestError::Invalid(_))), "{relative:?}");
    let device = read(&guest, "/dev/zero").await;
    assert!(matches!(device, Err(GuestError::Invalid(_))), "{device:?}");
    let onto = guest.guest.write_file(guest.home().to_str().unwrap(), pieces(b"x", 1)).await;
    assert!(matches!(onto, Err(GuestError::Invalid(_))), "{onto:?}");
}

#[tokio::test]
async fn a_full_disk_says_so() {
    let guest = TestGuest::start();
    let written = guest.guest.write_file("/dev/full", pieces(&[0; 1000], 100)).await;
    assert!(matches!(written, Err(GuestError::DiskFull)), "{written:?}");
}

#[tokio::test]
async fn a_body_that_fails_is_the_callers_failure() {
    let guest = TestGuest::start();
    let body = stream::iter([Ok(Bytes::from_static(b"x")), Err(io::Error::other("theirs"))]);
    let written = guest.guest.write_file(&guest.path("file"), body).await;
    assert!(matches!(written, Err(GuestError::Body(_))), "{written:?}");
}

#[tokio::test]
async fn syncing_works_on_what_exists() {
    let guest = TestGuest::start();
    guest.guest.sync(guest.home().to_str().unwrap()).await.unwrap();
    let missing = guest.guest.sync("/no/such").await;
    assert!(matches!(missing, Err(GuestError::NotFound)), "{missing:?}");
}

#[tokio::test]
async fn a_guest_that_is_gone_is_unreachable() {
    let guest = Guest::new(Address::Unix("/no/such/socket".into()));
    let health = guest.health().await;
    assert!(matches!(health, Err(GuestError::Unreachable(_))), "{health:?}");
}

#[tokio::test]
async fn a_stale_connection_is_replaced() {
    let mut guest = TestGuest::start();
    assert_eq!(guest.guest.health().await.unwrap().nonce, "a-nonce");
    guest.restart();
    assert_eq!(guest.guest.health().await.unwrap().nonce, "a-nonce");
}

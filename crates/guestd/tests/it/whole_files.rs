//! Whole files for the control plane.

use std::io;

use bytes::Bytes;
use futures_util::stream;
use guest_proto::{Address, Guest, GuestError};

use crate::guest::TestGuest;

/// A stream that, like many, must not be polled after its end.
fn pieces(
    data: &[u8],
    piece: usize,
) -> impl futures_util::Stream<Item = io::Result<Bytes>> + Send + use<> {
    let pieces: Vec<_> = data.chunks(piece).map(Bytes::copy_from_slice).collect();
    stream::unfold(pieces.into_iter(), async |mut pieces| Some((Ok(pieces.next()?), pieces)))
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

#[tokio::test]
async fn a_large_file_is_handed_over_both_ways() {
    let guest = TestGuest::start();
    let data: Vec<u8> = (0..5_000_003_u32).map(|n| n.wrapping_mul(7).to_le_bytes()[1]).collect();
    let path = guest.path("large");
    guest.guest.write_file(&path, pieces(&data, 99_991)).await.unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), data);
    assert_eq!(read(&guest, &path).await.unwrap(), data);
    // One that becomes shorter while it is read fails; it does not hang or lie.
    let file = guest.guest.read_file(&path).await.unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(3_000_000).unwrap();
    assert!(file.body.collect(64 << 20).await.is_err());
}

#[tokio::test]
async fn a_file_that_is_replaced_keeps_its_mode_and_its_links() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    let guest = TestGuest::start();
    for len in [10, 2 << 20] {
        let data = vec![b'n'; len];
        let path = guest.path("script");
        std::fs::write(&path, "old").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o750)).unwrap();
        guest.guest.write_file(&path, pieces(&data, 70_000)).await.unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o750);
        let link = guest.path("link");
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink("script", &link).unwrap();
        guest.guest.write_file(&link, pieces(&data, 70_000)).await.unwrap();
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        std::fs::hard_link(&path, guest.path("second")).unwrap();
        guest.guest.write_file(&path, pieces(b"both", 4)).await.unwrap();
        assert_eq!(std::fs::read(guest.path("second")).unwrap(), b"both");
        std::fs::remove_file(guest.path("second")).unwrap();
    }
}

#[tokio::test]
async fn a_transfer_that_breaks_off_leaves_what_was_there() {
    let guest = TestGuest::start();
    for (before, len) in [(Some("old"), 10), (None, 10), (Some("old"), 2 << 20), (None, 2 << 20)] {
        let path = guest.path("file");
        let _ = std::fs::remove_file(&path);
        if let Some(before) = before {
            std::fs::write(&path, before).unwrap();
        }
        let start = Ok(Bytes::from(vec![0; len]));
        let body = stream::iter([start, Err(io::Error::other("gone"))]);
        let written = guest.guest.write_file(&path, body).await;
        assert!(matches!(written, Err(GuestError::Body(_))), "{written:?}");
        let now = std::fs::read_to_string(&path).ok();
        assert_eq!(now.as_deref(), before, "{len} bytes");
        assert_eq!(std::fs::read_dir(guest.home()).unwrap().count(), usize::from(before.is_some()));
    }
}

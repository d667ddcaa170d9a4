//! Archives that want to reach what is outside of the directory, or to exhaust the guest.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};

use guest_proto::GuestError;
use tar::{EntryType, Header};

use crate::archives::import;
use crate::guest::TestGuest;

/// An entry whose name is written as it is, without the crate's own checks.
fn entry(kind: EntryType, name: &str, link: &str, data: &[u8]) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_mode(0o6777);
    header.set_size(data.len() as u64);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn archive(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = entries.concat();
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

/// The entries are refused, and nothing outside of the directory is touched.
async fn check_refused(entries: &[Vec<u8>]) {
    let guest = TestGuest::start();
    fs::create_dir(guest.path("into")).unwrap();
    fs::write(guest.path("victim"), "untouched").unwrap();
    symlink("..", guest.path("into/old-link")).unwrap();
    let refused = import(&guest, "into", &archive(entries)).await;
    assert!(matches!(refused, Err(GuestError::Invalid(_) | GuestError::NotFound)), "{refused:?}");
    assert_eq!(fs::read(guest.path("victim")).unwrap(), b"untouched");
    assert_eq!(fs::metadata(guest.path("victim")).unwrap().nlink(), 1);
    let names: Vec<_> =
        fs::read_dir(guest.home()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

#[tokio::test]
async fn parents_are_refused() {
    check_refused(&[entry(EntryType::Regular, "../victim", "", b"x")]).await;
    check_refused(&[entry(EntryType::Regular, "a/../../victim", "", b"x")]).await;
    check_refused(&[entry(EntryType::Directory, "../new/", "", b"")]).await;
    check_refused(&[entry(EntryType::Link, "mine", "../victim", b"")]).await;
}

#[tokio::test]
async fn nothing_goes_through_a_link() {
    let up = entry(EntryType::Symlink, "up", "..", b"");
    check_refused(&[up.clone(), entry(EntryType::Regular, "up/victim", "", b"x")]).await;
    check_refused(&[up.clone(), entry(EntryType::Directory, "up/new/", "", b"")]).await;
    check_refused(&[up.clone(), entry(EntryType::Directory, "up/", "", b"")]).await;
    check_refused(&[up, entry(EntryType::Link, "mine", "up/victim", b"")]).await;
    check_refused(&[entry(EntryType::Regular, "old-link/victim", "", b"x")]).await;
}

#[tokio::test]
async fn a_link_is_replaced_and_not_written_through() {
    let guest = TestGuest::start();
    fs::create_dir(guest.path("into")).unwrap();
    fs::write(guest.path("victim"), "untouched").unwrap();
    let entries = [
        entry(EntryType::Symlink, "file", "../victim", b""),
        entry(EntryType::Regular, "file", "", b"new"),
        // A hard link to a link is the link, and replacing it changes nothing else.
        entry(EntryType::Symlink, "soft", "../victim", b""),
        entry(EntryType::Link, "hard", "soft", b""),
        entry(EntryType::Regular, "hard", "", b"own"),
    ];
    import(&guest, "into", &archive(&entries)).await.unwrap();
    assert_eq!(fs::read(guest.path("victim")).unwrap(), b"untouched");
    assert_eq!(fs::read(guest.path("into/file")).unwrap(), b"new");
    assert!(fs::symlink_metadata(guest.path("into/file")).unwrap().is_file());
    assert_eq!(fs::read(guest.path("into/hard")).unwrap(), b"own");
}

#[tokio::test]
async fn absolute_names_stay_inside_and_set_id_bits_are_dropped() {
    let guest = TestGuest::start();
    fs::create_dir(guest.path("into")).unwrap();
    let entries = [
        entry(EntryType::Regular, "/abs/file", "", b"x"),
        entry(EntryType::Char, "device", "", b""),
        entry(EntryType::Fifo, "pipe", "", b""),
    ];
    import(&guest, "into", &archive(&entries)).await.unwrap();
    let meta = fs::metadata(guest.path("into/abs/file")).unwrap();
    assert_eq!(meta.mode() & 0o7777, 0o777);
    assert!(!guest.home().join("into/device").exists());
    assert!(!guest.home().join("into/pipe").exists());
}

#[tokio::test]
async fn long_names_are_bounded() {
    let name = vec![b'n'; 1 << 20];
    for kind in [EntryType::GNULongName, EntryType::GNULongLink, EntryType::XHeader] {
        check_refused(&[entry(kind, "long", "", &name)]).await;
    }
    check_refused(&[entry(EntryType::XHeader, "pax", "", b"no length at all")]).await;
    check_refused(&[entry(EntryType::XHeader, "pax", "", b"99999999999999999999 path=x\n")]).await;
}

#[tokio::test]
async fn what_is_no_archive_is_refused() {
    check_refused(&[vec![b'x'; 4096]]).await;
    // A file that is announced and does not come.
    let guest = TestGuest::start();
    fs::create_dir(guest.path("into")).unwrap();
    let cut = &entry(EntryType::Regular, "cut", "", &[b'x'; 4096])[..1000];
    let refused = import(&guest, "into", cut).await;
    assert!(matches!(refused, Err(GuestError::Invalid(_))), "{refused:?}");
}

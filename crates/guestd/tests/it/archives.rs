//! Tar archives in and out.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

use bytes::Bytes;
use futures_util::stream;
use guest_proto::{GuestError, TreeKind};

use crate::guest::TestGuest;

pub(crate) async fn import(
    guest: &TestGuest,
    into: &str,
    archive: &[u8],
) -> Result<(), GuestError> {
    let pieces: Vec<io::Result<Bytes>> =
        archive.chunks(5000).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
    guest.guest.import_tar(&guest.path(into), stream::iter(pieces)).await
}

async fn export(guest: &TestGuest, path: &str) -> Bytes {
    let archive = guest.guest.export_tar(&guest.path(path)).await.unwrap();
    archive.collect(64 << 20).await.unwrap()
}

fn make_tree(guest: &TestGuest) {
    let long = format!("tree/{}/{}", "d".repeat(150), "f".repeat(150));
    fs::create_dir_all(guest.path("tree/sub/empty")).unwrap();
    fs::create_dir_all(guest.home().join(&long).parent().unwrap()).unwrap();
    fs::write(guest.path(&long), "long name").unwrap();
    fs::write(guest.path("tree/run.sh"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(guest.path("tree/run.sh"), fs::Permissions::from_mode(0o750)).unwrap();
    fs::write(guest.path("tree/sub/big"), vec![b'b'; 1_000_001]).unwrap();
    symlink("../elsewhere", guest.path("tree/link")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        guest.path("tree/pipe").as_str(),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
}

#[tokio::test]
async fn an_archive_that_breaks_off_leaves_what_was_there() {
    let guest = TestGuest::start();
    fs::create_dir(guest.path("from")).unwrap();
    fs::write(guest.path("from/file"), vec![b'n'; 100_000]).unwrap();
    let archive = export(&guest, "from").await;
    fs::create_dir(guest.path("to")).unwrap();
    fs::write(guest.path("to/file"), "old").unwrap();
    import(&guest, "to", &archive[..50_000]).await.unwrap_err();
    let names: Vec<_> = fs::read_dir(guest.path("to")).unwrap().flatten().collect();
    assert_eq!(names.len(), 1, "{names:?}");
    assert_eq!(fs::read_to_string(guest.path("to/file")).unwrap(), "old");
    import(&guest, "to", &archive).await.unwrap();
    assert_eq!(fs::read(guest.path("to/file")).unwrap(), vec![b'n'; 100_000]);
}

#[tokio::test]
async fn a_tree_goes_out_and_in_again() {
    let guest = TestGuest::start();
    make_tree(&guest);
    let archive = export(&guest, "tree").await;
    fs::create_dir(guest.path("copy")).unwrap();
    import(&guest, "copy", &archive).await.unwrap();

    let copy = guest.home().join("copy");
    assert!(copy.join("sub/empty").is_dir());
    assert_eq!(fs::read(copy.join("sub/big")).unwrap(), vec![b'b'; 1_000_001]);
    assert_eq!(fs::metadata(copy.join("run.sh")).unwrap().mode() & 0o7777, 0o750);
    assert_eq!(fs::read_link(copy.join("link")).unwrap().to_str(), Some("../elsewhere"));
    let long = copy.join("d".repeat(150)).join("f".repeat(150));
    assert_eq!(fs::read(long).unwrap(), b"long name");
    assert!(!copy.join("pipe").exists(), "pipes are left out");
    assert_eq!(export(&guest, "copy").await.len(), archive.len());
}

#[tokio::test]
async fn what_was_there_is_replaced_and_the_rest_stays() {
    let guest = TestGuest::start();
    fs::create_dir_all(guest.path("tree/sub")).unwrap();
    fs::write(guest.path("tree/sub/file"), "new").unwrap();
    let archive = export(&guest, "tree").await;
    fs::create_dir_all(guest.path("into/sub")).unwrap();
    fs::write(guest.path("into/sub/file"), "old and longer").unwrap();
    fs::write(guest.path("into/sub/other"), "other").unwrap();
    import(&guest, "into", &archive).await.unwrap();
    assert_eq!(fs::read(guest.path("into/sub/file")).unwrap(), b"new");
    assert_eq!(fs::read(guest.path("into/sub/other")).unwrap(), b"other");
}

#[tokio::test]
async fn other_peoples_archives_are_read() {
    let guest = TestGuest::start();
    fs::create_dir_all(guest.path("tree")).unwrap();
    let name = format!("{}ü.txt", "long-".repeat(40));
    fs::write(guest.path("tree/") + &name, "contents").unwrap();
    for format in ["gnu", "pax"] {
        let archive = std::process::Command::new("tar")
            .args(["-C", &guest.path("tree"), "--format", format, "-cf", "-", "."])
            .output()
            .unwrap();
        assert!(archive.status.success());
        let into = format!("into-{format}");
        fs::create_dir(guest.path(&into)).unwrap();
        import(&guest, &into, &archive.stdout).await.unwrap();
        assert_eq!(fs::read(guest.path(&into) + "/" + &name).unwrap(), b"contents", "{format}");
    }
}

#[tokio::test]
async fn the_directory_must_exist() {
    let guest = TestGuest::start();
    let missing = guest.guest.export_tar(&guest.path("missing")).await;
    assert!(matches!(missing, Err(GuestError::NotFound)), "{missing:?}");
    let missing = import(&guest, "missing", &[0; 1024]).await;
    assert!(matches!(missing, Err(GuestError::NotFound)), "{missing:?}");
    fs::write(guest.path("file"), "").unwrap();
    let file = guest.guest.export_tar(&guest.path("file")).await;
    assert!(matches!(file, Err(GuestError::Invalid(_))), "{file:?}");
}

#[tokio::test]
async fn a_tree_names_what_there_is_and_tells_every_change() {
    let guest = TestGuest::start();
    let root = guest.path("tree");
    fs::create_dir_all(format!("{root}/d/empty")).unwrap();
    fs::write(format!("{root}/d/a"), "12345").unwrap();
    symlink("/etc", format!("{root}/link")).unwrap();
    let before = guest.guest.tree(&root).await.unwrap();
    let shown: Vec<_> = before.iter().map(|one| (one.path.as_str(), one.kind)).collect();
    let wanted = [
        ("d", TreeKind::Directory),
        ("d/a", TreeKind::File),
        ("d/empty", TreeKind::Directory),
        ("link", TreeKind::Link),
    ];
    assert_eq!(shown, wanted);
    assert_eq!((before[1].size, before[3].target.as_deref()), (5, Some("/etc")));

    // Kernels before 6.13 tell times apart by ticks.
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    // The same length, and a time of change that was set back.
    let file = fs::File::options().write(true).open(format!("{root}/d/a")).unwrap();
    io::Write::write_all(&mut &file, b"54321").unwrap();
    file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    let after = guest.guest.tree(&root).await.unwrap();
    assert_eq!(after[1].size, 5);
    assert_ne!(after[1].changed_ns, before[1].changed_ns);
    assert!(guest.guest.tree(&guest.path("missing")).await.is_err());
}

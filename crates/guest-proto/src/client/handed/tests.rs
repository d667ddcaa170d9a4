//! Guests that hand over what they should not.

use std::io::{IoSlice, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::*;
use crate::{Address, Guest};

const SWITCHING: &str =
    "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: bastide-file\r\n\r\n";

/// A guest that upgrades, hands over `files`, and says `end` when it is told that all is written.
fn guest(files: Vec<OwnedFd>, end: &'static str) -> (Guest, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for connection in listener.incoming().take(2) {
            let mut connection = connection.unwrap();
            let mut head = [0; 4096];
            let len = connection.read(&mut head).unwrap();
            if !String::from_utf8_lossy(&head[..len]).contains("upgrade: bastide-file") {
                let plain = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nplain";
                connection.write_all(plain).unwrap();
                return;
            }
            connection.write_all(SWITCHING.as_bytes()).unwrap();
            let mut asked = [0; 1];
            connection.read_exact(&mut asked).unwrap();
            let borrowed: Vec<BorrowedFd<'_>> = files.iter().map(|file| file.as_fd()).collect();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !borrowed.is_empty() {
                control.push(SendAncillaryMessage::ScmRights(&borrowed));
            }
            let byte = [IoSlice::new(b".")];
            sendmsg(&connection, &byte, &mut control, SendFlags::empty()).unwrap();
            if connection.read_exact(&mut asked).is_ok() {
                let _ = connection.write_all(end.as_bytes());
            }
        }
    });
    (Guest::new(Address::Unix(path)), directory)
}

async fn read(files: Vec<OwnedFd>) -> Result<Bytes, GuestError> {
    let (guest, _directory) = guest(files, "");
    guest.read_file("/f").await?.body.collect(1 << 20).await
}

#[tokio::test]
async fn only_plain_files_are_touched() {
    let (pipe, _writer) = rustix::pipe::pipe().unwrap();
    let event = OwnedFd::from(File::open("/dev/zero").unwrap());
    let status = OwnedFd::from(File::open("/proc/self/status").unwrap());
    let directory = OwnedFd::from(File::open("/").unwrap());
    for odd in [pipe, event, status, directory] {
        assert_eq!(read(vec![odd]).await.unwrap(), "plain");
    }
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(b"from the disk").unwrap();
    assert_eq!(read(vec![file.into()]).await.unwrap(), "from the disk");
}

#[tokio::test]
async fn no_file_or_too_many_is_a_broken_protocol() {
    let file = || OwnedFd::from(tempfile::tempfile().unwrap());
    for files in [vec![], vec![file(), file(), file()]] {
        let answer = read(files).await;
        assert!(matches!(answer, Err(GuestError::Protocol(_))), "{answer:?}");
    }
}

#[tokio::test]
async fn the_end_of_a_written_file_is_the_guests_word() {
    let ends = [
        (r#"{"code":204}"#, "Ok(())"),
        (r#"{"code":507,"message":"full"}"#, "Err(DiskFull)"),
        (r#"{"message":"no code"}"#, "Err(Protocol("),
        ("", "Err(Protocol("),
        ("{", "Err(Protocol("),
    ];
    for (end, expected) in ends {
        let (guest, _directory) = guest(vec![tempfile::tempfile().unwrap().into()], end);
        let body = futures_util::stream::iter([Ok(Bytes::from(vec![1; 2 << 20]))]);
        let written = guest.write_file("/f", body).await;
        assert!(format!("{written:?}").starts_with(expected), "{end}: {written:?}");
    }
}

#[tokio::test]
async fn a_file_that_cannot_be_written_says_why() {
    let full = File::open("/proc/self/exe").unwrap();
    let (guest, _directory) = guest(vec![full.into()], r#"{"code":204}"#);
    let body = futures_util::stream::iter([Ok(Bytes::from(vec![1; 2 << 20]))]);
    let written = guest.write_file("/f", body).await;
    assert!(matches!(written, Err(GuestError::Failed(_))), "{written:?}");
}

//! The binary as it is started before its sandbox is wanted: some of its arguments come later.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use guest_proto::{Address, Guest};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;

/// Waiting; and where to tell it the rest, and where it listens then.
struct Waiting {
    program: Child,
    rest: File,
    socket: PathBuf,
    _directory: TempDir,
}

fn start() -> Waiting {
    let directory = TempDir::new().unwrap();
    let (socket, rest) = (directory.path().join("socket"), directory.path().join("rest"));
    let listener = UnixListener::bind(&socket).unwrap();
    mknodat(CWD, &rest, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let program = Command::new("/bin/sh")
        .args(["-c", "exec \"$1\" --listen-fd 3 --arguments-fd 4 3<&0 4<\"$2\" </dev/null", "sh"])
        .arg(env!("CARGO_BIN_EXE_guestd"))
        .arg(&rest)
        .stdin(Stdio::from(OwnedFd::from(listener)))
        .spawn()
        .unwrap();
    // Both open it, or neither.
    let rest = fs::OpenOptions::new().write(true).open(&rest).unwrap();
    Waiting { program, rest, socket, _directory: directory }
}

#[tokio::test]
async fn it_serves_once_it_has_all_of_its_arguments() {
    let Waiting { mut program, mut rest, socket, _directory } = start();
    rest.write_all(b"--nonce\0the-nonce\0--user\0root\0").unwrap();
    rest.write_all(b"--workdir\0/\0--go\0").unwrap();
    drop(rest);
    let guest = Guest::new(Address::Unix(socket));
    assert_eq!(guest.health().await.unwrap().nonce, "the-nonce");
    program.kill().unwrap();
    program.wait().unwrap();
}

#[test]
fn it_ends_when_nobody_wants_it_any_more() {
    for said in ["", "--nonce\0the-nonce\0", "--go", "--nonce\0--go\0"] {
        let Waiting { mut program, mut rest, .. } = start();
        rest.write_all(said.as_bytes()).unwrap();
        drop(rest);
        assert_eq!(program.wait().unwrap().code(), Some(70), "{said:?}");
    }
}

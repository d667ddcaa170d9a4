//! Commands of the extension.

use guest_proto::{ExecEnd, ExecFrame, ExecFrames, ExecStart, GuestError, OutputStream};

use crate::guest::TestGuest;

/// All output of a command, and its end.
pub(crate) struct Ran {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) end: ExecEnd,
}

pub(crate) fn shell(id: &str, script: &str) -> ExecStart {
    let argv = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    ExecStart { id: id.into(), argv, ..ExecStart::default() }
}

pub(crate) async fn read_all(mut frames: ExecFrames) -> Ran {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let mut expected = 0;
    while let Some(frame) = frames.next().await {
        match frame.unwrap() {
            ExecFrame::Output { stream, offset, bytes } => {
                assert_eq!(offset, expected, "output is continuous");
                expected += bytes.len() as u64;
                match stream {
                    OutputStream::Stdout => stdout.extend_from_slice(&bytes),
                    OutputStream::Stderr => stderr.extend_from_slice(&bytes),
                }
            }
            ExecFrame::Gap { offset } => expected = offset,
            ExecFrame::Keepalive => {}
            ExecFrame::End(end) => {
                let text = |bytes| String::from_utf8(bytes).unwrap();
                return Ran { stdout: text(stdout), stderr: text(stderr), end };
            }
        }
    }
    panic!("the frames have no end");
}

async fn run(guest: &TestGuest, start: ExecStart) -> Ran {
    read_all(guest.guest.exec(&start).await.unwrap()).await
}

#[tokio::test]
async fn output_and_exit_code_come_back() {
    let guest = TestGuest::start();
    let ran = run(&guest, shell("a", "echo out; echo err >&2; exit 3")).await;
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("out\n", "err\n"));
    assert_eq!(ran.end.exit_code, 3);
    assert_eq!(ran.end.signal, None);
    assert_eq!(ran.end.total_bytes, 8);
    assert!(!ran.end.timed_out);
}

#[tokio::test]
async fn unknown_commands_are_not_found() {
    let guest = TestGuest::start();
    let attached = guest.guest.exec_attach("nobody", 0).await;
    assert!(matches!(attached, Err(GuestError::NotFound)), "{attached:?}");
}

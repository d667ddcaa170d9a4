//! Commands of the extension.

use std::time::Duration;

use guest_proto::{
    ExecEnd, ExecFrame, ExecFrames, ExecStart, GuestError, OutputStream, RING_BYTES,
};

use crate::guest::TestGuest;

/// All output of a command, and its end.
pub(crate) struct Ran {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) gap: Option<u64>,
    pub(crate) end: ExecEnd,
}

pub(crate) fn shell(id: &str, script: &str) -> ExecStart {
    let argv = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    ExecStart { id: id.into(), argv, ..ExecStart::default() }
}

pub(crate) async fn read_all(mut frames: ExecFrames) -> Ran {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let (mut expected, mut gap) = (None, None);
    while let Some(frame) = frames.next().await {
        match frame.unwrap() {
            ExecFrame::Output { stream, offset, bytes } => {
                assert_eq!(offset, expected.unwrap_or(offset), "output is continuous");
                expected = Some(offset + bytes.len() as u64);
                match stream {
                    OutputStream::Stdout => stdout.extend_from_slice(&bytes),
                    OutputStream::Stderr => stderr.extend_from_slice(&bytes),
                }
            }
            ExecFrame::Gap { offset } => {
                gap = Some(offset);
                expected = gap;
            }
            ExecFrame::Keepalive => {}
            ExecFrame::End(end) => {
                let text = |bytes| String::from_utf8(bytes).unwrap();
                return Ran { stdout: text(stdout), stderr: text(stderr), gap, end };
            }
        }
    }
    panic!("the frames have no end");
}

pub(crate) async fn run(guest: &TestGuest, start: ExecStart) -> Ran {
    read_all(guest.guest.exec(&start).await.unwrap()).await
}

async fn first_line(frames: &mut ExecFrames) -> String {
    loop {
        if let ExecFrame::Output { bytes, .. } = frames.next().await.unwrap().unwrap() {
            return String::from_utf8_lossy(&bytes).trim().to_owned();
        }
    }
}

/// Whether a process is there and no zombie.
pub(crate) fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

async fn wait_until_gone(pid: &str) {
    for _ in 0..500 {
        if !is_alive(pid) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("process {pid} still runs");
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
async fn one_connection_serves_many_commands() {
    let guest = TestGuest::start();
    for round in 0..20 {
        let ran = run(&guest, shell(&format!("r-{round}"), &format!("echo {round}"))).await;
        assert_eq!(ran.stdout, format!("{round}\n"));
    }
}

#[tokio::test]
async fn environment_directory_and_input_are_those_of_the_request() {
    let guest = TestGuest::start();
    let mut start = shell("a", "cat; echo $FROM_SPEC $OWN $HOME $USER $LOGNAME; pwd");
    start.env.insert("OWN".into(), "own".into());
    start.stdin = Some(b"input\n".to_vec());
    let home = guest.path("").trim_end_matches('/').to_owned();
    let ran = run(&guest, start).await;
    assert_eq!(ran.stdout, format!("input\nspec own {home} me me\n{home}\n"));

    let mut start = shell("b", "pwd");
    start.cwd = Some("/".into());
    assert_eq!(run(&guest, start).await.stdout, "/\n");
}

#[tokio::test]
async fn input_longer_than_a_pipe_is_fed() {
    let guest = TestGuest::start();
    let mut start = shell("a", "wc -c");
    start.stdin = Some(vec![b'x'; 3 << 20]);
    assert_eq!(run(&guest, start).await.stdout.trim(), (3 << 20).to_string());
    // Nobody reads it: that is no error, and no wait.
    let mut start = shell("b", "exit 0");
    start.stdin = Some(vec![b'x'; 3 << 20]);
    assert_eq!(run(&guest, start).await.end.exit_code, 0);
}

#[tokio::test]
async fn children_start_with_default_signals_and_no_foreign_descriptors() {
    let guest = TestGuest::start();
    let script = "cat /proc/self/status | grep -E '^Sig(Blk|Ign|Cgt)'; ls /proc/self/fd";
    let ran = run(&guest, shell("a", script)).await;
    let zero = "0000000000000000";
    let expected = format!("SigBlk:\t{zero}\nSigIgn:\t{zero}\nSigCgt:\t{zero}\n0\n1\n2\n3\n");
    assert_eq!(ran.stdout, expected, "3 is the directory that ls reads");
}

#[tokio::test]
async fn a_signal_gives_128_and_its_number() {
    let guest = TestGuest::start();
    let ran = run(&guest, shell("a", "kill -TERM $$")).await;
    assert_eq!((ran.end.exit_code, ran.end.signal), (143, Some(15)));
}

#[tokio::test]
async fn a_timeout_kills_the_whole_tree() {
    let guest = TestGuest::start();
    let mut start = shell("a", "sleep 300 & echo $!; wait");
    start.timeout_ms = Some(300);
    let ran = run(&guest, start).await;
    assert!(ran.end.timed_out);
    assert_eq!(ran.end.exit_code, 137);
    wait_until_gone(ran.stdout.trim()).await;
}

#[tokio::test]
async fn a_client_that_goes_away_ends_the_whole_tree() {
    let guest = TestGuest::start();
    let script = "setsid sleep 300 & echo $!; wait";
    let mut frames = guest.guest.exec(&shell("a", script)).await.unwrap();
    let pid = first_line(&mut frames).await;
    assert!(is_alive(&pid));
    drop(frames);
    wait_until_gone(&pid).await;
    let attached = guest.guest.exec_attach("a", 0).await;
    assert!(matches!(attached, Err(GuestError::NotFound)), "nobody else knew it: {attached:?}");
}

#[tokio::test]
async fn a_detached_command_outlives_its_client_and_is_read_again() {
    let guest = TestGuest::start();
    let mut start = shell("a", "echo one; echo two >&2; sleep 0.3; echo three; exit 5");
    start.detached = true;
    let mut frames = guest.guest.exec(&start).await.unwrap();
    assert_eq!(first_line(&mut frames).await, "one");
    drop(frames);

    let ran = read_all(guest.guest.exec_attach("a", 4).await.unwrap()).await;
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("three\n", "two\n"));
    assert_eq!((ran.end.exit_code, ran.gap), (5, None));
    // After its end, too.
    let again = read_all(guest.guest.exec_attach("a", 0).await.unwrap()).await;
    assert_eq!((again.stdout.as_str(), again.end.total_bytes), ("one\nthree\n", 14));
    let taken = guest.guest.exec(&start).await;
    assert!(matches!(taken, Err(GuestError::Exists)), "{taken:?}");
}

#[tokio::test]
async fn a_late_reader_gets_a_gap_and_the_last_mebibyte() {
    let guest = TestGuest::start();
    let mut start = shell("a", "head -c 3000000 /dev/zero | tr '\\0' x; printf end");
    start.detached = true;
    drop(guest.guest.exec(&start).await.unwrap());
    let end = read_all(guest.guest.exec_attach("a", u64::MAX).await.unwrap()).await.end;
    assert_eq!(end.total_bytes, 3_000_003);

    let ran = read_all(guest.guest.exec_attach("a", 0).await.unwrap()).await;
    let kept = RING_BYTES as u64;
    assert_eq!((ran.gap, ran.stdout.len() as u64), (Some(3_000_003 - kept), kept));
    assert!(ran.stdout.ends_with("xxxend"));
}

#[tokio::test]
async fn an_attached_reader_loses_nothing_of_much_output() {
    let guest = TestGuest::start();
    let ran = run(&guest, shell("a", "head -c 20000000 /dev/zero | tr '\\0' y")).await;
    assert_eq!((ran.stdout.len(), ran.gap), (20_000_000, None));
}

#[tokio::test]
async fn a_killed_command_says_so() {
    let guest = TestGuest::start();
    let mut start = shell("a", "echo $$; sleep 300");
    start.detached = true;
    let mut frames = guest.guest.exec(&start).await.unwrap();
    let pid = first_line(&mut frames).await;
    guest.guest.exec_kill("a").await.unwrap();
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "it is reaped already");
    assert_eq!(read_all(frames).await.end.exit_code, 137);
    guest.guest.exec_kill("a").await.unwrap();
    let unknown = guest.guest.exec_kill("b").await;
    assert!(matches!(unknown, Err(GuestError::NotFound)), "{unknown:?}");
}

#[tokio::test]
async fn a_killed_command_takes_along_what_it_started_and_is_listed_no_more() {
    let guest = TestGuest::start();
    let script = "for n in 1 2 3 4 5 6 7 8; do setsid sleep 1000 & echo $!; done; wait";
    let start = ExecStart { detached: true, ..shell("tree", script) };
    let mut frames = guest.guest.exec(&start).await.unwrap();
    let mut children = Vec::new();
    while children.len() < 8 {
        children.extend(first_line(&mut frames).await.split_whitespace().map(str::to_owned));
    }
    assert_eq!(guest.guest.commands().await.unwrap().detached, ["tree"]);
    guest.guest.exec_kill("tree").await.unwrap();
    for child in &children {
        wait_until_gone(child).await;
    }
    assert!(guest.guest.commands().await.unwrap().detached.is_empty());
}

#[tokio::test]
async fn what_runs_on_in_the_background_does_not_hold_the_answer_up() {
    let guest = TestGuest::start();
    let ran = run(&guest, shell("a", "sleep 300 & echo $!")).await;
    let pid = ran.stdout.trim().to_owned();
    assert_eq!(ran.end.exit_code, 0);
    assert!(is_alive(&pid), "it was not asked to end");
    run(&guest, shell("b", &format!("kill {pid}"))).await;
    wait_until_gone(&pid).await;
}

#[tokio::test]
async fn what_cannot_be_started_is_refused_with_a_reason() {
    #[track_caller]
    fn check(result: Result<ExecFrames, GuestError>, expected: &str) {
        match result.map(drop) {
            Err(GuestError::Invalid(text) | GuestError::Unauthenticated(text)) => {
                assert!(text.contains(expected), "{text}");
            }
            other => panic!("{other:?}"),
        }
    }
    let guest = TestGuest::start();
    let exec = async |start: ExecStart| guest.guest.exec(&start).await;
    let good = shell("a", "true");
    let argv = |argv: &[&str]| ExecStart {
        argv: argv.iter().map(|argument| (*argument).to_owned()).collect(),
        ..good.clone()
    };
    check(exec(argv(&[])).await, "no program");
    check(exec(argv(&["no-such-program"])).await, "no such program in PATH: no-such-program");
    check(exec(argv(&["/no/such"])).await, "no such program: /no/such");
    check(exec(argv(&["/bin/echo", "a\0b"])).await, "zero byte");
    check(
        exec(ExecStart { cwd: Some("/no/such".into()), ..good.clone() }).await,
        "cwd '/no/such' does not exist",
    );
    check(
        exec(ExecStart { user: Some("nobody-here".into()), ..good.clone() }).await,
        "invalid username: 'nobody-here'",
    );
    check(exec(ExecStart { id: "a/b".into(), ..good.clone() }).await, "id");
    check(exec(ExecStart { id: String::new(), ..good.clone() }).await, "id");
}

#[tokio::test]
async fn unknown_commands_are_not_found() {
    let guest = TestGuest::start();
    let attached = guest.guest.exec_attach("nobody", 0).await;
    assert!(matches!(attached, Err(GuestError::NotFound)), "{attached:?}");
}

mod needs_root {
    use super::*;

    #[tokio::test]
    async fn a_command_runs_as_the_named_user_with_its_groups() {
        let guest = TestGuest::start();
        let mut start = shell("a", "id -u; id -g; id -G; echo $USER");
        start.user = Some("other".into());
        start.cwd = Some("/".into());
        assert_eq!(run(&guest, start).await.stdout, "4242\n4242\n4242 4243\nother\n");
    }
}

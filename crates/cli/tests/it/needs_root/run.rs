//! `bastide run`: what goes in and out, and that nothing is left.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

fn command(dir: &tempfile::TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bastide"));
    command.arg("run").args(arguments).env("BASTIDE_DATA_DIR", dir.path());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(arguments: &[&str], input: &[u8]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let mut child = command(&dir, arguments).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

#[track_caller]
fn check(arguments: &[&str], input: &str, expected: (i32, &str, &str)) {
    let output = run(arguments, input.as_bytes());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!((output.status.code(), &*out, &*err), (Some(expected.0), expected.1, expected.2));
}

#[test]
fn input_output_and_exit_code_pass_through() {
    check(&["--", "sh", "-c", "cat; echo err >&2; exit 42"], "in\n", (42, "in\n", "err\n"));
    check(
        &["-e", "A=b c", "-w", "/tmp", "--", "sh", "-c", "echo $A $PWD"],
        "",
        (0, "b c /tmp\n", ""),
    );
    check(&["--", "id", "-un"], "", (0, "user\n", ""));
    check(&["-u", "root", "--", "id", "-u"], "", (0, "0\n", ""));
    check(&["--", "sh", "-c", "kill -SEGV $$"], "", (139, "", ""));
    let missing = run(&["--", "no-such-program-here"], b"");
    assert_eq!(missing.status.code(), Some(127));
}

#[test]
fn a_template_that_is_not_built_says_how_to_build_it() {
    let output = run(&["--template", "standard", "--", "true"], b"");
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.ends_with("hint: bastide template build standard\n"), "{text}");
}

#[test]
fn signals_reach_the_command() {
    let dir = tempfile::tempdir().unwrap();
    let script = "trap 'echo got-it; exit 3' TERM; echo ready; while :; do sleep 0.05; done";
    let mut child = command(&dir, &["--", "sh", "-c", script]).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    kill_process(Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap(), Signal::TERM).unwrap();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!((&*rest, child.wait().unwrap().code()), ("got-it\n", Some(3)));
}

#[test]
fn with_t_the_command_has_a_terminal() {
    let output = run(&["-it", "--", "sh", "-c", "test -t 0 && test -t 1 && stty size"], b"");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "24 80\r\n");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn a_killed_run_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = command(&dir, &["--", "sh", "-c", "echo ready; sleep 1234.5"]).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    // Its end is another process's work, so it is waited for, with nextest's own limit.
    while sleepers() > 0 {
        std::hint::spin_loop();
    }
}

/// Processes whose arguments are those of the command above.
fn sleepers() -> usize {
    let of = |entry: fs::DirEntry| fs::read(entry.path().join("cmdline")).unwrap_or_default();
    let all = fs::read_dir("/proc").unwrap().flatten().map(of);
    all.filter(|arguments| arguments == b"sleep\x001234.5\0").count()
}

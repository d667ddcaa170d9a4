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
fn limits_that_are_asked_for_hold() {
    let mounts = || fs::read_to_string("/proc/self/mounts").unwrap().lines().count();
    let before = mounts();
    let fill = "head -c 1500M /dev/zero > /workspace/big 2>/dev/null; echo $?; \
                df -B1 --output=size /workspace | tail -1";
    let output = run(&["--disk-gb", "1", "--", "sh", "-c", fill], b"");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let (status, size) = said.trim().split_once('\n').expect("two lines");
    assert_eq!(status, "1", "it wrote more than it may");
    assert!(size.trim().parse::<u64>().unwrap() <= 1 << 30, "{said}");
    assert_eq!(mounts(), before, "its disk stays mounted");
    // Ten periods of work at a fifth of a processor take five times as long by the clock.
    let burn = "import time\nwall, cpu = time.monotonic(), time.process_time()\n\
                while time.process_time() - cpu < 1: pass\nprint(time.monotonic() - wall)";
    let output = run(&["--cpu-fraction", "0.2", "--", "python3", "-c", burn], b"");
    let took: f64 = String::from_utf8_lossy(&output.stdout).trim().parse().unwrap();
    assert!(took >= 3.0, "a second of work at a fifth of a processor took {took} s");
    for bad in ["0", "1.5", "x"] {
        let output = run(&["--cpu-fraction", bad, "--", "true"], b"");
        assert_eq!(output.status.code(), Some(2));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains("a number above 0 and up to 1"), "{text}");
    }
}

#[test]
fn a_template_that_is_not_built_says_how_to_build_it() {
    let output = run(&["--template", "standard", "--", "true"], b"");
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.ends_with("hint: bastide template build standard\n"), "{text}");
    let unknown = run(&["--template", "no-such", "--", "true"], b"");
    let text = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(text.ends_with("hint: bastide template list shows what there is\n"), "{text}");
}

#[test]
fn limits_in_which_nothing_runs_are_refused_by_name() {
    for (flag, value, field) in
        [("--memory-mib", "0", "memory_mib"), ("--vcpu", "0", "vcpu"), ("--pids", "1", "pids")]
    {
        let output = run(&[flag, value, "--", "true"], b"");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{flag}: {text}");
        assert!(text.starts_with(&format!("error: {field}: must be at least ")), "{text}");
    }
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

/// An image of a shell and little else, with an environment and a program.
const MAKE_IMAGE: &str = r#"
import hashlib, io, json, subprocess, sys, tarfile
def tar(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()
files = {"etc/passwd": b"root:x:0:0::/:/bin/sh\n"}
for program in ["sh", "cat", "sleep"]:
    path = "/usr/bin/" + program
    files["bin/" + program] = open(path, "rb").read()
    for word in subprocess.check_output(["ldd", path], text=True).split():
        if word.startswith("/"):
            files[word[1:]] = open(word, "rb").read()
layer = tar(files)
config = {"architecture": "amd64", "os": "linux",
    "config": {"Env": ["PATH=/bin", "GREETING=hello"],
        "Cmd": ["/bin/sh", "-c", "echo $GREETING > /workspace/started; sleep 600"]},
    "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]}}
manifest = [{"Config": "c.json", "RepoTags": ["tiny:1"], "Layers": ["l/layer.tar"]}]
image = {"c.json": json.dumps(config).encode(), "l/layer.tar": layer,
    "manifest.json": json.dumps(manifest).encode()}
open(sys.argv[1], "wb").write(tar(image))
"#;

#[test]
fn a_template_gives_the_command_its_environment_and_starts_its_program() {
    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join("tiny.tar");
    let made = Command::new("python3").args(["-c", MAKE_IMAGE]).arg(&archive).status().unwrap();
    assert!(made.success());
    let data = dir.path().join("data");
    let bastide = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bastide"));
        command.env("BASTIDE_DATA_DIR", &data);
        command
    };
    let imported = bastide().args(["template", "import", "tiny"]).arg(&archive).output().unwrap();
    assert!(imported.status.success(), "{}", String::from_utf8_lossy(&imported.stderr));
    let script = "echo $GREETING $OWN; until [ -s started ]; do sleep 0.05; done; cat started";
    let run = ["run", "-T", "tiny", "-w", "/workspace", "-e", "OWN=mine", "--", "sh", "-c", script];
    let output = bastide().args(run).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(text(&output.stdout), "hello mine\nhello\n", "{}", text(&output.stderr));
    let run = ["run", "-T", "tiny", "-e", "GREETING=mine", "--", "sh", "-c", "echo $GREETING"];
    let output = bastide().args(run).output().unwrap();
    assert_eq!(text(&output.stdout), "mine\n", "{}", text(&output.stderr));
}

/// Whose blocks of ids are taken, by which directory, and is it gone?
fn orphaned_ids() -> std::collections::BTreeSet<String> {
    let files = fs::read_dir("/run/bastide/uids").into_iter().flatten().flatten();
    let owners = files.filter_map(|file| fs::read_to_string(file.path()).ok());
    let orphaned = |owner: &String| {
        owner.split_once(' ').is_some_and(|(_, dir)| !std::path::Path::new(dir.trim()).exists())
    };
    owners.filter(orphaned).collect()
}

#[test]
fn a_run_whose_disk_cannot_be_made_gives_its_ids_back() {
    let dir = tempfile::tempdir().unwrap();
    let before = orphaned_ids();
    let mut run = command(&dir, &["--disk-gb", "1", "--", "true"]);
    // Where there is no mkfs.
    let output = run.env("PATH", "/nonexistent").output().unwrap();
    assert_ne!(output.status.code(), Some(0));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("mkfs.ext4 is missing"), "{said}");
    let left: Vec<String> = orphaned_ids().difference(&before).cloned().collect();
    assert!(left.is_empty(), "taken by nobody: {left:?}");
    // And the next one works.
    let output = command(&dir, &["--disk-gb", "1", "--", "echo", "up"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "up\n");
}

//! `bastide doctor` from a bare shell: what it answers, and that nothing of it is left.

use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

fn doctor(temp: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bastide"));
    command.arg("doctor").args(arguments).env("TMPDIR", temp).env("BASTIDE_DATA_DIR", temp);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn the_host_alone_is_looked_at_for_programs_and_for_people() {
    let dir = tempfile::tempdir().unwrap();
    let output = doctor(dir.path(), &["--host-only", "--json"]).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{report}");
    let rows = report["rows"].as_array().unwrap();
    let what: Vec<&str> = rows.iter().map(|row| row["what"].as_str().unwrap()).collect();
    assert!(what.contains(&"kernel") && what.contains(&"control groups"), "{what:?}");
    let output = doctor(dir.path(), &["--host-only"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("RESULT") && text.contains(" broken, "), "{text}");
}

#[test]
fn an_interrupted_doctor_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let child = doctor(dir.path(), &[]).spawn().unwrap();
    let stage = || std::fs::read_dir(dir.path()).unwrap().flatten().next().map(|one| one.path());
    // Until sandboxes live; nextest's own limit is the limit.
    let populated = || {
        let sandboxes = stage()?.join("data/sandboxes");
        std::fs::read_dir(sandboxes).ok()?.flatten().nth(1)
    };
    while populated().is_none() {
        std::thread::yield_now();
    }
    let instance = std::fs::read_to_string(stage().unwrap().join("data/instance")).unwrap();
    kill_process(Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap(), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("interrupted"), "{told}");
    assert!(stage().is_none(), "its directory is gone");
    for hierarchy in ["unified", "memory", "cpu", "pids", "."] {
        let group = Path::new("/sys/fs/cgroup").join(hierarchy).join("bastide").join(&instance);
        assert!(!group.exists(), "{}", group.display());
    }
}

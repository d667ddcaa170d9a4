//! The published clients of envd's protocol work against a sandbox of ours, through
//! `sandbox forward`, as their users would use it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::Server;

/// Where the clients look in their debug mode.
const GUEST: &str = "127.0.0.1:49983";

#[test]
fn the_python_client_works() {
    let python = python_client();
    check(Command::new(python).arg(sources().join("smoke.py")));
}

#[test]
fn the_node_client_works() {
    let dir = node_client();
    check(Command::new("node").arg("smoke.mjs").current_dir(dir));
}

#[track_caller]
fn check(client: &mut Command) {
    let server = Server::start();
    let forwarding = forward(&server);
    let output = client.stdin(Stdio::null()).output().unwrap();
    end(forwarding);
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{complained}");
    server.end();
}

fn forward(server: &Server) -> Child {
    let mut forwarding = server
        .instance()
        .command(&["sandbox", "forward", "box", "49983", "--local", GUEST])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(forwarding.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains(GUEST), "{line}");
    forwarding
}

fn end(mut forwarding: Child) {
    let pid = Pid::from_raw(i32::try_from(forwarding.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    forwarding.wait().unwrap();
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests-sdk")
}

/// Installed once a target directory, from the registry that this machine is set up for.
fn python_client() -> PathBuf {
    let venv = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sdk-python");
    let done = venv.join("installed");
    let wanted = std::fs::read(sources().join("requirements.txt")).unwrap();
    if std::fs::read(&done).is_ok_and(|had| had == wanted) {
        return venv.join("bin/python");
    }
    ok(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv));
    ok(Command::new(venv.join("bin/pip"))
        .args(["install", "--quiet", "--disable-pip-version-check", "--requirement"])
        .arg(sources().join("requirements.txt")));
    std::fs::write(done, wanted).unwrap();
    venv.join("bin/python")
}

fn node_client() -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sdk-node");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::copy(sources().join("smoke.mjs"), dir.join("smoke.mjs")).unwrap();
    let wanted = std::fs::read(sources().join("package.json")).unwrap();
    let done = dir.join("installed");
    if !std::fs::read(&done).is_ok_and(|had| had == wanted) {
        std::fs::write(dir.join("package.json"), &wanted).unwrap();
        ok(Command::new("npm")
            .args(["install", "--silent", "--no-audit", "--no-fund", "--no-package-lock"])
            .current_dir(&dir));
        std::fs::write(done, wanted).unwrap();
    }
    dir
}

#[track_caller]
fn ok(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
}

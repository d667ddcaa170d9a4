//! `bastide agents server` as a process: it is told to end while an agent works, and leaves nothing.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// An agent whose turn never ends, and which leaves a process that nothing connects with it: it has another
/// session, no parent and no environment. Its argument is how it is known.
const AGENT: &str = r#"#!/bin/sh
while read -r line; do
  case "$line" in
  *initialize*)
    echo '{"type":"control_response","response":{"subtype":"success","request_id":"bastide-initialize","response":{}}}';;
  *'"type":"user"'*)
    (setsid env -i sleep SECONDS >/dev/null 2>&1 </dev/null &)
    echo '{"type":"system","subtype":"init","session_id":"native-1"}'
    echo '{"type":"assistant","message":{"id":"m1","role":"assistant","content":[{"type":"tool_use","id":"t1","name":"Bash","input":{}}]},"session_id":"native-1"}';;
  esac
done
"#;

struct Daemon {
    process: Child,
    url: String,
    said: Arc<Mutex<String>>,
}

impl Daemon {
    fn start(dir: &Path) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_bastide"))
            .args(["agents", "server", "--no-token", "--port", "0", "--drain-seconds", "1"])
            .arg("--data-dir")
            .arg(dir.join("data"))
            .env_clear()
            .env("PATH", format!("{}:/usr/bin:/bin", dir.join("bin").display()))
            .env("HOME", dir)
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let address = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| Some(line.split_once("listening at ")?.1.trim().to_owned()))
            .expect("it says where it listens");
        let said = Arc::new(Mutex::new(String::new()));
        let kept = Arc::clone(&said);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                kept.lock().unwrap().push_str(&(line + "\n"));
            }
        });
        Self { process, url: format!("http://{address}"), said }
    }

    /// What a client command prints.
    #[track_caller]
    fn ask(&self, words: &[&str]) -> String {
        let output = Command::new(env!("CARGO_BIN_EXE_bastide"))
            .args([&["agents"], words, &["--endpoint", &self.url, "--no-token"]].concat())
            .env_clear()
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {errors}{}", self.said.lock().unwrap());
        String::from_utf8(output.stdout).unwrap()
    }

    fn events(&self) -> Vec<Value> {
        let page: Value = serde_json::from_str(&self.ask(&["sessions", "events", "s"])).unwrap();
        page["events"].as_array().unwrap().clone()
    }

    /// As an init system tells it.
    fn terminate(mut self) -> ExitStatus {
        let pid = Pid::from_raw(i32::try_from(self.process.id()).unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        let mut status = None;
        until("the daemon ends", || {
            status = self.process.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[track_caller]
fn until(what: &str, mut happened: impl FnMut() -> bool) {
    // A minute: far longer than anything here takes, also on a busy machine.
    for _ in 0..3000 {
        if happened() {
            return;
        }
        pause();
    }
    panic!("in vain: {what}");
}

#[expect(
    clippy::disallowed_methods,
    reason = "there is no runtime here whose thread it could block"
)]
fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}

/// Whether a process has this argument.
fn runs(argument: &str) -> bool {
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == argument.as_bytes())
    })
}

/// A directory with the agent as `claude`, and what its stray process is known by.
fn town(name: u32) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let stray = format!("{}.{name}", 400_000 + std::process::id());
    let program = dir.path().join("bin/claude");
    std::fs::create_dir(dir.path().join("bin")).unwrap();
    std::fs::write(&program, AGENT.replace("SECONDS", &stray)).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    (dir, stray)
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

/// Events of tool calls with this status.
fn calls(events: &[Value], status: &str) -> usize {
    let items = events.iter().map(|event| &event["data"]["item"]);
    items.filter(|item| item["kind"] == "tool_call" && item["status"] == status).count()
}

fn count(events: &[Value], kind: &str) -> usize {
    kinds(events).into_iter().filter(|one| *one == kind).count()
}

#[test]
fn a_daemon_that_is_told_to_end_leaves_no_process_and_loses_no_session() {
    let (dir, stray) = town(1);
    let daemon = Daemon::start(dir.path());
    daemon.ask(&["sessions", "create", "s", "--agent", "claude"]);
    daemon.ask(&["sessions", "send-message", "s", "--message", "work"]);
    until("the agent works", || runs(&stray) && calls(&daemon.events(), "in_progress") == 1);
    assert_eq!(daemon.terminate().code(), Some(0));
    assert!(!runs(&stray), "what the agent left behind is gone");
    assert!(!runs(dir.path().join("bin/claude").to_str().unwrap()));

    // The turn that was cut is closed in the log, and the session goes on until it is ended.
    let daemon = Daemon::start(dir.path());
    let events = daemon.events();
    assert_eq!((calls(&events, "in_progress"), calls(&events, "failed")), (1, 1), "{events:?}");
    assert_eq!(count(&events, "session.ended"), 0, "{events:?}");
    daemon.ask(&["sessions", "send-message", "s", "--message", "work again"]);
    until("the agent works again", || runs(&stray));
    daemon.ask(&["sessions", "terminate", "s"]);
    until("what the agent left behind is gone with it", || !runs(&stray));
    let events = daemon.events();
    assert_eq!(kinds(&events).last(), Some(&"session.ended"));
    assert_eq!(count(&events, "session.ended"), 1);
    assert_eq!(daemon.terminate().code(), Some(0));
}

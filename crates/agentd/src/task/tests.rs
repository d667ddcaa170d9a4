//! Tasks with programs of the caller's, which are shell scripts here.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{CUT_OFF, Task, TaskPlace, TaskState, Tasks};
use crate::host::Host;

/// Far more than anything here takes.
const LONG: Duration = Duration::from_secs(20);

struct Desk {
    dir: TempDir,
    tasks: Tasks,
    host: Arc<Host>,
}

impl Desk {
    fn new() -> Self {
        Self::at(TempDir::new().unwrap())
    }

    fn at(dir: TempDir) -> Self {
        for name in ["config", "tmp", "data"] {
            std::fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        let environment = [("PATH", "/usr/bin:/bin"), ("HOME", dir.path().to_str().unwrap())];
        let host = Arc::new(Host {
            data_dir: dir.path().join("data"),
            environment: environment.map(|(name, value)| (name.into(), value.into())).into(),
            directory: dir.path().to_owned(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            mock_delay: Duration::ZERO,
            deictic: Vec::new(),
        });
        let place = TaskPlace { config: dir.path().join("config"), tmp: dir.path().join("tmp") };
        let tasks = Tasks::new(Arc::clone(&host), Some(place));
        Self { dir, tasks, host }
    }

    /// A task for a script, and whatever else it says.
    fn task(&self, script: &str, more: &Value) -> Task {
        let path = self.dir.path().join("agent.sh");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut task = json!({ "AGENT_TYPE": "claude", "TASK": "do it", "AGENT_CMD": path });
        for (name, value) in more.as_object().into_iter().flatten() {
            task[name] = value.clone();
        }
        serde_json::from_value(task).unwrap()
    }

    fn text(&self, path: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(path)).unwrap_or_default()
    }

    async fn run(&self, script: &str, more: &Value) -> i32 {
        assert_eq!(self.tasks.put(self.task(script, more)).unwrap(), TaskState::Running);
        self.ended().await
    }

    async fn ended(&self) -> i32 {
        match self.tasks.wait(LONG).await {
            TaskState::Ended { exit_code } => exit_code,
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn what_it_prints_is_its_result_and_its_code_is_kept() {
    let desk = Desk::new();
    let code = desk.run("echo to-err >&2; cat; echo; echo done; exit 3", &Value::Null).await;
    assert_eq!(code, 3);
    assert_eq!(desk.text("tmp/result.txt"), "do it\ndone\n");
    assert_eq!(desk.text("tmp/agent.exit"), "3\n");
    let log = desk.text("tmp/agent.log");
    assert!(log.contains("to-err") && log.contains("do it\ndone\n"), "{log}");
    // To ask again changes nothing.
    let again = desk.tasks.put(desk.task("echo other", &Value::Null)).unwrap();
    assert_eq!(again, TaskState::Ended { exit_code: 3 });
    assert_eq!(desk.text("tmp/result.txt"), "do it\ndone\n");
}

#[tokio::test]
async fn it_finds_what_to_do_in_a_file_of_its_own_that_has_no_key_and_goes() {
    let desk = Desk::new();
    let more =
        json!({ "LLM_MODEL": "claude-x", "ENV": { "A": "b" }, "SECRETS": { "KEY": "sk-1" } });
    let config = desk.dir.path().join("config/env.json");
    let script =
        format!("stat -c %a {0}; cat {0}; echo $KEY $A $LLM_MODEL $TASK", config.display());
    assert_eq!(desk.run(&script, &more).await, 0);
    let result = desk.text("tmp/result.txt");
    let (mode, rest) = result.split_once('\n').unwrap();
    assert_eq!(mode, "400");
    let (config_text, said) = rest.rsplit_once('}').unwrap();
    assert!(!config_text.contains("sk-1"), "{config_text}");
    let read: Value = serde_json::from_str(&format!("{config_text}}}")).unwrap();
    assert_eq!(read["TASK"], "do it");
    assert_eq!(read["LLM_MODEL"], "claude-x");
    assert_eq!(said, "sk-1 b claude-x do it\n");
    assert!(!config.exists(), "it is gone");
}

#[tokio::test]
async fn a_program_that_is_not_there_says_so() {
    let desk = Desk::new();
    let more = json!({ "AGENT_CMD": "/workspace/no-such-program" });
    assert_eq!(desk.run("", &more).await, 127);
    assert!(desk.text("tmp/result.txt").contains("no-such-program"));
    assert!(desk.text("tmp/agent.log").contains("no-such-program"));
    let desk = Desk::new();
    assert_eq!(desk.run("", &json!({ "AGENT_CMD": null })).await, 127);
    assert!(desk.text("tmp/result.txt").contains("claude is not installed"));
}

#[tokio::test]
async fn one_that_is_cancelled_may_wrap_up() {
    let desk = Desk::new();
    let script = "trap 'echo wrapped-up; exit 7' INT; echo ready; while :; do sleep 0.05; done";
    desk.tasks.put(desk.task(script, &Value::Null)).unwrap();
    while !desk.text("tmp/result.txt").contains("ready") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(desk.tasks.cancel("user_request"));
    assert_eq!(desk.ended().await, 7);
    assert_eq!(desk.text("tmp/result.txt"), "ready\nwrapped-up\n");
    assert!(!desk.tasks.cancel("user_request"), "it does not run any more");
}

#[tokio::test]
async fn one_that_says_nothing_when_cancelled_has_a_result_all_the_same() {
    let desk = Desk::new();
    let mark = desk.dir.path().join("begun");
    let script =
        format!("trap 'exit 130' INT; touch {}; while :; do sleep 0.05; done", mark.display());
    desk.tasks.put(desk.task(&script, &Value::Null)).unwrap();
    while !mark.exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    desk.tasks.cancel("timeout");
    assert_eq!(desk.ended().await, 130);
    assert_eq!(desk.text("tmp/result.txt"), "cancelled: timeout\n");
}

#[tokio::test]
async fn what_it_leaves_behind_does_not_keep_it_from_ending() {
    let desk = Desk::new();
    assert_eq!(desk.run("sleep 300 & echo done", &Value::Null).await, 0);
    assert_eq!(desk.text("tmp/result.txt"), "done\n");
}

#[tokio::test]
async fn a_daemon_that_ends_under_it_leaves_it_failed() {
    let desk = Desk::new();
    desk.tasks.put(desk.task("echo begun; sleep 300", &Value::Null)).unwrap();
    while !desk.text("tmp/result.txt").contains("begun") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    desk.host.stop.cancel();
    desk.host.tasks.close();
    tokio::time::timeout(LONG, desk.host.tasks.wait()).await.unwrap();
    assert_eq!(desk.text("tmp/agent.exit"), format!("{CUT_OFF}\n"));

    // And one that was killed, which wrote nothing down.
    let Desk { dir, .. } = desk;
    std::fs::remove_file(dir.path().join("tmp/agent.exit")).unwrap();
    let desk = Desk::at(dir);
    let state = desk.tasks.put(desk.task("echo again", &Value::Null)).unwrap();
    assert_eq!(state, TaskState::Ended { exit_code: CUT_OFF });
    assert_eq!(desk.text("tmp/agent.exit"), format!("{CUT_OFF}\n"));
}

#[test]
fn a_key_is_never_written() {
    let task: Task = serde_json::from_value(json!({
        "AGENT_TYPE": "claude", "TASK": "x", "SECRETS": { "LLM_API_KEY": "sk-1" }
    }))
    .unwrap();
    assert_eq!(task.secrets, BTreeMap::from([("LLM_API_KEY".to_owned(), "sk-1".to_owned())]));
    assert!(!serde_json::to_string(&task).unwrap().contains("sk-1"));
}

//! One-shot tasks and the model relay with real sandboxes: a program of the caller's, and the real command
//! line agents, against a model that does as it is told and checks the key that it is sent.

use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use super::workspaces::look;
use super::{Server, pause};
use crate::model::{KEY, Model};

/// Longer than anything here takes, also on a loaded machine.
const LOOKS_MAX: usize = 6000;

/// A model at a loopback port, which the server's settings list.
struct Town {
    server: Server,
    model: Model,
    _runtime: Runtime,
}

impl Town {
    fn new() -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let model = runtime.block_on(Model::serve());
        let settings = [("BASTIDE_LLM_ALLOWED_BASE_URLS", model.url())];
        let server = Server::with(&settings, &[]);
        Self { server, model, _runtime: runtime }
    }

    /// A sandbox with an agent whose model is that one.
    fn create(&self, changes: &Value) -> Value {
        let mut body = json!({ "template": "host", "llm_key": KEY });
        for (name, value) in changes.as_object().unwrap() {
            body[name] = value.clone();
        }
        // By a file, so that the key is in no command line of ours either.
        let path = self.server.files().join("body.json");
        std::fs::write(&path, body.to_string()).unwrap();
        let made = self.server.curl_with("/v1/sandboxes", &["-d", &format!("@{}", path.display())]);
        std::fs::remove_file(&path).unwrap();
        serde_json::from_str(&made).unwrap()
    }

    fn anthropic(&self) -> Value {
        json!({ "ANTHROPIC_BASE_URL": self.model.url() })
    }

    #[track_caller]
    fn ended(&self, name: &str) -> Value {
        for _ in 0..LOOKS_MAX {
            let seen = self.server.json(&["sandbox", "get", name]);
            if seen["agent_status"] != "running" {
                return seen;
            }
            pause();
        }
        panic!("the agent of {name} works in vain: {}", self.inside(name, "cat /tmp/agent.log"));
    }

    fn inside(&self, name: &str, script: &str) -> String {
        self.server.ok(&["sandbox", "exec", name, "--user", "root", "--", script])
    }

    #[track_caller]
    fn result(&self, name: &str) -> String {
        self.inside(name, "cat /tmp/result.txt /tmp/agent.exit")
    }

    /// The key is nowhere: not in the data directory, not in any process, inside or outside, not in the
    /// files of the sandbox.
    #[track_caller]
    fn assert_no_key(&self, name: &str) {
        let mut found = Vec::new();
        look(&self.server.instance().data(), KEY.as_bytes(), &mut found);
        for process in std::fs::read_dir("/proc").unwrap().flatten() {
            for file in ["cmdline", "environ"] {
                let path = process.path().join(file);
                let bytes = std::fs::read(&path).unwrap_or_default();
                if bytes.windows(KEY.len()).any(|part| part == KEY.as_bytes()) {
                    found.push(format!("{}: {}", path.display(), String::from_utf8_lossy(&bytes)));
                }
            }
        }
        assert!(found.is_empty(), "{found:?}");
        // In two words, and looked for afterwards, so that it does not find itself.
        let (one, two) = KEY.split_at(4);
        let script = format!(
            "k={one}; k=$k{two}; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline > /dev/shm/seen 2>/dev/null; \
             grep -ac \"$k\" /dev/shm/seen; rm /dev/shm/seen; \
             grep -rl \"$k\" /app /tmp /home /workspace /var /etc /run 2>/dev/null; true"
        );
        assert_eq!(self.inside(name, &script), "0\n");
    }

    fn end(self) {
        assert_eq!(self.model.faults(), Vec::<String>::new());
        self.model.stop();
        self.server.end();
    }
}

#[test]
fn a_program_inside_reaches_its_model_with_a_key_that_it_never_has() {
    let mut town = Town::new();
    let made = town.create(&json!({ "name": "asker", "agent": "deictic", "model": "claude-x",
        "policy": "none", "env": town.anthropic(), "idle_timeout_seconds": 600 }));
    assert_eq!(made["state"], "running", "{made}");
    assert!(made.get("agent_status").is_none(), "there is no task: {made}");
    let ask = "curl -sS --max-time 20 -H \"x-api-key: $ANTHROPIC_API_KEY\" \
        -H 'anthropic-version: 2023-06-01' $ANTHROPIC_BASE_URL/v1/messages \
        -d '{\"model\": \"claude-x\", \"max_tokens\": 9, \"stream\": true, \
             \"tools\": [{\"name\": \"Bash\", \"input_schema\": {\"type\": \"object\"}}], \
             \"messages\": [{\"role\": \"user\", \"content\": \"play:text\"}]}'";
    let said = town.inside("asker", ask);
    assert!(said.contains("message_start") && said.contains("message_stop"), "{said}");
    // Nothing else, and no other sandbox.
    let other = "curl -s --max-time 5 http://198.19.255.254:4011/ || echo refused; \
                 curl -s --max-time 5 http://model.example/; echo $?";
    assert_eq!(town.inside("asker", other), "refused\n6\n");
    let stranger = "curl -s --max-time 5 http://198.19.255.254:4010/v1/messages -d '{}'; echo $?";
    let refused = town.server.ok(&["sandbox", "exec", "box", "--", stranger]);
    assert!(!refused.contains("message_start"), "{refused}");
    town.assert_no_key("asker");

    // The server is killed: the next one has the key too.
    let instance = town.server.instance.as_mut().unwrap();
    instance.kill_server().unwrap();
    instance.start().unwrap();
    let said = town.inside("asker", ask);
    assert!(said.contains("message_start"), "{said}");
    let log = town.server.json(&["sandbox", "egress", "asker"]);
    let calls = log["entries"].as_array().unwrap().iter();
    let calls: Vec<_> = calls.filter(|entry| entry["target"] == "model-relay").collect();
    // One of before the server was killed, and one of after it.
    assert_eq!(calls.len(), 2, "{log}");
    assert!(calls.iter().all(|call| call["port"] == 4010), "{log}");
    assert!(calls[1]["bytes_up"].as_u64() > Some(100), "{log}");
    assert!(calls[1]["bytes_down"].as_u64() > Some(100), "{log}");

    // Another key, which the model does not know, and the first one again.
    let instance = town.server.instance();
    let update = ["sandbox", "update", "asker", "--llm-key-env", "OTHER_KEY"];
    let unset = instance.command(&update).output().unwrap();
    assert_eq!(unset.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&unset.stderr).contains("OTHER_KEY is not set"));
    let updated = instance.command(&update).env("OTHER_KEY", KEY).output().unwrap();
    assert!(updated.status.success(), "{}", String::from_utf8_lossy(&updated.stderr));
    assert_eq!(String::from_utf8_lossy(&updated.stdout), "asker\n");
    assert!(town.inside("asker", ask).contains("message_start"));
    town.server.ok(&["sandbox", "rm", "asker"]);
    town.end();
}

#[test]
fn a_task_is_worked_on_once_and_leaves_its_result() {
    let town = Town::new();
    let script = "#!/bin/sh\n\
        stat -f -c %T /app/config; stat -c '%U %a' /app/config/env.json\n\
        grep -c TASK /app/config/env.json\n\
        echo \"$1 $2 $TASK\"; echo to-the-log >&2\n\
        curl -sS -H \"x-api-key: $ANTHROPIC_API_KEY\" $LLM_BASE_URL/v1/messages \
          -d '{\"stream\": true, \"tools\": [{\"name\": \"Bash\"}], \
               \"messages\": [{\"role\": \"user\", \"content\": \"play:text\"}]}' | grep -c delta\n\
        while [ ! -e /workspace/go ]; do sleep 0.05; done\nexit 4\n";
    let first = json!({ "template": "host", "name": "maker", "workspace_enabled": true,
        "app_id": "app", "capset_id": "set" });
    town.server.curl_with("/v1/sandboxes", &["-d", &first.to_string()]);
    let write = format!("cat > run.sh <<'EOF'\n{script}EOF\nchmod 755 run.sh");
    town.server.ok(&["sandbox", "exec", "maker", "--", &write]);
    town.server.ok(&["sandbox", "rm", "maker"]);

    let task = json!({ "name": "worker", "agent": "claude", "model": "claude-x", "task": "do it",
        "agent_cmd": "/workspace/run.sh", "env_vars": town.anthropic(), "idle_timeout_seconds": 5,
        "tier": "ephemeral", "workspace_enabled": true, "app_id": "app", "capset_id": "set" });
    let made = town.create(&task);
    assert_eq!(made["agent_status"], "running", "{made}");
    for _ in 0..LOOKS_MAX {
        if town.inside("worker", "cat /tmp/result.txt 2>/dev/null; true").contains("do it") {
            break;
        }
        pause();
    }
    // The agent's file goes, and while it works the sandbox stays, also with another server.
    let mut town = town;
    let instance = town.server.instance.as_mut().unwrap();
    instance.kill_server().unwrap();
    instance.start().unwrap();
    for _ in 0..400 {
        pause();
    }
    assert_eq!(town.inside("worker", "ls /app/config"), "");
    town.assert_no_key("worker");
    assert_eq!(town.server.json(&["sandbox", "get", "worker"])["agent_status"], "running");
    town.inside("worker", "touch /workspace/go");
    let seen = town.ended("worker");
    assert_eq!((&seen["agent_status"], &seen["agent_exit_code"]), (&json!("failed"), &json!(4)));
    let result = town.result("worker");
    let lines: Vec<&str> = result.lines().collect();
    assert_eq!(
        &lines[..4],
        ["tmpfs", "user 400", "1", "--print --dangerously-skip-permissions do it"]
    );
    assert_eq!(lines.last(), Some(&"4"), "{result}");
    let log = town.server.ok(&["sandbox", "logs", "worker"]);
    assert!(log.contains("to-the-log") && log.contains("do it"), "{log}");
    let log = town.server.ok(&["sandbox", "logs", "worker", "--stream", "agents"]);
    assert!(log.contains("the task ended with 4"), "{log}");
    for _ in 0..LOOKS_MAX {
        if town.server.json(&["sandbox", "get", "worker"])["state"] == "destroyed" {
            return town.end();
        }
        pause();
    }
    panic!("it does not idle");
}

#[test]
fn an_agent_without_its_layer_is_501_and_says_how_to_build_it() {
    let town = Town::new();
    for agent in ["claude", "codex"] {
        let refused = town.create(&json!({ "agent": agent, "task": "x", "name": "none" }));
        assert_eq!(
            (&refused["status"], &refused["code"]),
            (&json!(501), &json!("agent_not_built"))
        );
        let detail = refused["detail"].as_str().unwrap();
        assert!(detail.contains(&format!("bastide template build agent-{agent}")), "{detail}");
        // A layer is no template.
        let name = format!("agent-{agent}");
        let refused = town.create(&json!({ "template": name, "llm_key": null }));
        assert_ne!(refused["state"], "running", "{refused}");
    }
    town.end();
}

#[test]
fn the_real_agents_work_on_tasks_through_the_relay() {
    let town = Town::new();
    for (agent, model, variable, base) in [
        ("claude", "claude-sonnet-4-5", "ANTHROPIC_BASE_URL", town.model.url().to_owned()),
        ("codex", "gpt-5", "OPENAI_BASE_URL", format!("{}/v1", town.model.url())),
    ] {
        build(&town, agent);
        let name = format!("of-{agent}");
        town.create(&json!({ "name": name, "agent": agent, "model": model, "policy": "none",
            "task": "play:run echo tool-ran-ok > /workspace/made; cat /workspace/made",
            "env_vars": { variable: base }, "idle_timeout_seconds": 600 }));
        let seen = town.ended(&name);
        let result = town.result(&name);
        let log = town.inside(&name, "cat /tmp/agent.log");
        assert_eq!(seen["agent_status"], "completed", "{agent}: {result}\n{log}");
        assert!(result.contains("It came to: "), "{agent}: {result}");
        assert!(result.contains("tool-ran-ok"), "{agent}: {result}");
        assert_eq!(town.inside(&name, "cat /workspace/made"), "tool-ran-ok\n");
        town.assert_no_key(&name);
        town.server.ok(&["sandbox", "rm", &name]);
    }
    let listed = town.server.ok(&["template", "list", "--data-dir", &data(&town)]);
    assert!(listed.contains("agent-claude"), "{listed}");
    town.end();
}

/// A repository comes with the stored workspace, the agent runs its test, mends it, and runs it again.
#[test]
fn deictic_mends_a_failing_test_in_a_sandbox() {
    let town = Town::new();
    let work = json!({ "workspace_enabled": true, "app_id": "app", "capset_id": "set" });
    let mut first = json!({ "template": "host", "name": "maker" });
    first.as_object_mut().unwrap().extend(work.as_object().unwrap().clone());
    town.server.curl_with("/v1/sandboxes", &["-d", &first.to_string()]);
    // No bytecode: that of a file which is changed within a second, and as long as before, counts as its own.
    let repository = "printf 'def add(a, b):\\n    return a - b\\n' > calc.py; \
        printf 'import unittest, calc\\nclass Adds(unittest.TestCase):\\n    def test(self):\\n        \
        self.assertEqual(calc.add(2, 3), 5)\\n' > test_calc.py; ! python3 -B -m unittest -q 2>/dev/null";
    town.server.ok(&["sandbox", "exec", "maker", "--", repository]);
    town.server.ok(&["sandbox", "rm", "maker"]);
    for (model, variable, base) in [
        ("claude-sonnet-4-5", "ANTHROPIC_BASE_URL", town.model.url().to_owned()),
        ("gpt-5", "OPENAI_BASE_URL", format!("{}/v1", town.model.url())),
    ] {
        let mut task = json!({ "name": "smith", "agent": "deictic", "model": model, "policy": "none",
            "task": "play:run cd /workspace && sed -i 's/a - b/a + b/' calc.py && python3 -m unittest 2>&1",
            "env_vars": { variable: base }, "idle_timeout_seconds": 600 });
        task.as_object_mut().unwrap().extend(work.as_object().unwrap().clone());
        let made = town.create(&task);
        assert_eq!(made["state"], "running", "{made}");
        let seen = town.ended("smith");
        let result = town.result("smith");
        let log = town.inside("smith", "cat /tmp/agent.log");
        assert_eq!(seen["agent_status"], "completed", "{model}: {result}\n{log}");
        assert!(result.contains("It came to: ") && result.contains("OK"), "{model}: {result}");
        town.inside("smith", "cd /workspace && python3 -m unittest -q && grep -q 'a + b' calc.py");
        town.assert_no_key("smith");
        town.server.ok(&["sandbox", "rm", "smith"]);
    }
    town.end();
}

fn data(town: &Town) -> String {
    town.server.instance().data().display().to_string()
}

/// From the registry that npm is told to use here.
fn build(town: &Town, agent: &str) {
    let name = format!("agent-{agent}");
    let data = data(town);
    let built = town.server.ok(&["template", "build", &name, "--data-dir", &data]);
    assert!(built.starts_with(&format!("{name}@sha256:")), "{built}");
}

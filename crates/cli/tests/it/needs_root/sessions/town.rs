//! A server whose templates were built before, and the sessions that are made there.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use super::Talk;
use crate::instance::Instance;
use crate::model::Model;
use crate::needs_root::Server;
use crate::needs_root::workspaces::look;

pub(super) const NEW_KEY: &str = "another-test-key";

const BUNDLE: &str = "keys";

pub(super) struct Town {
    server: Server,
    pub(super) model: Model,
    user: String,
    _runtime: Runtime,
}

/// One life of a session.
pub(super) struct Session {
    pub(super) id: String,
    pub(super) sandbox: String,
    pub(super) answer: Value,
}

impl Session {
    fn of(answer: Value) -> Self {
        let text = |name: &str| {
            answer[name].as_str().unwrap_or_else(|| panic!("no {name}: {answer}")).to_owned()
        };
        Self { id: text("chat_session_id"), sandbox: text("sandbox_id"), answer }
    }

    #[track_caller]
    pub(super) fn connect(&self, from: u64) -> Talk {
        let (url, token) = (&self.answer["connect_url"], &self.answer["jwt"]);
        Talk::connect(url.as_str().unwrap(), token.as_str().unwrap(), from)
    }

    #[track_caller]
    pub(super) fn connect_again(&self, from: u64) -> Talk {
        let (url, token) = (&self.answer["connect_url"], &self.answer["jwt"]);
        Talk::connect_again(url.as_str().unwrap(), token.as_str().unwrap(), from)
    }
}

impl Town {
    /// With the template `standard`, and these.
    pub(super) fn new(templates: &[&str]) -> Self {
        Self::with(&build(templates))
    }

    /// With the templates of this data directory.
    pub(super) fn with(built: &Path) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let model = runtime.block_on(Model::serve());
        let mut instance = Instance::new(Path::new(env!("CARGO_BIN_EXE_bastide"))).unwrap();
        furnish(&mut instance, &model, built);
        instance.start().unwrap();
        let server = Server { instance: Some(instance) };
        let me: Value = serde_json::from_str(&server.curl("/v1/tenants/me")).unwrap();
        let user = me["tenant_id"].as_str().unwrap().to_owned();
        Self { server, model, user, _runtime: runtime }
    }

    /// By a file, so that no key is in a command line of ours.
    #[track_caller]
    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let file = self.server.files().join("body.json");
        std::fs::write(&file, body.to_string()).unwrap();
        let data = format!("@{}", file.display());
        let headers = "content-type: application/json";
        let answer = self.server.curl_with(path, &["-X", method, "-H", headers, "-d", &data]);
        std::fs::remove_file(file).unwrap();
        serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{method} {path}: {answer}"))
    }

    #[track_caller]
    pub(super) fn bundle(&self, method: &str, values: &Value) {
        let (path, name) = match method {
            "POST" => ("/v1/tenants/me/secrets".to_owned(), json!(BUNDLE)),
            _ => (format!("/v1/tenants/me/secrets/{BUNDLE}"), Value::Null),
        };
        let mut body = json!({ "values": values });
        if name.is_string() {
            body["name"] = name;
        }
        let answer = self.call(method, &path, &body);
        assert_eq!(answer["name"], BUNDLE, "{answer}");
    }

    #[track_caller]
    pub(super) fn create(&self, agent: &str, changes: &Value) -> Session {
        let mut body = json!({
            "agent": { "kind": agent }, "template": "standard", "secrets": [BUNDLE],
            "llm": { "vendor": "anthropic", "model": "claude-sonnet-4-5", "base_url": self.model.url() },
            "user_id": self.user,
        });
        for (name, value) in changes.as_object().unwrap() {
            body[name] = value.clone();
        }
        Session::of(self.call("POST", "/v1/sessions", &body))
    }

    #[track_caller]
    pub(super) fn resume(&self, session: &Session) -> Session {
        let body = json!({ "chat_session_id": session.id });
        Session::of(self.call("POST", "/v1/sessions/resume", &body))
    }

    #[track_caller]
    pub(super) fn delete(&self, session: &Session) {
        self.server.curl_with(&format!("/v1/sessions/{}", session.id), &["-X", "DELETE"]);
    }

    /// What a line of shell prints in its sandbox, without a connection to the session.
    #[track_caller]
    pub(super) fn exec(&self, session: &Session, line: &str) -> String {
        let body = json!({ "command": line }).to_string();
        let path = format!("/v1/sandboxes/{}/exec", session.sandbox);
        let json = "Content-Type: application/json";
        let said = self.server.curl_with(&path, &["-H", json, "-d", &body]);
        let said: Value = serde_json::from_str(&said).unwrap();
        said["output"].as_str().unwrap_or_else(|| panic!("{said}")).to_owned()
    }

    /// `kill -9`, and the next one.
    pub(super) fn kill_server(&mut self) {
        let instance = self.server.instance.as_mut().unwrap();
        instance.kill_server().unwrap();
        instance.start().unwrap();
    }

    /// Its first process, and with it all of them.
    #[track_caller]
    pub(super) fn kill_sandbox(&self, sandbox: &str) {
        let dir = self.server.instance().data().join("sandboxes");
        let record = dir.join(sandbox.trim_start_matches("sb-")).join("run.json");
        let record: Value = serde_json::from_slice(&std::fs::read(record).unwrap()).unwrap();
        let pid = record["pid"].as_i64().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        kill_process(pid.unwrap(), Signal::KILL).unwrap();
    }

    /// Neither the keys nor these are in the data directory.
    #[track_caller]
    pub(super) fn assert_nothing_is_readable(&self, also: &[String]) {
        let mut found = Vec::new();
        let keys = [crate::model::KEY, NEW_KEY].map(str::to_owned);
        for secret in keys.iter().chain(also) {
            let parts = std::fs::read_dir(self.server.instance().data()).unwrap().flatten();
            // Templates are nobody's.
            let parts = parts.filter(|part| part.file_name() != "layers");
            let dirs = parts.map(|part| part.path()).filter(|path| path.is_dir());
            dirs.for_each(|dir| look(&dir, secret.as_bytes(), &mut found));
        }
        assert!(found.is_empty(), "{found:?}");
    }

    pub(super) fn end(mut self) {
        assert_eq!(self.model.faults(), Vec::<String>::new());
        self.model.stop();
        self.server.instance.take().unwrap().finish().unwrap();
    }
}

/// Gives it these templates, and lets its agents use this model.
pub(super) fn furnish(instance: &mut Instance, model: &Model, built: &Path) {
    let setting = ("BASTIDE_LLM_ALLOWED_BASE_URLS".to_owned(), model.url().to_owned());
    instance.settings.push(setting);
    std::fs::create_dir_all(instance.data()).unwrap();
    for part in ["templates", "layers"] {
        let copy = |how: &str| {
            let paths = [built.join(part), instance.data()];
            Command::new("cp").arg(how).args(paths).status().unwrap().success()
        };
        // Layers are only ever read. Another file system has to have its own.
        assert!(copy("-al") || copy("-a"), "the templates could not be copied");
    }
}

/// `standard` and these, once for all tests; what is built already is kept.
pub(super) fn build(templates: &[&str]) -> PathBuf {
    let data = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sessions");
    std::fs::create_dir_all(&data).unwrap();
    let lock = std::fs::File::create(data.join("lock")).unwrap();
    lock.lock().unwrap();
    for template in ["standard"].iter().chain(templates) {
        let built = Command::new(env!("CARGO_BIN_EXE_bastide"))
            .args(["template", "build", template])
            .env("BASTIDE_DATA_DIR", &data)
            .output()
            .unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    }
    data
}

//! Sessions as a server has them: made or found again, gone on with elsewhere, and other secrets while they
//! go on. With our own agent here; with the real programs in `programs/hosted.rs`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::daemon::{Answer, Daemon, Setup};
use crate::programs::model::{KEY, Model};

const WAIT: Duration = Duration::from_secs(120);

/// A machine that comes and goes, beside a workspace that stays.
pub(crate) struct Place {
    pub(crate) model: Model,
    dir: TempDir,
    machines: usize,
    variables: Vec<(&'static str, String)>,
}

impl Place {
    pub(crate) async fn new(variables: Vec<(&'static str, String)>) -> Self {
        let model = Model::serve().await;
        // Not below /tmp: one of the programs does not want its home there.
        let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        std::fs::create_dir(dir.path().join("workspace")).unwrap();
        Self { model, dir, machines: 0, variables }
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.dir.path().join("workspace")
    }

    /// With a home where nothing is.
    pub(crate) async fn machine(&mut self) -> (Daemon, PathBuf) {
        self.machines += 1;
        let home = self.dir.path().join(format!("home-{}", self.machines));
        std::fs::create_dir(&home).unwrap();
        let mut environment = self.variables.clone();
        environment.push(("HOME", home.display().to_string()));
        let data = home.join("data");
        (Daemon::start(&data, Setup { environment, ..Setup::default() }).await, data)
    }

    /// What a server asks for, for an agent that may do everything.
    pub(crate) fn wanted(&self, agent: &str, changes: &Value) -> Value {
        let mut body = json!({
            "agent": agent, "permission_mode": "bypass", "model": "claude-test",
            "vendor": "anthropic", "base_url": self.model.url(), "api_key": KEY,
            "directory": self.workspace(), "state_dir": self.workspace().join(".bastide/agent"),
        });
        for (name, value) in changes.as_object().unwrap() {
            body[name] = value.clone();
        }
        body
    }

    pub(crate) fn end(self) {
        assert_eq!(self.model.faults(), Vec::<String>::new());
        self.model.stop();
    }
}

impl Daemon {
    pub(crate) async fn put(&self, path: &str, body: &Value) -> Answer {
        let headers = [("content-type".to_owned(), "application/json".to_owned())];
        let text = body.to_string();
        self.send(&format!("PUT {path}"), &headers, Some(&text), WAIT).await
    }

    #[track_caller]
    fn told(answer: &Answer) -> Value {
        assert_eq!(answer.status, 200, "{answer:?}");
        serde_json::from_str(&answer.body).unwrap()
    }

    pub(crate) async fn host(&self, wanted: &Value) -> Value {
        Self::told(&self.put("/internal/sessions/s", wanted).await)
    }

    pub(crate) async fn change(&self, body: &Value) -> Value {
        Self::told(&self.put("/internal/sessions/s/env", body).await)
    }

    /// A turn, to its end: its events.
    pub(crate) async fn turn(&self, text: &str) -> Vec<Value> {
        let before = self.events().await.len();
        let said = self.post("/v1/sessions/s/messages", &json!({"message": text})).await;
        assert_eq!(said.status, 204, "{said:?}");
        self.wait_idle("s").await;
        self.events().await.split_off(before)
    }

    pub(crate) async fn events(&self) -> Vec<Value> {
        let answer = self.get("/v1/sessions/s/events").await;
        answer["events"].as_array().unwrap().clone()
    }
}

/// What of some events is shown of a kind of part, one after the other.
pub(crate) fn shown(events: &[Value], kind: &str, field: &str) -> String {
    let done = events.iter().filter(|event| event["type"] == "item.completed");
    let parts = done.flat_map(|event| event["data"]["item"]["content"].as_array().unwrap());
    let texts = parts.filter(|part| part["type"] == kind).filter_map(|part| part[field].as_str());
    texts.collect::<Vec<_>>().join("|")
}

fn is_in_a_file(dir: &Path, text: &str) -> bool {
    std::fs::read_dir(dir).unwrap().flatten().any(|entry| match entry.path() {
        path if path.is_dir() => is_in_a_file(&path, text),
        path => String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).contains(text),
    })
}

#[tokio::test]
async fn a_session_is_made_once_and_told_as_often_as_it_is_asked_for() {
    let mut place = Place::new(Vec::new()).await;
    let (daemon, data) = place.machine().await;
    let wanted = json!({"agent": "mock", "secrets": {"TOKEN": "hush-1"}, "of_tomorrow": 1});
    let (one, two) = tokio::join!(daemon.host(&wanted), daemon.host(&wanted));
    assert_eq!(one["created"] == true, two["created"] == false, "{one} {two}");
    assert_eq!(one["native_session_id"], "mock-s");
    assert_eq!(
        (&one["resumed"], &one["ended"], &one["busy"]),
        (&json!("no"), &json!(false), &json!(false))
    );
    assert_eq!(one["secrets"], json!(["TOKEN"]));
    assert_eq!(one["event_count"], daemon.events().await.len());

    // Whoever asks again gives what was only in memory.
    let again = json!({"agent": "mock", "secrets": {"OTHER": "hush-2"}});
    assert_eq!(daemon.host(&again).await["secrets"], json!(["OTHER"]));
    let changed = daemon.change(&json!({"secrets": {"OTHER": "hush-3", "NEW": "hush-4"}})).await;
    assert_eq!(changed, json!({"keys": ["NEW", "OTHER"], "applies": "next_tool_call"}));
    daemon.post("/v1/sessions/s/terminate", &json!({})).await;
    let changed = daemon.change(&json!({"secrets": {}})).await;
    assert_eq!(changed, json!({"keys": ["NEW", "OTHER"], "applies": "never"}));
    assert_eq!(daemon.host(&again).await["ended"], true);
    assert!(!is_in_a_file(&data, "hush"), "a secret is in a file");
    let seen = format!("{} {:?}", daemon.get("/v1/sessions").await, daemon.events().await);
    assert!(!seen.contains("hush"), "{seen}");
    daemon.stop().await;
    place.end();
}

#[tokio::test]
async fn what_cannot_be_is_refused_by_its_name() {
    let mut place = Place::new(Vec::new()).await;
    let (daemon, _) = place.machine().await;
    daemon.host(&json!({"agent": "mock"})).await;
    for (id, body, why) in [
        ("s", json!({"agent": "deictic"}), "agent: another one was asked for: mock"),
        ("t", json!({"agent": "nobody"}), "nobody"),
        ("t", json!({"agent": "mock", "permission_mode": "sideways"}), "sideways"),
        ("t", json!({"agent": "mock", "native_session_id": "../../etc/x"}), "native_session_id"),
        ("t", json!({"agent": "mock", "native_session_id": "--help"}), "native_session_id"),
        ("t", json!({"agent": "mock", "history": "x".repeat(300_000)}), "history: longer than"),
        ("t", json!({"agent": "mock", "base_url": "http://x"}), "vendor: is needed"),
        ("t", json!({"agent": "mock", "api_key": "hush"}), "vendor"),
        ("t", json!({"agent": "mock", "vendor": "acme"}), "vendor: one of anthropic"),
        ("t", json!({"agent": "mock", "vendor": "google", "base_url": "not one"}), "base_url"),
        ("t", json!({"agent": "mock", "secrets": {"A=B": "hush"}}), "secrets: not a variable"),
        ("t", json!({"agent": "mock", "env": {"": "hush"}}), "env: not a variable"),
        ("t", json!({"agent": "mock", "directory": "/no/such"}), "directory"),
        ("t", json!({"agent": "deictic"}), "deictic needs a model"),
        (
            "t",
            json!({"agent": "deictic", "model": "claude-x", "vendor": "anthropic",
            "api_key": "hush", "app_json": {"tools": []}}),
            "app_json.tools",
        ),
    ] {
        let refused = daemon.put(&format!("/internal/sessions/{id}"), &body).await;
        assert_eq!(refused.status, 400, "{body}: {refused:?}");
        assert!(refused.body.contains(why), "{why}: {}", refused.body);
        assert!(!refused.body.contains("hush"), "{}", refused.body);
    }
    let none = daemon.put("/internal/sessions/t/env", &json!({"secrets": {}})).await;
    assert_eq!(none.status, 404, "{none:?}");
    // Whatever failed left its id free.
    let made = daemon.put("/internal/sessions/t", &json!({"agent": "mock"})).await;
    assert_eq!(made.status, 200, "{made:?}");
    daemon.stop().await;
    place.end();
}

#[tokio::test]
async fn a_session_is_made_also_when_who_asked_is_gone() {
    let mut place = Place::new(Vec::new()).await;
    let (daemon, _) = place.machine().await;
    let body = place.wanted("deictic", &json!({})).to_string();
    let headers = [("content-type".to_owned(), "application/json".to_owned())];
    drop(daemon.open("PUT /internal/sessions/s", &headers, Some(&body)).await);
    // The server is there again, and asks again.
    let told = daemon.host(&place.wanted("deictic", &json!({}))).await;
    assert!(told["native_session_id"].as_str().unwrap().starts_with("dei_"), "{told}");
    assert_eq!(
        shown(&daemon.turn("play:text").await, "text", "text"),
        "play:text|Hello from the model."
    );
    daemon.stop().await;
    place.end();
}

#[tokio::test]
async fn deictic_gets_other_secrets_with_the_next_call_and_its_next_key_too() {
    let path = ("PATH", "/usr/bin:/bin".to_owned());
    let mut place = Place::new(vec![path]).await;
    let (daemon, data) = place.machine().await;
    let secrets = json!({"TOKEN": "hush-1", "GOES": "away"});
    let changes = json!({"secrets": secrets, "api_key": "another-key"});
    place.model.rotate("another-key");
    daemon.host(&place.wanted("deictic", &changes)).await;
    let run = "play:run echo \"<$TOKEN$GOES>\"";
    assert!(shown(&daemon.turn(run).await, "tool_result", "output").contains("<hush-1away>"));

    place.model.rotate(KEY);
    let changed = daemon.change(&json!({"secrets": {"TOKEN": "hush-2"}, "api_key": KEY})).await;
    let keys = json!(["ANTHROPIC_API_KEY", "GOES", "LLM_API_KEY", "TOKEN"]);
    assert_eq!(changed, json!({"keys": keys, "applies": "next_tool_call"}));
    let events = daemon.turn(run).await;
    assert!(shown(&events, "tool_result", "output").contains("<hush-2>"), "{events:?}");

    // In the middle of a turn: the command that runs has the old one, the next one has not.
    let begun = place.workspace().join("begun");
    let wait = format!("play:run touch {}; while [ -e {0} ]; do sleep 0.01; done", begun.display());
    daemon.post("/v1/sessions/s/messages", &json!({"message": wait})).await;
    while !begun.exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(
        daemon.change(&json!({"secrets": {"TOKEN": "hush-3"}})).await["keys"],
        json!(["TOKEN"])
    );
    std::fs::remove_file(begun).unwrap();
    daemon.wait_idle("s").await;
    assert!(shown(&daemon.turn(run).await, "tool_result", "output").contains("<hush-3>"));
    let log = std::fs::read_to_string(data.join("sessions/00000001/session.json")).unwrap();
    assert!(!log.contains("hush") && !log.contains(KEY), "{log}");
    daemon.stop().await;
    place.end();
}

#[tokio::test]
async fn what_an_agent_does_for_another_says_for_what() {
    let mut place = Place::new(Vec::new()).await;
    let (daemon, _) = place.machine().await;
    let agents = json!([
        {"name": "Writer", "capability_name": "write", "capability_description": "writes"},
        {"name": "Reader", "capability_name": "read", "capability_description": "reads"},
    ]);
    let app = json!({"name": "Desk", "capability_sets": [{"name": "all", "agents": agents}]});
    daemon.host(&place.wanted("deictic", &json!({"app_json": app}))).await;
    let events = daemon.turn("play:delegate write").await;
    let items: Vec<&Value> = events.iter().map(|event| &event["data"]["item"]).collect();
    let call = |name: &str| {
        let named = |part: &Value| part["type"] == "tool_call" && part["name"] == name;
        let found = items
            .iter()
            .find(|item| item["content"].as_array().is_some_and(|parts| parts.iter().any(named)));
        found.unwrap_or_else(|| panic!("no call of {name}: {events:#?}"))
    };
    let (delegate, writer) = (call("delegate"), call("Writer"));
    assert!(delegate["parent_id"].is_null(), "{delegate}");
    assert_eq!(writer["parent_id"], delegate["item_id"], "{writer}");
    let mut of_writer = items.iter().filter(|item| item["parent_id"] == writer["item_id"]);
    assert!(of_writer.any(|item| item["kind"] == "message"), "{events:#?}");
    let said = shown(&events, "text", "text");
    assert!(said.contains("Hello from the model.") && said.contains("It came to: "), "{said}");
    daemon.stop().await;
    place.end();
}

#[tokio::test]
async fn deictic_goes_on_elsewhere_by_its_own_id_or_by_what_was_said() {
    let mut place = Place::new(Vec::new()).await;
    goes_on_elsewhere(&mut place, "deictic", &json!({})).await;
    place.end();
}

/// On a fresh machine with the same workspace; then on one where nothing is left of the agent's own.
pub(crate) async fn goes_on_elsewhere(place: &mut Place, agent: &str, changes: &Value) {
    let mut wanted = place.wanted(agent, changes);
    let (daemon, _) = place.machine().await;
    daemon.host(&wanted).await;
    daemon.turn("remember:walnut play:text").await;
    let native = daemon.host(&wanted).await["native_session_id"].clone();
    assert!(native.is_string(), "{native}");
    daemon.stop().await;
    let ignored = std::fs::read_to_string(place.workspace().join(".bastide/agent/.gitignore"));
    assert_eq!(ignored.unwrap(), "*\n");

    let (daemon, _) = place.machine().await;
    wanted["native_session_id"] = native;
    wanted["history"] = "User: remember:fig\n\nAssistant: I will.".into();
    let told = daemon.host(&wanted).await;
    assert_eq!((&told["created"], &told["resumed"]), (&json!(true), &json!("native")), "{told}");
    let said = shown(&daemon.turn("play:recall").await, "text", "text");
    assert_eq!(said, "play:recall|The word is walnut.");
    daemon.stop().await;

    let (daemon, _) = place.machine().await;
    wanted["state_dir"] = json!(place.workspace().join("empty"));
    // Who has to look for what was said asks without it first.
    let history = wanted["history"].take();
    let told = daemon.host(&wanted).await;
    assert_eq!((&told["created"], &told["resumed"]), (&json!(true), &json!("no")), "{told}");
    wanted["history"] = history;
    let told = daemon.host(&wanted).await;
    assert_eq!((&told["created"], &told["resumed"]), (&json!(false), &json!("history")), "{told}");
    wanted["history"] = "User: remember:plum".into();
    daemon.host(&wanted).await;
    let said = shown(&daemon.turn("play:recall").await, "text", "text");
    assert_eq!(said, "play:recall|The word is fig.", "what was added is not shown as the user's");
    daemon.host(&wanted).await;
    let said = shown(&daemon.turn("play:recall").await, "text", "text");
    assert_eq!(said, "play:recall|The word is fig.", "and is not said again");
    daemon.stop().await;
}

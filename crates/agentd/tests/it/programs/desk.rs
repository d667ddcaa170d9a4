//! One session with a real program, by the adapter's own interface: orders in, events out.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agentd::adapter::{
    Adapter, Answer, Ended, Message, Order, PermissionMode, PermissionReply, SessionSpec,
};
use agentd::{Host, Recorder};
use events::{
    ContentPart, ItemKind, ItemRole, ItemStatus, TURN_COMPLETED, UniversalEvent,
    UniversalEventData, UniversalItem,
};
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::model::{KEY, Model};
use super::registry::programs;

/// Far more than anything here takes, also on a loaded machine.
const WAIT: Duration = Duration::from_secs(100);

/// A home for one agent, a model, and what it takes to open sessions.
pub(crate) struct Town {
    pub(crate) model: Model,
    pub(crate) host: Arc<Host>,
    pub(crate) adapter: Arc<dyn Adapter>,
    dir: TempDir,
    sessions: std::sync::atomic::AtomicUsize,
}

/// An open session.
pub(crate) struct Desk {
    orders: mpsc::Sender<Order>,
    pub(crate) recorder: Recorder,
    run: JoinHandle<Ended>,
    /// Events that were looked at.
    seen: usize,
    /// What was said while the last turn ran.
    pub(crate) turn: Vec<UniversalEvent>,
    pub(crate) native_id: Option<String>,
}

impl Town {
    pub(crate) async fn new(agent: &str, variables: &[(&str, &str)]) -> Self {
        Self::with(agent, programs().await, variables).await
    }

    /// With its programs, or anything for agents that need none.
    pub(crate) async fn with(agent: &str, data_dir: PathBuf, variables: &[(&str, &str)]) -> Self {
        let model = Model::serve().await;
        // Not below /tmp: one of the programs does not want its home there.
        let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let home = dir.path().join("home");
        std::fs::create_dir_all(home.join("work")).unwrap();
        let mut environment: BTreeMap<OsString, OsString> = [
            ("PATH", "/usr/local/bin:/usr/bin:/bin"),
            ("LANG", "C.UTF-8"),
            ("ANTHROPIC_API_KEY", KEY),
            ("ANTHROPIC_BASE_URL", model.url()),
            ("OPENAI_API_KEY", KEY),
            // Older versions of one program do nothing without a list of models from somewhere.
            ("OPENCODE_MODELS_URL", model.url()),
            // Whatever is not for the model ends here.
            ("HTTPS_PROXY", "http://127.0.0.1:9"),
            ("HTTP_PROXY", "http://127.0.0.1:9"),
            ("NO_PROXY", "127.0.0.1,localhost"),
        ]
        .into_iter()
        .chain(variables.iter().copied())
        .map(|(name, value)| (name.into(), value.into()))
        .collect();
        environment.insert("HOME".into(), home.clone().into());
        let host = Arc::new(Host {
            data_dir,
            environment,
            directory: home.join("work"),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            mock_delay: Duration::ZERO,
            deictic: vec![env!("CARGO_BIN_EXE_agentd").into(), "deictic".into()],
        });
        let adapter = agentd::agents::all()
            .into_iter()
            .find(|adapter| adapter.description().id == agent)
            .unwrap();
        Self { model, host, adapter, dir, sessions: std::sync::atomic::AtomicUsize::new(0) }
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    pub(crate) fn work(&self) -> &Path {
        &self.host.directory
    }

    pub(crate) fn spec(&self) -> SessionSpec {
        SessionSpec {
            session_id: "test".to_owned(),
            agent_mode: "build".to_owned(),
            permission_mode: PermissionMode::Default,
            model: None,
            variant: None,
            directory: self.work().to_owned(),
            env: BTreeMap::new(),
            secrets: agentd::Secrets::default(),
            app: None,
            mcp: BTreeMap::new(),
            resume: None,
        }
    }

    pub(crate) async fn open(&self, spec: &SessionSpec) -> Desk {
        let number = self.sessions.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let log = self.dir.path().join(format!("{number}.log"));
        let id = &spec.session_id;
        // A log that was there before takes events at once.
        drop(Recorder::create(&log, id, true).unwrap());
        let recorder = Recorder::open(&log, id, true).unwrap();
        let opened = self.adapter.open(spec, &self.host, &recorder).await.unwrap();
        let (orders, receiver) = mpsc::channel(16);
        let run = self.host.tasks.spawn(opened.session.run(receiver, recorder.clone()));
        let native_id = opened.native_session_id;
        Desk { orders, recorder, run, seen: 0, turn: Vec::new(), native_id }
    }

    /// Everything is gone that was started, and the model had nothing to complain about.
    pub(crate) async fn close(self) {
        self.adapter.close().await;
        self.host.stop.cancel();
        self.host.tasks.close();
        let left = tokio::time::timeout(WAIT, self.host.tasks.wait()).await;
        assert!(left.is_ok(), "tasks of the adapter go on");
        assert_eq!(self.model.faults(), Vec::<String>::new());
        self.model.stop();
        assert_eq!(processes_below(&self.home()), Vec::<String>::new());
    }
}

impl Desk {
    async fn order(&self, order: Order) {
        self.orders.send(order).await.unwrap();
    }

    pub(crate) async fn say(&mut self, text: &str) {
        self.turn.clear();
        self.order(Order::Message(Message::new(text))).await;
    }

    /// Says it and waits for the end of the turn.
    pub(crate) async fn turn(&mut self, text: &str) {
        self.say(text).await;
        self.end_of_turn().await;
    }

    pub(crate) async fn end_of_turn(&mut self) -> String {
        let end = self
            .until("the end of the turn", |data| {
                let (label, detail) = status(data)?;
                (label == TURN_COMPLETED).then(|| detail.to_owned())
            })
            .await;
        let summary: Value = serde_json::from_str(&end).unwrap();
        summary["status"].as_str().unwrap().to_owned()
    }

    /// The first event from here on of which `wanted` knows something.
    pub(crate) async fn until<T>(
        &mut self,
        what: &str,
        wanted: impl Fn(&UniversalEventData) -> Option<T>,
    ) -> T {
        let deadline = Instant::now() + WAIT;
        loop {
            let events = self.recorder.events(true).unwrap();
            for event in &events[self.seen..] {
                self.seen += 1;
                self.turn.push(event.clone());
                if let Some(found) = wanted(&event.data) {
                    return found;
                }
            }
            let said = || serde_json::to_string_pretty(&self.turn).unwrap();
            assert!(Instant::now() < deadline, "waited for {what} in vain:\n{}", said());
            assert!(!self.run.is_finished(), "the session ended before {what}:\n{}", said());
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until it asks for a permission; its id and action.
    pub(crate) async fn permission(&mut self) -> (String, String) {
        self.until("a permission", |data| match data {
            UniversalEventData::PermissionRequested(asked) => {
                Some((asked.permission_id.clone(), asked.action.clone()))
            }
            _ => None,
        })
        .await
    }

    pub(crate) async fn reply(&self, id: &str, reply: PermissionReply) {
        self.order(Order::Permission { id: id.to_owned(), reply }).await;
    }

    /// Waits until it asks a question; its id, prompt and options.
    pub(crate) async fn question(&mut self) -> (String, String, Vec<String>) {
        self.until("a question", |data| match data {
            UniversalEventData::QuestionRequested(asked) => {
                Some((asked.question_id.clone(), asked.prompt.clone(), asked.options.clone()))
            }
            _ => None,
        })
        .await
    }

    pub(crate) async fn answer(&self, id: &str, words: Option<&str>) {
        let answer = match words {
            Some(words) => Answer::Answered(vec![vec![words.to_owned()]]),
            None => Answer::Rejected,
        };
        self.order(Order::Question { id: id.to_owned(), answer }).await;
    }

    /// Interrupts as soon as the model talks.
    pub(crate) async fn interrupt(&mut self) -> String {
        self.until("a delta", |data| match data {
            UniversalEventData::ItemDelta(delta) => delta.delta.contains("slow").then_some(()),
            _ => None,
        })
        .await;
        self.stop().await
    }

    /// Interrupts at once.
    pub(crate) async fn stop(&mut self) -> String {
        self.order(Order::Interrupt).await;
        self.end_of_turn().await
    }

    pub(crate) async fn terminate(self) {
        self.order(Order::Terminate).await;
        let ended = tokio::time::timeout(WAIT, self.run).await.unwrap().unwrap();
        assert_eq!(ended, Ended::Terminated);
    }

    /// The complete items of the turn.
    pub(crate) fn items(&self) -> Vec<&UniversalItem> {
        self.turn
            .iter()
            .filter_map(|event| match &event.data {
                UniversalEventData::ItemCompleted(data) => Some(&data.item),
                _ => None,
            })
            .collect()
    }

    /// What the assistant said in the turn, and that it was said in pieces before.
    #[track_caller]
    pub(crate) fn said(&self) -> Vec<String> {
        let items = self.items();
        let items = items.iter().filter(|item| {
            item.kind == ItemKind::Message && item.role == Some(ItemRole::Assistant)
        });
        items
            .filter_map(|item| {
                let text = text_of(item)?;
                assert_eq!(self.deltas(&item.item_id), text, "the deltas are the message");
                Some(text)
            })
            .collect()
    }

    pub(crate) fn deltas(&self, item: &str) -> String {
        self.turn
            .iter()
            .filter_map(|event| match &event.data {
                UniversalEventData::ItemDelta(data) if data.item_id == item => {
                    Some(data.delta.as_str())
                }
                _ => None,
            })
            .collect()
    }

    /// The one call of the turn and its result: name, output, whether it went well.
    #[track_caller]
    pub(crate) fn call(&self) -> (String, String, bool) {
        let (mut calls, mut results) = (Vec::new(), Vec::new());
        for item in self.items() {
            for part in &item.content {
                match part {
                    ContentPart::ToolCall { name, call_id, .. } => {
                        calls.push((name.clone(), call_id.clone(), item.item_id.clone()));
                    }
                    ContentPart::ToolResult { call_id, output } => {
                        let fine = item.status == ItemStatus::Completed;
                        results.push((call_id, output.clone(), fine, item.parent_id.clone()));
                    }
                    _ => {}
                }
            }
        }
        assert_eq!((calls.len(), results.len()), (1, 1), "{:#?}", self.items());
        let ((name, id, item), (of, output, fine, parent)) = (calls.remove(0), results.remove(0));
        assert_eq!((&id, Some(item)), (of, parent), "the result is the call's");
        (name, output, fine)
    }

    /// The errors of the turn: code and message.
    pub(crate) fn errors(&self) -> Vec<(String, String)> {
        self.turn
            .iter()
            .filter_map(|event| match &event.data {
                UniversalEventData::Error(error) => {
                    Some((error.code.clone().unwrap_or_default(), error.message.clone()))
                }
                _ => None,
            })
            .collect()
    }

    /// Everything has a cause: what the program said is kept with what was made of it.
    #[track_caller]
    pub(crate) fn assert_raw(&self) {
        for event in &self.turn {
            assert!(event.synthetic || event.raw.is_some(), "no raw: {event:?}");
        }
    }
}

pub(crate) fn status(data: &UniversalEventData) -> Option<(&str, &str)> {
    let UniversalEventData::ItemCompleted(data) = data else { return None };
    data.item.content.iter().find_map(|part| match part {
        ContentPart::Status { label, detail } => {
            Some((label.as_str(), detail.as_deref().unwrap_or_default()))
        }
        _ => None,
    })
}

fn text_of(item: &UniversalItem) -> Option<String> {
    let texts: Vec<&str> = item
        .content
        .iter()
        .filter_map(|part| match part {
            ContentPart::Text { text } => Some(text.as_str()),
            _ => None,
        })
        .collect();
    (!texts.is_empty()).then(|| texts.join("\n"))
}

/// Processes that were given this home and live.
fn processes_below(home: &Path) -> Vec<String> {
    let wanted = format!("HOME={}", home.display());
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let environ = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        if environ.split(|byte| *byte == 0).any(|one| one == wanted.as_bytes()) {
            let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            found.push(String::from_utf8_lossy(&command).replace('\0', " "));
        }
    }
    found
}

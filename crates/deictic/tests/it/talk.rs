//! One session over a pair of pipes: what is said to it, and what it says.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use deictic::protocol::{Heard, Item, McpServer, PermissionMode, Reply, Said, Start, TurnStatus};
use deictic::{Environment, Limits, Surroundings, serve_stdio};
use events::{ContentPart, ItemKind, ItemStatus};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, Lines, duplex};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::model::{KEY, MODEL, Model};

/// Far more than anything here takes, also on a loaded machine.
const WAIT: Duration = Duration::from_secs(60);

/// What a session is opened with, and a directory for it.
pub(crate) struct Setup {
    dir: TempDir,
    pub(crate) start: Start,
    pub(crate) limits: Limits,
    pub(crate) environment: Environment,
}

impl Setup {
    pub(crate) fn new(model: &Model) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("work")).unwrap();
        let start = Start {
            vendor: Some(model.dialect().vendor().to_owned()),
            model: Some(MODEL.to_owned()),
            base_url: Some(model.url().to_owned()),
            permission_mode: PermissionMode::Bypass,
            ..Start::default()
        };
        let environment = BTreeMap::from([
            ("LLM_API_KEY".to_owned(), KEY.to_owned()),
            ("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned()),
        ]);
        let limits = Limits {
            idle: Duration::from_secs(20),
            back_off: Duration::from_millis(5),
            ..Limits::default()
        };
        Self { dir, start, limits, environment }
    }

    pub(crate) fn mode(mut self, mode: PermissionMode) -> Self {
        self.start.permission_mode = mode;
        self
    }

    pub(crate) fn app(mut self, app: Value) -> Self {
        self.start.app = Some(app);
        self
    }

    pub(crate) fn server(mut self, name: &str, server: McpServer) -> Self {
        self.start.mcp.insert(name.to_owned(), server);
        self
    }

    pub(crate) fn limits(mut self, change: impl FnOnce(&mut Limits)) -> Self {
        change(&mut self.limits);
        self
    }

    pub(crate) fn work(&self) -> PathBuf {
        self.dir.path().join("work")
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.start.state_dir.clone().unwrap_or_else(|| self.dir.path().join("state"))
    }

    pub(crate) fn surroundings(&self, attended: bool) -> Surroundings {
        Surroundings {
            environment: self.environment.clone(),
            directory: self.work(),
            state_dir: self.state(),
            limits: self.limits.clone(),
            attended,
        }
    }

    /// Ready.
    pub(crate) async fn open(&self) -> Talk {
        let mut talk = self.begin().await;
        match talk.next().await {
            Some(Said::Ready { session, .. }) => talk.id = session,
            other => panic!("not ready: {other:?}"),
        }
        talk
    }

    /// Ready; what it says before that is in its turn.
    pub(crate) async fn open_after_statuses(&self) -> Talk {
        let mut talk = self.begin().await;
        let ready = |said: &Said| match said {
            Said::Ready { session, .. } => Some(session.clone()),
            _ => None,
        };
        talk.id = talk.until(ready).await;
        talk
    }

    /// What it says to be opened so, if it cannot.
    pub(crate) async fn refusal(&self) -> String {
        let mut talk = self.begin().await;
        match talk.next().await {
            Some(Said::Refused { message }) => message,
            other => panic!("not refused: {other:?}"),
        }
    }

    async fn begin(&self) -> Talk {
        let (ours, theirs) = duplex(64 * 1024);
        let (output, said) = duplex(64 * 1024);
        let around = self.surroundings(true);
        let tasks = TaskTracker::new();
        let run = tasks.spawn(async move {
            serve_stdio(BufReader::new(theirs), output, around).await.unwrap()
        });
        let lines = BufReader::new(said).lines();
        let mut talk = Talk { input: Some(ours), lines, run, turn: Vec::new(), id: String::new() };
        talk.line(&serde_json::to_string(&self.start).unwrap()).await;
        talk
    }
}

pub(crate) struct Talk {
    input: Option<DuplexStream>,
    lines: Lines<BufReader<DuplexStream>>,
    run: JoinHandle<bool>,
    /// What was said since the last message.
    pub(crate) turn: Vec<Said>,
    pub(crate) id: String,
}

impl Talk {
    /// A message and its turn.
    pub(crate) async fn turn(&mut self, text: &str) -> TurnStatus {
        self.say(text).await;
        self.end_of_turn().await
    }

    pub(crate) async fn say(&mut self, text: &str) {
        self.turn.clear();
        self.tell(&Heard::Message { text: text.to_owned() }).await;
    }

    pub(crate) async fn tell(&mut self, heard: &Heard) {
        self.line(&serde_json::to_string(heard).unwrap()).await;
    }

    pub(crate) async fn reply(&mut self, id: &str, reply: Reply) {
        self.tell(&Heard::Permission { id: id.to_owned(), reply }).await;
    }

    pub(crate) async fn answer(&mut self, id: &str, answer: Option<&str>) {
        let answers = answer.map(|answer| vec![answer.to_owned()]);
        self.tell(&Heard::Question { id: id.to_owned(), answers }).await;
    }

    pub(crate) async fn line(&mut self, line: &str) {
        let input = self.input.as_mut().unwrap();
        input.write_all(line.as_bytes()).await.unwrap();
        input.write_all(b"\n").await.unwrap();
    }

    pub(crate) async fn end_of_turn(&mut self) -> TurnStatus {
        self.until(|said| match said {
            Said::TurnOver { status, .. } => Some(*status),
            _ => None,
        })
        .await
    }

    /// The id and what it is about.
    pub(crate) async fn permission(&mut self) -> (String, String) {
        self.until(|said| match said {
            Said::PermissionRequested { id, action, .. } => Some((id.clone(), action.clone())),
            _ => None,
        })
        .await
    }

    pub(crate) async fn question(&mut self) -> (String, String, Vec<String>) {
        self.until(|said| match said {
            Said::QuestionRequested { id, prompt, options } => {
                Some((id.clone(), prompt.clone(), options.clone()))
            }
            _ => None,
        })
        .await
    }

    pub(crate) async fn until<T>(&mut self, mut find: impl FnMut(&Said) -> Option<T>) -> T {
        loop {
            let said = self.next().await;
            let said = said.unwrap_or_else(|| panic!("it ended: {:#?}", self.turn));
            if let Some(found) = find(&said) {
                return found;
            }
        }
    }

    async fn next(&mut self) -> Option<Said> {
        let line = timeout(WAIT, self.lines.next_line()).await;
        let line = line.unwrap_or_else(|_| panic!("it says nothing: {:#?}", self.turn));
        let said: Said = serde_json::from_str(&line.unwrap()?).unwrap();
        self.turn.push(said.clone());
        Some(said)
    }

    /// Ends the session. Everything that was begun is complete.
    pub(crate) async fn close(mut self) {
        self.input = None;
        while self.next().await.is_some() {}
        assert!(timeout(WAIT, &mut self.run).await.unwrap().unwrap());
    }

    /// Items that are complete.
    pub(crate) fn items(&self) -> Vec<Item> {
        let items = self.turn.iter().filter_map(|said| match said {
            Said::ItemCompleted { item } => Some(item.clone()),
            _ => None,
        });
        items.collect()
    }

    /// Nothing that was begun in the turn is open.
    #[track_caller]
    pub(crate) fn assert_closed(&self) {
        for said in &self.turn {
            if let Said::ItemStarted { item } = said {
                let closed = self.items().iter().any(|one| one.id == item.id);
                assert!(closed, "never completed: {item:?}");
            }
        }
    }

    /// What the agent itself said, message by message.
    pub(crate) fn texts(&self) -> Vec<String> {
        let parts = self.items().into_iter().filter(|item| item.kind == ItemKind::Message);
        let texts = parts.flat_map(|item| item.content).filter_map(|part| match part {
            ContentPart::Text { text } => Some(text),
            _ => None,
        });
        texts.collect()
    }

    pub(crate) fn thoughts(&self) -> Vec<String> {
        let parts = self.items().into_iter().flat_map(|item| item.content);
        let texts = parts.filter_map(|part| match part {
            ContentPart::Reasoning { text, .. } => Some(text),
            _ => None,
        });
        texts.collect()
    }

    /// Results of tools, and whether they are good.
    pub(crate) fn results(&self) -> Vec<(String, bool)> {
        let mut results = Vec::new();
        for item in self.items() {
            for part in &item.content {
                if let ContentPart::ToolResult { output, .. } = part {
                    results.push((output.clone(), item.status == ItemStatus::Completed));
                }
            }
        }
        results
    }

    /// Details of status items of this label.
    pub(crate) fn statuses(&self, wanted: &str) -> Vec<Value> {
        let parts = self.items().into_iter().flat_map(|item| item.content);
        let details = parts.filter_map(|part| match part {
            ContentPart::Status { label, detail } if label == wanted => detail,
            _ => None,
        });
        details.map(|detail| serde_json::from_str(&detail).unwrap()).collect()
    }

    /// Codes of errors.
    pub(crate) fn errors(&self) -> Vec<String> {
        let errors = self.turn.iter().filter_map(|said| match said {
            Said::Error { code, .. } => Some(code.clone()),
            _ => None,
        });
        errors.collect()
    }
}

/// Processes with this in their environment.
pub(crate) fn processes_with(variable: &str) -> usize {
    let mut found = 0;
    for entry in Path::new("/proc").read_dir().unwrap().flatten() {
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        if environment.split(|byte| *byte == 0).any(|one| one == variable.as_bytes()) {
            found += 1;
        }
    }
    found
}

/// Waits until there is none.
pub(crate) async fn gone(variable: &str) {
    let gone = async {
        while processes_with(variable) > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(10), gone).await.expect("they are gone");
}

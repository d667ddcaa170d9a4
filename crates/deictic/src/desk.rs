//! Where the user is asked: may I do this, what do you want. Whoever asks waits here until somebody answers or
//! the turn is interrupted.
//!
//! ```text
//! default: reading is free; the rest is asked for      plan: reading only --exit_plan approved--> default
//! bypass: everything is free                           nobody there: what would be asked for is refused
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::protocol::{PermissionMode, Reply, Said};
use crate::tools::Tool;
use crate::voice::{Voice, new_id};

/// Permissions and questions that may wait at once.
const OPEN_MAX: usize = 64;

/// Calls that are allowed for the session, one by one.
const ALLOWED_MAX: usize = 1024;

#[derive(Debug)]
pub(crate) struct Desk {
    /// Somebody may answer.
    attended: bool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    mode: PermissionMode,
    allowed: BTreeSet<String>,
    open: BTreeMap<String, oneshot::Sender<Given>>,
}

/// What somebody answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Given {
    Permission(Reply),
    /// `None`: rejected.
    Answer(Option<Vec<String>>),
}

/// Whether a tool may be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allowed,
    /// What the model is told.
    Denied(&'static str),
    Interrupted,
}

/// What is to be used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) name: &'a str,
    /// `None`: of a tool server.
    pub(crate) tool: Option<Tool>,
    pub(crate) arguments: &'a Value,
}

impl Wanted<'_> {
    fn only_reads(&self) -> bool {
        self.tool.is_some_and(Tool::only_reads)
    }

    /// What "always" holds for: of commands, the same command; of other tools, the tool.
    fn kind(&self) -> String {
        match self.tool {
            Some(Tool::ShellExec) => {
                let command = self.arguments.get("command").and_then(Value::as_str);
                format!("{}:{}", self.name, command.unwrap_or_default())
            }
            _ => self.name.to_owned(),
        }
    }
}

impl Desk {
    pub(crate) fn new(mode: PermissionMode, attended: bool) -> Self {
        let state = State { mode, allowed: BTreeSet::new(), open: BTreeMap::new() };
        Self { attended, state: Mutex::new(state) }
    }

    pub(crate) fn mode(&self) -> PermissionMode {
        self.lock().mode
    }

    /// The plan is approved: from now on the rest is asked for.
    pub(crate) fn leave_plan(&self) {
        self.lock().mode = PermissionMode::Default;
    }

    /// Asks, if it has to be asked for.
    pub(crate) async fn permit(
        &self,
        wanted: Wanted<'_>,
        voice: &Voice,
        cancel: &CancellationToken,
    ) -> Verdict {
        if wanted.only_reads() {
            return Verdict::Allowed;
        }
        match self.mode() {
            PermissionMode::Bypass => return Verdict::Allowed,
            PermissionMode::Plan => {
                return Verdict::Denied(
                    "not while planning: only reading is allowed; present your plan with exit_plan",
                );
            }
            PermissionMode::Default => {}
        }
        let kind = wanted.kind();
        if self.lock().allowed.contains(&kind) {
            return Verdict::Allowed;
        }
        if !self.attended {
            return Verdict::Denied(
                "not allowed: nobody is here to permit it; it needs the permission mode bypass",
            );
        }
        let id = new_id();
        let metadata = json!({"toolName": wanted.name, "input": wanted.arguments});
        let action = wanted.name.to_owned();
        let asked = Said::PermissionRequested { id: id.clone(), action, metadata };
        let withdrawn = Said::PermissionWithdrawn { id: id.clone() };
        match self.wait(id, asked, withdrawn, (voice, cancel)).await {
            Waited::Given(Given::Permission(Reply::Once)) => Verdict::Allowed,
            Waited::Given(Given::Permission(Reply::Always)) => {
                let mut state = self.lock();
                if state.allowed.len() < ALLOWED_MAX {
                    state.allowed.insert(kind);
                }
                Verdict::Allowed
            }
            Waited::Given(Given::Permission(Reply::Reject) | Given::Answer(_)) => {
                Verdict::Denied("the user does not want this")
            }
            Waited::Full => Verdict::Denied("too much waits for the user already"),
            Waited::Interrupted => Verdict::Interrupted,
        }
    }

    /// What the user answers; `None` if nobody does.
    pub(crate) async fn ask(
        &self,
        prompt: String,
        options: Vec<String>,
        voice: &Voice,
        cancel: &CancellationToken,
    ) -> Option<Vec<String>> {
        if !self.attended {
            return None;
        }
        let id = new_id();
        let asked = Said::QuestionRequested { id: id.clone(), prompt, options };
        let withdrawn = Said::QuestionWithdrawn { id: id.clone() };
        match self.wait(id, asked, withdrawn, (voice, cancel)).await {
            Waited::Given(Given::Answer(answers)) => answers,
            Waited::Given(Given::Permission(_)) | Waited::Full | Waited::Interrupted => None,
        }
    }

    /// Somebody answered. What is not asked (any more) is nobody's.
    pub(crate) fn settle(&self, id: &str, given: Given) {
        let waiting = self.lock().open.remove(id);
        if let Some(waiting) = waiting {
            let _ = waiting.send(given);
        }
    }

    async fn wait(
        &self,
        id: String,
        asked: Said,
        withdrawn: Said,
        (voice, cancel): (&Voice, &CancellationToken),
    ) -> Waited {
        let (sender, receiver) = oneshot::channel();
        {
            let mut state = self.lock();
            if state.open.len() >= OPEN_MAX {
                return Waited::Full;
            }
            state.open.insert(id.clone(), sender);
        }
        voice.say(asked).await;
        tokio::select! {
            given = receiver => given.map_or(Waited::Interrupted, Waited::Given),
            () = cancel.cancelled() => {
                if self.lock().open.remove(&id).is_some() {
                    voice.say(withdrawn).await;
                }
                Waited::Interrupted
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Waited {
    Given(Given),
    Full,
    Interrupted,
}

//! What an agent's adapter is. One module under `agents/` a program; it speaks the program's own
//! protocol on one side and records [`Conversion`](crate::Conversion)s on the other. It does not number
//! events, answer clients, queue messages or know what HTTP is.
//!
//! ```text
//! open -> run: idle --(Message)--> turn --(turn_completed | turn_ended)--> idle
//!               |  Interrupt: the turn ends soon        |  Terminate, or the program is gone
//!               +---------------------------------------+--> Ended
//! ```
//!
//! The session's task runs [`AgentSession::run`] and is the only one that sends it orders: never a
//! message while a turn runs. Dropping the future of `run` must kill what it started, which
//! [`AgentProcess`](crate::process::AgentProcess) does by itself.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::mpsc;
use utoipa::ToSchema;

use crate::api::{AgentCapabilities, AgentModeInfo, ModelInfo, ServerStatusInfo};
use crate::error::{Error, Result};
use crate::host::Host;
use crate::recorder::Recorder;
use crate::secrets::{Change, Secrets};

/// One agent program, for the life of the daemon.
#[async_trait]
pub trait Adapter: Send + Sync + 'static {
    fn description(&self) -> &'static Description;

    /// What `GET /v1/agents/{agent}/modes` answers. May ask the program if it is there; must fall
    /// back to the table.
    async fn modes(&self, _host: &Arc<Host>) -> Vec<AgentModeInfo> {
        self.description().modes.iter().map(AgentModeInfo::from).collect()
    }

    /// What `GET /v1/agents/{agent}/models` answers. Empty when the program cannot tell.
    async fn models(&self, _host: &Arc<Host>) -> Result<Vec<ModelInfo>> {
        Ok(Vec::new())
    }

    /// Which modes a session gets for what was asked. The table decides, unless the adapter knows better.
    fn choose_modes(&self, agent: Option<&str>, permission: Option<&str>) -> Result<Modes> {
        self.description().choose_modes(agent, permission)
    }

    /// Makes a session ready to take messages, or resumes it (`spec.resume`). What fails here is the
    /// answer of the request that creates the session.
    async fn open(
        &self,
        spec: &SessionSpec,
        host: &Arc<Host>,
        recorder: &Recorder,
    ) -> Result<Opened>;

    /// Whether a conversation of before can be gone on with, as far as that can be told without the
    /// program. What [`Adapter::open`] then says counts.
    fn knows(&self, _native_session_id: &str, _spec: &SessionSpec, _host: &Host) -> bool {
        true
    }

    /// Of the process that sessions share, for agents that have one.
    fn server_status(&self) -> Option<ServerStatusInfo> {
        None
    }

    /// A session was let go, to be opened again with other variables: ends shared processes that no session
    /// uses any more, so that they hold nothing of it.
    async fn let_go(&self) {}

    /// The daemon stops: ends the shared process. Called once, after every session ended.
    async fn close(&self) {}
}

/// A session that is ready.
pub struct Opened {
    /// The agent's own id of it, if it is known already; else `recorder.native_session_id(..)` later.
    pub native_session_id: Option<String>,
    pub session: Box<dyn AgentSession>,
}

/// One conversation with an agent, until it ends.
#[async_trait]
pub trait AgentSession: Send {
    /// Carries out orders and records what the agent does. Returns when the agent is gone or after
    /// [`Order::Terminate`]; if that takes longer than [`TERMINATE_GRACE`] the future is dropped.
    /// Every turn must be ended with `recorder.turn_completed(..)` or `recorder.turn_ended()`.
    async fn run(self: Box<Self>, orders: mpsc::Receiver<Order>, recorder: Recorder) -> Ended;
}

/// How long a session may take to end by itself.
pub const TERMINATE_GRACE: std::time::Duration = std::time::Duration::from_secs(5);

/// What the session's task wants. `Message` comes only while no turn runs; the others at any time.
#[derive(Debug, Clone, PartialEq)]
pub enum Order {
    /// Begins a turn.
    Message(Message),
    /// Only for ids that the adapter recorded as requested, once each. The event that it is
    /// resolved is already recorded.
    Permission { id: String, reply: PermissionReply },
    /// As with permissions.
    Question { id: String, answer: Answer },
    /// Ends the turn, if one runs; the session goes on.
    Interrupt,
    /// Only for agents that take it while they run ([`Description::takes_environment`]).
    Environment(Change),
    /// Interrupt, then end the program and return.
    Terminate,
}

/// A user's message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub text: String,
    /// What was said before, for an agent that does not know it. Not part of what the user says now.
    pub context: Option<String>,
}

/// Around a context, by which it is known again where an agent repeats it.
const CONTEXT: (&str, &str) = ("<earlier_conversation>\n", "\n</earlier_conversation>\n\n");

impl Message {
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), context: None }
    }

    /// The context as an agent gets it.
    pub(crate) fn before(&self) -> Option<String> {
        let (open, close) = CONTEXT;
        self.context.as_ref().map(|context| format!("{open}{context}{close}"))
    }

    /// All that the agent is to read, as one text.
    pub(crate) fn whole(&self) -> String {
        self.before().unwrap_or_default() + &self.text
    }
}

/// Whether a text is what [`Message::before`] made.
pub(crate) fn is_context(text: &str) -> bool {
    text.starts_with(CONTEXT.0) && text.ends_with(CONTEXT.1)
}

/// How a permission is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PermissionReply {
    Once,
    /// For the rest of the session, never beyond it.
    Always,
    Reject,
}

/// How a question is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// One list a question.
    Answered(Vec<Vec<String>>),
    Rejected,
}

/// Why [`AgentSession::run`] returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// The program is gone without a failure (or the adapter let it go because it was idle); the
    /// next message opens the session again with `spec.resume`.
    Dormant,
    /// The agent ended the session for good.
    Completed,
    /// The program failed. What it was (`code` is `process_exit`, `server_exit`, …) is recorded as
    /// an error event by the session's task.
    Failed { code: &'static str, message: String, exit_code: Option<i32>, stderr: Option<String> },
    /// As ordered.
    Terminated,
}

/// What was asked of a session, checked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionSpec {
    pub session_id: String,
    pub agent_mode: String,
    pub permission_mode: PermissionMode,
    pub model: Option<String>,
    pub variant: Option<String>,
    /// Where the agent works; exists.
    pub directory: PathBuf,
    /// Beside the environment that the host lets through.
    pub env: BTreeMap<String, String>,
    /// Beside that, and in memory alone.
    #[serde(skip)]
    pub secrets: Secrets,
    /// The agents of an application, for an agent that leads others.
    #[serde(default)]
    pub app: Option<Value>,
    pub mcp: BTreeMap<String, McpServer>,
    /// The agent's own id of the session to go on with.
    pub resume: Option<String>,
}

impl SessionSpec {
    /// All that its processes get beside what the host lets through.
    pub fn environment(&self) -> BTreeMap<String, String> {
        let secrets = self.secrets.iter().map(|(name, value)| (name.clone(), value.clone()));
        self.env.clone().into_iter().chain(secrets).collect()
    }
}

/// A tool server that the agent is to use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum McpServer {
    Local {
        command: Vec<String>,
        #[serde(default)]
        env: BTreeMap<String, String>,
    },
    Remote {
        url: String,
        #[serde(default)]
        headers: BTreeMap<String, String>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PermissionMode {
    /// Asks.
    Default,
    /// Reads only.
    Plan,
    /// Never asks.
    Bypass,
}

impl PermissionMode {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Plan => "plan",
            Self::Bypass => "bypass",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Default, Self::Plan, Self::Bypass].into_iter().find(|mode| mode.as_str() == text)
    }
}

/// The modes of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Modes {
    pub agent: String,
    pub permission: PermissionMode,
}

/// What is known of an agent without asking it.
#[derive(Debug)]
pub struct Description {
    /// As in paths and requests.
    pub id: &'static str,
    /// The file to look for, in our directory of installed agents and then on `PATH`. `None`: built in.
    pub program: Option<&'static str>,
    pub capabilities: AgentCapabilities,
    /// The first one is the default.
    pub modes: &'static [Mode],
    /// Takes modes that are not in the table too.
    pub modes_are_open: bool,
    pub permission_modes: &'static [PermissionMode],
    /// Its turns end with a `turn.completed` item, which is then what ends `/messages/stream`;
    /// otherwise a complete message of the assistant does.
    pub marks_turns: bool,
    /// The variable with the directory from which a conversation is gone on with, if there is one.
    pub state_variable: Option<&'static str>,
    /// Takes other variables while it runs. The rest get them with their next process, between turns.
    pub takes_environment: bool,
}

#[derive(Debug)]
pub struct Mode {
    pub id: &'static str,
    pub name: &'static str,
    pub description: &'static str,
}

impl Description {
    /// The table's word on modes.
    pub fn choose_modes(&self, agent: Option<&str>, permission: Option<&str>) -> Result<Modes> {
        let default = self.modes.first().map_or("build", |mode| mode.id);
        let agent = agent.unwrap_or(default);
        if !self.modes_are_open && !self.modes.iter().any(|mode| mode.id == agent) {
            return Err(self.refuse_mode(agent));
        }
        let asked = permission.unwrap_or(PermissionMode::Default.as_str());
        let permission = PermissionMode::parse(asked)
            .ok_or_else(|| Error::invalid(format!("invalid permission mode: {asked}")))?;
        if !self.permission_modes.contains(&permission) {
            return Err(self.refuse_mode(asked));
        }
        Ok(Modes { agent: agent.to_owned(), permission })
    }

    fn refuse_mode(&self, mode: &str) -> Error {
        Error::ModeNotSupported { agent: self.id.to_owned(), mode: mode.to_owned() }
    }
}

impl From<&Mode> for AgentModeInfo {
    fn from(mode: &Mode) -> Self {
        Self {
            id: mode.id.to_owned(),
            name: mode.name.to_owned(),
            description: mode.description.to_owned(),
        }
    }
}

/// The metadata of the first event of every session.
pub(crate) fn started_metadata(agent: &str, spec: &SessionSpec) -> Value {
    serde_json::json!({
        "agent": agent,
        "agentMode": spec.agent_mode,
        "model": spec.model,
        "permissionMode": spec.permission_mode.as_str(),
        "variant": spec.variant,
    })
}

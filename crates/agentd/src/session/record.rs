//! What a session's directory says about it: `session.json`, replaced as a whole.

use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::adapter::SessionSpec;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) agent: String,
    /// In which order sessions were made.
    pub(crate) number: u64,
    pub(super) spec: SessionSpec,
    pub(crate) title: Option<String>,
    /// Absent if none was asked for.
    pub(crate) directory_asked: Option<String>,
    pub(crate) native_session_id: Option<String>,
    pub(crate) end: Option<End>,
    /// What was said before, until the agent was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) context: Option<String>,
    #[serde(default)]
    pub(crate) resumed: Resumed,
    #[serde(default)]
    pub(crate) checkpoint: Checkpoint,
}

/// How a session ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "snake_case")]
pub(crate) enum End {
    Completed,
    Failed { exit_code: Option<i32>, stderr: Option<String> },
    Terminated,
}

/// How a session that was one before goes on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Resumed {
    /// It is a new one.
    #[default]
    No,
    /// The agent remembers.
    Native,
    /// The agent is told what was said.
    History,
}

/// How many events the log had when it was so long.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Checkpoint {
    pub(crate) bytes: u64,
    pub(crate) count: u64,
}

impl Record {
    pub(crate) fn new(number: u64, agent: &str, spec: SessionSpec) -> Self {
        Self {
            agent: agent.to_owned(),
            number,
            spec,
            title: None,
            directory_asked: None,
            native_session_id: None,
            end: None,
            context: None,
            resumed: Resumed::No,
            checkpoint: Checkpoint::default(),
        }
    }

    pub(crate) fn spec(&self) -> &SessionSpec {
        &self.spec
    }

    pub(crate) fn load(directory: &Path) -> io::Result<Self> {
        let text = std::fs::read(directory.join("session.json"))?;
        serde_json::from_slice(&text).map_err(io::Error::from)
    }

    /// The environment in it may hold keys, so that nobody else reads it.
    pub(super) fn save(&self, directory: &Path) -> io::Result<()> {
        let text = serde_json::to_vec(self)?;
        let temporary = directory.join("session.json.new");
        let mut options = std::fs::File::options();
        let mut file =
            options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(&text)?;
        file.sync_all()?;
        std::fs::rename(&temporary, directory.join("session.json"))
    }
}

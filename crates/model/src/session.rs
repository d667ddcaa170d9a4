//! Sessions: conversations with an agent that outlive connections and sandboxes. What was asked for,
//! which a resume needs again, and how one is. Nothing here is secret.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{AgentKind, BundleName, Error, SessionId, Vendor, WorkspaceId};

/// What a session is, decided once at its create. New fields get `#[serde(default)]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionSpec {
    pub agent: AgentKind,
    #[serde(default)]
    pub agent_version: Option<String>,
    pub template: String,
    pub vendor: Vendor,
    #[serde(default)]
    pub model: Option<String>,
    #[serde(default)]
    pub base_url: Option<String>,
    /// Bundles of secrets, by name.
    #[serde(default)]
    pub bundles: Vec<BundleName>,
    pub app_id: String,
    pub set_id: String,
    /// The app as the agent gets it; absent for its own.
    #[serde(default)]
    pub app_json: Option<serde_json::Value>,
    pub wire_version: u8,
    /// The session that this one continues, and after which event.
    #[serde(default)]
    pub forked_from: Option<Fork>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fork {
    pub session: SessionId,
    pub at: u64,
}

/// How a session is, or how its last life ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionStatus {
    Running,
    Completed,
    Failed,
    Interrupted,
}

impl SessionSpec {
    /// What it has of files, which no other session has (ruling 38).
    pub fn workspace(&self, session: &SessionId) -> Result<WorkspaceId, Error> {
        WorkspaceId::new(&self.app_id, &format!("{}.{session}", self.set_id))
    }
}

impl SessionStatus {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Interrupted => "interrupted",
        }
    }
}

impl fmt::Display for SessionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for SessionStatus {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let all = [Self::Running, Self::Completed, Self::Failed, Self::Interrupted];
        let found = all.into_iter().find(|status| status.as_str() == text);
        found.ok_or_else(|| Error::invalid("status", format!("unknown: {text:?}")))
    }
}

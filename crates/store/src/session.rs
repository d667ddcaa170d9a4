//! Sessions: what they are and how they are, one row each. Their events are elsewhere, see `session_log`.

use jiff::Timestamp;
use model::{OwnerId, SandboxId, SessionId, SessionSpec, SessionStatus};

#[derive(Debug, Clone, PartialEq)]
pub struct SessionRecord {
    pub id: SessionId,
    pub owner: OwnerId,
    pub spec: SessionSpec,
    pub status: SessionStatus,
    /// Why its last life ended.
    pub reason: Option<String>,
    /// Where it runs, or ran last.
    pub sandbox: Option<SandboxId>,
    /// One more with every resume.
    pub life: u64,
    /// As the agent itself calls the conversation.
    pub native_session_id: Option<String>,
    pub created_at: Timestamp,
    /// Of the current life.
    pub expires_at: Timestamp,
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub tool_calls: u64,
}

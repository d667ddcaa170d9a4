//! What the routes of sessions take besides a create, and what they answer.

use jiff::Timestamp;
use model::{Error, Result, SessionId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::lifetime;
use crate::query::Query;

/// Sessions of one page.
const PAGE_MAX: u32 = 1000;

/// A session that runs, and the way to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "chat_session_id": "ses_01k9q5t0a7e8fbqjyx3mz2c4nd",
    "jwt": "eyJ…",
    "connect_url": "wss://rt.example.com/v1/sessions/ses_01k9q5t0a7e8fbqjyx3mz2c4nd/ws",
    "expires_at": "2026-04-28T13:00:00Z",
    "sandbox_id": "sb-01k9q5t0a7e8fbqjyx3mz2c4ne"
}))]
pub struct SessionCreated {
    pub chat_session_id: String,
    /// Opens the WebSocket of this session, until it expires.
    pub jwt: String,
    pub connect_url: String,
    /// When the token expires and the sandbox ends.
    pub expires_at: Timestamp,
    pub sandbox_id: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "chat_session_id": "ses_01k9q5t0a7e8fbqjyx3mz2c4nd", "ttl_seconds": 3600 }))]
pub struct ResumeSession {
    pub chat_session_id: String,
    /// At most 7200; more counts as that.
    #[serde(default)]
    pub ttl_seconds: Option<u64>,
}

impl ResumeSession {
    /// Which session, and for how long.
    pub fn check(self) -> Result<(String, u64)> {
        Ok((self.chat_session_id, lifetime(self.ttl_seconds)?))
    }
}

/// The same session in a fresh sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "chat_session_id": "ses_01k9q5t0a7e8fbqjyx3mz2c4nd",
    "jwt": "eyJ…",
    "connect_url": "wss://rt.example.com/v1/sessions/ses_01k9q5t0a7e8fbqjyx3mz2c4nd/ws",
    "expires_at": "2026-04-28T13:00:00Z",
    "sandbox_id": "sb-01k9q5t0a7e8fbqjyx3mz2c4nf",
    "resumed_from": { "previous_status": "completed" }
}))]
pub struct SessionResumed {
    pub chat_session_id: String,
    pub jwt: String,
    pub connect_url: String,
    pub expires_at: Timestamp,
    pub sandbox_id: String,
    pub resumed_from: ResumedFrom,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ResumedFrom {
    /// `running`, `completed`, `failed`, `interrupted` or `unknown`.
    pub previous_status: String,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "at": 42, "ttl_seconds": 3600 }))]
pub struct ForkSession {
    /// The last event that the new session has; all of them without it.
    #[serde(default)]
    pub at: Option<u64>,
    /// At most 7200; more counts as that.
    #[serde(default)]
    pub ttl_seconds: Option<u64>,
}

impl ForkSession {
    /// After which event, and for how long.
    pub fn check(self) -> Result<(Option<u64>, u64)> {
        if self.at == Some(0) {
            return Err(Error::invalid("at", "must be the sequence of an event, from 1"));
        }
        Ok((self.at, lifetime(self.ttl_seconds)?))
    }
}

/// A new session with the beginning of another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "chat_session_id": "ses_01k9q5t0a7e8fbqjyx3mz2c4ng",
    "jwt": "eyJ…",
    "connect_url": "wss://rt.example.com/v1/sessions/ses_01k9q5t0a7e8fbqjyx3mz2c4ng/ws",
    "expires_at": "2026-04-28T13:00:00Z",
    "sandbox_id": "sb-01k9q5t0a7e8fbqjyx3mz2c4nh",
    "forked_from": {
        "chat_session_id": "ses_01k9q5t0a7e8fbqjyx3mz2c4nd",
        "at": 42,
        "workspace_as_of": "2026-04-28T12:00:00Z"
    }
}))]
pub struct SessionForked {
    pub chat_session_id: String,
    pub jwt: String,
    pub connect_url: String,
    pub expires_at: Timestamp,
    pub sandbox_id: String,
    pub forked_from: ForkedFrom,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ForkedFrom {
    pub chat_session_id: String,
    pub at: u64,
    /// The log is as it was at `at`; the files are a copy of the workspace as it was at this time.
    pub workspace_as_of: Timestamp,
}

/// A session, as lists show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "chat_session_id": "ses_01k9q5t0a7e8fbqjyx3mz2c4nd",
    "status": "running",
    "agent": { "kind": "deictic" },
    "template": "standard",
    "llm": { "vendor": "anthropic", "model": "claude-sonnet-4-5" },
    "app": { "id": "my-app", "set_id": "default" },
    "wire_version": 2,
    "secrets": ["my-llm-keys"],
    "sandbox_id": "sb-01k9q5t0a7e8fbqjyx3mz2c4ne",
    "created_at": "2026-04-28T12:00:00Z",
    "expires_at": "2026-04-28T13:00:00Z",
    "life": 1,
    "usage": { "input_tokens": 1200, "output_tokens": 340, "tool_calls": 7 }
}))]
pub struct Session {
    pub chat_session_id: String,
    /// `running`, `completed`, `failed` or `interrupted`; those that do not run can be resumed.
    pub status: String,
    pub agent: ShownAgent,
    pub template: String,
    pub llm: ShownModel,
    pub app: ShownApp,
    pub wire_version: u8,
    /// Bundles of secrets, by name.
    pub secrets: Vec<String>,
    /// Absent when it has none now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<String>,
    pub created_at: Timestamp,
    pub expires_at: Timestamp,
    /// One more with every resume.
    pub life: u64,
    /// Why its last life ended, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub usage: SessionUsage,
    /// Which session this one is a fork of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<ForkPoint>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShownAgent {
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShownModel {
    pub vendor: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShownApp {
    pub id: String,
    pub set_id: String,
}

/// What agents said they used. For display, never charged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionUsage {
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub tool_calls: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ForkPoint {
    pub chat_session_id: String,
    pub at: u64,
}

/// A page of yours, the newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Sessions {
    pub sessions: Vec<Session>,
    /// For `token` of the next call; absent when there are no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_token: Option<String>,
}

/// Which sessions are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionsQuery {
    pub limit: u32,
    /// Older ones than this, which the page before ended with.
    pub before: Option<SessionId>,
}

impl SessionsQuery {
    pub fn parse(query: Option<&str>) -> Result<Self> {
        let mut query = Query::parse(query, &["limit", "token"])?;
        let limit = query.whole("limit")?.unwrap_or(u64::from(PAGE_MAX));
        if limit == 0 {
            return Err(Error::invalid("limit", "must be at least 1"));
        }
        let wrong = |_| Error::invalid("token", "not one of ours; begin without it");
        let before = query.take("token").map(|token| token.parse().map_err(wrong)).transpose()?;
        Ok(Self { limit: u32::try_from(limit).unwrap_or(PAGE_MAX).min(PAGE_MAX), before })
    }
}

/// A piece of a session's log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "events": [{
        "event_id": "evt_1", "sequence": 41, "time": "2026-04-28T12:00:07Z",
        "session_id": "ses_01k9q5t0a7e8fbqjyx3mz2c4nd", "native_session_id": null,
        "synthetic": false, "source": "agent", "type": "item.delta",
        "data": { "item_id": "itm_3", "native_item_id": null, "delta": "Hello" }, "raw": null
    }],
    "has_more": true,
    "last_sequence": 97
}))]
pub struct LoggedEvents {
    /// Universal events, in order, without gaps.
    #[schema(value_type = Vec<Object>)]
    pub events: Vec<Value>,
    /// Whether there are more of those that were asked for; the next `from` is the last `sequence` here.
    pub has_more: bool,
    /// Of the last event in the log.
    pub last_sequence: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "chat_session_id": "ses_01k9q5t0a7e8fbqjyx3mz2c4nd", "status": "deleted"
}))]
pub struct SessionDeleted {
    pub chat_session_id: String,
    pub status: String,
}

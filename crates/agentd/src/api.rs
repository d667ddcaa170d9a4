//! The bodies of requests and answers, as the contract has them: camel case, unknown fields
//! ignored. What is marked as ours is beyond the contract, and optional.

mod session;

pub use self::session::{
    AgentError, CreateSessionRequest, CreateSessionResponse, ErrorType, EventsResponse,
    MessageRequest, PermissionReplyRequest, QuestionReplyRequest, SessionInfo, SessionListResponse,
};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HealthResponse {
    pub status: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AgentListResponse {
    pub agents: Vec<AgentInfo>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentInfo {
    pub id: String,
    pub installed: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    pub capabilities: AgentCapabilities,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_status: Option<ServerStatusInfo>,
}

/// What an agent can do here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentCapabilities {
    pub plan_mode: bool,
    pub permissions: bool,
    pub questions: bool,
    pub tool_calls: bool,
    pub tool_results: bool,
    pub text_messages: bool,
    pub images: bool,
    pub file_attachments: bool,
    pub session_lifecycle: bool,
    pub error_events: bool,
    pub reasoning: bool,
    pub command_execution: bool,
    pub file_changes: bool,
    pub mcp_tools: bool,
    pub streaming_deltas: bool,
    /// Whether its sessions share one long-running process.
    pub shared_process: bool,
}

impl AgentCapabilities {
    pub const ALL: Self = Self {
        plan_mode: true,
        permissions: true,
        questions: true,
        tool_calls: true,
        tool_results: true,
        text_messages: true,
        images: true,
        file_attachments: true,
        session_lifecycle: true,
        error_events: true,
        reasoning: true,
        command_execution: true,
        file_changes: true,
        mcp_tools: true,
        streaming_deltas: true,
        shared_process: true,
    };

    pub const NONE: Self = Self {
        plan_mode: false,
        permissions: false,
        questions: false,
        tool_calls: false,
        tool_results: false,
        text_messages: false,
        images: false,
        file_attachments: false,
        session_lifecycle: false,
        error_events: false,
        reasoning: false,
        command_execution: false,
        file_changes: false,
        mcp_tools: false,
        streaming_deltas: false,
        shared_process: false,
    };
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ServerStatus {
    Running,
    Stopped,
    Error,
}

/// Of the process that the sessions of an agent share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServerStatusInfo {
    pub status: ServerStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uptime_ms: Option<u64>,
    pub restart_count: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

impl ServerStatusInfo {
    /// Before its first use.
    pub fn stopped() -> Self {
        Self {
            status: ServerStatus::Stopped,
            base_url: None,
            uptime_ms: None,
            restart_count: 0,
            last_error: None,
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AgentInstallRequest {
    #[serde(default)]
    pub reinstall: Option<bool>,
    /// Ours: another version than the one that is known to work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AgentModesResponse {
    pub modes: Vec<AgentModeInfo>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AgentModeInfo {
    pub id: String,
    pub name: String,
    pub description: String,
}

/// Ours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AgentModelsResponse {
    pub models: Vec<ModelInfo>,
}

/// A model that an agent can be told to use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelInfo {
    /// As `model` takes it when a session is created.
    pub id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What `variant` may be, if the model has such.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variants: Vec<String>,
    #[serde(default)]
    pub default: bool,
}

/// An error, as RFC 7807 has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProblemDetails {
    #[serde(rename = "type")]
    pub kind: String,
    pub title: String,
    pub status: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
}

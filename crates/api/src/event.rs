//! What `GET /v1/events` sends.

use jiff::Timestamp;
use model::{Event, EventKind};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The `data` of one server-sent event. Its `event` is `type`, its `id` is for `Last-Event-ID`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "id": "42",
    "type": "lifecycle.stopped",
    "sandbox_id": "sb-01k9q5t0a7e8fbqjyx3mz2c4nd",
    "reason": "idle",
    "at": "2026-04-24T14:00:00Z",
    "data": {}
}))]
pub struct StreamedEvent {
    pub id: String,
    /// `lifecycle.running`, `lifecycle.stopped`, `lifecycle.idle-stop`, `billing.sandbox-hour`, …
    #[serde(rename = "type")]
    #[schema(value_type = String)]
    pub kind: EventKind,
    pub sandbox_id: String,
    /// `idle`, `deadline`, `lifetime`, `oom`, `exited`, `user_request`, … where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub reason: Option<model::EndReason>,
    pub at: Timestamp,
    /// More, by type.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub data: serde_json::Value,
}

impl StreamedEvent {
    pub fn new(id: String, event: Event) -> Self {
        Self {
            id,
            kind: event.kind,
            sandbox_id: event.sandbox.to_string(),
            reason: event.reason,
            at: event.at,
            data: match event.data {
                serde_json::Value::Null => serde_json::json!({}),
                other => other,
            },
        }
    }
}

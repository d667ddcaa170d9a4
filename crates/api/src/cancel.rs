//! `POST /v1/sandboxes/{id}/cancel` (000).

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The body may be left out altogether.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelRequest {
    #[serde(default)]
    pub reason: CancelReason,
}

/// Why; passed on to the clients that are attached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CancelReason {
    CreditsExhausted,
    #[default]
    UserRequest,
    AdminAction,
    Timeout,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "vm_id": "sb-01k9q5t0a7e8fbqjyx3mz2c4nd",
    "cancelled": false,
    "reason": "user_request"
}))]
pub struct CancelResponse {
    pub vm_id: String,
    /// Whether any attached client received the signal.
    pub cancelled: bool,
    pub reason: CancelReason,
}

impl CancelReason {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CreditsExhausted => "credits_exhausted",
            Self::UserRequest => "user_request",
            Self::AdminAction => "admin_action",
            Self::Timeout => "timeout",
        }
    }
}

//! The one error body: `application/problem+json` (RFC 9457) with a stable `code`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What every error answers. Programs branch on `code`; people read `detail`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "type": "about:blank",
    "title": "Bad Request",
    "status": 400,
    "detail": "disk_gb: at most 20 here",
    "code": "invalid_request",
    "field": "disk_gb"
}))]
pub struct Problem {
    /// Always `about:blank`: `code` says what kind it is.
    #[serde(rename = "type")]
    pub kind: String,
    /// The words of the status.
    pub title: String,
    /// The HTTP status, again.
    pub status: u16,
    /// One sentence for a person: what is wrong, and what to do.
    pub detail: String,
    /// Stable, for programs.
    pub code: Code,
    /// The field of the request that is wrong, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
}

/// The stable codes. One is never renamed; new ones are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// A field, header or parameter of the request is wrong.
    InvalidRequest,
    /// No credential, or one that is not known (any more).
    Unauthorized,
    /// The credential is good, but this takes the operator's.
    Forbidden,
    /// No such thing, or it belongs to somebody else.
    NotFound,
    /// The path exists, the method does not.
    MethodNotAllowed,
    /// The sandbox is in a state from which this makes no sense.
    WrongState,
    /// The owner already has a sandbox, or a bundle of secrets, of that name.
    NameTaken,
    /// There is no credit left, and this deployment asks for it.
    CreditsExhausted,
    /// No room anywhere for one more sandbox.
    NoCapacity,
    /// The body is larger than this server takes.
    BodyTooLarge,
    /// The request took too long to arrive.
    RequestTimeout,
    /// The idempotency key came with another request before.
    IdempotencyMismatch,
    /// A quota is used up; `Retry-After` says when it may be worth trying again.
    QuotaExceeded,
    /// Too many requests of this kind in a while; `Retry-After` says when to try again.
    RateLimited,
    /// The path only answers a request that asks for an upgrade of the connection.
    UpgradeRequired,
    /// Nothing listens on that port in the sandbox.
    PortClosed,
    /// What answers on that port does not speak HTTP, or went away in the middle.
    BadGateway,
    /// What answers on that port said nothing for too long.
    GatewayTimeout,
    /// A session cannot be resumed: a bundle of secrets that it names was deleted.
    SecretBundleNotFoundAtResume,
    /// A bug or a broken host. The server's log has the rest, under `x-request-id`.
    Internal,
    /// Known, valid, and not built yet.
    NotImplemented,
    /// Valid, but sandboxes with an agent come in a later version.
    AgentNotAvailable,
    /// The agent's program is not a layer here yet; the detail has the command that builds it.
    AgentNotBuilt,
    /// This server has no storage for workspaces.
    WorkspaceNotAvailable,
    /// `image` is an OCI reference, and pulling one comes in a later version.
    ImagePullNotAvailable,
    /// There is no template of that name.
    UnknownTemplate,
    /// The template is not built here; `detail` has the command that builds it.
    TemplateNotBuilt,
    /// `stream=stdout` and `stream=all` are reserved.
    LogStreamNotAvailable,
    /// The pool of this sandbox keeps no log of what it reached.
    EgressLogNotAvailable,
    /// A part that is needed does not answer; the same request may work later.
    Unavailable,
    /// The disk, or the sandbox's share of it, is full.
    DiskFull,
    /// The server's disk can be read but not written to.
    ReadOnly,
}

impl Code {
    /// The code of `model::Error::NotImplemented`, which carries it as text.
    pub fn of_missing(code: &str) -> Self {
        match code {
            "agent_not_available" => Self::AgentNotAvailable,
            "agent_not_built" => Self::AgentNotBuilt,
            "workspace_not_available" => Self::WorkspaceNotAvailable,
            "image_pull_not_available" => Self::ImagePullNotAvailable,
            "egress_log_not_available" => Self::EgressLogNotAvailable,
            "unknown_template" => Self::UnknownTemplate,
            "template_not_built" => Self::TemplateNotBuilt,
            "log_stream_not_available" => Self::LogStreamNotAvailable,
            _ => Self::NotImplemented,
        }
    }
}

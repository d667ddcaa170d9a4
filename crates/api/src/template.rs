//! `GET /v1/sandbox-templates`: what sandboxes can be made from here.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Templates {
    pub templates: Vec<Template>,
}

/// A template that is built.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "name": "standard",
    "digest": "sha256:6c3c…",
    "built_at": "2026-04-24T14:00:00Z",
    "size_bytes": 312_475_648,
    "user": "user",
    "vcpu": 1,
    "cpu_fraction": 0.5,
    "memory_mib": 512
}))]
pub struct Template {
    pub name: String,
    /// Of what it was made from.
    pub digest: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub built_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// The account that commands run as when the caller names none.
    pub user: String,
    /// The limits a sandbox gets when the caller asks for none.
    pub vcpu: u32,
    pub cpu_fraction: f64,
    pub memory_mib: u32,
}

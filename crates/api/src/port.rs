//! `POST /v1/sandboxes/{id}/ports/{port}/link`: a link to a port that needs no key.

use jiff::Timestamp;
use model::Error;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An hour.
const EXPIRES_SECONDS_DEFAULT: u32 = 3600;
/// A week: a link cannot be taken back but by destroying the sandbox.
const EXPIRES_SECONDS_MAX: u32 = 7 * 24 * 3600;

/// The body may be left out altogether.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "expires_seconds": 3600 }))]
pub struct PortLinkRequest {
    /// How long it works: 1 to 604800 (a week); default 3600.
    #[serde(default)]
    pub expires_seconds: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortLink {
    /// To open in a browser: the host of its own where there is one, else the path form.
    pub url: String,
    /// The same by the path form, for programs that cannot resolve that host.
    pub path_url: String,
    pub sandbox_id: String,
    pub port: u16,
    pub expires_at: Timestamp,
}

impl PortLinkRequest {
    /// The seconds, checked.
    pub fn expires_seconds(&self) -> Result<u32, Error> {
        let seconds = self.expires_seconds.unwrap_or(EXPIRES_SECONDS_DEFAULT);
        if (1..=EXPIRES_SECONDS_MAX).contains(&seconds) {
            return Ok(seconds);
        }
        let detail = format!("must be 1 to {EXPIRES_SECONDS_MAX}: {seconds}");
        Err(Error::invalid("expires_seconds", detail))
    }
}

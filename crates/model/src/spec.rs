//! What a sandbox is asked to be: decided once at create, kept durably by the driver, never derived.
//!
//! These types derive serde although `model` is otherwise free of it: a driver stores the spec as
//! JSON, and a twin of every type would only be another place to forget a field. New fields get
//! `#[serde(default)]`, because an upgraded server reads what an older one wrote.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{AgentSpec, Error, Name, OwnerId, PolicyName, Result, SandboxId, WorkspaceId};

/// Everything a driver needs to make a sandbox, and to make it again after a stop.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SandboxSpec {
    pub id: SandboxId,
    pub owner: OwnerId,
    pub name: Name,
    /// Which document's words the answers use (ruling 12).
    pub shape: Shape,
    /// The built template that the root file system comes from.
    pub template: TemplateName,
    /// What the caller wrote in `image`, if that shape was used.
    #[serde(default)]
    pub image: Option<String>,
    pub tier: Tier,
    pub clocks: Clocks,
    pub limits: Limits,
    pub policy: PolicyName,
    /// Environment of everything run inside. Sealed at rest.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The caller's free-form metadata, echoed; `user_id` in answers is added by the server.
    #[serde(default)]
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// 000's stored workspace, if it has one.
    #[serde(default)]
    pub workspace: Option<WorkspaceId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentSpec>,
    /// Who pays for what the platform runs on somebody's behalf: such a sandbox belongs to the platform,
    /// serves one call, and is of no use once that call is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payer: Option<OwnerId>,
    pub created_at: Timestamp,
}

/// 000 (`template`) or 003 (`image`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    Template,
    Image,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    Ephemeral,
    Persistent,
}

impl Tier {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ephemeral => "ephemeral",
            Self::Persistent => "persistent",
        }
    }
}

/// When a sandbox ends by itself. The earliest wins (ruling 8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Clocks {
    /// 000: destroyed after this long without activity.
    pub idle_timeout_seconds: Option<u64>,
    /// 000: destroyed this long after creation, whatever happens.
    pub max_lifetime_seconds: Option<u64>,
    /// 003: stopped (workspace kept) after this long without activity; 0 or none disables.
    pub auto_stop_minutes: Option<u64>,
    /// 003: deleted this long after creation, with 60 s of grace.
    pub auto_delete_hours: Option<u64>,
}

/// What one sandbox may use.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Whole processors shown to the caller; the cap is `cpu_fraction` of one times this.
    pub vcpu: u32,
    /// Share of each `vcpu`, above 0 and up to 1.
    pub cpu_fraction: f64,
    pub memory_mib: u32,
    pub pids: u32,
    pub disk_gb: u32,
}

impl Limits {
    /// Less and no shell starts.
    pub const MEMORY_MIB_MIN: u32 = 16;
    /// PID 1, and a command.
    const PIDS_MIN: u32 = 2;

    /// Whether anything can run within them.
    ///
    /// # Errors
    /// `Invalid` with the name of the one that leaves too little, or means nothing.
    pub fn check(&self) -> Result<()> {
        for (field, value, least) in [
            ("vcpu", self.vcpu, 1),
            ("memory_mib", self.memory_mib, Self::MEMORY_MIB_MIN),
            ("pids", self.pids, Self::PIDS_MIN),
            ("disk_gb", self.disk_gb, 1),
        ] {
            if value < least {
                return Err(Error::invalid(field, format!("must be at least {least}: {value}")));
            }
        }
        if !(self.cpu_fraction > 0.0 && self.cpu_fraction <= 1.0) {
            let detail = format!("must be above 0 and at most 1: {}", self.cpu_fraction);
            return Err(Error::invalid("cpu_fraction", detail));
        }
        Ok(())
    }
}

/// The name of a template: 1 to 63 of `[a-z0-9-]`, like `standard` or `host`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TemplateName(String);

impl TemplateName {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is the name of an image that nobody named; no definition has such a name.
    pub fn is_of_image(&self) -> bool {
        self.0.starts_with(Self::OF_IMAGE)
    }

    /// What the names of such images begin with; the rest is of their digest.
    pub const OF_IMAGE: &str = "image-";

    /// The program of an agent as a layer; no sandbox is made from it alone.
    pub fn of_agent(agent: &str) -> Self {
        Self(format!("{}{agent}", Self::OF_AGENT))
    }

    pub fn is_of_agent(&self) -> bool {
        self.0.starts_with(Self::OF_AGENT)
    }

    /// What the names of such layers begin with; the rest is the agent's. No definition has such a name.
    pub const OF_AGENT: &str = "agent-";

    /// Only the engine of code mode is in it. The platform alone makes sandboxes of it.
    pub fn of_code() -> Self {
        Self(Self::CODE.to_owned())
    }

    pub fn is_of_code(&self) -> bool {
        self.0 == Self::CODE
    }

    const CODE: &str = "code-mode";
}

impl FromStr for TemplateName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let good = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
        let edge = text.starts_with('-') || text.ends_with('-');
        if text.is_empty() || text.len() > 63 || !text.bytes().all(good) || edge {
            return Err(Error::invalid("template", format!("not a template name: {text:?}")));
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for TemplateName {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<TemplateName> for String {
    fn from(name: TemplateName) -> Self {
        name.0
    }
}

impl fmt::Display for TemplateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

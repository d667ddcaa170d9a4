//! What a caller asks for, already checked as far as it can be without the deployment's settings.

use std::collections::BTreeMap;

use crate::{Clocks, Error, Name, NewAgent, PolicyName, Shape, Tier, WorkspaceId};

pub use ipnet::IpNet as Cidr;

/// `POST /v1/sandboxes` after parsing. `None` means that the caller left it to the defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct NewSandbox {
    pub source: Source,
    pub name: Option<Name>,
    pub tier: Option<Tier>,
    pub disk_gb: Option<u32>,
    /// Exactly what was sent; [`NewSandbox::clocks`] adds the defaults.
    pub asked_clocks: Clocks,
    pub policy: Option<PolicyName>,
    pub env: BTreeMap<String, String>,
    pub metadata: serde_json::Map<String, serde_json::Value>,
    pub vcpu: Option<u32>,
    pub cpu_fraction: Option<f64>,
    pub memory_mib: Option<u32>,
    pub workspace: Option<WorkspaceId>,
    pub agent: Option<NewAgent>,
}

/// Exactly one of the two documents' fields (DESIGN 2.2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// 000: a template by name.
    Template(String),
    /// 003: an OCI reference, or the name of a built template.
    Image(String),
}

/// `PATCH /v1/sandboxes/{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Change {
    pub name: Option<Name>,
    pub policy: Option<PolicyName>,
}

/// 000's hard cap; larger values are clamped to it.
pub const MAX_LIFETIME_SECONDS: u64 = 7200;

impl Source {
    pub fn shape(&self) -> Shape {
        match self {
            Self::Template(_) => Shape::Template,
            Self::Image(_) => Shape::Image,
        }
    }
}

impl NewSandbox {
    pub fn tier(&self) -> Tier {
        self.tier.unwrap_or(Tier::Ephemeral)
    }

    /// Ruling 8: `template` + ephemeral has 000's clocks; `image`, or persistent, 003's alone.
    /// A clock that was sent explicitly is added.
    pub fn clocks(&self) -> Clocks {
        let asked = self.asked_clocks;
        let defaults = match (self.source.shape(), self.tier()) {
            (Shape::Template, Tier::Ephemeral) => Clocks {
                idle_timeout_seconds: Some(60),
                max_lifetime_seconds: Some(MAX_LIFETIME_SECONDS),
                auto_stop_minutes: Some(0),
                auto_delete_hours: None,
            },
            (Shape::Image, Tier::Ephemeral) => Clocks {
                auto_stop_minutes: Some(15),
                auto_delete_hours: Some(24),
                ..Clocks::default()
            },
            (Shape::Template | Shape::Image, Tier::Persistent) => {
                Clocks { auto_stop_minutes: Some(15), ..Clocks::default() }
            }
        };
        Clocks {
            idle_timeout_seconds: asked.idle_timeout_seconds.or(defaults.idle_timeout_seconds),
            max_lifetime_seconds: asked
                .max_lifetime_seconds
                .or(defaults.max_lifetime_seconds)
                .map(|seconds| seconds.min(MAX_LIFETIME_SECONDS)),
            auto_stop_minutes: asked.auto_stop_minutes.or(defaults.auto_stop_minutes),
            auto_delete_hours: asked.auto_delete_hours.or(defaults.auto_delete_hours),
        }
    }

    /// `user_id` is the server's to set (ruling 17).
    pub fn check_metadata(&self) -> Result<(), Error> {
        if self.metadata.contains_key("user_id") {
            return Err(Error::invalid("metadata.user_id", "is set by the server"));
        }
        let bytes = serde_json::to_string(&self.metadata).map_or(usize::MAX, |text| text.len());
        if bytes > 16 * 1024 {
            return Err(Error::invalid("metadata", "at most 16384 bytes as JSON"));
        }
        Ok(())
    }
}

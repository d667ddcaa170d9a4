//! Code mode: which engine, how much of it, and in front of which API.

use anyhow::{Result, ensure};
use model::TemplateName;
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::config::check::check_url;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Code {
    pub runtime: Runtime,
    /// What has Node, for that runtime.
    pub template: TemplateName,
    pub timeout_ms: u64,
    /// Of one key.
    pub calls_at_once: u32,
    /// Requests of one call.
    pub requests_max: u32,
    /// Sandboxes that wait for calls.
    pub warm: usize,
    /// The description of another API.
    pub spec: Option<String>,
    pub api_base: Option<String>,
    pub allowed_hosts: Vec<String>,
    pub allowed_origins: Vec<String>,
    pub debug_endpoint: bool,
}

/// What runs the code (ruling 45).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Runtime {
    Quickjs,
    Node,
}

impl Default for Code {
    fn default() -> Self {
        Self {
            runtime: Runtime::Quickjs,
            template: "standard".parse().expect("a constant name"),
            timeout_ms: 120_000,
            calls_at_once: 16,
            requests_max: 500,
            warm: 0,
            spec: None,
            api_base: None,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            debug_endpoint: false,
        }
    }
}

impl Code {
    /// What waits for calls, if anything does.
    pub fn warm(&self) -> Option<(TemplateName, usize)> {
        let template = match self.runtime {
            Runtime::Quickjs => TemplateName::of_code(),
            Runtime::Node => self.template.clone(),
        };
        (self.warm > 0).then_some((template, self.warm))
    }
}

impl Config {
    pub(super) fn check_code(&self) -> Result<()> {
        let code = &self.code;
        ensure!((100..=3_600_000).contains(&code.timeout_ms), "code.timeout_ms: 100 to 3600000");
        ensure!((1..=10_000).contains(&code.calls_at_once), "code.calls_at_once: 1 to 10000");
        ensure!((1..=100_000).contains(&code.requests_max), "code.requests_max: 1 to 100000");
        ensure!(code.warm <= 1000, "code.warm: at most 1000");
        if let Some(base) = &code.api_base {
            check_url("code.api_base", base, &["http", "https"])?;
            ensure!(code.spec.is_some(), "code.spec: required with code.api_base");
        }
        Ok(())
    }
}

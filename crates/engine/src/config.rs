//! What an operator decides about the engine.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use blobs::Blobs;
use driver::Driver;
use model::{Plan, Policy, PolicyName, Quota, TemplateName};

use crate::{Clock, Credit};

/// Settings of an engine. [`EngineConfig::default`] is a working single machine.
#[derive(Clone)]
pub struct EngineConfig {
    /// Named egress policies; `none`, `default` and `open` are always there and may be replaced.
    pub policies: BTreeMap<PolicyName, Policy>,
    /// The largest `disk_gb` (003).
    pub disk_gb_max: u32,
    pub disk_gb_default: u32,
    /// What plans other than the operator's may ask for.
    pub ceiling: Ceiling,
    /// Replaces a plan's built-in quota.
    pub quotas: Vec<(Plan, Quota)>,
    /// Templates that this deployment defines, built or not.
    pub defined_templates: BTreeSet<TemplateName>,
    /// Whether owners other than the operator may use the template `host`.
    pub host_template_for_all: bool,
    pub sweep_every: Duration,
    /// What is used is counted so often, besides at the end. Usage is never staler than a few of these.
    pub meter_every: Duration,
    /// How long one pool may take to answer a list.
    pub list_timeout: Duration,
    /// How long a launch, stop or removal may take before it counts as failed.
    pub operation_timeout: Duration,
    pub clock: Clock,
    /// Where workspaces are kept; without it, none can be asked for.
    pub blobs: Option<Blobs>,
    pub credit: Credit,
}

/// Upper bounds of what one sandbox may ask for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ceiling {
    pub vcpu: u32,
    pub memory_mib: u32,
}

/// One place that runs sandboxes.
#[derive(Clone)]
pub struct Pool {
    pub name: String,
    pub driver: Arc<dyn Driver>,
    /// Sandboxes with compute at once; `None` is unlimited.
    pub max_sandboxes: Option<u32>,
}

impl EngineConfig {
    pub fn quota(&self, plan: Plan) -> Quota {
        let own = self.quotas.iter().find(|(of, _)| *of == plan);
        own.map_or_else(|| Quota::of_plan(plan), |(_, quota)| *quota)
    }
}

impl Default for EngineConfig {
    fn default() -> Self {
        let name = |text: &str| text.parse().expect("a constant name");
        let templates = ["standard", "browser", "cua", "canvas"];
        Self {
            policies: BTreeMap::from([
                (name("none"), Policy::none()),
                (name("default"), Policy::none()),
                (name("open"), Policy::open()),
            ]),
            disk_gb_max: 20,
            disk_gb_default: 5,
            ceiling: Ceiling { vcpu: 8, memory_mib: 16 * 1024 },
            quotas: Vec::new(),
            defined_templates: templates
                .into_iter()
                .map(|text| text.parse().expect("a constant name"))
                .collect(),
            host_template_for_all: false,
            sweep_every: Duration::from_secs(10),
            meter_every: Duration::from_secs(60),
            list_timeout: Duration::from_secs(2),
            operation_timeout: Duration::from_secs(60),
            clock: Clock::system(),
            blobs: None,
            credit: Credit::default(),
        }
    }
}

//! The engine's settings out of the server's.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use engine::EngineConfig;
use model::{Plan, Policy, PolicyName, Quota, TemplateName};

use crate::config::{Config, QuotaSettings};

impl Config {
    pub fn engine(&self) -> EngineConfig {
        EngineConfig {
            policies: self.all_policies(),
            disk_gb_max: self.disk.gb_max,
            disk_gb_default: self.disk.gb_default,
            ceiling: engine::Ceiling {
                vcpu: self.ceiling.vcpu,
                memory_mib: self.ceiling.memory_mib,
            },
            quotas: self
                .quotas
                .iter()
                .filter_map(|(plan, settings)| Some((Plan::parse(plan)?, *settings)))
                .map(|(plan, settings)| (plan, settings.over(Quota::of_plan(plan))))
                .collect(),
            defined_templates: self.defined_templates(),
            host_template_for_all: self.host_template_for_all,
            sweep_every: Duration::from_secs(self.sweep_seconds),
            meter_every: Duration::from_secs(self.meter_seconds),
            credit: self.credit(crate::operator::owner()),
            ..EngineConfig::default()
        }
    }

    /// The names that could be built here, for a better answer than "unknown".
    fn defined_templates(&self) -> BTreeSet<TemplateName> {
        let mut names = EngineConfig::default().defined_templates;
        let files = self.templates_dir.iter().filter_map(|dir| std::fs::read_dir(dir).ok());
        for file in files.flatten().flatten() {
            let path = file.path();
            if path.extension().is_some_and(|extension| extension == "toml")
                && let Some(stem) = path.file_stem().and_then(|stem| stem.to_str())
                && let Ok(name) = stem.parse()
            {
                names.insert(name);
            }
        }
        names
    }

    /// The built-in ones, replaced and joined by the configured. `default` is closed until the
    /// operator says what it allows: a network that is open by default is how secrets leave.
    fn all_policies(&self) -> BTreeMap<PolicyName, Policy> {
        let named = |text: &str| text.parse().expect("a constant name");
        let mut policies = BTreeMap::from([
            (named("none"), Policy::none()),
            (named("default"), Policy::none()),
            (named("open"), Policy::open()),
        ]);
        for (name, rules) in &self.policies {
            policies.insert(name.clone(), Policy { rules: rules.clone() });
        }
        policies
    }
}

impl QuotaSettings {
    fn over(self, plan: Quota) -> Quota {
        Quota {
            persistent_max: self.persistent_max.or(plan.persistent_max),
            ephemeral_max: self.ephemeral_max.or(plan.ephemeral_max),
            disk_gb_per_tier_max: self.disk_gb_per_tier_max.or(plan.disk_gb_per_tier_max),
            workspace_gib_max: self.workspace_gib_max.or(plan.workspace_gib_max),
        }
    }
}

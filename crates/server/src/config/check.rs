//! What types cannot say about the settings: which of them go together.

use std::collections::BTreeSet;

use anyhow::{Context, bail, ensure};
use model::{Plan, PolicyName};
use url::Url;

use crate::config::{Config, PoolKind, PoolSettings};
use crate::preview::Domain;

/// More would be a mistake: each waits with a process of its own.
const WARM_MAX: usize = 10_000;

impl Config {
    /// Refuses what cannot work, naming the setting.
    pub fn check(&self) -> anyhow::Result<()> {
        match (&self.tls_cert, &self.tls_key) {
            (Some(_), None) => bail!("tls_key: required with tls_cert"),
            (None, Some(_)) => bail!("tls_cert: required with tls_key"),
            (Some(_), Some(_)) | (None, None) => {}
        }
        if let Some(url) = &self.public_url {
            check_url("public_url", url, &["http", "https"])?;
        }
        if let Some(url) = &self.rt_public_url {
            check_url("rt_public_url", url, &["ws", "wss"])?;
        }
        for (key, url) in [
            ("oidc.issuer", &self.oidc.issuer),
            ("oidc.jwks_url", &self.oidc.jwks_url),
            ("mail.ses_endpoint", &self.mail.ses_endpoint),
        ] {
            if let Some(url) = url {
                check_url(key, url, &["http", "https"])?;
            }
        }
        if let Some(domain) = &self.ports.domain {
            let parsed = Domain::parse(domain);
            ensure!(parsed.is_some(), "ports.domain: must be a domain of two labels: {domain:?}");
        }
        self.check_names()?;
        for plan in self.quotas.keys() {
            ensure!(Plan::parse(plan).is_some(), "quotas.{plan}: no such plan; try free");
        }
        ensure!(self.disk.gb_max >= 1, "disk.gb_max: must be at least 1");
        ensure!(
            (1..=self.disk.gb_max).contains(&self.disk.gb_default),
            "disk.gb_default: must be 1 to disk.gb_max ({})",
            self.disk.gb_max
        );
        for (key, limit) in [
            ("disk.io_bytes_per_second", self.disk.io_bytes_per_second),
            ("disk.io_operations_per_second", self.disk.io_operations_per_second),
        ] {
            ensure!(limit != Some(0), "{key}: must be at least 1");
        }
        for (template, count) in &self.warm {
            ensure!(*count <= WARM_MAX, "warm.{template}: at most {WARM_MAX}");
        }
        ensure!(self.ceiling.vcpu >= 1, "ceiling.vcpu: must be at least 1");
        ensure!(self.limits.connections >= 1, "limits.connections: must be at least 1");
        ensure!(self.limits.json_bytes >= 1024, "limits.json_bytes: must be at least 1024");
        for (key, seconds) in [
            ("limits.header_timeout_seconds", self.limits.header_timeout_seconds),
            ("limits.body_timeout_seconds", self.limits.body_timeout_seconds),
            ("ports.silence_seconds", self.ports.silence_seconds),
            ("sweep_seconds", self.sweep_seconds),
            ("meter_seconds", self.meter_seconds),
            ("rt_ping_seconds", self.rt_ping_seconds),
            ("auth.attempts_per_minute", u64::from(self.auth.attempts_per_minute)),
            ("auth.token_seconds", self.auth.token_seconds),
            ("images.pull_timeout_seconds", self.images.pull_timeout_seconds),
            ("images.max_gb", u64::from(self.images.max_gb)),
        ] {
            ensure!(seconds >= 1, "{key}: must be at least 1");
        }
        self.check_secrets()?;
        self.check_workspaces()?;
        self.check_billing()?;
        self.check_code()?;
        self.llm.default_models.check()?;
        self.check_pools()
    }

    fn check_names(&self) -> anyhow::Result<()> {
        for name in self.policies.keys().map(PolicyName::as_str) {
            // Whoever reads `none` believes it.
            let fixed = name == "none" || name == "open";
            ensure!(
                !fixed,
                "policies.{name}: is always there and means the same; take another name"
            );
        }
        for (name, addresses) in &self.hosts {
            let good = model::host_name(name).is_some_and(|good| good == *name);
            ensure!(good, "hosts: not a host name in lower case: {name:?}");
            ensure!(!addresses.is_empty(), "hosts.{name}: at least one address");
        }
        Ok(())
    }

    /// The pools to run: those of the settings, or the one of this machine.
    pub fn pools(&self) -> Vec<PoolSettings> {
        if self.pools.is_empty() {
            return vec![PoolSettings {
                name: "local".into(),
                kind: PoolKind::Linux,
                data_dir: None,
                max_sandboxes: self.pool.max_sandboxes,
            }];
        }
        let with_default = |pool: &PoolSettings| PoolSettings {
            max_sandboxes: pool.max_sandboxes.or(self.pool.max_sandboxes),
            ..pool.clone()
        };
        self.pools.iter().map(with_default).collect()
    }

    fn check_pools(&self) -> anyhow::Result<()> {
        let mut names = BTreeSet::new();
        let mut dirs = BTreeSet::new();
        for pool in &self.pools {
            let good = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
            let fits = !pool.name.is_empty() && pool.name.len() <= 63;
            ensure!(
                fits && pool.name.bytes().all(good),
                "pools: a name must be 1 to 63 of a-z, 0-9 and -: {:?}",
                pool.name
            );
            ensure!(names.insert(&pool.name), "pools: two are called {:?}", pool.name);
            ensure!(
                pool.kind != PoolKind::Linux || dirs.insert(&pool.data_dir),
                "pools: {:?} needs a data_dir of its own",
                pool.name
            );
        }
        Ok(())
    }
}

pub(super) fn check_url(key: &str, text: &str, schemes: &[&str]) -> anyhow::Result<()> {
    let url = Url::parse(text).with_context(|| format!("{key}: not a URL: {text:?}"))?;
    ensure!(
        schemes.contains(&url.scheme()) && url.has_host(),
        "{key}: must be {} with a host: {text:?}",
        schemes.join(" or ")
    );
    ensure!(
        url.query().is_none() && url.fragment().is_none() && url.username().is_empty(),
        "{key}: must not have a query, a fragment or a user: {text:?}"
    );
    Ok(())
}

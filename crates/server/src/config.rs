//! Every setting of the server: a TOML file, `BASTIDE_…` variables and flags become one checked
//! [`Config`]. A flag wins over a variable, that over the file, that over the default.
//!
//! With the command line this is the only place that reads the environment. What a setting is
//! called, and what it means, is said once: in [`settings::SETTINGS`].

mod accounts;
mod billing;
mod check;
mod code;
mod engine;
mod flags;
mod layers;
mod listen;
mod llm;
mod secrets;
pub mod setting;
pub mod settings;
mod workspaces;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use model::policy::Rule;
use model::{PolicyName, SecretText, TemplateName};
use serde::{Deserialize, Serialize};

pub use accounts::{Auth, MailSettings, OidcSettings, Secret};
pub use billing::Billing;
pub(crate) use billing::StripeSettings;
pub use code::{Code, Runtime};
pub use flags::Flags;
pub use layers::{Environment, Places, load};
pub use listen::Listen;
pub use llm::{DefaultModels, Llm, Origins, PersistenceSettings};
pub use secrets::{SecretPlace, Secrets};
pub use workspaces::Workspaces;

/// The settings after all layers. See `docs/configuration.md`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub listen: Listen,
    pub data_dir: PathBuf,
    pub public_url: Option<String>,
    pub rt_public_url: Option<String>,
    pub rt_listen: Option<Listen>,
    pub rt_ping_seconds: u64,
    pub tls_cert: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    pub log: Log,
    pub policies: BTreeMap<PolicyName, Vec<Rule>>,
    pub hosts: BTreeMap<String, Vec<IpAddr>>,
    pub quotas: BTreeMap<String, QuotaSettings>,
    pub ceiling: Ceiling,
    pub disk: Disk,
    pub pool: PoolDefaults,
    pub pools: Vec<PoolSettings>,
    pub warm: BTreeMap<TemplateName, usize>,
    pub templates_dir: Option<PathBuf>,
    pub host_template_for_all: bool,
    pub images: Images,
    pub limits: Limits,
    pub ports: Ports,
    pub drain_seconds: u64,
    pub sweep_seconds: u64,
    pub metrics: MetricsAccess,
    pub audit: Audit,
    pub meter_seconds: u64,
    pub auth: Auth,
    pub mail: MailSettings,
    pub oidc: OidcSettings,
    pub database_url: Option<Secret>,
    pub signing_key_file: Option<PathBuf>,
    pub trusted_proxies: Vec<IpNet>,
    pub test_mode: bool,
    pub llm: Llm,
    pub persistence: PersistenceSettings,
    pub secrets: Secrets,
    pub workspaces: Workspaces,
    pub billing: Billing,
    pub code: Code,
    /// From the environment alone: nobody sees it in a file or among the processes.
    #[serde(skip)]
    pub master_key: Option<SecretText>,
    #[serde(skip)]
    pub aws: Option<vault::Credentials>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    pub format: LogFormat,
    /// As `RUST_LOG`: `info`, or `info,engine=debug`.
    pub level: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    Json,
    Pretty,
}

/// What is left out stays as the plan has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QuotaSettings {
    pub persistent_max: Option<u32>,
    pub ephemeral_max: Option<u32>,
    pub disk_gb_per_tier_max: Option<u32>,
    pub workspace_gib_max: Option<u32>,
}

/// The most that one sandbox of a plan other than the operator's may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ceiling {
    pub vcpu: u32,
    pub memory_mib: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Disk {
    pub gb_default: u32,
    pub gb_max: u32,
    pub kind: DiskKind,
    /// Size of the file that holds all sandboxes, where a file is needed.
    pub pool_gb: Option<u32>,
    /// What the host keeps free.
    pub reserve_mib: u64,
    /// Of each sandbox.
    pub io_bytes_per_second: Option<u64>,
    pub io_operations_per_second: Option<u64>,
}

/// The log of who changed what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Audit {
    /// 0: for ever.
    pub keep_days: u32,
}

impl Default for Audit {
    fn default() -> Self {
        Self { keep_days: 400 }
    }
}

/// What the disks of sandboxes are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskKind {
    /// The best that the host has.
    #[default]
    Auto,
    Btrfs,
    Image,
    Plain,
}

/// Which container images may be had, and how registries are reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Images {
    /// For owners other than the operator: `ghcr.io`, `ghcr.io/acme`, `*`.
    pub allowed_registries: Vec<String>,
    pub docker_config: Option<PathBuf>,
    pub plain_http: Vec<String>,
    pub max_gb: u32,
    pub pull_timeout_seconds: u64,
}

impl Default for Images {
    fn default() -> Self {
        Self {
            allowed_registries: Vec::new(),
            docker_config: None,
            plain_http: Vec::new(),
            max_gb: 20,
            pull_timeout_seconds: 600,
        }
    }
}

/// What a pool has that does not say it itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PoolDefaults {
    pub max_sandboxes: Option<u32>,
}

/// One place that runs sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolSettings {
    pub name: String,
    #[serde(default)]
    pub kind: PoolKind,
    /// Below the server's own `data_dir` when absent.
    #[serde(default)]
    pub data_dir: Option<PathBuf>,
    #[serde(default)]
    pub max_sandboxes: Option<u32>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolKind {
    /// Namespaces on this machine.
    #[default]
    Linux,
    /// A pool that never answers: to see what clients do then.
    Unreachable,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    pub json_bytes: u64,
    pub file_bytes: u64,
    pub archive_bytes: u64,
    pub connections: u32,
    pub header_timeout_seconds: u64,
    pub body_timeout_seconds: u64,
    pub catalogue_per_minute: u32,
}

/// How ports inside are reached over HTTP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ports {
    /// `{port}-{id}` below it is a port of a sandbox; with an optional `:port` of its own.
    pub domain: Option<String>,
    /// On a connection to a port, until it is given up.
    pub silence_seconds: u64,
}

/// Who may read `/metrics`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MetricsAccess {
    Open,
    Operator,
    Off,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: Listen::default(),
            data_dir: PathBuf::from("/var/lib/bastide"),
            public_url: None,
            rt_public_url: None,
            rt_listen: None,
            rt_ping_seconds: 30,
            tls_cert: None,
            tls_key: None,
            log: Log::default(),
            policies: BTreeMap::new(),
            hosts: BTreeMap::new(),
            quotas: BTreeMap::new(),
            ceiling: Ceiling::default(),
            disk: Disk::default(),
            pool: PoolDefaults::default(),
            pools: Vec::new(),
            warm: BTreeMap::new(),
            templates_dir: None,
            host_template_for_all: false,
            images: Images::default(),
            limits: Limits::default(),
            ports: Ports::default(),
            drain_seconds: 30,
            sweep_seconds: 10,
            metrics: MetricsAccess::Open,
            audit: Audit::default(),
            meter_seconds: 60,
            auth: Auth::default(),
            mail: MailSettings::default(),
            oidc: OidcSettings::default(),
            database_url: None,
            signing_key_file: None,
            trusted_proxies: Vec::new(),
            test_mode: false,
            llm: Llm::default(),
            persistence: PersistenceSettings::default(),
            secrets: Secrets::default(),
            workspaces: Workspaces::default(),
            billing: Billing::default(),
            code: Code::default(),
            master_key: None,
            aws: None,
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { format: LogFormat::Pretty, level: "info".into() }
    }
}

impl Default for Ceiling {
    fn default() -> Self {
        Self { vcpu: 8, memory_mib: 16 * 1024 }
    }
}

impl Default for Disk {
    fn default() -> Self {
        Self {
            gb_default: 5,
            gb_max: 20,
            kind: DiskKind::Auto,
            pool_gb: None,
            reserve_mib: 1024,
            io_bytes_per_second: None,
            io_operations_per_second: None,
        }
    }
}

impl Default for Ports {
    fn default() -> Self {
        Self { domain: None, silence_seconds: 300 }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            json_bytes: 1024 * 1024,
            file_bytes: 5 * 1024 * 1024 * 1024,
            archive_bytes: 20 * 1024 * 1024 * 1024,
            connections: 4096,
            header_timeout_seconds: 30,
            body_timeout_seconds: 60,
            catalogue_per_minute: 600,
        }
    }
}

#[cfg(test)]
mod tests;

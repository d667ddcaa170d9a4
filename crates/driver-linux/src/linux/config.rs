//! Settings of the driver.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use model::{Policy, PolicyName, TemplateName};
use seal::Sealer;

use super::fence::Fence;
use crate::egress::EgressConfig;
use crate::pool::DiskConfig;
use crate::template::ImageAccess;

/// Which images are pulled for sandboxes, and how.
#[derive(Debug, Clone, Default)]
pub struct ImageSettings {
    pub access: ImageAccess,
    /// What owners other than the operator may have: `ghcr.io`, `ghcr.io/acme`, `*`.
    pub allowed_registries: Vec<String>,
}

/// Settings of the driver.
pub struct LinuxConfig {
    pub data_dir: PathBuf,
    pub disk: DiskConfig,
    /// Named egress policies; a sandbox that is adopted gets its own from here.
    pub policies: BTreeMap<PolicyName, Policy>,
    pub egress: EgressConfig,
    /// How many sandboxes of which templates wait for somebody to want one.
    pub warm: BTreeMap<TemplateName, usize>,
    /// The template `host` lets programs make namespaces of their own.
    pub host_nesting: bool,
    pub images: ImageSettings,
    /// Where uid ranges of all instances on this host are claimed.
    pub runtime_dir: PathBuf,
    /// Asked before anything is changed.
    pub fence: Fence,
    /// Seals environments; absent, the one of the data directory does.
    pub sealer: Option<Sealer>,
}

impl LinuxConfig {
    /// The defaults for a data directory.
    pub fn new(data_dir: PathBuf) -> Self {
        Self {
            data_dir,
            disk: DiskConfig::default(),
            policies: BTreeMap::new(),
            egress: EgressConfig::default(),
            warm: BTreeMap::new(),
            host_nesting: false,
            images: ImageSettings::default(),
            runtime_dir: PathBuf::from("/run/bastide"),
            fence: Fence::default(),
            sealer: None,
        }
    }

    pub(super) fn open_sealer(&self, data_dir: &Path) -> anyhow::Result<Sealer> {
        match &self.sealer {
            Some(sealer) => Ok(sealer.clone()),
            None => Sealer::open(&data_dir.join("master.key")),
        }
    }
}

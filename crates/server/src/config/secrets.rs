//! Where secrets are kept, and what seals them.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use model::SecretText;
use seal::Sealer;
use serde::{Deserialize, Serialize};
use store::Store;
use vault::{AwsConfig, Place, Vault};

use crate::config::Config;
use crate::config::check::check_url;

/// The file of the data directory when no other is named.
const MASTER_KEY_FILE: &str = "master.key";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Secrets {
    pub place: SecretPlace,
    pub master_key_file: Option<PathBuf>,
    pub aws_region: Option<String>,
    pub aws_endpoint: Option<String>,
    pub aws_prefix: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SecretPlace {
    Sealed,
    Aws,
}

impl Default for Secrets {
    fn default() -> Self {
        Self {
            place: SecretPlace::Sealed,
            master_key_file: None,
            aws_region: None,
            aws_endpoint: None,
            aws_prefix: "bastide".into(),
        }
    }
}

impl Config {
    /// What the operator said about master keys; `None` when each data directory has its own.
    pub fn sealer(&self) -> Result<Option<Sealer>> {
        if let Some(SecretText(keys)) = &self.master_key {
            return Sealer::given(keys).context("BASTIDE_MASTER_KEY").map(Some);
        }
        let file = self.secrets.master_key_file.as_deref();
        file.map(|file| Sealer::open(file).context("secrets.master_key_file")).transpose()
    }

    pub(crate) fn vault(&self, store: &Store) -> Result<Vault> {
        let sealer = match self.sealer()? {
            Some(sealer) => sealer,
            None => Sealer::open(&self.data_dir.join(MASTER_KEY_FILE))?,
        };
        let place = match self.secrets.place {
            SecretPlace::Sealed => Place::Sealed,
            SecretPlace::Aws => Place::Aws,
        };
        Ok(Vault::new(store.clone(), sealer, place, self.aws_config()))
    }

    pub(super) fn check_secrets(&self) -> Result<()> {
        if let Some(url) = &self.secrets.aws_endpoint {
            check_url("secrets.aws_endpoint", url, &["http", "https"])?;
        }
        if self.secrets.place == SecretPlace::Aws {
            ensure!(self.secrets.aws_region.is_some(), "secrets.aws_region: required");
            ensure!(self.aws.is_some(), "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY: required");
        }
        let good = |c: u8| c.is_ascii_alphanumeric() || b"/_+=.@-".contains(&c);
        let prefix = &self.secrets.aws_prefix;
        ensure!(
            !prefix.is_empty() && prefix.len() <= 200 && prefix.bytes().all(good),
            "secrets.aws_prefix: must be 1 to 200 of letters, digits and /_+=.@-"
        );
        Ok(())
    }

    /// Also when new bundles are sealed: old ones may be there.
    fn aws_config(&self) -> Option<AwsConfig> {
        Some(AwsConfig {
            region: self.secrets.aws_region.clone()?,
            endpoint: self.secrets.aws_endpoint.clone(),
            prefix: self.secrets.aws_prefix.clone(),
            credentials: self.aws.clone()?,
        })
    }
}

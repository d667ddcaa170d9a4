//! Where workspaces are kept.

use anyhow::{Context, Result, bail, ensure};
use blobs::{Blobs, S3Config};
use model::SecretText;
use serde::{Deserialize, Serialize};
use url::Url;

use crate::config::Config;
use crate::config::check::check_url;

/// Below the data directory, when nothing else is said.
const DIRECTORY: &str = "blobs";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Workspaces {
    pub url: Option<String>,
    pub s3_region: String,
    pub s3_endpoint: Option<String>,
    pub link_seconds: u64,
}

impl Default for Workspaces {
    fn default() -> Self {
        Self { url: None, s3_region: "us-east-1".into(), s3_endpoint: None, link_seconds: 3600 }
    }
}

impl Config {
    pub fn blobs(&self) -> Result<Blobs> {
        let Some(text) = &self.workspaces.url else {
            return Ok(Blobs::in_directory(&self.data_dir.join(DIRECTORY))?);
        };
        let url = Url::parse(text).with_context(|| format!("workspaces.url: {text:?}"))?;
        match url.scheme() {
            "file" => {
                let dir = url.to_file_path().ok().context("workspaces.url: not a directory")?;
                Ok(Blobs::in_directory(&dir)?)
            }
            "s3" => Ok(Blobs::in_bucket(&self.bucket(&url)?)?),
            other => bail!("workspaces.url: must be file:// or s3://, not {other}"),
        }
    }

    pub(super) fn check_workspaces(&self) -> Result<()> {
        if let Some(url) = &self.workspaces.s3_endpoint {
            check_url("workspaces.s3_endpoint", url, &["http", "https"])?;
        }
        let seconds = self.workspaces.link_seconds;
        ensure!((1..=604_800).contains(&seconds), "workspaces.link_seconds: must be 1 to 604800");
        if let Some(text) = &self.workspaces.url {
            let url = Url::parse(text).with_context(|| format!("workspaces.url: {text:?}"))?;
            ensure!(
                matches!(url.scheme(), "file" | "s3"),
                "workspaces.url: must be file:///DIR or s3://BUCKET/PREFIX: {text:?}"
            );
        }
        Ok(())
    }

    fn bucket(&self, url: &Url) -> Result<S3Config> {
        let bucket = url.host_str().context("workspaces.url: names no bucket")?.to_owned();
        let credentials = self.aws.clone().map(|aws| blobs::Credentials {
            access_key_id: aws.access_key_id,
            secret_access_key: SecretText(aws.secret_access_key),
            session_token: aws.session_token.map(SecretText),
        });
        Ok(S3Config {
            bucket,
            prefix: url.path().trim_matches('/').to_owned(),
            region: self.workspaces.s3_region.clone(),
            endpoint: self.workspaces.s3_endpoint.clone(),
            credentials,
        })
    }
}

//! What an image is made of, read from its manifest and its configuration.

use std::collections::BTreeMap;

use oci_spec::image::{ImageConfiguration, ImageIndex, ImageManifest};
use sha2::{Digest, Sha256};

use crate::reference::check_digest;
use crate::{Error, Result};

/// More layers than any builder makes; the kernel stacks 500.
const LAYERS_MAX: usize = 127;

/// One image for this machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Image {
    /// `sha256:…` of the manifest.
    pub digest: String,
    /// The lowest first.
    pub layers: Vec<Layer>,
    pub config: RunConfig,
}

/// One layer, compressed or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// `sha256:…` of the blob as it is sent.
    pub digest: String,
    pub bytes: u64,
    /// Hex of the SHA-256 of the uncompressed tar: what is shared between images.
    pub diff_id: String,
}

/// What the image says about running it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RunConfig {
    pub env: BTreeMap<String, String>,
    pub working_dir: String,
    /// `name`, `uid`, either with `:group`; empty is root.
    pub user: String,
    /// Entrypoint and command in one.
    pub command: Vec<String>,
}

/// The descriptor of a configuration and of the layers.
#[derive(Debug, Clone)]
pub(crate) struct Manifest {
    pub(crate) digest: String,
    pub(crate) config: Blob,
    pub(crate) layers: Vec<Blob>,
}

#[derive(Debug, Clone)]
pub(crate) struct Blob {
    pub(crate) digest: String,
    pub(crate) bytes: u64,
}

/// Either kind of answer to "which image is this".
pub(crate) enum Document {
    Manifest(Manifest),
    /// The digest of the manifest for this machine.
    Index(String),
}

/// Reads a manifest or an index; `arch` is as Go calls it.
pub(crate) fn document(bytes: &[u8], arch: &str) -> Result<Document> {
    let corrupt =
        |error: String| Error::Corrupt(format!("the manifest is not understood: {error}"));
    let value: serde_json::Value =
        serde_json::from_slice(bytes).map_err(|error| corrupt(error.to_string()))?;
    if value.get("manifests").is_some() {
        let index: ImageIndex =
            serde_json::from_value(value).map_err(|error| corrupt(error.to_string()))?;
        return Ok(Document::Index(pick(&index, arch)?));
    }
    if value.get("schemaVersion").and_then(serde_json::Value::as_u64) == Some(1) {
        return Err(Error::Invalid(
            "the image has a manifest of schema 1, which nobody can verify; push it anew".into(),
        ));
    }
    let manifest: ImageManifest =
        serde_json::from_value(value).map_err(|error| corrupt(error.to_string()))?;
    let blob = |one: &oci_spec::image::Descriptor| {
        let digest = one.digest().to_string();
        check_digest(&digest)?;
        Ok(Blob { digest, bytes: one.size() })
    };
    if manifest.layers().len() > LAYERS_MAX {
        let count = manifest.layers().len();
        return Err(Error::TooLarge(format!("the image has {count} layers; {LAYERS_MAX} at most")));
    }
    Ok(Document::Manifest(Manifest {
        digest: digest_of(bytes),
        config: blob(manifest.config())?,
        layers: manifest.layers().iter().map(blob).collect::<Result<_>>()?,
    }))
}

fn pick(index: &ImageIndex, arch: &str) -> Result<String> {
    let fits = |one: &&oci_spec::image::Descriptor| match one.platform() {
        Some(platform) => {
            platform.os().to_string() == "linux" && platform.architecture().to_string() == arch
        }
        // An index of one manifest that says nothing.
        None => index.manifests().len() == 1,
    };
    let Some(found) = index.manifests().iter().find(fits) else {
        let offered: Vec<String> = index
            .manifests()
            .iter()
            .filter_map(|one| one.platform().as_ref())
            .map(|platform| format!("{}/{}", platform.os(), platform.architecture()))
            .filter(|name| !name.starts_with("unknown"))
            .collect();
        let offered = offered.join(", ");
        return Err(Error::Invalid(format!(
            "the image is not made for linux/{arch}; it is for: {offered}"
        )));
    };
    let digest = found.digest().to_string();
    check_digest(&digest)?;
    Ok(digest)
}

/// Puts a manifest and its configuration together.
pub(crate) fn assemble(manifest: Manifest, config: &[u8], arch: &str) -> Result<Image> {
    let config: ImageConfiguration = serde_json::from_slice(config).map_err(|error| {
        Error::Corrupt(format!("the image's configuration is not understood: {error}"))
    })?;
    let made_for = config.architecture().to_string();
    if config.os().to_string() != "linux" || made_for != arch {
        return Err(Error::Invalid(format!(
            "the image is for {}/{made_for}, this machine is linux/{arch}",
            config.os()
        )));
    }
    let diff_ids = config.rootfs().diff_ids();
    if diff_ids.len() != manifest.layers.len() {
        return Err(Error::Corrupt("the image's configuration lists other layers".into()));
    }
    let mut layers = Vec::new();
    for (blob, diff_id) in manifest.layers.into_iter().zip(diff_ids) {
        let diff_id = check_digest(diff_id)?.to_owned();
        layers.push(Layer { digest: blob.digest, bytes: blob.bytes, diff_id });
    }
    Ok(Image { digest: manifest.digest, layers, config: run_config(&config) })
}

fn run_config(config: &ImageConfiguration) -> RunConfig {
    let Some(config) = config.config() else { return RunConfig::default() };
    let pairs = config.env().iter().flatten().filter_map(|pair| pair.split_once('='));
    let entrypoint = config.entrypoint().iter().flatten();
    RunConfig {
        env: pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        working_dir: config.working_dir().clone().unwrap_or_default(),
        user: config.user().clone().unwrap_or_default(),
        command: entrypoint.chain(config.cmd().iter().flatten()).cloned().collect(),
    }
}

/// This machine, as Go calls it.
pub(crate) fn machine() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

pub(crate) fn digest_of(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(bytes)))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

//! What is noted of a built template, beside its layers.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use driver::Template;
use jiff::Timestamp;
use model::{Limits, TemplateName};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::host::hex;
use super::layers::Layers;
use super::{Built, ROOTFS};

/// What `meta.json` holds. New fields get `#[serde(default)]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Meta {
    pub(super) name: TemplateName,
    pub(super) digest: String,
    pub(super) built_at: Timestamp,
    pub(super) bytes: u64,
    pub(super) user: String,
    pub(super) sudo: bool,
    #[serde(default)]
    pub(super) nesting: bool,
    pub(super) limits: Limits,
    #[serde(default)]
    pub(super) env: BTreeMap<String, String>,
    /// The lowest first; none in what older versions built, which have a tree of their own.
    #[serde(default)]
    pub(super) layers: Vec<String>,
    /// The id of `user`, whom the workspace belongs to.
    #[serde(default)]
    pub(super) uid: Option<u32>,
    #[serde(default)]
    pub(super) workdir: Option<String>,
    /// Started in every sandbox, beside what is asked of it.
    #[serde(default)]
    pub(super) start: Vec<String>,
    /// The reference of an image.
    #[serde(default)]
    pub(super) image: Option<String>,
    /// Pulled because a sandbox needed it, and nobody asked to keep it.
    #[serde(default)]
    pub(super) passing: bool,
}

impl Meta {
    /// Names the build by everything that makes a difference to who uses it.
    pub(super) fn with_digest(mut self) -> Self {
        let mut hash = Sha256::new();
        let env = self.env.iter().flat_map(|(name, value)| [name.as_str(), value.as_str()]);
        let words = [self.name.as_str(), &self.user, self.workdir.as_deref().unwrap_or_default()];
        let limits = format!("{:?} {} {}", self.limits, self.sudo, self.nesting);
        let lists: [Vec<&str>; 4] = [
            words.into_iter().chain([limits.as_str()]).collect(),
            self.layers.iter().map(String::as_str).collect(),
            self.start.iter().map(String::as_str).collect(),
            env.collect(),
        ];
        for list in lists {
            hash.update((list.len() as u64).to_le_bytes());
            for text in list {
                hash.update((text.len() as u64).to_le_bytes());
                hash.update(text);
            }
        }
        self.digest = format!("sha256:{}", hex(&hash.finalize()));
        self
    }

    /// `dir` is the build's own.
    pub(super) fn read(dir: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read(dir.join(super::META))
            .with_context(|| format!("read the template's metadata in {}", dir.display()))?;
        serde_json::from_slice(&text)
            .with_context(|| format!("parse the template's metadata in {}", dir.display()))
    }

    pub(super) fn built(self, dir: &Path, layers: &Layers) -> Built {
        let trees = match self.layers.is_empty() {
            true => vec![dir.join(ROOTFS)],
            false => self.layers.iter().rev().map(|id| layers.tree(id)).collect(),
        };
        let uid = self.uid.unwrap_or(if self.user == "user" { 1000 } else { 0 });
        Built {
            layers: trees,
            layer_ids: self.layers,
            sudo: self.sudo,
            nesting: self.nesting,
            uid,
            workdir: self.workdir,
            start: self.start,
            passing: self.passing,
            template: Template {
                name: self.name,
                digest: self.digest,
                built_at: Some(self.built_at),
                bytes: Some(self.bytes),
                user: self.user,
                limits: self.limits,
                env: self.env,
                image: self.image,
            },
        }
    }
}

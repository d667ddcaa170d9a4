//! The part of `cargo metadata` that the rules need.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
pub(super) struct Metadata {
    pub packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Package {
    pub name: String,
    pub version: String,
    pub license: Option<String>,
    /// Absent for our own.
    pub source: Option<String>,
    pub dependencies: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Dependency {
    pub name: String,
    pub rename: Option<String>,
    /// Absent for a normal one; else `dev` or `build`.
    pub kind: Option<String>,
    /// Absent for one without a version, by path.
    pub path: Option<String>,
}

impl Metadata {
    pub(super) fn load(root: &Path) -> anyhow::Result<Self> {
        let output = Command::new(env!("CARGO"))
            .args(["metadata", "--format-version", "1"])
            .current_dir(root)
            .output()
            .context("start cargo metadata")?;
        if !output.status.success() {
            bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        serde_json::from_slice(&output.stdout).context("parse cargo metadata")
    }

    /// Our own crates.
    pub(super) fn ours(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|package| package.source.is_none())
    }
}

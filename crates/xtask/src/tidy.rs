//! `cargo xtask tidy`: the house rules that no other tool checks. A rule that has to be broken has
//! its exception here, with the reason.

mod edges;
mod licences;
mod manifests;
mod metadata;
mod sources;

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

use self::metadata::Metadata;
use crate::say;

/// A text file of the repository.
pub(crate) struct Source {
    /// From the root, with `/`.
    pub path: String,
    pub text: String,
}

/// One broken rule, as `path:line: what`.
pub(crate) type Finding = String;

pub(crate) fn run(root: &Path) -> anyhow::Result<()> {
    let sources = read_all(root)?;
    let metadata = Metadata::load(root)?;
    let mut findings = Vec::new();
    for source in &sources {
        findings.extend(sources::check(source));
    }
    findings.extend(edges::check(&metadata));
    findings.extend(licences::check(&metadata));
    findings.extend(manifests::check(&metadata, &sources));
    for finding in &findings {
        say::error(finding);
    }
    if !findings.is_empty() {
        bail!("{} findings", findings.len());
    }
    say::line(&format!("tidy: {} files, {} packages", sources.len(), metadata.packages.len()));
    Ok(())
}

/// What git knows or would take; what is not text is left out.
fn read_all(root: &Path) -> anyhow::Result<Vec<Source>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"])
        .current_dir(root)
        .output()
        .context("list the files with git")?;
    if !output.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let names = String::from_utf8(output.stdout).context("names of files")?;
    let mut sources = Vec::new();
    for path in names.split('\0').filter(|path| !path.is_empty()) {
        // A file that is gone but not yet forgotten by git has nothing to check.
        let Ok(bytes) = fs::read(root.join(path)) else { continue };
        if let Ok(text) = String::from_utf8(bytes) {
            sources.push(Source { path: path.to_owned(), text });
        }
    }
    Ok(sources)
}

#[cfg(test)]
mod tests;

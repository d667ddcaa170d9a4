//! Dependencies that nothing uses.

use super::metadata::{Dependency, Metadata};
use super::{Finding, Source};

/// Used without being named: a crate, the dependency, and how.
const UNNAMED: &[(&str, &str, &str)] = &[];

pub(super) fn check(metadata: &Metadata, sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in metadata.ours() {
        let folder = format!("crates/{}/", package.name);
        let code: Vec<&str> = sources
            .iter()
            .filter(|source| source.path.starts_with(&folder) && source.path.ends_with(".rs"))
            .map(|source| source.text.as_str())
            .collect();
        // A crate may name itself for its tests, to switch on a feature.
        for dependency in package.dependencies.iter().filter(|one| one.name != package.name) {
            let excused = UNNAMED
                .iter()
                .any(|(krate, name, _)| *krate == package.name && *name == dependency.name);
            if !excused && !code.iter().any(|text| names(text, &identifier(dependency))) {
                let name = &dependency.name;
                findings.push(format!("{folder}Cargo.toml: nothing uses {name}"));
            }
        }
        let by_version = |one: &&Dependency| one.path.is_none() && one.kind.is_none();
        findings.extend(duplicates(package.dependencies.iter().filter(by_version), &folder));
    }
    findings
}

fn identifier(dependency: &Dependency) -> String {
    dependency.rename.as_ref().unwrap_or(&dependency.name).replace('-', "_")
}

/// `identifier` as a whole word, in a path (`serde::`) or an import (`use serde;`).
fn names(text: &str, identifier: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(identifier).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = &text[at + identifier.len()..];
        let used = after.starts_with("::") || after.starts_with(';') || after.starts_with(" as ");
        used && !before.is_some_and(is_word)
    })
}

fn duplicates<'a>(
    dependencies: impl Iterator<Item = &'a Dependency>,
    folder: &str,
) -> Vec<Finding> {
    let mut seen = Vec::new();
    let mut findings = Vec::new();
    for dependency in dependencies {
        if seen.contains(&&dependency.name) {
            findings.push(format!("{folder}Cargo.toml: {} is there twice", dependency.name));
        }
        seen.push(&dependency.name);
    }
    findings
}

#[cfg(test)]
pub(super) fn uses(text: &str, name: &str) -> bool {
    names(text, name)
}

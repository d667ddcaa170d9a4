//! Which package holds which agent's program, and the versions that we test with.

use std::path::{Path, PathBuf};

use super::InstallError;

/// The package that a person would install; the program is in one that it names for each platform.
#[derive(Debug)]
pub struct Package {
    pub agent: &'static str,
    pub name: &'static str,
    /// What is installed when nothing else is asked for: the version that our tests run.
    pub version: &'static str,
    /// Where the program may be; `*` stands for one directory.
    programs: &'static [&'static str],
    /// Directories that a session does not need.
    pub(super) skip: &'static [&'static str],
}

const PACKAGES: &[Package] = &[
    Package {
        agent: "claude",
        name: "@anthropic-ai/claude-code",
        version: "2.1.330",
        programs: &["claude"],
        skip: &[],
    },
    Package {
        agent: "codex",
        name: "@openai/codex",
        version: "0.169.0",
        programs: &["vendor/*/bin/codex", "vendor/*/codex/codex"],
        skip: &["voice"],
    },
    Package {
        agent: "opencode",
        name: "opencode-ai",
        version: "1.18.33",
        programs: &["bin/opencode"],
        skip: &[],
    },
    Package {
        agent: "amp",
        name: "@ampcode/cli",
        version: "0.0.1790712063-gb89205",
        programs: &["amp", "bin/amp"],
        skip: &[],
    },
];

/// The package of an agent; none for agents that are built in or unknown.
pub fn package_of(agent: &str) -> Option<&'static Package> {
    PACKAGES.iter().find(|package| package.agent == agent)
}

impl Package {
    /// The program in an unpacked package, if it is there.
    pub(super) fn program_in(&self, dir: &Path) -> Option<PathBuf> {
        self.programs.iter().find_map(|pattern| {
            let Some((before, after)) = pattern.split_once("*/") else {
                return Some(dir.join(pattern)).filter(|path| path.is_file());
            };
            let entries = std::fs::read_dir(dir.join(before)).ok()?;
            entries
                .filter_map(Result::ok)
                .map(|entry| entry.path().join(after))
                .find(|path| path.is_file())
        })
    }
}

/// A version is part of paths and of addresses.
pub(super) fn check_version(version: &str) -> Result<(), InstallError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._+-".contains(c);
    if (1..=64).contains(&version.len())
        && version.starts_with(|c: char| c.is_ascii_alphanumeric())
        && version.chars().all(allowed)
    {
        return Ok(());
    }
    Err(InstallError::new(
        format!("not a version: {version:?}"),
        "a version is like 1.2.3, or a tag like latest",
    ))
}

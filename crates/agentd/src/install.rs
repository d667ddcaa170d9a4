//! Gets the program of an agent from the npm registry, without npm or node: the package's manifest,
//! the package of this platform, its tarball, checked and unpacked into a directory of its own.
//!
//! ```text
//! DIR/bin/claude -> ../programs/claude/2.1.330/claude    what sessions start; replaced atomically
//! DIR/programs/claude/2.1.330/                           one unpacked version; never changed
//! DIR/programs/claude/.partial/SHA512.tgz                a download that was cut; continued next time
//! DIR/programs/claude/.lock                              held while one installs
//! ```
//!
//! It deliberately runs no script of a package, needs no write access elsewhere, and names no host:
//! the registry is what the environment and `.npmrc` say (see [`Registry`]).

mod download;
mod http;
mod lock;
mod manifest;
mod registry;
mod table;
#[cfg(test)]
mod tests;
mod unpack;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tracing::{info, warn};

use crate::error::{Error, Result as DaemonResult};
use crate::host::Host;

pub use registry::{Registry, RegistrySettings};
pub use table::{Package, package_of};

use http::Client;
use manifest::Platform;

/// What to install.
#[derive(Debug, Clone)]
pub struct Wanted {
    pub agent: &'static str,
    /// As asked for; the pinned one if absent.
    pub version: Option<String>,
    /// Even if it is there.
    pub reinstall: bool,
}

/// Puts the program into [`Host::bin_dir`] and returns where it is. Two at once do it once.
pub async fn install(host: &Arc<Host>, wanted: Wanted) -> DaemonResult<PathBuf> {
    let Wanted { agent, version, reinstall } = wanted;
    if !reinstall && let Some(found) = host.find_program(agent) {
        return Ok(found);
    }
    let variable = |name: &str| {
        let value = host.environment.get(std::ffi::OsStr::new(name))?;
        value.to_str().map(str::to_owned)
    };
    let settings = RegistrySettings::from_environment(variable);
    let installer = Installer::new(&host.data_dir, settings);
    match installer.install(agent, version.as_deref(), reinstall).await {
        Ok(_) => Ok(host.bin_dir().join(agent)),
        Err(error) => {
            warn!(agent, "could not install {agent}: {error}");
            let hint = if error.hint.is_empty() { "" } else { "\nhint: " };
            Err(Error::install_failed(agent, format!("{error}{hint}{}", error.hint)))
        }
    }
}

/// Where programs are installed, and where they come from.
#[derive(Debug, Clone)]
pub struct Installer {
    dir: PathBuf,
    settings: RegistrySettings,
}

/// A program that is in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    pub program: PathBuf,
    pub version: String,
}

/// Why an agent could not be installed: one sentence, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct InstallError {
    message: String,
    /// For a person: what would help.
    pub hint: &'static str,
}

impl InstallError {
    fn new(message: impl Into<String>, hint: &'static str) -> Self {
        Self { message: message.into(), hint }
    }

    fn disk(what: &str, path: &Path, error: &io::Error) -> Self {
        let message = format!("cannot {what} {}: {error}", path.display());
        Self::new(message, "make room, or give a directory that can be written")
    }
}

impl Installer {
    pub fn new(dir: impl Into<PathBuf>, settings: RegistrySettings) -> Self {
        Self { dir: dir.into(), settings }
    }

    /// Installs `version` (a version or a tag of the registry; default: the one we test with).
    /// What is there already is left alone, unless `again` or another version is asked for.
    pub async fn install(
        &self,
        agent: &str,
        version: Option<&str>,
        again: bool,
    ) -> Result<Installed, InstallError> {
        let package = package_of(agent).ok_or_else(|| {
            InstallError::new(format!("there is nothing to install for: {agent}"), "")
        })?;
        let wanted = version.unwrap_or(package.version);
        table::check_version(wanted)?;
        let home = self.dir.join("programs").join(agent);
        fs::create_dir_all(home.join(".partial"))
            .map_err(|error| InstallError::disk("make the directory", &home, &error))?;
        let _lock = lock::take(&home.join(".lock")).await?;
        if !again && let Some(there) = self.version_there(package, &home, wanted) {
            self.point_to(agent, &there.program)?;
            return Ok(there);
        }
        let client = Client::new(&self.settings)?;
        let registry = self.settings.resolve().await?;
        info!(agent, version = wanted, "installing {agent} {wanted} from {registry}");
        let found = manifest::find(&client, &registry, package, wanted, Platform::here()).await?;
        let installed = self.fetch_and_unpack(&client, package, &home, &found).await?;
        self.point_to(agent, &installed.program)?;
        remove_old_versions(&home, &installed.program);
        info!(agent, version = installed.version, "installed {agent} {}", installed.version);
        Ok(installed)
    }

    async fn fetch_and_unpack(
        &self,
        client: &Client,
        package: &'static Package,
        home: &Path,
        found: &manifest::Found,
    ) -> Result<Installed, InstallError> {
        let tarball =
            download::fetch(client, package.agent, &found.tarball, &home.join(".partial")).await?;
        let target = home.join(&found.version);
        let (from, into) = (tarball.clone(), target.clone());
        tokio::task::spawn_blocking(move || unpack::unpack(&from, &into, package))
            .await
            .map_err(|_| InstallError::new("unpacking was cut short", "try again"))??;
        let _ = fs::remove_file(&tarball);
        let program = package.program_in(&target).ok_or_else(|| {
            let text = format!("{} {} has no program in it", package.name, found.version);
            InstallError::new(text, "ask for another version")
        })?;
        Ok(Installed { program, version: found.version.clone() })
    }

    /// A version that is unpacked already. A tag may mean another version by now, so it never is.
    fn version_there(&self, package: &Package, home: &Path, wanted: &str) -> Option<Installed> {
        let program = package.program_in(&home.join(wanted))?;
        Some(Installed { program, version: wanted.to_owned() })
    }

    /// Lets `bin/AGENT` be that program, with no moment at which there is none.
    fn point_to(&self, agent: &str, program: &Path) -> Result<(), InstallError> {
        let link = self.link(agent);
        let bin = self.dir.join("bin");
        let inside = program.strip_prefix(&self.dir).unwrap_or(program);
        let target = Path::new("..").join(inside);
        if fs::read_link(&link).is_ok_and(|there| there == target) {
            return Ok(());
        }
        let fresh = bin.join(format!(".{agent}.{}", std::process::id()));
        let done = fs::create_dir_all(&bin)
            .and_then(|()| fs::remove_file(&fresh).or_else(if_absent))
            .and_then(|()| std::os::unix::fs::symlink(&target, &fresh))
            .and_then(|()| fs::rename(&fresh, &link));
        done.map_err(|error| InstallError::disk("make the link", &link, &error))
    }

    fn link(&self, agent: &str) -> PathBuf {
        self.dir.join("bin").join(agent)
    }
}

/// Keeps the version in use and the one before it, which a running session may still be using.
fn remove_old_versions(home: &Path, program: &Path) {
    let Ok(entries) = fs::read_dir(home) else { return };
    let mut others: Vec<_> = entries
        .filter_map(Result::ok)
        .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
        .filter(|entry| !program.starts_with(entry.path()))
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    others.sort();
    others.pop();
    for (_, path) in others {
        let _ = fs::remove_dir_all(path);
    }
}

fn if_absent(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

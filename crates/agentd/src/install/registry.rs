//! Which npm registry to ask: the environment first, then the `.npmrc` files, then npm itself, if it
//! happens to be there. No registry is built in.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use url::Url;

use super::InstallError;
use crate::process::orphans;

const NPM_WAIT: Duration = Duration::from_secs(20);
const NPMRC_BYTES_MAX: u64 = 256 * 1024;

const HINT: &str = "set npm_config_registry, or a registry= line in .npmrc";

/// What the environment says; made where the environment may be read.
#[derive(Debug, Clone, Default)]
pub struct RegistrySettings {
    /// `npm_config_registry`: goes before every file.
    pub address: Option<String>,
    /// `.npmrc` files that exist or not, the most particular one first.
    pub npmrc: Vec<PathBuf>,
    /// Trusted beside the certificates of this machine.
    pub ca_file: Option<PathBuf>,
    /// To ask npm when nothing else is said.
    pub path: Option<String>,
}

impl RegistrySettings {
    /// Reads the variables that npm reads.
    pub fn from_environment(get: impl Fn(&str) -> Option<String>) -> Self {
        let either = |name: &str| {
            get(&format!("npm_config_{name}"))
                .or_else(|| get(&format!("NPM_CONFIG_{}", name.to_uppercase())))
                .filter(|value| !value.trim().is_empty())
        };
        let user = either("userconfig")
            .map(PathBuf::from)
            .or_else(|| get("HOME").map(|home| PathBuf::from(home).join(".npmrc")));
        let global = either("globalconfig").map(PathBuf::from);
        let usual = ["/usr/local/etc/npmrc", "/usr/etc/npmrc", "/etc/npmrc"].map(PathBuf::from);
        Self {
            address: either("registry"),
            npmrc: user.into_iter().chain(global).chain(usual).collect(),
            ca_file: either("cafile").map(PathBuf::from),
            path: get("PATH"),
        }
    }

    pub(super) async fn resolve(&self) -> Result<Registry, InstallError> {
        let mut lines = BTreeMap::new();
        for path in &self.npmrc {
            for (key, value) in read_npmrc(path) {
                lines.entry(key).or_insert(value);
            }
        }
        let said = self.address.clone().or_else(|| lines.get("registry").cloned());
        let address = match said {
            Some(address) => address,
            None => self
                .ask_npm()
                .await
                .ok_or_else(|| InstallError::new("no npm registry is configured", HINT))?,
        };
        Ok(Registry { base: checked(&address)?, lines })
    }

    async fn ask_npm(&self) -> Option<String> {
        let mut command = tokio::process::Command::new("npm");
        command
            .args(["config", "get", "registry", "--loglevel=error"])
            .env("PATH", self.path.as_deref()?)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        let (child, _ours) = orphans::spawn(&mut command).ok()?;
        let output = tokio::time::timeout(NPM_WAIT, child.wait_with_output()).await.ok()?.ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty() && text != "undefined")
    }

    /// The file of `cafile`, wherever it is said.
    pub(super) fn ca_file(&self) -> Option<PathBuf> {
        let in_files =
            || self.npmrc.iter().flat_map(|path| read_npmrc(path)).find(|(key, _)| key == "cafile");
        self.ca_file.clone().or_else(|| in_files().map(|(_, value)| PathBuf::from(value)))
    }
}

/// A registry that was decided on.
#[derive(Debug)]
pub struct Registry {
    base: Url,
    lines: BTreeMap<String, String>,
}

impl fmt::Display for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.base.as_str().trim_end_matches('/'))
    }
}

impl Registry {
    /// Where a package is, or one version of it. A scope may have a registry of its own.
    pub(super) fn address(&self, name: &str, version: Option<&str>) -> Result<Url, InstallError> {
        let scope = name.split_once('/').map(|(scope, _)| format!("{scope}:registry"));
        let base = match scope.and_then(|key| self.lines.get(&key)) {
            Some(address) => checked(address)?,
            None => self.base.clone(),
        };
        let mut address = base.clone();
        let name = name.replace('/', "%2f");
        let path = base.path().trim_end_matches('/');
        let version = version.map(|version| format!("/{version}")).unwrap_or_default();
        address.set_path(&format!("{path}/{name}{version}"));
        Ok(address)
    }

    /// What `.npmrc` has for exactly this host (and path), as npm looks it up.
    pub(super) fn authorization_for(&self, url: &Url) -> Option<String> {
        let host = url.host_str()?;
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        let mut path = url.path();
        loop {
            let key = format!("//{host}{port}{}", path.trim_end_matches('/'));
            for slash in ["/", ""] {
                if let Some(token) = self.lines.get(&format!("{key}{slash}:_authToken")) {
                    return Some(format!("Bearer {token}"));
                }
                if let Some(basic) = self.lines.get(&format!("{key}{slash}:_auth")) {
                    return Some(format!("Basic {basic}"));
                }
            }
            path = &path[..path.trim_end_matches('/').rfind('/')?];
        }
    }
}

/// Checksums come from the registry, so it has to be who it says it is.
fn checked(address: &str) -> Result<Url, InstallError> {
    let wrong = |why: &str| InstallError::new(format!("the npm registry {why}: {address}"), HINT);
    let url = Url::parse(address.trim()).map_err(|_| wrong("is not an address"))?;
    let local = url.host().is_some_and(|host| match host {
        url::Host::Domain(name) => name == "localhost",
        url::Host::Ipv4(ip) => ip.is_loopback(),
        url::Host::Ipv6(ip) => ip.is_loopback(),
    });
    match url.scheme() {
        "https" => Ok(url),
        "http" if local => Ok(url),
        _ => Err(wrong("must be https")),
    }
}

/// `key = value` lines; a file that is absent, huge or unreadable says nothing.
fn read_npmrc(path: &std::path::Path) -> Vec<(String, String)> {
    let small = std::fs::metadata(path).is_ok_and(|file| file.len() <= NPMRC_BYTES_MAX);
    let text =
        if small { std::fs::read_to_string(path).unwrap_or_default() } else { String::new() };
    text.lines()
        .map(str::trim)
        .filter(|line| !line.starts_with(['#', ';']))
        .filter_map(|line| line.split_once('='))
        .map(|(key, value)| (key.trim().to_owned(), value.trim().trim_matches('"').to_owned()))
        // A variable that npm would put in: what it stands for is not ours to read.
        .filter(|(_, value)| !value.is_empty() && !value.contains("${"))
        .collect()
}

#[cfg(test)]
mod tests;

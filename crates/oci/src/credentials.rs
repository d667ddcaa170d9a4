//! Who we are to a registry: a docker `config.json`, or a name and a password. Never logged.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

/// A name and a password for one registry.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    pub user: String,
    pub password: String,
}

/// Logins by registry.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    by_registry: BTreeMap<String, Login>,
    /// For whatever registry is asked.
    any: Option<Login>,
}

#[derive(Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, DockerAuth>,
}

#[derive(Deserialize)]
struct DockerAuth {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login(…)")
    }
}

impl Login {
    pub(crate) fn basic(&self) -> String {
        format!("Basic {}", STANDARD.encode(format!("{}:{}", self.user, self.password)))
    }
}

impl Credentials {
    /// The `auths` of a docker `config.json`. Helpers (`credHelpers`) are programs, and none is run.
    pub fn from_docker_config(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
        let config: DockerConfig = serde_json::from_slice(&text)
            .with_context(|| format!("{} is not a docker config.json", path.display()))?;
        let mut by_registry = BTreeMap::new();
        for (registry, auth) in config.auths {
            if let Some(login) = auth.login() {
                by_registry.insert(host_of(&registry).to_owned(), login);
            }
        }
        Ok(Self { by_registry, any: None })
    }

    /// One login, for the registry of the one image that is asked for.
    pub fn of_login(login: Login) -> Self {
        Self { by_registry: BTreeMap::new(), any: Some(login) }
    }

    pub(crate) fn of(&self, registry: &str) -> Option<&Login> {
        let found = self.by_registry.get(registry);
        // Docker's own registry has three names.
        let docker = ["docker.io", "index.docker.io", "registry-1.docker.io"];
        let alias = || {
            let known = docker.contains(&registry).then_some(docker)?;
            known.iter().find_map(|name| self.by_registry.get(*name))
        };
        self.any.as_ref().or(found).or_else(alias)
    }
}

impl DockerAuth {
    fn login(self) -> Option<Login> {
        if let (Some(user), Some(password)) = (self.username, self.password) {
            return Some(Login { user, password });
        }
        let decoded = STANDARD.decode(self.auth?).ok()?;
        let text = String::from_utf8(decoded).ok()?;
        let (user, password) = text.split_once(':')?;
        Some(Login { user: user.to_owned(), password: password.to_owned() })
    }
}

/// Keys are hosts, or URLs of old.
fn host_of(key: &str) -> &str {
    let rest = key.strip_prefix("https://").or(key.strip_prefix("http://")).unwrap_or(key);
    rest.split('/').next().unwrap_or(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_docker_config_is_read_and_never_shown() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        let text = r#"{"auths": {"https://index.docker.io/v1/": {"auth": "bWU6aHVzaA=="},
            "ghcr.io": {"username": "you", "password": "s3cret"}, "empty.io": {}},
            "credsStore": "x"}"#;
        std::fs::write(&path, text).unwrap();
        let credentials = Credentials::from_docker_config(&path).unwrap();
        let login = credentials.of("docker.io").unwrap();
        assert_eq!((login.user.as_str(), login.password.as_str()), ("me", "hush"));
        assert_eq!(credentials.of("ghcr.io").unwrap().user, "you");
        assert!(credentials.of("empty.io").is_none() && credentials.of("quay.io").is_none());
        let shown = format!("{credentials:?}");
        assert!(!shown.contains("hush") && !shown.contains("s3cret"), "{shown}");
    }
}

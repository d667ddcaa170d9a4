//! From a package and a version to one tarball for this machine.

use std::path::Path;

use serde_json::Value;
use url::Url;

use super::http::Client;
use super::registry::Registry;
use super::table::{Package, check_version};
use super::{InstallError, download::Tarball};

/// A manifest of one version is a few kilobytes, a document of all of them megabytes.
const MANIFEST_BYTES_MAX: usize = 48 * 1024 * 1024;

/// The version that was found, and its tarball for this platform.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) version: String,
    pub(super) tarball: Tarball,
}

/// What the names of platform packages end with, best first.
#[derive(Debug)]
pub(super) struct Platform {
    suffixes: Vec<String>,
}

impl Platform {
    pub(super) fn here() -> Self {
        let musl = format!("/lib/ld-musl-{}.so.1", std::env::consts::ARCH);
        let glibc = Path::new("/lib64/ld-linux-x86-64.so.2").exists()
            || Path::new("/lib/ld-linux-aarch64.so.1").exists();
        let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let modern = std::env::consts::ARCH != "x86_64" || cpu.contains(" avx2");
        let musl_only = Path::new(&musl).exists() && !glibc;
        let libcs: &[&str] = if musl_only { &["-musl", ""] } else { &[""] };
        Self::of(std::env::consts::ARCH, libcs, modern)
    }

    fn of(arch: &str, libcs: &[&str], modern: bool) -> Self {
        let arch = match arch {
            "x86_64" => "x64",
            "aarch64" => "arm64",
            other => other,
        };
        let mut suffixes = Vec::new();
        for libc in libcs {
            let plain = format!("-linux-{arch}{libc}");
            let baseline = format!("-linux-{arch}-baseline{libc}");
            suffixes.extend(if modern { [plain, baseline] } else { [baseline, plain] });
        }
        Self { suffixes }
    }

    fn name(&self) -> &str {
        self.suffixes[0].trim_start_matches('-').trim_end_matches("-baseline")
    }
}

pub(super) async fn find(
    client: &Client,
    registry: &Registry,
    package: &Package,
    wanted: &str,
    platform: Platform,
) -> Result<Found, InstallError> {
    let main = manifest(client, registry, package.name, wanted).await?;
    let version = text(&main, "version").unwrap_or(wanted).to_owned();
    check_version(&version)?;
    let Some((name, number)) = platform_package(&main, &platform) else {
        return Err(InstallError::new(
            format!("{} {version} has no program for {}", package.name, platform.name()),
            "older versions need node: ask for a newer one, or put the program on PATH",
        ));
    };
    let manifest = manifest(client, registry, &name, &number).await?;
    let tarball = tarball_of(&manifest, registry, &name)?;
    Ok(Found { version, tarball })
}

/// The dependency that is for this platform: its package and version, aliases resolved.
fn platform_package(main: &Value, platform: &Platform) -> Option<(String, String)> {
    let optional = main.get("optionalDependencies")?.as_object()?;
    let (key, value) = platform
        .suffixes
        .iter()
        .find_map(|suffix| optional.iter().find(|(key, _)| key.ends_with(suffix.as_str())))?;
    let value = value.as_str()?;
    let (name, number) = match value.strip_prefix("npm:") {
        Some(alias) => alias.rsplit_once('@').filter(|(name, _)| !name.is_empty())?,
        None => (key.as_str(), value),
    };
    let number = number.trim_start_matches(['^', '~', '=', 'v']);
    Some((name.to_owned(), number.to_owned()))
}

fn tarball_of(manifest: &Value, registry: &Registry, name: &str) -> Result<Tarball, InstallError> {
    let wrong = |what: &str| {
        InstallError::new(
            format!("the registry's answer about {name} has no {what}"),
            "is this an npm registry? see npm_config_registry",
        )
    };
    let dist = manifest.get("dist").ok_or_else(|| wrong("dist"))?;
    let url = text(dist, "tarball").ok_or_else(|| wrong("dist.tarball"))?;
    let url = Url::parse(url).map_err(|_| wrong("usable dist.tarball"))?;
    let sha512 = text(dist, "integrity")
        .and_then(|all| all.split_whitespace().find_map(|one| one.strip_prefix("sha512-")))
        .and_then(|encoded| {
            use base64::Engine as _;
            base64::engine::general_purpose::STANDARD.decode(encoded).ok()
        })
        .and_then(|bytes| <[u8; 64]>::try_from(bytes).ok())
        .ok_or_else(|| wrong("sha512 in dist.integrity"))?;
    Ok(Tarball { authorization: registry.authorization_for(&url), url, sha512 })
}

/// The manifest of one version or tag. Some registries have only the document of all versions.
async fn manifest(
    client: &Client,
    registry: &Registry,
    name: &str,
    wanted: &str,
) -> Result<Value, InstallError> {
    check_version(wanted)?;
    let one = registry.address(name, Some(wanted))?;
    let accept = "application/json";
    let authorization = registry.authorization_for(&one);
    match client.get_json(&one, accept, authorization.as_deref(), MANIFEST_BYTES_MAX).await {
        Ok(manifest) if manifest.get("dist").is_some() => return Ok(manifest),
        Ok(_) => {}
        Err(error) if error.may_lack_the_route() => {}
        Err(error) => return Err(error.into_install_error(registry)),
    }
    let all = registry.address(name, None)?;
    let accept = "application/vnd.npm.install-v1+json, application/json;q=0.8";
    let document = client
        .get_json(&all, accept, authorization.as_deref(), MANIFEST_BYTES_MAX)
        .await
        .map_err(|error| error.into_install_error(registry))?;
    let tags = document.get("dist-tags");
    let version = tags.and_then(|tags| text(tags, wanted)).unwrap_or(wanted);
    document.get("versions").and_then(|versions| versions.get(version)).cloned().ok_or_else(|| {
        InstallError::new(
            format!("the registry has no version of {name} called: {wanted}"),
            "ask for a version that exists, or for latest",
        )
    })
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key)?.as_str()
}

#[cfg(test)]
mod tests;

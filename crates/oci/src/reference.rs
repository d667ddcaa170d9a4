//! `ghcr.io/a/b:main`, `alpine`, `host:5000/x@sha256:…`: what an image is called.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

/// A checked reference. What is left out is as docker has it: `docker.io`, `library/`, `latest`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    inner: oci_spec::distribution::Reference,
}

const BYTES_MAX: usize = 512;

impl Reference {
    /// As people write it: `docker.io`, `ghcr.io`, `localhost:5000`.
    pub fn registry(&self) -> &str {
        self.inner.registry()
    }

    pub fn repository(&self) -> &str {
        self.inner.repository()
    }

    pub fn digest(&self) -> Option<&str> {
        self.inner.digest()
    }

    /// What a manifest is asked for by: the digest if there is one, else the tag.
    pub fn version(&self) -> &str {
        self.inner.digest().or(self.inner.tag()).unwrap_or("latest")
    }

    /// The host that is asked, with its port if one is written.
    pub(crate) fn host(&self) -> &str {
        self.inner.resolve_registry()
    }
}

impl FromStr for Reference {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong =
            |why: String| Error::Invalid(format!("not an image reference: {text:?}: {why}"));
        if text.len() > BYTES_MAX {
            return Err(Error::Invalid(format!("longer than {BYTES_MAX} bytes")));
        }
        let inner: oci_spec::distribution::Reference =
            text.parse().map_err(|error| wrong(format!("{error}")))?;
        if let Some(digest) = inner.digest() {
            check_digest(digest)?;
        }
        let host = inner.resolve_registry();
        let plain = |c: u8| c.is_ascii_alphanumeric() || b".-:[]".contains(&c);
        if host.is_empty() || !host.bytes().all(plain) {
            return Err(wrong(format!("bad registry {host:?}")));
        }
        Ok(Self { inner })
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.inner.whole())
    }
}

/// The hex of a `sha256:` digest, the only kind that registries use.
pub(crate) fn check_digest(digest: &str) -> Result<&str> {
    let hex = digest.strip_prefix("sha256:").unwrap_or_default();
    let lower = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
    if hex.len() == 64 && hex.bytes().all(lower) {
        return Ok(hex);
    }
    Err(Error::Invalid(format!("not a sha256 digest: {digest:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, host: &str, repository: &str, version: &str) {
        let reference: Reference = text.parse().unwrap();
        assert_eq!(reference.host(), host);
        assert_eq!(reference.repository(), repository);
        assert_eq!(reference.version(), version);
    }

    #[test]
    fn what_is_left_out_is_as_docker_has_it() {
        let digest = format!("sha256:{}", "a".repeat(64));
        check("alpine", "index.docker.io", "library/alpine", "latest");
        check("ghcr.io/a/b:main", "ghcr.io", "a/b", "main");
        check("localhost:5000/x", "localhost:5000", "x", "latest");
        check(&format!("quay.io/a/b:1@{digest}"), "quay.io", "a/b", &digest);
    }

    #[test]
    fn what_is_no_reference_is_refused() {
        for text in ["", "A b", "ghcr.io/UPPER/x", "x@sha256:123", "a/../b", "http://x/y", "x:"] {
            assert!(text.parse::<Reference>().is_err(), "{text}");
        }
    }
}

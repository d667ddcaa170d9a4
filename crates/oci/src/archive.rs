//! An image in one tar file: an OCI layout (`podman save --format oci-archive`, `skopeo`), or what
//! `docker save` writes. Blobs are copied out, verified, and nothing else of the archive is used.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::image::{Blob, Document, Manifest, assemble, digest_of, document, hex, machine};
use crate::{Error, Image, Result};

/// The blobs of an archive, in a directory by the hex of their digests.
#[derive(Debug)]
pub struct Archive {
    dir: PathBuf,
    /// Names in the archive and the hex of what they hold.
    names: BTreeMap<String, String>,
}

/// One image of docker's `manifest.json`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

#[derive(Deserialize)]
struct Layout {
    manifests: Vec<LayoutEntry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LayoutEntry {
    digest: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    #[serde(default)]
    media_type: String,
}

const ENTRIES_MAX: usize = 10_000;
const DOCUMENT_BYTES_MAX: u64 = 4 << 20;
const REF_NAME: &str = "org.opencontainers.image.ref.name";

impl Archive {
    /// Copies the blobs of the archive that `reader` gives into `dir`, which is empty.
    pub fn read(reader: impl Read, dir: &Path, bytes_max: u64) -> Result<Self> {
        let mut names = BTreeMap::new();
        let mut left = bytes_max;
        let mut archive = tar::Archive::new(reader);
        let mut links = Vec::new();
        for entry in archive.entries().map_err(no_archive)?.raw(true) {
            let mut entry = entry.map_err(no_archive)?;
            let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            let name = name.trim_start_matches("./").to_owned();
            if names.len() >= ENTRIES_MAX {
                return Err(Error::TooLarge("the archive has too many entries".into()));
            }
            // docker save writes a layer that it has already as a link to the first.
            if entry.header().entry_type().is_symlink()
                || entry.header().entry_type().is_hard_link()
            {
                let to = entry.link_name_bytes().unwrap_or_default();
                links.push((name, String::from_utf8_lossy(&to).into_owned()));
                continue;
            }
            if !entry.header().entry_type().is_file() {
                continue;
            }
            let (digest, bytes) = copy_out(&mut entry, dir, left)?;
            left -= bytes;
            names.insert(name, digest);
        }
        for (name, to) in links {
            let to = resolve(&name, &to);
            if let Some(digest) = names.get(&to).cloned() {
                names.insert(name, digest);
            }
        }
        Ok(Self { dir: dir.to_owned(), names })
    }

    /// The image called `name` (a tag or a reference), or the only one.
    pub fn image(&self, name: Option<&str>) -> Result<Image> {
        if self.names.contains_key("index.json") {
            return self.of_layout(name);
        }
        if self.names.contains_key("manifest.json") {
            return self.of_docker(name);
        }
        Err(Error::Invalid(
            "not an image archive: it has neither index.json nor manifest.json".into(),
        ))
    }

    /// Where a layer's blob is.
    pub fn blob(&self, digest: &str) -> PathBuf {
        self.dir.join(digest.trim_start_matches("sha256:"))
    }

    fn of_layout(&self, name: Option<&str>) -> Result<Image> {
        let layout: Layout = parse(&self.named("index.json")?)?;
        let images: Vec<&LayoutEntry> =
            layout.manifests.iter().filter(|one| !one.media_type.contains("attestation")).collect();
        let called = |one: &LayoutEntry| {
            let tag = one.annotations.get(REF_NAME);
            let full = one.annotations.get("io.containerd.image.name");
            tag.or(full).cloned().unwrap_or_else(|| one.digest.clone())
        };
        let all: Vec<String> = images.iter().map(|one| called(one)).collect();
        let index = choose(&all, name)?;
        let mut digest = images[index].digest.clone();
        for _ in 0..3 {
            let bytes = self.document(&digest)?;
            match document(&bytes, machine())? {
                Document::Index(next) => digest = next,
                Document::Manifest(manifest) => {
                    let config = self.document(&manifest.config.digest)?;
                    return self.check(assemble(manifest, &config, machine())?);
                }
            }
        }
        Err(Error::Invalid("the archive's index is nested too deep".into()))
    }

    fn of_docker(&self, name: Option<&str>) -> Result<Image> {
        let text = self.named("manifest.json")?;
        let saved: Vec<Saved> = parse(&text)?;
        let all: Vec<String> = saved
            .iter()
            .map(|one| one.repo_tags.iter().flatten().next().unwrap_or(&one.config).clone())
            .collect();
        let one = &saved[choose(&all, name)?];
        let config = self.named(&one.config)?;
        let blob = |name: &String| {
            let hex = self.names.get(name).ok_or_else(|| lacks(name))?;
            let bytes = std::fs::metadata(self.dir.join(hex))
                .map_err(|error| Error::file(error, "measure a layer"))?;
            Ok(Blob { digest: format!("sha256:{hex}"), bytes: bytes.len() })
        };
        let manifest = Manifest {
            // The archive has no manifest of its own; its configuration is as good a name.
            digest: digest_of(&config),
            config: Blob { digest: digest_of(&config), bytes: config.len() as u64 },
            layers: one.layers.iter().map(blob).collect::<Result<_>>()?,
        };
        self.check(assemble(manifest, &config, machine())?)
    }

    fn check(&self, image: Image) -> Result<Image> {
        for layer in &image.layers {
            if !self.blob(&layer.digest).exists() {
                return Err(lacks(&layer.digest));
            }
        }
        Ok(image)
    }

    fn named(&self, name: &str) -> Result<Vec<u8>> {
        let hex = self.names.get(name).ok_or_else(|| lacks(name))?;
        self.small(hex)
    }

    fn document(&self, digest: &str) -> Result<Vec<u8>> {
        let hex = crate::reference::check_digest(digest)?;
        if !self.dir.join(hex).exists() {
            return Err(lacks(digest));
        }
        self.small(hex)
    }

    fn small(&self, hex: &str) -> Result<Vec<u8>> {
        let failed = |error| Error::file(error, "read the archive");
        let file = File::open(self.dir.join(hex)).map_err(failed)?;
        let mut bytes = Vec::new();
        file.take(DOCUMENT_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > DOCUMENT_BYTES_MAX {
            return Err(Error::TooLarge("a manifest of the archive is too large".into()));
        }
        Ok(bytes)
    }
}

/// Copies one entry to a file that is named by its digest: what a name in the archive claims to be
/// does not matter.
fn copy_out(entry: &mut impl Read, dir: &Path, max: u64) -> Result<(String, u64)> {
    let failed = |error| Error::file(error, "copy the archive");
    let temp = dir.join(".copying");
    let mut file = File::create(&temp).map_err(failed)?;
    let mut hash = Sha256::new();
    let mut copied = 0u64;
    let mut buffer = vec![0u8; 128 << 10];
    loop {
        let count = entry.read(&mut buffer).map_err(no_archive)?;
        if count == 0 {
            break;
        }
        copied += count as u64;
        if copied > max {
            return Err(Error::TooLarge("the archive is too large".into()));
        }
        hash.update(&buffer[..count]);
        io::Write::write_all(&mut file, &buffer[..count]).map_err(failed)?;
    }
    let name = hex(&hash.finalize());
    std::fs::rename(&temp, dir.join(&name)).map_err(failed)?;
    Ok((name, copied))
}

fn choose(all: &[String], name: Option<&str>) -> Result<usize> {
    let names = all.join(", ");
    let found = match name {
        None if all.len() == 1 => Some(0),
        None => None,
        Some(name) => all.iter().position(|one| one == name),
    };
    found.ok_or_else(|| match name {
        Some(name) => Error::Unknown(format!("the archive has no image {name}; it has: {names}")),
        None if all.is_empty() => Error::Invalid("the archive has no image".into()),
        None => Error::Invalid(format!("the archive has several images, say which: {names}")),
    })
}

/// A link's target by the rules of paths, for looking it up among the names.
fn resolve(name: &str, to: &str) -> String {
    let mut parts: Vec<&str> = name.split('/').collect();
    parts.pop();
    if parts.is_empty() || !to.starts_with("..") {
        // docker's hard links are from the top.
        return to.trim_start_matches("./").to_owned();
    }
    for part in to.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

fn parse<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes)
        .map_err(|error| Error::Corrupt(format!("the archive is not understood: {error}")))
}

fn lacks(name: &str) -> Error {
    Error::Corrupt(format!("the archive lacks {name}"))
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that map_err wants")]
fn no_archive(error: io::Error) -> Error {
    match error.kind() {
        // What the reader of tar says then, with the bytes that it met.
        io::ErrorKind::Other | io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
            Error::Invalid("not an image archive: it is no tar, or cut off".into())
        }
        _ => Error::Invalid(format!("not an image archive: {error}")),
    }
}

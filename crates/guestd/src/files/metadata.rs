//! What a client wants to be remembered about a file: `X-Metadata-<key>` headers, kept in the
//! extended attributes `user.e2b.<key>`.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;

use http::HeaderMap;
use rustix::fs::{XattrFlags, flistxattr, fremovexattr, fsetxattr, getxattr, listxattr};
use rustix::io::Errno;

use crate::refusal::{Refusal, Result};

const HEADER: &str = "x-metadata-";
const ATTRIBUTE: &str = "user.e2b.";
const KEY_BYTES_MAX: usize = 246;
const TOTAL_BYTES_MAX: usize = 4096;

/// The kernel's own limit for all names of a file together.
const NAMES_BYTES_MAX: usize = 64 << 10;

pub(crate) type Metadata = BTreeMap<String, String>;

/// What the headers say; keys are in lower case already.
pub(super) fn of_headers(headers: &HeaderMap) -> Result<Metadata> {
    let mut metadata = Metadata::new();
    let mut total = 0;
    for (name, value) in headers {
        let Some(key) = name.as_str().strip_prefix(HEADER) else { continue };
        let value =
            value.to_str().ok().filter(|value| value.bytes().all(|b| (0x20..0x7f).contains(&b)));
        let value = value
            .ok_or_else(|| Refusal::invalid(format!("metadata '{key}' is not printable ASCII")))?;
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(Refusal::invalid(format!(
                "metadata key is not 1 to {KEY_BYTES_MAX} bytes long"
            )));
        }
        total += key.len() + value.len();
        if total > TOTAL_BYTES_MAX {
            return Err(Refusal::invalid(format!(
                "metadata is longer than {TOTAL_BYTES_MAX} bytes"
            )));
        }
        metadata.insert(key.to_owned(), value.to_owned());
    }
    Ok(metadata)
}

/// Replaces all that was there. A file system without attributes only matters when there are some.
pub(super) fn write(file: &File, metadata: &Metadata) -> Result<()> {
    for key in keys(|names| flistxattr(file, names)) {
        if !metadata.contains_key(&key) {
            let _ = fremovexattr(file, attribute(&key)?.as_c_str());
        }
    }
    for (key, value) in metadata {
        fsetxattr(file, attribute(key)?.as_c_str(), value.as_bytes(), XattrFlags::empty())
            .map_err(|errno| Refusal::errno("write metadata", errno))?;
    }
    Ok(())
}

/// What is remembered about a file; nothing when that cannot be read.
pub(crate) fn read(path: &str) -> Metadata {
    let mut metadata = Metadata::new();
    for key in keys(|names| listxattr(path, names)) {
        let mut value = vec![0; TOTAL_BYTES_MAX];
        let Ok(name) = attribute(&key) else { continue };
        let read = getxattr(path, name.as_c_str(), &mut value[..]);
        let Ok(len) = read else { continue };
        metadata.insert(key, String::from_utf8_lossy(&value[..len]).into_owned());
    }
    metadata
}

fn keys(list: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> Vec<String> {
    let mut names = vec![0; 1024];
    let len = loop {
        match list(&mut names[..]) {
            Ok(len) => break len,
            Err(Errno::RANGE) if names.len() < NAMES_BYTES_MAX => names.resize(NAMES_BYTES_MAX, 0),
            Err(_) => return Vec::new(),
        }
    };
    let names = names[..len].split(|byte| *byte == 0);
    names
        .filter_map(|name| std::str::from_utf8(name).ok()?.strip_prefix(ATTRIBUTE))
        .map(str::to_owned)
        .collect()
}

fn attribute(key: &str) -> Result<CString> {
    CString::new(format!("{ATTRIBUTE}{key}")).map_err(|_| Refusal::invalid("metadata key"))
}

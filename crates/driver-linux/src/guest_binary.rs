//! The guest's program: embedded at build time, kept in the data directory by its hash, so that a
//! sandbox that runs keeps the program it was started with when the server is upgraded.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use sha2::{Digest, Sha256};

/// The static program of `guestd`, built by this crate's build script.
static GUEST: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guestd"));

/// Writes the program below `dir` unless it is there, and tells where.
pub(crate) fn install(dir: &Path) -> anyhow::Result<PathBuf> {
    let hash: String =
        Sha256::digest(GUEST).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let path = dir.join(format!("guestd-{hash}"));
    if path.exists() {
        return Ok(path);
    }
    fs::create_dir_all(dir).context("make the guest directory")?;
    let unfinished = dir.join(format!(".guestd-{hash}.{}", std::process::id()));
    let mut file = File::create(&unfinished).context("create the guest's program")?;
    file.write_all(GUEST).context("write the guest's program")?;
    file.set_permissions(PermissionsExt::from_mode(0o755)).context("mark it executable")?;
    file.sync_all().context("flush the guest's program")?;
    drop(file);
    fs::rename(&unfinished, &path).context("name the guest's program")?;
    Ok(path)
}

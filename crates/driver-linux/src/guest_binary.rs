//! The programs that make sandboxes and that they get from us: embedded at build time, kept in the data directory by
//! their hashes, so that a sandbox that runs keeps what it was started with when the server is upgraded.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use sha2::{Digest, Sha256};

/// The static program of `guestd`, built by this crate's build script.
static GUEST: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guestd"));

/// The static program of `keeper`, likewise.
static KEEPER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/bastide-keeper"));

/// The static program of `agentd`, likewise.
static AGENTS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agentd"));

/// The static program of `code-runner`, likewise.
pub(crate) static CODE_RUNNER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/code-runner"));

/// Where they are on the host.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    pub(crate) guest: PathBuf,
    pub(crate) agents: PathBuf,
    pub(crate) keeper: PathBuf,
}

/// Writes the programs below `dir` unless they are there, and tells where.
pub(crate) fn install(dir: &Path) -> anyhow::Result<Programs> {
    let guest = put(dir, "guestd", GUEST, 0o755)?;
    // Nobody in a sandbox may read it: the kernel then lets nobody there look into its processes.
    let agents = put(dir, "agentd", AGENTS, 0o711)?;
    let keeper = put(dir, "keeper", KEEPER, 0o755)?;
    Ok(Programs { guest, agents, keeper })
}

fn put(dir: &Path, name: &str, program: &[u8], mode: u32) -> anyhow::Result<PathBuf> {
    let hash: String =
        Sha256::digest(program).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let path = dir.join(format!("{name}-{hash}"));
    if path.exists() {
        return Ok(path);
    }
    fs::create_dir_all(dir).context("make the guest directory")?;
    let unfinished = dir.join(format!(".{name}-{hash}.{}", std::process::id()));
    let mut file = File::create(&unfinished).context("create the guest's program")?;
    file.write_all(program).context("write the guest's program")?;
    file.set_permissions(PermissionsExt::from_mode(mode)).context("mark it executable")?;
    file.sync_all().context("flush the guest's program")?;
    drop(file);
    fs::rename(&unfinished, &path).context("name the guest's program")?;
    Ok(path)
}

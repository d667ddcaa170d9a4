//! Who serves from a data directory: a file a server in `run/servers/`, locked while it lives. For people
//! (`bastide status`); nothing is decided by it.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

const SERVERS: &str = "run/servers";

/// One server, as it says it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerEntry {
    pub pid: u32,
    pub version: String,
    pub listen: Vec<String>,
    /// `leader`, `follower`, `starting` or `draining`.
    pub role: String,
    /// The lease's, when this server took its role.
    #[serde(default)]
    pub epoch: Option<u64>,
}

/// Our own file; it goes with the value.
pub(crate) struct Entered {
    path: PathBuf,
    file: File,
    entry: ServerEntry,
}

impl Entered {
    pub(crate) fn new(data_dir: &Path, listen: Vec<String>) -> Result<Self> {
        let pid = std::process::id();
        let dir = data_dir.join(SERVERS);
        fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        let path = dir.join(pid.to_string());
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let file = options.open(&path).with_context(|| format!("open {}", path.display()))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).context("enter the roster")?;
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let entry = ServerEntry { pid, version, listen, role: "starting".into(), epoch: None };
        let mut entered = Self { path, file, entry };
        entered.write()?;
        Ok(entered)
    }

    pub(crate) fn becomes(&mut self, role: &str, epoch: Option<u64>) {
        self.entry.role = role.to_owned();
        self.entry.epoch = epoch;
        if let Err(error) = self.write() {
            tracing::warn!(error = format!("{error:#}"), "could not write the roster");
        }
    }

    fn write(&mut self) -> Result<()> {
        let text = serde_json::to_string(&self.entry).context("write the roster")?;
        self.file.rewind().context("write the roster")?;
        self.file.set_len(0).context("write the roster")?;
        writeln!(self.file, "{text}").context("write the roster")
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Every server that lives on this data directory, the leader first.
pub fn servers(data_dir: &Path) -> Result<Vec<ServerEntry>> {
    let dir = data_dir.join(SERVERS);
    let listed = match fs::read_dir(&dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        listed => listed.with_context(|| format!("list {}", dir.display()))?,
    };
    let mut servers = Vec::new();
    for entry in listed {
        let path = entry.context("list servers")?.path();
        let Ok(file) = File::open(&path) else { continue };
        if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
            // It was killed.
            let _ = fs::remove_file(&path);
            continue;
        }
        let text = fs::read_to_string(&path).unwrap_or_default();
        servers.extend(serde_json::from_str::<ServerEntry>(&text).ok());
    }
    servers.sort_by_key(|server| (server.role != "leader", server.pid));
    Ok(servers)
}

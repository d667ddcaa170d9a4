//! Where programs are and which version they say they are. Asking takes a second or more, so that the
//! answer is kept for as long as the file is the same.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::process::Command;
use tokio::time::timeout;

use crate::host::Host;
use crate::process::orphans;

const VERSION_MAX: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Programs(Mutex<HashMap<PathBuf, Known>>);

#[derive(Debug, Clone)]
struct Known {
    modified: Option<SystemTime>,
    bytes: u64,
    version: Option<String>,
}

impl Programs {
    pub(super) async fn look(&self, host: &Host, name: &str) -> (Option<PathBuf>, Option<String>) {
        let Some(path) = host.find_program(name) else { return (None, None) };
        let metadata = path.metadata().ok();
        let modified = metadata.as_ref().and_then(|found| found.modified().ok());
        let bytes = metadata.map_or(0, |found| found.len());
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&path).cloned();
        if let Some(known) = known
            && known.modified == modified
            && known.bytes == bytes
        {
            return (Some(path), known.version);
        }
        let version = version(host, &path).await;
        let known = Known { modified, bytes, version: version.clone() };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(path.clone(), known);
        (Some(path), version)
    }
}

async fn version(host: &Host, program: &Path) -> Option<String> {
    for argument in ["--version", "version", "-V"] {
        let mut command = Command::new(program);
        command.arg(argument).env_clear().envs(&host.environment).stdin(Stdio::null());
        command.kill_on_drop(true);
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let Ok((child, _ours)) = orphans::spawn(&mut command) else { continue };
        let output = timeout(VERSION_MAX, child.wait_with_output()).await;
        let Ok(Ok(output)) = output else { continue };
        let text = String::from_utf8_lossy(&output.stdout);
        let line = text.lines().map(str::trim).find(|line| !line.is_empty());
        if let (true, Some(line)) = (output.status.success(), line) {
            return Some(line.to_owned());
        }
    }
    None
}

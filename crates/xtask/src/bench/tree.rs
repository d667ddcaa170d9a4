//! Directories and cgroups that the contenders need: a small root file system, and limits.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};

use super::clock::wait_until;

/// Programs that the contenders run.
const PROGRAMS: [&str; 3] = ["/bin/true", "/bin/sh", "/bin/sleep"];

/// A root file system with those programs and the libraries that they load, as this host has them.
pub(super) fn make_rootfs(at: &Path) -> anyhow::Result<()> {
    for dir in ["bin", "proc", "dev", "sys", "tmp", "etc", "workspace"] {
        fs::create_dir_all(at.join(dir))?;
    }
    for program in PROGRAMS {
        copy_into(at, Path::new(program))?;
        let listed = Command::new("ldd").arg(program).output().context("run ldd")?;
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        for word in listed.split_whitespace().filter(|word| word.starts_with('/')) {
            copy_into(at, Path::new(word))?;
        }
    }
    Ok(())
}

fn copy_into(root: &Path, file: &Path) -> anyhow::Result<()> {
    let to = root.join(file.strip_prefix("/")?);
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::copy(file, &to).with_context(|| format!("copy {}", file.display()))?;
    fs::set_permissions(&to, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// A directory that belongs to `uid`.
pub(super) fn make_owned(dir: &Path, uid: u32) -> anyhow::Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    chown(dir, Some(uid), Some(uid)).with_context(|| format!("give {} away", dir.display()))
}

/// Directories to mount on, in private mount namespaces; beside `dir`, made once.
pub(super) fn scratch(dir: &Path) -> anyhow::Result<PathBuf> {
    let scratch = dir.with_extension("scratch");
    for name in ["lower", "root"] {
        fs::create_dir_all(scratch.join(name))?;
    }
    Ok(scratch)
}

/// A cgroup v2 directory first, then those of v1 that hold limits, where this host has v1.
pub(super) fn cgroups(name: &str) -> anyhow::Result<Vec<PathBuf>> {
    let unified = unified().context("no cgroup v2 is mounted")?.join(name);
    fs::create_dir_all(&unified)?;
    let mut all = vec![unified];
    for (controller, file, limit) in [
        ("memory", "memory.limit_in_bytes", "1073741824"),
        ("pids", "pids.max", "1024"),
        ("cpu", "cpu.cfs_quota_us", "100000"),
    ] {
        let legacy = Path::new("/sys/fs/cgroup").join(controller);
        if legacy.join("cgroup.procs").exists() {
            let dir = legacy.join(name);
            fs::create_dir_all(&dir)?;
            fs::write(dir.join(file), limit).with_context(|| format!("limit {controller}"))?;
            all.push(dir);
        }
    }
    Ok(all)
}

/// Where cgroup v2 is mounted.
pub(super) fn unified() -> Option<PathBuf> {
    ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
        .map(PathBuf::from)
        .into_iter()
        .find(|dir| dir.join("cgroup.controllers").exists())
}

/// Removes a cgroup whose last process is on its way out.
pub(super) fn remove_cgroup(dir: &Path) -> anyhow::Result<()> {
    let gone = wait_until(Duration::from_secs(5), || fs::remove_dir(dir).is_ok() || !dir.exists());
    if !gone {
        bail!("cannot remove {}", dir.display());
    }
    Ok(())
}

/// So that a process with another uid can pass through on its way to what it may see.
pub(super) fn open_to_all(dir: &Path) -> anyhow::Result<()> {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o711))?;
    Ok(())
}

//! The data directory: where things are, and how a file is written so that it survives.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rustix::fs::{Access, access};
use serde::Serialize;

use crate::lock_file::{self, Lock};

/// How often a directory may be removed while it is being opened.
const TRIES: usize = 16;

/// Paths below the data directory.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    root: PathBuf,
}

impl Layout {
    pub(crate) fn open(root: &Path) -> anyhow::Result<Self> {
        let layout = Self { root: make_root(root)? };
        for dir in [
            "sandboxes",
            "deleting",
            "tombstones",
            "run",
            "run/g",
            "run/mnt",
            "run/exits",
            "warm",
            "run/etc/etc",
            // What is mounted has a place in every root, whatever an image has there: a link, perhaps.
            "run/etc/dev",
            "run/etc/proc",
            "run/etc/sys",
            "run/etc/workspace",
            "run/agent/app/config",
        ] {
            let dir = layout.root.join(dir);
            fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        }
        let longest = layout.socket(&"0".repeat(34));
        if longest.as_os_str().len() >= 108 {
            bail!("the data directory's path is too long for sockets: {}", layout.root.display());
        }
        layout.write_etc()?;
        Ok(layout)
    }

    /// The same for the one who has it alone: nobody else until the file is closed.
    pub(crate) fn open_alone(root: &Path) -> anyhow::Result<(Self, File)> {
        Self::open_alone_by(root, |lock| File::create(lock))
    }

    /// That of a build may be removed at any moment before it is locked, by who cleans up after another one: so what
    /// belongs in it is made after that.
    fn open_alone_by(
        root: &Path,
        mut open: impl FnMut(&Path) -> io::Result<File>,
    ) -> anyhow::Result<(Self, File)> {
        for _ in 0..TRIES {
            let root = match make_root(root) {
                Err(error) if is_not_found(&error) => continue,
                made => made?,
            };
            let lock = root.join("lock");
            match lock_file::take(&lock, &mut open).context("lock the data directory")? {
                Lock::Alone(file) => return Ok((Self::open(&root)?, file)),
                Lock::Busy => break,
                Lock::Gone => {}
            }
        }
        let dir = root.display();
        let busy = format!("another server runs on the data directory {dir}");
        Err(model::Error::unavailable(busy).into())
    }

    /// Of a data directory that somebody else made, and looks after.
    pub(crate) fn existing(root: &Path) -> anyhow::Result<Self> {
        let root = fs::canonicalize(root).with_context(|| format!("find {}", root.display()))?;
        Ok(Self { root })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// A word of its own for this directory, in the name of everything it makes on the host.
    pub(crate) fn instance(&self) -> anyhow::Result<String> {
        let path = self.root.join("instance");
        match fs::read_to_string(&path) {
            Ok(text) if !text.trim().is_empty() => return Ok(text.trim().to_owned()),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).context("read the instance id"),
        }
        let id = keeper::random_hex::<6>()?;
        write_durably(&path, id.as_bytes())?;
        Ok(id)
    }

    pub(crate) fn sandboxes(&self) -> PathBuf {
        self.root.join("sandboxes")
    }

    pub(crate) fn sandbox(&self, bare: &str) -> PathBuf {
        self.sandboxes().join(bare)
    }

    pub(crate) fn spec(&self, bare: &str) -> PathBuf {
        self.sandbox(bare).join("spec.json")
    }

    pub(crate) fn run(&self, bare: &str) -> PathBuf {
        self.sandbox(bare).join("run.json")
    }

    /// The run record of a guest over the workspace of a stopped sandbox.
    pub(crate) fn maintenance(&self, bare: &str) -> PathBuf {
        self.sandbox(bare).join("maintenance.json")
    }

    pub(crate) fn end(&self, bare: &str) -> PathBuf {
        self.sandbox(bare).join("end.json")
    }

    /// The boot of the kernel in which its upper was last written to.
    pub(crate) fn boot(&self, bare: &str) -> PathBuf {
        self.sandbox(bare).join("boot")
    }

    /// There once a guest of it has answered, in what older servers left.
    pub(crate) fn greeted(&self, bare: &str) -> PathBuf {
        self.sandbox(bare).join("greeted")
    }

    /// Locked by servers without the lease while they use the sandbox.
    pub(crate) fn in_use(&self, bare: &str) -> PathBuf {
        self.sandbox(bare).join("in-use")
    }

    pub(crate) fn warm_dir(&self) -> PathBuf {
        self.root.join("warm")
    }

    pub(crate) fn warm(&self, bare: &str) -> PathBuf {
        self.warm_dir().join(bare)
    }

    /// Where steps of template builds run, each build in a directory of its own.
    pub(crate) fn builds(&self) -> PathBuf {
        self.root.join("builds")
    }

    pub(crate) fn deleting(&self) -> PathBuf {
        self.root.join("deleting")
    }

    pub(crate) fn blanks(&self) -> PathBuf {
        self.root.join("run/blank")
    }

    pub(crate) fn tombstones(&self) -> PathBuf {
        self.root.join("tombstones")
    }

    pub(crate) fn tombstone(&self, bare: &str) -> PathBuf {
        self.tombstones().join(format!("{bare}.json"))
    }

    pub(crate) fn socket(&self, name: &str) -> PathBuf {
        self.root.join("run/g").join(name)
    }

    pub(crate) fn mount_point(&self) -> PathBuf {
        self.root.join("run/mnt")
    }

    /// The topmost lower layer of every sandbox: the few files of `/etc` that are ours to say.
    pub(crate) fn etc_layer(&self) -> PathBuf {
        self.root.join("run/etc")
    }

    /// The lowest layer of sandboxes with an agent: a place for what it is told.
    pub(crate) fn agent_layer(&self) -> PathBuf {
        self.root.join("run/agent")
    }

    pub(crate) fn exit_note(&self, incarnation: &str) -> PathBuf {
        self.root.join("run/exits").join(incarnation)
    }

    fn write_etc(&self) -> anyhow::Result<()> {
        let etc = self.etc_layer();
        for dir in ["", "etc", "dev", "proc", "sys", "workspace"] {
            fs::set_permissions(etc.join(dir), PermissionsExt::from_mode(0o755))?;
        }
        for dir in ["", "app", "app/config"] {
            fs::set_permissions(self.agent_layer().join(dir), PermissionsExt::from_mode(0o755))?;
        }
        let hosts = format!("127.0.0.1 localhost {HOSTNAME}\n::1 localhost\n");
        let resolver = "nameserver 127.0.0.1\noptions timeout:5 attempts:1\n";
        for (name, text) in [
            ("hosts", hosts.as_str()),
            ("hostname", &format!("{HOSTNAME}\n")),
            ("resolv.conf", resolver),
        ] {
            let path = etc.join("etc").join(name);
            if fs::read_to_string(&path).is_ok_and(|old| old == text) {
                continue;
            }
            fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
            fs::set_permissions(&path, PermissionsExt::from_mode(0o644))?;
        }
        Ok(())
    }
}

/// What every sandbox calls itself; names change, and `/etc/hosts` is shared.
pub(crate) const HOSTNAME: &str = "sandbox";

/// Writes a file so that it is there whole after a crash, or not at all.
pub(crate) fn write_durably(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let temp = path.with_extension("tmp");
    let mut file = File::create(&temp).with_context(|| format!("create {}", temp.display()))?;
    file.write_all(bytes).with_context(|| format!("write {}", temp.display()))?;
    file.sync_all().with_context(|| format!("flush {}", temp.display()))?;
    fs::rename(&temp, path).with_context(|| format!("name {}", path.display()))?;
    sync_dir(path.parent().context("a path without a parent")?)
}

/// Writes a file so that a reader sees it whole or not at all; a crash of the machine may lose it.
pub(crate) fn write_whole(path: &Path, value: &impl Serialize) -> anyhow::Result<()> {
    let temp = path.with_extension("tmp");
    keeper::write_over(&temp, &serde_json::to_vec(value).context("encode")?)
        .with_context(|| format!("write {}", temp.display()))?;
    fs::rename(&temp, path).with_context(|| format!("name {}", path.display()))
}

/// Like [`write_durably`], over what [`make_room`] has made.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> anyhow::Result<()> {
    let temp = path.with_extension("tmp");
    let file = keeper::write_over(&temp, &serde_json::to_vec(value).context("encode")?)
        .with_context(|| format!("write {}", temp.display()))?;
    file.sync_data().with_context(|| format!("flush {}", temp.display()))?;
    fs::rename(&temp, path).with_context(|| format!("name {}", path.display()))?;
    sync_dir(path.parent().context("a path without a parent")?)
}

/// One block on the disk, for a file that is written when somebody waits for it: there is nothing but the block to flush
/// then.
pub(crate) fn make_room(path: &Path) -> anyhow::Result<()> {
    let mut file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    file.write_all(&[b' '; 4096]).with_context(|| format!("write {}", path.display()))?;
    file.sync_all().with_context(|| format!("flush {}", path.display()))
}

pub(crate) fn sync_dir(dir: &Path) -> anyhow::Result<()> {
    let dir = File::open(dir).with_context(|| format!("open {}", dir.display()))?;
    dir.sync_all().context("flush a directory")
}

/// Removes a file; `Ok` when it is gone already.
pub(crate) fn forget(path: &Path) -> anyhow::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", path.display()))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

fn make_root(root: &Path) -> anyhow::Result<PathBuf> {
    fs::create_dir_all(root).with_context(|| format!("make {}", root.display()))?;
    fs::set_permissions(root, PermissionsExt::from_mode(0o700))?;
    fs::canonicalize(root).context("find the data directory")
}

/// Makes a data directory if there is none, for its owner only.
///
/// # Errors
/// Where it can be neither made nor written to, with what to do.
pub fn make_data_dir(dir: &Path) -> anyhow::Result<()> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    let usable = made.and_then(|()| Ok(access(dir, Access::WRITE_OK | Access::EXEC_OK)?));
    usable.map_err(|error| {
        let hint = "name one that you may write to with --data-dir or BASTIDE_DATA_DIR";
        anyhow::anyhow!("cannot use the data directory {}: {error}\nhint: {hint}", dir.display())
    })
}

fn is_not_found(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == ErrorKind::NotFound)
}

#[cfg(test)]
mod tests;

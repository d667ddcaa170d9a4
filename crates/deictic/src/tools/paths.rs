//! Where tools may reach. A path is looked up below a directory that is open, by the kernel, which
//! follows no link and no `..` out of it; what the path says is not trusted twice.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    CWD, Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags, fstatfs, mkdirat, openat, openat2,
};

/// Beside the working directory.
const ALSO: &[&str] = &["/workspace", "/home/user", "/tmp"];

/// What may be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Places {
    /// What lies below one of these.
    Below(Vec<PathBuf>),
    Everywhere,
}

/// A path that was looked at, not yet opened.
#[derive(Debug, Clone)]
pub(super) enum Found {
    Inside {
        root: PathBuf,
        /// Below the root; `.` is the root itself.
        rest: PathBuf,
        shown: String,
    },
    Outside {
        shown: String,
        roots: String,
    },
}

impl Places {
    /// The usual ones for a working directory.
    pub(crate) fn around(directory: &Path) -> Self {
        let mut roots = vec![directory.to_owned()];
        roots.extend(ALSO.iter().map(PathBuf::from));
        Self::Below(roots)
    }

    /// By its words alone: `..` goes up one name. Links are the kernel's matter when it is opened.
    pub(super) fn find(&self, directory: &Path, path: &str) -> Found {
        let plain = plain(&directory.join(path));
        let shown = path.to_owned();
        match self {
            Self::Everywhere => {
                let rest = plain.strip_prefix("/").unwrap_or(&plain);
                Found::Inside { root: "/".into(), rest: or_dot(rest), shown }
            }
            Self::Below(roots) => {
                let root = roots.iter().filter(|root| plain.starts_with(root));
                match root.max_by_key(|root| root.as_os_str().len()) {
                    Some(root) => {
                        let rest = plain.strip_prefix(root).unwrap_or(&plain);
                        Found::Inside { root: root.clone(), rest: or_dot(rest), shown }
                    }
                    None => {
                        let names = roots.iter().map(|root| root.display().to_string());
                        let roots = names.collect::<Vec<_>>().join(", ");
                        Found::Outside { shown, roots }
                    }
                }
            }
        }
    }
}

impl Found {
    pub(super) fn shown(&self) -> &str {
        match self {
            Self::Inside { shown, .. } | Self::Outside { shown, .. } => shown,
        }
    }

    /// Opens it. What is not there is not made.
    pub(super) fn open(&self, flags: OFlags) -> io::Result<OwnedFd> {
        let (root, rest) = self.inside()?;
        beneath(&open_root(root)?, rest, flags)
    }

    /// The directory that it is in, with those that are missing, and its name there.
    pub(super) fn parent(&self) -> io::Result<(OwnedFd, PathBuf)> {
        let (root, rest) = self.inside()?;
        let name = rest.file_name().ok_or_else(|| refused("it is a directory"))?;
        let root = open_root(root)?;
        let mut so_far = PathBuf::new();
        for part in rest.parent().into_iter().flat_map(Path::components) {
            so_far.push(part);
            if beneath(&root, &so_far, DIRECTORY).is_err_and(|error| is_absent(&error)) {
                let above = so_far.parent().map_or_else(|| ".".into(), or_dot);
                let above = beneath(&root, &above, DIRECTORY)?;
                let made = mkdirat(&above, part, Mode::from_raw_mode(0o777));
                if let Err(error) = made
                    && error != rustix::io::Errno::EXIST
                {
                    return Err(error.into());
                }
            }
        }
        Ok((beneath(&root, &or_dot(&so_far), DIRECTORY)?, name.into()))
    }

    fn inside(&self) -> io::Result<(&Path, &Path)> {
        match self {
            Self::Inside { root, rest, .. } => Ok((root, rest)),
            Self::Outside { roots, .. } => {
                Err(refused(&format!("outside of where this agent may work: {roots}")))
            }
        }
    }
}

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC).union(OFlags::RDONLY);

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

fn is_absent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

fn open_root(root: &Path) -> io::Result<OwnedFd> {
    Ok(openat(CWD, root, DIRECTORY, Mode::empty())?)
}

/// Follows links, but none that leads out of the directory.
fn beneath(root: &OwnedFd, rest: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    // It must not wait for whoever has the other end of a pipe.
    let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    openat2(root, rest, flags, Mode::empty(), resolve).map_err(|error| match error {
        rustix::io::Errno::XDEV => {
            refused("a link in it leads out of where this agent may work, or begins with /")
        }
        other => other.into(),
    })
}

fn or_dot(path: &Path) -> PathBuf {
    if path.as_os_str().is_empty() { PathBuf::from(".") } else { path.to_owned() }
}

fn plain(path: &Path) -> PathBuf {
    let mut out = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => out.push(name),
            Component::ParentDir => {
                out.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    out
}

/// Only what is a plain file: nothing that waits or never ends.
pub(super) fn plain_file(opened: OwnedFd) -> io::Result<File> {
    let file = File::from(opened);
    if !file.metadata()?.is_file() {
        return Err(refused("not a plain file"));
    }
    // What the kernel tells of processes, this one included: its environment has the key.
    if fstatfs(&file)?.f_type == PROC_SUPER_MAGIC {
        return Err(refused("not a file on a disk"));
    }
    Ok(file)
}

//! The `host` template: this machine's `/usr`, seen read-only, over a skeleton of our own. Nothing of
//! the machine's `/etc` is shown but the few world-readable files that programs need to start; no
//! home, no `/var`, no `/srv`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::Context;
use driver::Template;
use model::{Limits, Result};
use sha2::{Digest, Sha256};

use super::skeleton::{Skeleton, USER, appear, make_dir};
use super::{Built, HOST};

/// What programs look for in `/etc`; copied where the machine has it and everybody may read it.
const FROM_ETC: &[&str] = &[
    "alternatives",
    "bash.bashrc",
    "debian_version",
    "chromium.d",
    "fonts",
    "java-17-openjdk",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "os-release",
    "perl",
    "profile",
    "protocols",
    "python3",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
];

const SKELETON: Skeleton = Skeleton {
    directories: &[
        ("dev", 0o755),
        ("etc", 0o755),
        ("home", 0o755),
        ("mnt", 0o755),
        ("opt", 0o755),
        ("proc", 0o555),
        ("root", 0o700),
        ("run", 0o755),
        ("srv", 0o755),
        ("sys", 0o555),
        ("tmp", 0o1777),
        ("usr", 0o755),
        ("var", 0o755),
        ("var/cache", 0o755),
        ("var/lib", 0o755),
        ("var/log", 0o755),
        ("var/tmp", 0o1777),
    ],
    owned: &["home/user", "workspace"],
    files: &[
        (
            "etc/passwd",
            "root:x:0:0:root:/root:/bin/bash\n\
             nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n\
             user:x:1000:1000::/home/user:/bin/bash\n",
        ),
        ("etc/group", "root:x:0:\ntty:x:5:\nnogroup:x:65534:\nuser:x:1000:\n"),
        (
            "etc/nsswitch.conf",
            "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
        ),
        ("etc/hosts", "127.0.0.1 localhost\n::1 localhost\n"),
        ("etc/hostname", "sandbox\n"),
        ("etc/resolv.conf", ""),
        ("etc/machine-id", ""),
    ],
};

const LINKS: &[(&str, &str)] = &[
    ("bin", "usr/bin"),
    ("lib", "usr/lib"),
    ("lib64", "usr/lib64"),
    ("sbin", "usr/sbin"),
    ("var/run", "/run"),
];

/// Makes the lower directory that lies under a view of the machine's `/usr`, unless it is there.
pub fn host_skeleton(dir: &Path) -> Result<()> {
    appear(dir, fill)
}

pub(super) fn built(skeleton: PathBuf) -> Built {
    let release = fs::read("/etc/os-release").unwrap_or_default();
    Built {
        template: Template {
            name: HOST.parse().expect("`host` is a template name"),
            digest: format!("sha256:{}", hex(&Sha256::digest(release))),
            built_at: None,
            bytes: None,
            user: "user".into(),
            limits: Limits { vcpu: 1, cpu_fraction: 1.0, memory_mib: 1024, pids: 1024, disk_gb: 5 },
            env: BTreeMap::from([("LANG".into(), "C.UTF-8".into())]),
            image: None,
        },
        layers: vec![skeleton],
        layer_ids: Vec::new(),
        sudo: false,
        nesting: false,
        uid: USER,
        workdir: None,
        start: Vec::new(),
        passing: false,
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn fill(root: &Path) -> anyhow::Result<()> {
    SKELETON.make(root)?;
    for (path, target) in LINKS {
        symlink(target, root.join(path)).with_context(|| format!("link {path}"))?;
    }
    for path in FROM_ETC {
        let to = root.join("etc").join(path);
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent)?;
        }
        copy(&Path::new("/etc").join(path), &to).with_context(|| format!("copy /etc/{path}"))?;
    }
    Ok(())
}

/// Copies a file, link or tree; leaves out what is absent, special, or not for everybody to read.
fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let mut waiting = vec![(from.to_owned(), to.to_owned())];
    while let Some((from, to)) = waiting.pop() {
        let meta = match fs::symlink_metadata(&from) {
            Ok(meta) => meta,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error.into()),
        };
        let for_everybody = meta.permissions().mode() & 0o004 != 0;
        if meta.is_symlink() {
            symlink(fs::read_link(&from)?, &to)?;
        } else if !for_everybody {
            continue;
        } else if meta.is_file() {
            fs::copy(&from, &to)?;
        } else if meta.is_dir() {
            make_dir(&to, 0o755)?;
            for entry in fs::read_dir(&from)? {
                let entry = entry?;
                waiting.push((entry.path(), to.join(entry.file_name())));
            }
        }
    }
    Ok(())
}

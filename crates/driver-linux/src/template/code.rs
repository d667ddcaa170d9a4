//! What sandboxes of code mode stand on: the engine, and the least that a guest needs around it. No shell,
//! no library, no other program.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use anyhow::Context;
use driver::Template;
use model::{Limits, Result, TemplateName};
use sha2::{Digest, Sha256};

use super::host::hex;
use super::{Built, HOST, TemplateStore, UNFINISHED, entries, remove_build, wait_for_lock};
use crate::guest_binary::CODE_RUNNER;
use crate::privilege::Privilege;

/// Its files belong to the program that is in it: another version has another one.
const PREFIX: &str = ".code-";
/// At the end of the name where there is one id only.
const MAPPED: &str = "-1";

/// The engine bounds itself to half of the memory, so that it can say that there is no more.
const LIMITS: Limits = Limits { vcpu: 1, cpu_fraction: 1.0, memory_mib: 128, pids: 32, disk_gb: 1 };

const DIRECTORIES: &[(&str, u32)] = &[
    ("dev", 0o755),
    ("etc", 0o755),
    ("home", 0o755),
    ("home/user", 0o755),
    ("proc", 0o555),
    ("run", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("usr", 0o755),
    ("usr/lib", 0o755),
    ("usr/lib/bastide", 0o755),
    ("workspace", 0o755),
];

const OWNED: &[&str] = &["home/user", "workspace"];

const FILES: &[(&str, &str)] = &[
    ("etc/passwd", "root:x:0:0:root:/:/bin/false\nuser:x:1000:1000::/home/user:/bin/false\n"),
    ("etc/group", "root:x:0:\nuser:x:1000:\n"),
    ("etc/hosts", "127.0.0.1 localhost\n::1 localhost\n"),
    ("etc/hostname", "sandbox\n"),
    ("etc/resolv.conf", ""),
];

const USER: u32 = 1000;

static DIGEST: LazyLock<String> = LazyLock::new(|| hex(&Sha256::digest(CODE_RUNNER)));

impl TemplateStore {
    /// What needs no building.
    pub(super) fn built_in(&self, name: &TemplateName) -> Option<Built> {
        if name.is_of_code() {
            return Some(built(&self.root));
        }
        (name.as_str() == HOST).then(|| self.host())
    }

    /// Makes what sandboxes of code mode stand on, unless it is there: it appears by a rename.
    pub(crate) fn make_code_root(&self) -> Result<()> {
        make(&self.root)
    }

    /// Removes those of other versions of the program that no sandbox stands on. The caller holds the lock.
    pub(super) fn collect_code_roots(
        &self,
        in_use: &dyn Fn(&TemplateName, &str) -> bool,
    ) -> Result<u32> {
        let mut removed = 0;
        for name in entries(&self.root)? {
            let Some(hex) = name.strip_prefix(PREFIX) else { continue };
            let hex = hex.strip_suffix(MAPPED).unwrap_or(hex);
            if hex == *DIGEST || in_use(&TemplateName::of_code(), &format!("sha256:{hex}")) {
                continue;
            }
            remove_build(&self.root, &name)?;
            removed += 1;
        }
        Ok(removed)
    }
}

fn built(root: &Path) -> Built {
    Built {
        template: Template {
            name: TemplateName::of_code(),
            digest: format!("sha256:{}", *DIGEST),
            built_at: None,
            bytes: None,
            user: "user".into(),
            limits: LIMITS,
            env: BTreeMap::new(),
            image: None,
        },
        layers: vec![dir(root)],
        layer_ids: Vec::new(),
        sudo: false,
        nesting: false,
        uid: USER,
        workdir: None,
        start: Vec::new(),
        passing: false,
    }
}

fn make(root: &Path) -> Result<()> {
    let dir = dir(root);
    if dir.exists() {
        return Ok(());
    }
    let _lock = wait_for_lock(root)?;
    if dir.exists() {
        return Ok(());
    }
    let unfinished = root.join(format!("{UNFINISHED}code-{}", std::process::id()));
    let made = fill(&unfinished)
        .context("make the root of code mode")
        .and_then(|()| fs::rename(&unfinished, &dir).context("publish the root of code mode"));
    if made.is_err() {
        // The first failure is the one to tell; the sweep takes the rest.
        let _ = fs::remove_dir_all(&unfinished);
    }
    Ok(made?)
}

fn dir(root: &Path) -> PathBuf {
    // Its home belongs to whom its ids say, so another map has another one.
    let map = match Privilege::current() {
        Privilege::Namespace { ids: 1 } => MAPPED,
        Privilege::Namespace { .. } | Privilege::Host => "",
    };
    root.join(format!("{PREFIX}{}{map}", *DIGEST))
}

fn fill(root: &Path) -> anyhow::Result<()> {
    fs::create_dir(root)?;
    fs::set_permissions(root, Permissions::from_mode(0o755))?;
    for (path, mode) in DIRECTORIES {
        let path = root.join(path);
        fs::create_dir(&path).with_context(|| format!("make {}", path.display()))?;
        fs::set_permissions(&path, Permissions::from_mode(*mode))?;
    }
    let user = Privilege::current().on_disk(USER);
    for path in OWNED {
        chown(root.join(path), Some(user), Some(user)).context("give the home to its user")?;
    }
    for (path, content) in FILES {
        put(&root.join(path), content.as_bytes(), 0o644)?;
    }
    // Also when this process has a strict umask.
    put(&root.join("usr/lib/bastide/code-runner"), CODE_RUNNER, 0o755)
}

fn put(path: &Path, content: &[u8], mode: u32) -> anyhow::Result<()> {
    let mut file = fs::File::create(path).with_context(|| format!("make {}", path.display()))?;
    file.write_all(content).with_context(|| format!("write {}", path.display()))?;
    file.set_permissions(Permissions::from_mode(mode))?;
    Ok(file.sync_all()?)
}

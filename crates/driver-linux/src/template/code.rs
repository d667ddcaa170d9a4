//! What sandboxes of code mode stand on: the engine, and the least that a guest needs around it. No shell,
//! no library, no other program.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use anyhow::Context;
use driver::Template;
use model::{Limits, Result, TemplateName};
use sha2::{Digest, Sha256};

use super::host::hex;
use super::skeleton::{Skeleton, USER, appear, put};
use super::{Built, HOST, TemplateStore, entries, remove_build};
use crate::guest_binary::CODE_RUNNER;
use crate::privilege::Privilege;

/// Its files belong to the program that is in it: another version has another one.
const PREFIX: &str = ".code-";
/// At the end of the name where there is one id only.
const MAPPED: &str = "-1";

/// The engine bounds itself to half of the memory, so that it can say that there is no more.
const LIMITS: Limits = Limits { vcpu: 1, cpu_fraction: 1.0, memory_mib: 128, pids: 32, disk_gb: 1 };

const SKELETON: Skeleton = Skeleton {
    directories: &[
        ("dev", 0o755),
        ("etc", 0o755),
        ("home", 0o755),
        ("proc", 0o555),
        ("run", 0o755),
        ("sys", 0o555),
        ("tmp", 0o1777),
        ("usr", 0o755),
        ("usr/lib", 0o755),
        ("usr/lib/bastide", 0o755),
    ],
    owned: &["home/user", "workspace"],
    files: &[
        ("etc/passwd", "root:x:0:0:root:/:/bin/false\nuser:x:1000:1000::/home/user:/bin/false\n"),
        ("etc/group", "root:x:0:\nuser:x:1000:\n"),
        ("etc/hosts", "127.0.0.1 localhost\n::1 localhost\n"),
        ("etc/hostname", "sandbox\n"),
        ("etc/resolv.conf", ""),
    ],
};

const ENGINE: &str = "usr/lib/bastide/code-runner";

static DIGEST: LazyLock<String> = LazyLock::new(|| hex(&Sha256::digest(CODE_RUNNER)));

impl TemplateStore {
    /// What needs no building.
    pub(super) fn built_in(&self, name: &TemplateName) -> Option<Built> {
        if name.is_of_code() {
            return Some(built(&self.root));
        }
        (name.as_str() == HOST).then(|| self.host())
    }

    /// Makes what sandboxes of code mode stand on, unless it is there.
    pub(crate) fn make_code_root(&self) -> Result<()> {
        appear(&dir(&self.root), fill)
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

fn dir(root: &Path) -> PathBuf {
    // Its home belongs to whom its ids say, so another map has another one.
    let map = match Privilege::current() {
        Privilege::Namespace { ids: 1 } => MAPPED,
        Privilege::Namespace { .. } | Privilege::Host => "",
    };
    root.join(format!("{PREFIX}{}{map}", *DIGEST))
}

fn fill(root: &Path) -> anyhow::Result<()> {
    SKELETON.make(root)?;
    put(&root.join(ENGINE), CODE_RUNNER, 0o755)?;
    // It is believed to be whole for as long as the program is the same, over power cuts too.
    for path in SKELETON.files.iter().map(|(path, _)| *path).chain([ENGINE]) {
        File::open(root.join(path)).and_then(|file| file.sync_all()).context("flush a file")?;
    }
    Ok(())
}

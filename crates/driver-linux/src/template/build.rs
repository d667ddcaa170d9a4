//! Makes a root file system with mmdebstrap, in mount and pid namespaces of its own so that an
//! interrupted build leaves neither mounts nor processes, then finishes and publishes it.

use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::Context;
use jiff::Timestamp;
use model::{Error, Result};
use sha2::{Digest, Sha256};

use super::definition::{Base, Definition};
use super::host::hex;
use super::{CURRENT, META, Meta, ROOTFS, UNFINISHED, size, sources, sync_dir};

/// Part of every digest: a change in how templates are finished is another template.
const BUILDER_VERSION: &str = "1";

/// The uid and gid of a template's account, and of its home and `/workspace`.
const USER: u32 = 1000;

/// How far a build is.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    pub phase: Phase,
    /// One line for people.
    pub message: String,
    /// Of the whole build, 0 to 1, where that can be said.
    pub fraction: Option<f32>,
}

/// The steps of a build, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Prepare,
    Download,
    Unpack,
    Install,
    Customise,
    Publish,
    Done,
}

/// Lines of mmdebstrap that begin a phase, what people are told, and the share of the time gone by
/// then (measured).
const MILESTONES: &[(&str, Phase, &str, f32)] = &[
    ("I: running apt-get update", Phase::Download, "fetching package lists", 0.02),
    ("I: downloading packages", Phase::Download, "downloading packages", 0.10),
    ("I: extracting archives", Phase::Unpack, "unpacking the base system", 0.20),
    ("I: installing essential", Phase::Install, "installing the base system", 0.30),
    ("I: installing remaining", Phase::Install, "installing packages", 0.50),
    ("I: running --customize-hook", Phase::Customise, "making it a template", 0.90),
    ("I: cleaning package lists", Phase::Customise, "cleaning up", 0.93),
];

/// Builds below `dir`, whose lock the caller holds.
pub(super) fn build(
    dir: &Path,
    definition: &Definition,
    progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    let unfinished = dir.join(format!("{UNFINISHED}{}", std::process::id()));
    fs::create_dir(&unfinished).context("make the build directory")?;
    let built = build_in(dir, &unfinished, definition, progress);
    if built.is_err() {
        // The failure of the build is the one to tell; the next build or collection cleans up.
        let _ = fs::remove_dir_all(&unfinished);
    }
    built
}

fn build_in(
    dir: &Path,
    unfinished: &Path,
    definition: &Definition,
    progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    let mut tell = |phase, message: String, fraction| {
        progress(Progress { phase, message, fraction: Some(fraction) });
    };
    tell(Phase::Prepare, format!("preparing template {}", definition.name()), 0.0);
    let rootfs = unfinished.join(ROOTFS);
    bootstrap(dir, &rootfs, definition, &mut tell)?;
    tell(Phase::Customise, "adding the account and files".into(), 0.94);
    finish(&rootfs, definition).context("finish the root file system")?;
    let meta = describe(&rootfs, definition)?;
    tell(Phase::Publish, format!("flushing {} MiB", meta.bytes >> 20), 0.96);
    publish(dir, unfinished, &meta).context("publish the template")?;
    tell(Phase::Done, format!("template {} is ready", definition.name()), 1.0);
    Ok(())
}

fn bootstrap(
    dir: &Path,
    rootfs: &Path,
    definition: &Definition,
    tell: &mut dyn FnMut(Phase, String, f32),
) -> Result<()> {
    let log_path = dir.join("build.log");
    let mut log = File::create(&log_path).context("open the build log")?;
    let Base::Debian { suite } = definition.base();
    let lines = sources::of_suite(Path::new("/etc/apt"), suite, sources::host_suite().as_deref());
    let mut child = start(&arguments(rootfs, definition, !lines.is_empty()), &log)?;
    let mut stdin = child.stdin.take().expect("stdin was piped");
    // A program that ended early tells why on stderr; a broken pipe would only hide that.
    let _ = stdin.write_all(lines.as_bytes());
    drop(stdin);
    let lines = BufReader::new(child.stderr.take().expect("stderr was piped")).lines();
    let mut last = String::new();
    let mut failure = None;
    for line in lines {
        let Ok(line) = line else { break };
        writeln!(log, "{line}").context("write the build log")?;
        let milestone = MILESTONES.iter().find(|(prefix, ..)| line.starts_with(prefix));
        if let Some((_, phase, message, fraction)) = milestone {
            tell(*phase, (*message).to_owned(), *fraction);
        }
        if failure.is_none() && line.starts_with("E: ") {
            failure = Some(line.clone());
        }
        if !line.trim().is_empty() {
            last = line;
        }
    }
    let status = child.wait().context("wait for mmdebstrap")?;
    if status.success() {
        return Ok(());
    }
    let why = failure.unwrap_or(last);
    Err(Error::unavailable(format!(
        "mmdebstrap failed: {}; the log is {}",
        why.trim_start_matches("E: "),
        log_path.display()
    )))
}

fn start(arguments: &[String], log: &File) -> Result<Child> {
    if !installed("mmdebstrap") {
        return Err(missing("mmdebstrap", "mmdebstrap"));
    }
    for program in ["setpriv", "unshare"] {
        if !installed(program) {
            return Err(missing(program, "util-linux"));
        }
    }
    // It dies with us, and everything that it started dies with it, however we end.
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "unshare"])
        .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["--propagation", "private", "--"])
        .args(arguments)
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("LC_ALL", "C.UTF-8")
        .env("TMPDIR", "/tmp")
        .stdin(Stdio::piped())
        .stdout(log.try_clone().context("share the build log")?)
        .stderr(Stdio::piped());
    Ok(command.spawn().context("start mmdebstrap")?)
}

fn arguments(rootfs: &Path, definition: &Definition, sources: bool) -> Vec<String> {
    let Base::Debian { suite } = definition.base();
    let mut list: Vec<String> = ["mmdebstrap", "--mode=root", "--variant=minbase"]
        .iter()
        .chain(&["--format=directory"])
        .map(|&text| text.to_owned())
        .collect();
    // Faster, and safe because the tree is flushed as a whole before it is published.
    list.push("--dpkgopt=force-unsafe-io".into());
    for path in ["/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*"]
    {
        list.push(format!("--dpkgopt=path-exclude={path}"));
    }
    list.push("--dpkgopt=path-include=/usr/share/doc/*/copyright".into());
    if !definition.packages().is_empty() {
        list.push(format!("--include={}", definition.packages().join(",")));
    }
    let user = definition.user();
    list.push(format!(
        "--customize-hook=chroot \"$1\" useradd --create-home --uid {USER} --user-group \
         --shell /bin/bash {user}"
    ));
    for line in definition.run() {
        list.push(format!("--customize-hook=chroot \"$1\" sh -e -c {}", quote(line)));
    }
    list.push(suite.clone());
    list.push(rootfs.display().to_string());
    if sources {
        // From standard input.
        list.push("-".into());
    }
    list
}

fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn installed(program: &str) -> bool {
    let places = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
    places.iter().any(|place| Path::new(place).join(program).is_file())
}

fn missing(program: &str, package: &str) -> Error {
    Error::unavailable(format!(
        "{program} is not installed: run `apt-get install {package}` and try again"
    ))
}

/// What every template has, whatever its packages are.
fn finish(rootfs: &Path, definition: &Definition) -> anyhow::Result<()> {
    let user = definition.user();
    if definition.sudo() {
        let rule = format!("{user} ALL=(ALL:ALL) NOPASSWD: ALL\n");
        put(rootfs, "/etc/sudoers.d/user", &rule, 0o440)?;
    }
    let workspace = rootfs.join("workspace");
    fs::create_dir_all(&workspace)?;
    chown(&workspace, Some(USER), Some(USER))?;
    // The launcher mounts its own; device nodes have no place in a layer.
    let dev = rootfs.join("dev");
    fs::remove_dir_all(&dev)?;
    fs::create_dir(&dev)?;
    // Regular files, so that the launcher can bind over them.
    put(rootfs, "/etc/resolv.conf", "", 0o644)?;
    put(rootfs, "/etc/hostname", "sandbox\n", 0o644)?;
    put(rootfs, "/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n", 0o644)?;
    put(rootfs, "/etc/machine-id", "", 0o444)?;
    for (path, file) in definition.files() {
        let mode = if file.executable { 0o755 } else { 0o644 };
        put(rootfs, path, &file.content, mode)?;
    }
    for leftover in ["var/log/apt", "var/log/dpkg.log", "var/log/alternatives.log"] {
        remove(&rootfs.join(leftover))?;
    }
    let unsafe_io = rootfs.join("etc/dpkg/dpkg.cfg.d/99mmdebstrap");
    let text = fs::read_to_string(&unsafe_io).context("read dpkg's options")?;
    let kept: String =
        text.lines().filter(|line| *line != "force-unsafe-io").map(|l| format!("{l}\n")).collect();
    fs::write(&unsafe_io, kept)?;
    Ok(())
}

/// Writes a file anew: what was there (a link, perhaps) is never followed.
fn put(rootfs: &Path, path: &str, content: &str, mode: u32) -> anyhow::Result<()> {
    let to = rootfs.join(path.trim_start_matches('/'));
    let write = || -> std::io::Result<()> {
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent)?;
        }
        remove(&to)?;
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&to)?;
        file.write_all(content.as_bytes())?;
        file.set_permissions(Permissions::from_mode(mode))
    };
    write().with_context(|| format!("write {path}"))
}

fn remove(path: &Path) -> std::io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn describe(rootfs: &Path, definition: &Definition) -> Result<Meta> {
    let packages = packages(rootfs).context("list the packages")?;
    let mut hash = Sha256::new();
    for part in [BUILDER_VERSION, definition.text()] {
        hash.update(part);
        hash.update([0]);
    }
    for package in &packages {
        hash.update(package);
        hash.update([0]);
    }
    Ok(Meta {
        name: definition.name().clone(),
        digest: format!("sha256:{}", hex(&hash.finalize())),
        built_at: Timestamp::now(),
        bytes: size::on_disk(rootfs).context("measure the root file system")?,
        user: definition.user().to_owned(),
        sudo: definition.sudo(),
        limits: definition.limits(),
        env: definition.env().clone(),
        packages,
    })
}

/// `name=version` of everything installed, sorted.
fn packages(rootfs: &Path) -> anyhow::Result<Vec<String>> {
    let text = fs::read_to_string(rootfs.join("var/lib/dpkg/status"))?;
    let mut all = BTreeSet::new();
    for stanza in text.split("\n\n") {
        let field =
            |key: &str| stanza.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
        if let (Some(name), Some(version)) = (field("Package"), field("Version")) {
            all.insert(format!("{name}={version}"));
        }
    }
    Ok(all.into_iter().collect())
}

fn publish(dir: &Path, unfinished: &Path, meta: &Meta) -> anyhow::Result<()> {
    let mut file = File::create_new(unfinished.join(META))?;
    serde_json::to_writer_pretty(&mut file, meta)?;
    file.sync_all()?;
    let hex = meta.digest.trim_start_matches("sha256:");
    let home = dir.join(hex);
    if home.exists() {
        // The same definition and packages: the build that is there may be in use, and is as good.
        fs::remove_dir_all(unfinished)?;
    } else {
        // The whole file system, because a tree of thousands of files has no cheaper barrier.
        rustix::fs::syncfs(File::open(unfinished)?).context("flush the tree")?;
        fs::rename(unfinished, &home)?;
        sync_dir(dir)?;
    }
    let link = dir.join(format!("{UNFINISHED}current"));
    remove(&link)?;
    symlink(hex, &link)?;
    fs::rename(&link, dir.join(CURRENT))?;
    sync_dir(dir)?;
    Ok(())
}

//! A client that makes templates, and is killed over it: imports of an image and builds on one, at random moments.
//! What is listed then is whole, and of a version that somebody began to make; what was answered is listed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, SystemTime};
use std::{fs, io};

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};

use super::http::{Ask, Client};
use super::{Dice, pause};

/// What the others stand on.
const BASE: &str = "soak-base";
/// Names that are made again and again.
const NAMES: u64 = 3;
/// Of each file `/mark`: long enough for a kill to come while it is written.
const LINES: usize = 100_000;
/// An import, and a build, on a loaded machine.
const MADE_WITHIN: Duration = Duration::from_secs(120);

pub(super) struct Builder {
    bastide: PathBuf,
    data: PathBuf,
    dir: PathBuf,
    version: u64,
    known: BTreeMap<String, Known>,
    /// How many were cut off.
    pub(super) cut_off: u32,
}

/// What may be found under a name.
#[derive(Debug, Default)]
struct Known {
    versions: BTreeSet<String>,
    /// Something was answered, so that something is there.
    answered: bool,
}

impl Builder {
    pub(super) fn new(bastide: &Path, data: PathBuf, dir: PathBuf) -> anyhow::Result<Self> {
        let bastide = bastide.canonicalize().context("find the program")?;
        fs::create_dir_all(&dir).context("make a directory for images")?;
        Ok(Self { bastide, data, dir, version: 0, known: BTreeMap::new(), cut_off: 0 })
    }

    /// Makes one template, or is killed while it does.
    pub(super) fn act(&mut self, dice: &mut Dice) -> anyhow::Result<()> {
        self.version += 1;
        let stands = self.known.get(BASE).is_some_and(|base| base.answered);
        let (name, builds) = match dice.below(4) {
            0 => (BASE.to_owned(), false),
            1 if stands => (format!("soak-built-{}", dice.below(NAMES)), true),
            _ => (format!("soak-image-{}", dice.below(NAMES)), false),
        };
        let version = format!("{name} {}", self.version);
        let mut command = self.command(&name, &version, builds)?;
        self.known.entry(name.clone()).or_default().versions.insert(version.clone());
        let log = self.dir.join("builder.log");
        let said = fs::File::create(&log).context("open a log")?;
        let mut child = command.stderr(said).spawn().context("start a build")?;
        let patience = match dice.below(3) {
            0 => MADE_WITHIN,
            _ => Duration::from_millis(dice.below(600)),
        };
        let begin = SystemTime::now();
        let mut ended = look(&mut child)?;
        while matches!(ended, Seen::Runs) && begin.elapsed()? < patience {
            pause(5);
            ended = look(&mut child)?;
        }
        let status = match ended {
            Seen::Ended(status) => status,
            // Whether it made it is seen when all hold still.
            Seen::Reaped => return Ok(()),
            Seen::Runs => {
                child.kill().context("kill a build")?;
                if let Err(error) = child.wait() {
                    ensure!(is_reaped(&error), "reap a build: {error}");
                }
                ensure!(patience < MADE_WITHIN, "{version} is not made in {MADE_WITHIN:?}");
                self.cut_off += 1;
                return Ok(());
            }
        };
        if !status.success() {
            bail!("{version}: {}", fs::read_to_string(&log).unwrap_or_default());
        }
        self.known.insert(name, Known { versions: BTreeSet::from([version]), answered: true });
        Ok(())
    }

    fn command(&self, name: &str, version: &str, builds: bool) -> anyhow::Result<Command> {
        let mark = self.dir.join("mark");
        fs::write(&mark, format!("{version}\n").repeat(LINES)).context("write a mark")?;
        let mut command = Command::new(&self.bastide);
        command.arg("template");
        if builds {
            let recipe = self.dir.join("Dockerfile");
            fs::write(&recipe, format!("FROM {BASE}\nCOPY mark /mark\n"))
                .context("write a recipe")?;
            command.args(["build", name, "--dockerfile"]).arg(recipe);
        } else {
            let archive = self.dir.join("image.tar");
            pack(&mark, &archive)?;
            command.args(["import", name]).arg(archive);
        }
        command.env("BASTIDE_DATA_DIR", &self.data).env_remove("BASTIDE_CONFIG");
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Ok(command)
    }

    /// While everybody holds still: every template is one that can be used, and is all there.
    pub(super) fn check(&mut self, client: &Client) -> anyhow::Result<()> {
        let listed = client.get("/v1/sandbox-templates")?.json()?;
        let listed = listed["templates"].as_array().context("a list of templates")?.iter();
        let listed: BTreeSet<String> = listed
            .filter(|one| one["name"].as_str().is_some_and(|name| name.starts_with("soak-")))
            .filter(|one| !one["digest"].is_null())
            .filter_map(|one| Some(one["name"].as_str()?.to_owned()))
            .collect();
        for (name, known) in &mut self.known {
            if !listed.contains(name) {
                ensure!(!known.answered, "{name} was made, and is gone");
                continue;
            }
            let found = mark_of(client, name).with_context(|| format!("look into {name}"))?;
            let version = found.lines().next().unwrap_or_default().to_owned();
            let whole = format!("{version}\n").repeat(LINES);
            ensure!(found == whole, "{name} is half of {version}: {} bytes", found.len());
            ensure!(known.versions.contains(&version), "{name} is {version:?}: {known:?}");
            *known = Known { versions: BTreeSet::from([version]), answered: true };
        }
        let stranger = listed.iter().find(|name| !self.known.contains_key(*name));
        ensure!(stranger.is_none(), "nobody made {stranger:?}");
        Ok(())
    }
}

/// How a process of ours is.
enum Seen {
    Runs,
    Ended(ExitStatus),
    /// Whoever reaps orphans was quicker: it has ended, and nobody knows how.
    Reaped,
}

fn look(child: &mut Child) -> anyhow::Result<Seen> {
    match child.try_wait() {
        Ok(None) => Ok(Seen::Runs),
        Ok(Some(status)) => Ok(Seen::Ended(status)),
        Err(error) if is_reaped(&error) => Ok(Seen::Reaped),
        Err(error) => Err(error).context("look after a build"),
    }
}

fn is_reaped(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::CHILD.raw_os_error())
}

/// Read out of a sandbox that stands on it.
fn mark_of(client: &Client, name: &str) -> anyhow::Result<String> {
    let made = client.post("/v1/sandboxes", &json!({ "template": name }))?;
    ensure!(made.status == 201, "{}", String::from_utf8_lossy(&made.body));
    let made: Value = made.json()?;
    let path = format!("/v1/sandboxes/{}", made["id"].as_str().context("an id")?);
    let mark = client.get(&format!("{path}/files?path=/mark"))?;
    let gone = client.ask(&Ask { method: "DELETE", path: &path, headers: &[], body: &[] })?;
    ensure!(gone.is_good(), "it is not deleted: {}", gone.status);
    ensure!(mark.is_good(), "{}", String::from_utf8_lossy(&mark.body));
    String::from_utf8(mark.body).context("read the mark")
}

/// An image with that one file, as an OCI layout in an archive.
fn pack(mark: &Path, archive: &Path) -> anyhow::Result<()> {
    let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let packed =
        Command::new("python3").args(["-c", PACK]).args([mark, archive]).arg(arch).output();
    let packed = match packed {
        // It has ended, and what it made is looked at by who imports it.
        Err(error) if is_reaped(&error) => return Ok(()),
        packed => packed.context("start python3")?,
    };
    ensure!(packed.status.success(), "{}", String::from_utf8_lossy(&packed.stderr));
    Ok(())
}

const PACK: &str = r#"
import hashlib, io, json, sys, tarfile
mark, archive, arch = sys.argv[1:]
def tar(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as packed:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            packed.addfile(entry, io.BytesIO(data))
    return out.getvalue()
blobs = {}
def blob(data, kind):
    digest = hashlib.sha256(data).hexdigest()
    blobs["blobs/sha256/" + digest] = data
    return {"mediaType": "application/vnd.oci.image." + kind, "digest": "sha256:" + digest, "size": len(data)}
def text(value): return json.dumps(value).encode()
layer = tar({"mark": open(mark, "rb").read(), "etc/passwd": b"root:x:0:0::/:/bin/sh\n"})
config = {"architecture": arch, "os": "linux", "config": {}, "rootfs": {"type": "layers",
    "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]}}
manifest = {"schemaVersion": 2, "config": blob(text(config), "config.v1+json"),
    "layers": [blob(layer, "layer.v1.tar")]}
index = {"schemaVersion": 2, "manifests": [blob(text(manifest), "manifest.v1+json")]}
files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": text(index)}
open(archive, "wb").write(tar({**files, **blobs}))
"#;

//! Where steps run: a driver of its own below the data directory, with a disk pool, a keeper and a
//! network policy of its own, all of which are gone when the build is.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use driver::{Driver, Launch, Template};
use futures_util::StreamExt;
use guest_proto::{ExecFrame, ExecStart, Guest};
use jiff::Timestamp;
use model::{
    Clocks, EndReason, Error, Limits, Name, Policy, PolicyName, Result, SandboxId, SandboxSpec,
    Shape, Tier, is_public,
};
use tokio::time::{Instant, sleep};

use super::super::recipe::{Script, Work, root_shell};
use super::super::{Built, HOST, Layers, TemplateStore, base, copy, leftovers};
use super::{BuildOptions, yard_dir};
use crate::{LinuxConfig, LinuxDriver};

pub(super) struct Yard {
    driver: LinuxDriver,
    dir: PathBuf,
    policy: Policy,
}

/// What one step stands on and leaves.
pub(super) struct Job {
    pub(super) root: Root,
    /// Files of the host that the sandbox is to have at the same path.
    pub(super) keys: Vec<PathBuf>,
    /// The directory of the changes that becomes the layer.
    pub(super) take: &'static str,
}

pub(super) enum Root {
    /// The machine's own programs.
    Host,
    /// A copy of this tree, which becomes part of the changes.
    Seed(PathBuf),
    /// The topmost first.
    Layers { layers: Vec<PathBuf>, user: String, env: BTreeMap<String, String>, sudo: bool },
}

pub(super) type Line<'a> = &'a mut (dyn FnMut(String) + Send);

/// What a step may use.
const STEP_LIMITS: Limits =
    Limits { vcpu: 4, cpu_fraction: 1.0, memory_mib: 4096, pids: 4096, disk_gb: 20 };
/// How long a step may take.
const STEP_MAX: Duration = Duration::from_secs(2 * 3600);
/// Longer lines are cut.
const LINE_BYTES_MAX: usize = 4096;

/// How long cleaning up after a build may take that was killed.
const CLEANED_WITHIN: Duration = Duration::from_secs(60);
const LOOKS: Duration = Duration::from_millis(50);

impl Yard {
    pub(super) async fn open(
        store: &TemplateStore,
        options: &BuildOptions,
        log: &Path,
    ) -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Err(Error::unavailable("building a template needs root"));
        }
        let dir = yard_dir(&store.data_dir, &log.display().to_string());
        let driver = open_when_free(&dir, options).await?;
        let policy = policy(options).await;
        Ok(Self { driver, dir, policy })
    }

    pub(super) async fn close(self) {
        self.driver.close().await;
        leftovers::remove_if_free(&self.dir);
    }

    /// Runs a step and answers with the layer that it made.
    pub(super) async fn run(
        &self,
        layers: &Layers,
        job: Job,
        (work, packed): (&Work, Option<(File, String)>),
        line: Line<'_>,
    ) -> Result<String> {
        let Job { root, keys, take } = job;
        let spec = spec();
        let id = spec.id;
        let (built, seed) = self.stand_on(root)?;
        let launch = Launch { spec, policy: self.policy.clone() };
        let guest = self.driver.create_for_build(launch, built, seed).await?;
        let worked = self.work(&guest, &keys, (work, packed), line).await;
        let layer = match worked {
            Ok(()) => self.take(layers, id, take).await,
            Err(error) => Err(error),
        };
        // The next opening of the yard finds what this leaves.
        let removed = self.driver.remove(id, EndReason::UserRequest).await;
        let layer = layer?;
        removed.map(|()| layer)
    }

    fn stand_on(&self, root: Root) -> Result<(Built, Option<PathBuf>)> {
        let (layers, user, env, seed, sudo) = match root {
            Root::Host => {
                let host = self.driver.template_store().get(&HOST.parse()?)?;
                let mut host = host.context("the host template is always there")?;
                host.template.user = "root".into();
                return Ok((host, None));
            }
            Root::Seed(tree) => (Vec::new(), "root".to_owned(), BTreeMap::new(), Some(tree), false),
            Root::Layers { layers, user, env, sudo } => (layers, user, env, None, sudo),
        };
        let template = Template {
            name: "step".parse()?,
            digest: format!("sha256:{}", "0".repeat(64)),
            built_at: None,
            bytes: None,
            // Files that are put belong to whom the guest serves by default.
            user: if user.is_empty() { user } else { "root".to_owned() },
            limits: STEP_LIMITS,
            env,
            image: None,
        };
        let built = Built {
            template,
            layers,
            layer_ids: Vec::new(),
            // A step is root already; programs that change users for others are for who asks for them.
            sudo,
            nesting: false,
            uid: 0,
            workdir: Some("/".into()),
            start: Vec::new(),
            passing: false,
        };
        Ok((built, seed))
    }

    async fn work(
        &self,
        guest: &Guest,
        keys: &[PathBuf],
        (work, packed): (&Work, Option<(File, String)>),
        line: Line<'_>,
    ) -> Result<()> {
        for key in keys {
            let path = key.display().to_string();
            let parent = key.parent().unwrap_or(Path::new("/")).display().to_string();
            execute(guest, &root_shell(&format!("mkdir -p '{parent}'")), line).await?;
            let bytes = std::fs::read(key).with_context(|| format!("read {path}"))?;
            let body = futures_util::stream::once(async { Ok(bytes::Bytes::from(bytes)) });
            guest.write_file(&path, body).await.map_err(|error| lost(&error))?;
        }
        match work {
            Work::Run(script) => execute(guest, script, line).await,
            Work::Put { into, source: _ } => {
                let (file, _) = packed.context("files were packed")?;
                put(guest, into, file, line).await
            }
        }
    }

    /// The changes of a stopped sandbox, as a layer.
    async fn take(&self, layers: &Layers, id: SandboxId, take: &'static str) -> Result<String> {
        self.driver.stop(id, EndReason::UserRequest).await?;
        let from = self.driver.upper_of(id).join(take);
        let layers = layers.clone();
        let copied = tokio::task::spawn_blocking(move || {
            let unfinished = layers.begin()?;
            let made = copy::copy(&from, &unfinished.tree()).and_then(|copied| {
                layers.publish(&unfinished, &copied.id, copied.bytes)?;
                Ok(copied.id)
            });
            if made.is_err() {
                layers.drop_unfinished(&unfinished);
            }
            made
        });
        Ok(copied.await.context("copy the changes")?.context("copy the changes")?)
    }
}

/// Nobody else builds in this yard while its build is locked; a server may be cleaning up in it, after a build
/// of the same name that was killed.
async fn open_when_free(dir: &Path, options: &BuildOptions) -> Result<LinuxDriver> {
    when_free(dir, async || open(dir, options).await).await
}

async fn when_free<T>(dir: &Path, mut open: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    let until = Instant::now() + CLEANED_WITHIN;
    let mut failed_alone = false;
    loop {
        let error = match open().await {
            Ok(opened) => return Ok(opened),
            Err(error) => error,
        };
        if leftovers::is_busy(dir) && Instant::now() < until {
            failed_alone = false;
            sleep(LOOKS).await;
        } else if std::mem::replace(&mut failed_alone, true) {
            return Err(error);
        }
        // Who was in the way may have ended since: what fails once more fails by itself.
    }
}

async fn open(dir: &Path, options: &BuildOptions) -> Result<LinuxDriver> {
    leftovers::clean_one(dir, &options.runtime_dir).await?;
    let mut config = LinuxConfig::new(dir.to_owned());
    config.runtime_dir.clone_from(&options.runtime_dir);
    LinuxDriver::open(config).await
}

/// The mirrors of the machine's apt sources at their own addresses, private ones too, because the
/// operator wrote them down; and what the caller allows.
async fn policy(options: &BuildOptions) -> Policy {
    let mirror = options.mirror.clone();
    let lookup = tokio::task::spawn_blocking(move || {
        let mut rules = Vec::new();
        let lines = base::all_sources(mirror.as_deref());
        for (host, port) in lines {
            rules.push(format!("{host}:{port}"));
            let addresses = (host.as_str(), port).to_socket_addrs();
            for address in addresses.into_iter().flatten().map(|address| address.ip()) {
                if !is_public(address) && address.is_ipv4() {
                    rules.push(format!("{address}/32:{port}"));
                }
            }
        }
        rules
    });
    let rules = lookup.await.unwrap_or_default();
    let parsed = rules.iter().filter_map(|rule| rule.parse().ok());
    Policy { rules: parsed.chain(options.allow.rules.iter().cloned()).collect() }
}

async fn put(guest: &Guest, into: &str, mut file: File, line: Line<'_>) -> Result<()> {
    let make = Script {
        argv: vec!["mkdir".into(), "-p".into(), "--".into(), into.to_owned()],
        ..root_shell("")
    };
    if into != "/" {
        execute(guest, &make, line).await?;
    }
    file.seek(SeekFrom::Start(0)).context("read the build context")?;
    let body = tokio_util::io::ReaderStream::with_capacity(tokio::fs::File::from_std(file), 65536);
    let body = body.map(|piece| piece.map_err(std::io::Error::other));
    guest.import_tar(into, body).await.map_err(|error| lost(&error))
}

/// Runs a program to its end, line by line.
async fn execute(guest: &Guest, script: &Script, line: Line<'_>) -> Result<()> {
    let start = ExecStart {
        id: model::ExecId::generate().to_string(),
        argv: script.argv.clone(),
        cwd: script.cwd.clone(),
        env: script.env.clone(),
        user: script.user.clone(),
        timeout_ms: u64::try_from(STEP_MAX.as_millis()).ok(),
        ..ExecStart::default()
    };
    let mut frames = guest.exec(&start).await.map_err(|error| lost(&error))?;
    let mut pending = Vec::new();
    while let Some(frame) = frames.next().await {
        match frame.map_err(|error| lost(&error))? {
            ExecFrame::Output { bytes, .. } => split_lines(&mut pending, &bytes, line),
            ExecFrame::Gap { .. } => line("(some of the output was lost)".to_owned()),
            ExecFrame::Keepalive => {}
            ExecFrame::End(end) => {
                if !pending.is_empty() {
                    line(printable(&pending));
                }
                return match (end.exit_code, end.timed_out) {
                    (_, true) => Err(Error::unavailable("it took longer than two hours")),
                    (0, false) => Ok(()),
                    (code, false) => Err(Error::unavailable(format!("it exited with {code}"))),
                };
            }
        }
    }
    Err(Error::unavailable("its sandbox ended (out of memory?)"))
}

fn split_lines(pending: &mut Vec<u8>, bytes: &[u8], line: Line<'_>) {
    for byte in bytes {
        match byte {
            b'\n' => {
                line(printable(pending));
                pending.clear();
            }
            byte if pending.len() < LINE_BYTES_MAX => pending.push(*byte),
            _ => {}
        }
    }
}

/// What may go to somebody's terminal. A line that overwrote itself is shown as it ended.
fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let last = text.trim_end_matches('\r').rsplit('\r').next().unwrap_or_default();
    last.chars().filter(|c| !c.is_control() || *c == '\t').collect()
}

fn lost(error: &guest_proto::GuestError) -> Error {
    Error::unavailable(error.to_string())
}

fn spec() -> SandboxSpec {
    SandboxSpec {
        id: SandboxId::generate(),
        owner: "usr_build".parse().expect("a valid owner"),
        name: Name::generate(),
        shape: Shape::Image,
        template: "step".parse().expect("a valid name"),
        image: None,
        tier: Tier::Ephemeral,
        clocks: Clocks::default(),
        limits: STEP_LIMITS,
        policy: PolicyName::default(),
        env: BTreeMap::new(),
        metadata: serde_json::Map::new(),
        workspace: None,
        agent: None,
        payer: None,
        created_at: Timestamp::now(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_was_in_the_way_may_be_gone_when_it_is_looked_for() {
        let dir = tempfile::tempdir().unwrap();
        let refuse = || Error::unavailable("another server runs on the data directory");
        let mut tries = 0;
        let opened = when_free(dir.path(), async || {
            tries += 1;
            if tries == 1 { Err(refuse()) } else { Ok("open") }
        });
        assert_eq!(opened.await.unwrap(), "open");
        let mut tries = 0;
        let opened = when_free(dir.path(), async || {
            tries += 1;
            Err::<(), _>(refuse())
        });
        assert!(opened.await.is_err());
        assert_eq!(tries, 2, "what fails by itself is told");
    }

    #[test]
    fn a_log_line_cannot_speak_to_the_terminal() {
        let mut lines = Vec::new();
        let mut pending = Vec::new();
        let bytes = b"one\x1b[31m red\x07\n10%\r20%\rdone\r\nrest";
        split_lines(&mut pending, bytes, &mut |line| lines.push(line));
        assert_eq!(lines, ["one[31m red", "done"]);
        assert_eq!(pending, b"rest");
    }
}

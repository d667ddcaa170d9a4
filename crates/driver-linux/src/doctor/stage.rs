//! Where attacks happen: a driver in a directory of its own, a sandbox that attacks, its neighbour,
//! and things of the host that neither may reach.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use driver::{Driver, Launch};
use guest_proto::{ExecFrame, ExecFrames, ExecStart};
use jiff::Timestamp;
use model::{
    Clocks, EndReason, Limits, Name, Policy, PolicyName, SandboxId, SandboxSpec, Shape, Tier,
};

use super::attacks::Argument;
use super::{DoctorConfig, Outcome};
use crate::linux::{LinuxConfig, LinuxDriver};
use crate::pool::DiskConfig;

/// What every sandbox of the doctor may use. Little, so that it is soon used up.
pub(super) const LIMITS: Limits =
    Limits { vcpu: 1, cpu_fraction: 1.0, memory_mib: 256, pids: 128, disk_gb: 1 };
const POOL_GB: u64 = 3;
/// An attack that takes longer has found something too.
const ATTACK_TIMEOUT: Duration = Duration::from_secs(60);
const PROGRAM: &str = "/workspace/inside.py";
const CLOSE_ATTEMPTS: u32 = 100;

pub(super) struct Stage {
    pub(super) driver: LinuxDriver,
    pub(super) attacker: SandboxId,
    pub(super) neighbour: SandboxId,
    /// A file of the host that everybody on the host may read and write.
    pub(super) mark: PathBuf,
    pub(super) dir: PathBuf,
    decoy: Child,
    listener: std::net::TcpListener,
    abstract_name: String,
    nesting: bool,
    _abstract: UnixListener,
    _temp: tempfile::TempDir,
}

/// What an attack came to.
pub(super) struct Verdict {
    pub(super) outcome: Outcome,
    pub(super) seen: String,
}

impl Verdict {
    pub(super) fn held(seen: impl Into<String>) -> Self {
        Self { outcome: Outcome::Held, seen: seen.into() }
    }

    pub(super) fn broken(seen: impl Into<String>) -> Self {
        Self { outcome: Outcome::Broken, seen: seen.into() }
    }

    pub(super) fn weak(seen: impl Into<String>) -> Self {
        Self { outcome: Outcome::Weak, seen: seen.into() }
    }

    /// The last line that the program inside printed. One that said nothing of the kind has failed,
    /// which must not pass for a wall that held.
    pub(super) fn parse(text: &str) -> Self {
        let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no answer");
        let (word, seen) = line.split_once(' ').unwrap_or((line, ""));
        let outcome = match word {
            "HELD" => Outcome::Held,
            "SKIPPED" => Outcome::Skipped,
            "BROKEN" => Outcome::Broken,
            _ if text.contains("no such program") => Outcome::Skipped,
            _ => return Self::broken(format!("the attack itself failed: {line}")),
        };
        Self { outcome, seen: seen.to_owned() }
    }
}

/// A program that runs on until this is dropped.
pub(super) struct Holding {
    frames: ExecFrames,
    pub(super) first: String,
}

impl Stage {
    pub(super) async fn open(config: &DoctorConfig, nesting: bool) -> anyhow::Result<Self> {
        let temp = tempfile::Builder::new()
            .prefix("bastide-doctor-")
            .tempdir_in(&config.temp_dir)
            .context("make a directory")?;
        let dir = temp.path().to_owned();
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o755))?;
        let mark = dir.join("mark");
        std::fs::write(&mark, MARK).context("write the mark")?;
        std::fs::set_permissions(&mark, PermissionsExt::from_mode(0o666))?;
        let abstract_name = format!("bastide-doctor-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&abstract_name)?;
        let mut linux = LinuxConfig::new(dir.join("data"));
        linux.disk = DiskConfig { pool_gb: Some(POOL_GB), ..DiskConfig::default() };
        linux.runtime_dir.clone_from(&config.runtime_dir);
        linux.host_nesting = nesting;
        let stage_abstract = UnixListener::bind_addr(&address).context("bind a socket")?;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").context("bind a port")?;
        let driver = LinuxDriver::open(linux).await.map_err(anyhow::Error::from)?;
        let decoy = Command::new("sleep").arg("3600").stdin(Stdio::null()).spawn()?;
        let nobody = SandboxId::generate();
        let mut stage = Self {
            driver,
            attacker: nobody,
            neighbour: nobody,
            mark,
            dir,
            decoy,
            listener,
            abstract_name,
            nesting,
            _abstract: stage_abstract,
            _temp: temp,
        };
        match stage.people().await {
            Ok(()) => Ok(stage),
            Err(error) => {
                let _ = stage.close().await;
                Err(error)
            }
        }
    }

    async fn people(&mut self) -> anyhow::Result<()> {
        self.attacker = self.create().await.context("make a sandbox")?;
        self.neighbour = self.create().await.context("make its neighbour")?;
        for id in [self.attacker, self.neighbour] {
            let body = futures_util::stream::iter([Ok(include_str!("inside.py").into())]);
            let guest = self.driver.guest(id).map_err(anyhow::Error::from)?;
            guest.write_file(PROGRAM, body).await.context("bring the attacks in")?;
        }
        Ok(())
    }

    async fn create(&self) -> anyhow::Result<SandboxId> {
        let spec = SandboxSpec {
            id: SandboxId::generate(),
            owner: "usr_doctor".parse().map_err(anyhow::Error::from)?,
            name: Name::generate(),
            shape: Shape::Image,
            template: crate::template::HOST.parse().map_err(anyhow::Error::from)?,
            image: None,
            tier: Tier::Ephemeral,
            clocks: Clocks::default(),
            limits: LIMITS,
            policy: PolicyName::default(),
            env: std::collections::BTreeMap::new(),
            metadata: serde_json::Map::new(),
            workspace: None,
            agent: None,
            payer: None,
            created_at: Timestamp::now(),
        };
        let id = spec.id;
        self.driver.create(Launch { spec, policy: Policy::none() }).await?;
        Ok(id)
    }

    /// An attack of `inside.py`, as root inside.
    pub(super) async fn inside(
        &self,
        name: &str,
        arguments: &[Argument],
    ) -> anyhow::Result<Verdict> {
        let arguments: Vec<String> = arguments.iter().map(|one| self.argument(*one)).collect();
        let text = self.program(self.attacker, name, &arguments).await?;
        Ok(Verdict::parse(&text))
    }

    /// Everything that a program of `inside.py` printed.
    pub(super) async fn program(
        &self,
        id: SandboxId,
        name: &str,
        arguments: &[String],
    ) -> anyhow::Result<String> {
        let mut frames = self.start(id, name, arguments).await?;
        let mut text = Vec::new();
        let all = async {
            while let Some(frame) = frames.next().await {
                if let ExecFrame::Output { bytes, .. } = frame.context("hear from inside")? {
                    text.extend_from_slice(&bytes);
                }
            }
            anyhow::Ok(())
        };
        match tokio::time::timeout(ATTACK_TIMEOUT, all).await {
            Ok(ended) => ended?,
            Err(_) => bail!("it did not end in {ATTACK_TIMEOUT:?}"),
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Starts a program of `inside.py` that goes on after its first line.
    pub(super) async fn holding(
        &self,
        id: SandboxId,
        name: &str,
        arguments: &[String],
    ) -> anyhow::Result<Holding> {
        let mut frames = self.start(id, name, arguments).await?;
        let mut text = String::new();
        let first = async {
            while let Some(frame) = frames.next().await {
                if let ExecFrame::Output { bytes, .. } = frame.context("hear from inside")? {
                    text.push_str(&String::from_utf8_lossy(&bytes));
                }
                if text.contains('\n') {
                    return Ok(());
                }
            }
            bail!("it ended: {text}")
        };
        tokio::time::timeout(ATTACK_TIMEOUT, first).await.context("wait for its first line")??;
        match Verdict::parse(&text) {
            Verdict { outcome: Outcome::Held, seen } => Ok(Holding { frames, first: seen }),
            Verdict { seen, .. } => bail!("{seen}"),
        }
    }

    async fn start(
        &self,
        id: SandboxId,
        name: &str,
        arguments: &[String],
    ) -> anyhow::Result<ExecFrames> {
        let guest = self.driver.guest(id).map_err(anyhow::Error::from)?;
        let program = ["python3", PROGRAM, name].map(str::to_owned);
        let start = ExecStart {
            id: model::ExecId::generate().to_string(),
            argv: program.into_iter().chain(arguments.iter().cloned()).collect(),
            user: Some("root".to_owned()),
            ..ExecStart::default()
        };
        guest.exec(&start).await.with_context(|| format!("run {name} inside"))
    }

    fn argument(&self, argument: Argument) -> String {
        match argument {
            Argument::Mark => self.mark.display().to_string(),
            Argument::Decoy => self.decoy.id().to_string(),
            Argument::Port => self.port().to_string(),
            Argument::AbstractName => self.abstract_name.clone(),
            Argument::MemoryMib => LIMITS.memory_mib.to_string(),
            Argument::Pids => LIMITS.pids.to_string(),
            Argument::Nesting => if self.nesting { "yes" } else { "no" }.to_owned(),
        }
    }

    fn port(&self) -> u16 {
        self.listener.local_addr().map_or(0, |address| address.port())
    }

    /// Whether the host's things are as they were.
    pub(super) fn host_is_unharmed(&mut self) -> anyhow::Result<()> {
        let mark = std::fs::read_to_string(&self.mark).context("read the mark")?;
        if mark != MARK {
            bail!("a file of the host was written");
        }
        if let Some(status) = self.decoy.try_wait()? {
            bail!("a process of the host was ended: {status}");
        }
        Ok(())
    }

    pub(super) fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// Removes everything; an error says what stayed.
    pub(super) async fn close(mut self) -> anyhow::Result<()> {
        let instance = std::fs::read_to_string(self.data().join("instance")).unwrap_or_default();
        for observed in self.driver.list().await.unwrap_or_default() {
            let _ = self.driver.remove(observed.spec.id, EndReason::UserRequest).await;
        }
        let mut left = Ok(());
        // A keeper says no while it has not yet reaped what was killed.
        for _ in 0..CLOSE_ATTEMPTS {
            self.driver.clone().close().await;
            left = nothing_left(&self.dir, instance.trim());
            if left.is_ok() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let _ = self.decoy.kill();
        let _ = self.decoy.wait();
        left
    }
}

impl Holding {
    /// Whether it says and ends nothing for now.
    pub(super) async fn goes_on(mut self) -> bool {
        tokio::time::timeout(Duration::from_millis(1), self.frames.next()).await.is_err()
    }

    /// Its next line.
    pub(super) async fn rest(mut self) -> anyhow::Result<Verdict> {
        let mut text = String::new();
        let all = async {
            while let Some(Ok(frame)) = self.frames.next().await {
                if let ExecFrame::Output { bytes, .. } = frame {
                    text.push_str(&String::from_utf8_lossy(&bytes));
                }
            }
        };
        tokio::time::timeout(ATTACK_TIMEOUT, all).await.context("wait for its end")?;
        Ok(Verdict::parse(&text))
    }
}

const MARK: &str = "of the host";

fn nothing_left(dir: &Path, instance: &str) -> anyhow::Result<()> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").context("read mountinfo")?;
    let dir = dir.display().to_string();
    if let Some(line) = mounts.lines().find(|line| line.contains(&dir)) {
        bail!("a mount is left: {line}");
    }
    for line in mounts.lines().filter(|line| line.contains(" - cgroup")) {
        let Some(mount) = line.split(' ').nth(4) else { continue };
        let group = Path::new(mount).join("bastide").join(instance);
        if !instance.is_empty() && group.exists() {
            bail!("a cgroup is left: {}", group.display());
        }
    }
    for entry in std::fs::read_dir("/sys/block").context("list block devices")?.flatten() {
        let file = entry.path().join("loop/backing_file");
        if std::fs::read_to_string(file).is_ok_and(|text| text.starts_with(&dir)) {
            bail!("a loop device is left: {}", entry.file_name().display());
        }
    }
    for entry in std::fs::read_dir("/proc").context("list processes")?.flatten() {
        let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).into_owned();
        if words.contains("keeper") && words.contains(&dir) {
            bail!("a process is left: {}", entry.file_name().display());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attack_that_fails_by_itself_does_not_pass_for_a_wall_that_held() {
        assert_eq!(Verdict::parse("noise\nHELD 3 ways refused\n\n").seen, "3 ways refused");
        for text in ["", "Traceback", "BROKEN it", "HELD first\nKilled"] {
            assert_eq!(Verdict::parse(text).outcome, Outcome::Broken, "{text:?}");
        }
        assert_eq!(Verdict::parse("SKIPPED no such call").outcome, Outcome::Skipped);
    }
}

//! A data directory, a keeper and a driver of a test's own; nothing of them is left afterwards,
//! however the test ends.

#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "support of tests: a panic is how it tells"
)]

use std::path::{Path, PathBuf};
use std::process::Command;

use driver::{Driver, Launch};
use driver_linux::{DiskConfig, DiskKind, LinuxConfig, LinuxDriver};
use jiff::Timestamp;
use model::{Clocks, Limits, Name, Policy, PolicyName, SandboxId, SandboxSpec, Shape, Tier};

pub(crate) struct Host {
    dir: tempfile::TempDir,
    pub(crate) disk: DiskConfig,
    /// Last: what is on it goes before it.
    _volume: Option<Volume>,
}

impl Host {
    /// In a mount namespace of its own, so that the pool's mount goes with the process.
    pub(crate) fn new() -> Self {
        Self::with_disk(DiskKind::Btrfs)
    }

    pub(crate) fn with_disk(kind: DiskKind) -> Self {
        private_mounts();
        let dir = tempfile::Builder::new().prefix("bastide").tempdir().unwrap();
        let disk = DiskConfig { kind, pool_gb: Some(2), ..DiskConfig::default() };
        Self { dir, disk, _volume: None }
    }

    /// With its data directory on a file system of its own.
    pub(crate) fn on_volume(file_system: &str, mib: u64, kind: DiskKind) -> Self {
        private_mounts();
        let volume = Volume::new(file_system, mib);
        let dir = tempfile::Builder::new().prefix("bastide").tempdir_in(volume.path()).unwrap();
        let disk = DiskConfig { kind, pool_gb: Some(8), ..DiskConfig::default() };
        Self { dir, disk, _volume: Some(volume) }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) async fn driver(&self) -> LinuxDriver {
        LinuxDriver::open(self.config()).await.unwrap()
    }

    pub(crate) fn config(&self) -> LinuxConfig {
        let mut config = LinuxConfig::new(self.path().join("data"));
        config.disk = self.disk;
        config.runtime_dir = self.path().join("runtime");
        config
    }

    pub(crate) fn keeper_pid(&self) -> Option<i32> {
        let dir = self.path().join("data");
        let output = Command::new("pgrep")
            .arg("-f")
            .arg(format!("bastide-keeper --data-dir {}", dir.display()))
            .output();
        String::from_utf8(output.ok()?.stdout).ok()?.lines().next()?.parse().ok()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.path().join("data/run/keeper.log"));
            eprintln!("keeper.log:\n{}", log.unwrap_or_default());
        }
        if let Some(pid) = self.keeper_pid() {
            let _ = Command::new("kill").arg("-9").arg(pid.to_string()).status();
        }
        let Ok(instance) = std::fs::read_to_string(self.path().join("data/instance")) else {
            return;
        };
        for hierarchy in ["unified", "memory", "cpu", "pids"] {
            let dir =
                Path::new("/sys/fs/cgroup").join(hierarchy).join("bastide").join(instance.trim());
            let _ = std::fs::write(dir.join("cgroup.kill"), "1");
            for _ in 0..200 {
                if remove_below(&dir) {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
        let pool = self.path().join("data/pool");
        for place in std::fs::read_dir(&pool).into_iter().flatten().flatten() {
            if place.file_type().is_ok_and(|kind| kind.is_dir()) {
                let _ = Command::new("umount").arg("-l").arg(place.path()).output();
            }
        }
        let _ = Command::new("umount").arg("-l").arg(pool).output();
    }
}

/// A file system in a file, mounted for this test's mount namespace only: the kernel lets go of it and
/// its loop device when the test's processes are gone, also when they were killed.
struct Volume {
    dir: tempfile::TempDir,
}

impl Volume {
    fn new(file_system: &str, mib: u64) -> Self {
        let dir = tempfile::Builder::new().prefix("bastide-volume").tempdir().unwrap();
        let (image, place) = (dir.path().join("image"), dir.path().join("mounted"));
        std::fs::File::create(&image).unwrap().set_len(mib << 20).unwrap();
        std::fs::create_dir(&place).unwrap();
        succeed(Command::new(format!("mkfs.{file_system}")).arg("-q").arg(&image));
        succeed(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&place));
        Self { dir }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("mounted")
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).output();
    }
}

pub(crate) fn succeed(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn remove_below(dir: &Path) -> bool {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_below(&entry.path());
        }
    }
    std::fs::remove_dir(dir).is_ok() || !dir.exists()
}

/// Unshares the mounts of this thread, which every thread and process it starts inherits.
fn private_mounts() {
    #[expect(unsafe_code, reason = "unsharing needs a promise about who else uses what is shared")]
    // SAFETY: only mounts are unshared; no descriptor changes hands.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }.unwrap();
    let private =
        rustix::mount::MountPropagationFlags::PRIVATE | rustix::mount::MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).unwrap();
}

/// What the driver noted of a running sandbox.
pub(crate) fn run_record(data: &Path, id: SandboxId) -> serde_json::Value {
    let path = data.join("sandboxes").join(id.bare()).join("run.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Waits, for twenty seconds at most, until it holds.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..4_000 {
        if holds().await {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    panic!("never {what}");
}

/// `kill -9`; whether there was such a process.
pub(crate) fn kill(pid: i64) -> bool {
    Command::new("kill").arg("-9").arg(pid.to_string()).status().unwrap().success()
}

pub(crate) fn spec(template: &str) -> SandboxSpec {
    SandboxSpec {
        id: SandboxId::generate(),
        owner: "usr_test".parse().unwrap(),
        name: Name::generate(),
        shape: Shape::Image,
        template: template.parse().unwrap(),
        image: None,
        tier: Tier::Ephemeral,
        clocks: Clocks::default(),
        limits: Limits { vcpu: 1, cpu_fraction: 1.0, memory_mib: 256, pids: 256, disk_gb: 1 },
        policy: PolicyName::default(),
        env: [("GREETING".to_owned(), "hello".to_owned())].into(),
        metadata: serde_json::Map::new(),
        workspace: None,
        agent: None,
        payer: None,
        created_at: Timestamp::now(),
    }
}

pub(crate) async fn create(driver: &LinuxDriver) -> SandboxSpec {
    let spec = spec("host");
    let launch = Launch { spec: spec.clone(), policy: Policy::none() };
    driver.create(launch).await.unwrap();
    spec
}

/// Runs a shell command and gives its exit code and everything it printed.
pub(crate) async fn run(driver: &LinuxDriver, id: SandboxId, command: &str) -> (i32, String) {
    run_as(driver, id, None, command).await
}

pub(crate) async fn run_as(
    driver: &LinuxDriver,
    id: SandboxId,
    user: Option<&str>,
    command: &str,
) -> (i32, String) {
    let guest = driver.guest(id).unwrap();
    let start = guest_proto::ExecStart {
        id: model::ExecId::generate().to_string(),
        argv: vec!["/bin/sh".into(), "-c".into(), command.into()],
        cwd: None,
        env: std::collections::BTreeMap::new(),
        user: user.map(str::to_owned),
        stdin: None,
        timeout_ms: Some(60_000),
        detached: false,
    };
    let mut frames = guest.exec(&start).await.unwrap();
    let mut text = Vec::new();
    while let Some(frame) = frames.next().await {
        match frame.unwrap() {
            guest_proto::ExecFrame::Output { bytes, .. } => text.extend_from_slice(&bytes),
            guest_proto::ExecFrame::End(end) => {
                return (end.exit_code, String::from_utf8_lossy(&text).into_owned());
            }
            _ => {}
        }
    }
    panic!("no end: {}", String::from_utf8_lossy(&text));
}

/// Programs for the place of the guest, which need no other file: `exit(0)`, and `pause()` for ever.
pub(crate) const ENDS_AT_ONCE: &[u8] = b"\xb8\x3c\0\0\0\x31\xff\x0f\x05";
pub(crate) const SAYS_NOTHING: &[u8] = b"\xb8\x22\0\0\0\x0f\x05\xeb\xf7";

/// A static program of this code (x86-64).
pub(crate) fn program(code: &[u8]) -> Vec<u8> {
    const HEADERS: u64 = 64 + 56;
    const AT: u64 = 0x40_0000;
    let size = HEADERS + code.len() as u64;
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    // An executable for this processor, of the first version.
    file.extend([2, 0, 0x3e, 0, 1, 0, 0, 0]);
    // Where it begins; where its one program header is; no sections.
    file.extend([AT + HEADERS, 64, 0].map(u64::to_le_bytes).concat());
    file.extend([0, 0, 64, 56, 1, 0, 0, 0].map(u16::to_le_bytes).concat());
    // All of the file is mapped, readable and executable.
    file.extend([1, 5].map(u32::to_le_bytes).concat());
    file.extend([0, AT, AT, size, size, 0x1000].map(u64::to_le_bytes).concat());
    file.extend(code);
    file
}

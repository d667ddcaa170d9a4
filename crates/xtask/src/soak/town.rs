//! A server of the soak's own, all of its processes, and how they are killed.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail, ensure};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, pidfd_send_signal, waitpid,
};

use super::http::Client;
use super::pause;

/// Until a server answers; adopting is part of it.
const STARTS_WITHIN: Duration = Duration::from_secs(60);

/// How long a kill waits for a guest that begins.
const NEWCOMER_WITHIN: Duration = Duration::from_millis(200);

pub(super) struct Town {
    bastide: PathBuf,
    dir: PathBuf,
    settings: Vec<String>,
    port: u16,
    server: Option<Child>,
    /// The longest start so far.
    pub(super) slowest_start: Duration,
}

/// A process of the town.
#[derive(Debug, Clone)]
pub(super) struct Process {
    pub(super) pid: i32,
    pub(super) parent: i32,
    pub(super) is_zombie: bool,
}

impl Town {
    /// In a mount namespace of its own, so that nothing stays mounted when the soak is killed.
    pub(super) fn found(bastide: &Path, settings: &[&str]) -> anyhow::Result<Self> {
        private_mounts()?;
        // Orphans come to us, so that it is us who sees whether they are ever reaped.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let dir = std::env::temp_dir().join(format!("bastide-soak-{}", std::process::id()));
        fs::create_dir(&dir).with_context(|| format!("make {}", dir.display()))?;
        let bastide = bastide.canonicalize().context("find the program")?;
        let settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let slowest_start = Duration::ZERO;
        let mut town = Self { bastide, dir, settings, port, server: None, slowest_start };
        town.start()?;
        Ok(town)
    }

    pub(super) fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// Where who makes templates has its images.
    pub(super) fn images(&self) -> PathBuf {
        self.dir.join("images")
    }

    pub(super) fn client(&self) -> anyhow::Result<Client> {
        let key = fs::read_to_string(self.data().join("operator.key")).context("the key")?;
        Ok(Client { port: self.port, key: key.trim().to_owned() })
    }

    pub(super) fn instance(&self) -> anyhow::Result<String> {
        let instance = fs::read_to_string(self.data().join("instance")).context("the instance")?;
        Ok(instance.trim().to_owned())
    }

    /// Starts a server and answers when it does.
    pub(super) fn start(&mut self) -> anyhow::Result<()> {
        let log = fs::File::options().create(true).append(true).open(self.log())?;
        let child = Command::new(&self.bastide)
            .args(["serve", "--listen", &format!("127.0.0.1:{}", self.port), "--data-dir"])
            .arg(self.data())
            .args(&self.settings)
            .env_remove("BASTIDE_CONFIG")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("start the server")?;
        let child = self.server.insert(child);
        let begin = SystemTime::now();
        let client = Client { port: self.port, key: String::new() };
        while !client.get("/healthz").is_ok_and(|answer| answer.is_good()) {
            if let Some(status) = child.try_wait()? {
                bail!("the server ended with {status}");
            }
            ensure!(begin.elapsed()? < STARTS_WITHIN, "the server does not answer");
            pause(5);
        }
        self.slowest_start = self.slowest_start.max(begin.elapsed()?);
        Ok(())
    }

    pub(super) fn runs(&self) -> bool {
        self.server.is_some()
    }

    pub(super) fn kill_server(&mut self) -> anyhow::Result<()> {
        let Some(mut server) = self.server.take() else { return Ok(()) };
        server.kill().context("kill the server")?;
        server.wait().context("reap the server").map(drop)
    }

    /// Ends the server as an operator would.
    pub(super) fn drain(&mut self) -> anyhow::Result<()> {
        let mut server = self.server.take().context("a server")?;
        let pid = i32::try_from(server.id())?;
        kill_process(Pid::from_raw(pid).context("a pid")?, Signal::TERM)?;
        let begin = SystemTime::now();
        while server.try_wait()?.is_none() {
            if begin.elapsed()? > STARTS_WITHIN {
                server.kill()?;
                server.wait()?;
                bail!("the server did not drain in {STARTS_WITHIN:?}");
            }
            pause(10);
        }
        Ok(())
    }

    /// The keeper and what it forked that has not become a guest: they share its arguments.
    pub(super) fn keepers(&self) -> anyhow::Result<Vec<Process>> {
        let data = self.data();
        let data = data.to_str().context("a path in UTF-8")?.as_bytes();
        let mut found = Vec::new();
        for process in processes()? {
            if is_keeper(process.pid, data) {
                found.push(process);
            }
        }
        Ok(found)
    }

    /// Whether it is the keeper or one of its launchers.
    pub(super) fn is_keeper(&self, pid: i32) -> bool {
        self.data().to_str().is_some_and(|data| is_keeper(pid, data.as_bytes()))
    }

    /// The one that is nobody's launcher.
    pub(super) fn keeper(&self) -> anyhow::Result<Option<i32>> {
        let all = self.keepers()?;
        let launched = |one: &&Process| all.iter().any(|other| other.pid == one.parent);
        Ok(all.iter().find(|one| !launched(one)).map(|one| one.pid))
    }

    pub(super) fn launchers(&self) -> anyhow::Result<Vec<i32>> {
        let keeper = self.keeper()?;
        let all = self.keepers()?.into_iter().map(|process| process.pid);
        Ok(all.filter(|pid| Some(*pid) != keeper).collect())
    }

    /// PID 1 of every sandbox that has a run record, with the sandbox's bare id.
    pub(super) fn guests(&self) -> Vec<(String, i32)> {
        self.recorded("sandboxes")
    }

    /// The same of sandboxes that wait to be wanted.
    pub(super) fn waiting(&self) -> Vec<(String, i32)> {
        self.recorded("warm")
    }

    /// The next that begins, if one does within a moment.
    pub(super) fn newcomer(&self) -> anyhow::Result<Option<(String, i32)>> {
        let begin = SystemTime::now();
        let before = self.guests();
        while begin.elapsed()? < NEWCOMER_WITHIN {
            let newcomer = self.guests().into_iter().find(|guest| !before.contains(guest));
            if newcomer.is_some() {
                return Ok(newcomer);
            }
        }
        Ok(None)
    }

    fn recorded(&self, dir: &str) -> Vec<(String, i32)> {
        let entries = fs::read_dir(self.data().join(dir)).into_iter().flatten().flatten();
        let records = entries.filter_map(|entry| {
            let bare = entry.file_name().into_string().ok()?;
            let text = ["run.json", "maintenance.json"]
                .iter()
                .find_map(|name| fs::read_to_string(entry.path().join(name)).ok())?;
            let record: serde_json::Value = serde_json::from_str(&text).ok()?;
            Some((bare, i32::try_from(record["pid"].as_i64()?).ok()?))
        });
        records.collect()
    }

    /// Reaps what came to us, apart from the server itself.
    pub(super) fn reap(&self) -> anyhow::Result<()> {
        let us = rustix::process::getpid().as_raw_nonzero().get();
        let server = self.server.as_ref().and_then(|server| i32::try_from(server.id()).ok());
        for process in processes()? {
            if process.parent == us && process.is_zombie && Some(process.pid) != server {
                let _ = waitpid(Pid::from_raw(process.pid), WaitOptions::NOHANG);
            }
        }
        Ok(())
    }

    pub(super) fn log(&self) -> PathBuf {
        self.dir.join("server.log")
    }

    /// Both logs, for whoever has to find out.
    pub(super) fn last_words(&self) -> String {
        let tail = |path: &Path| {
            let text = fs::read_to_string(path).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(60)..].join("\n")
        };
        let keeper = self.data().join("run/keeper.log");
        format!("server:\n{}\nkeeper:\n{}", tail(&self.log()), tail(&keeper))
    }
}

impl Drop for Town {
    /// Whatever happened, nothing of it is left, nor of the builds in it.
    fn drop(&mut self) {
        let _ = self.kill_server();
        let yards = fs::read_dir(self.data().join("builds")).into_iter().flatten().flatten();
        for data in yards.map(|yard| yard.path()).chain([self.data()]) {
            self.clear(&data);
        }
        let _ = self.reap();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl Town {
    /// Ends the keeper of a data directory and all that is in its groups, and lets go of its pool.
    fn clear(&self, data: &Path) {
        let is_its = |pid| data.to_str().is_some_and(|data| is_keeper(pid, data.as_bytes()));
        for process in processes().unwrap_or_default() {
            if is_its(process.pid) {
                kill(process.pid, is_its);
            }
        }
        if let Ok(instance) = fs::read_to_string(data.join("instance")) {
            for _ in 0..500 {
                let groups = control_groups(instance.trim());
                for group in &groups {
                    let _ = fs::write(group.join("cgroup.kill"), "1");
                    remove_group(group);
                }
                let _ = self.reap();
                if groups.is_empty() {
                    break;
                }
                pause(10);
            }
        }
        let _ = Command::new("umount").arg(data.join("pool")).output();
    }
}

/// `kill -9`, of a process that is still what it was taken for: a launcher's child becomes a guest. It is
/// stopped first, so that it does not become one between the look and the kill.
pub(super) fn kill(pid: i32, is_it: impl Fn(i32) -> bool) {
    let Some(process) = Pid::from_raw(pid) else { return };
    let Ok(descriptor) = pidfd_open(process, PidfdFlags::empty()) else { return };
    if !is_it(pid) || pidfd_send_signal(&descriptor, Signal::STOP).is_err() {
        return;
    }
    for _ in 0..1000 {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        if stat.rsplit_once(") ").is_none_or(|(_, rest)| !rest.starts_with(['R', 'S', 'D'])) {
            break;
        }
        pause(1);
    }
    let signal = if is_it(pid) { Signal::KILL } else { Signal::CONT };
    let _ = pidfd_send_signal(&descriptor, signal);
}

fn is_keeper(pid: i32, data: &[u8]) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = line.split(|byte| *byte == 0);
    words.any(|word| word == b"bastide-keeper") && words.any(|word| word == data)
}

pub(super) fn processes() -> anyhow::Result<Vec<Process>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("list processes")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        // The name in brackets may hold anything; what follows the last one does not.
        let Some((_, rest)) = stat.rsplit_once(") ") else { continue };
        let mut fields = rest.split(' ');
        let is_zombie = fields.next() == Some("Z");
        let Some(parent) = fields.next().and_then(|parent| parent.parse().ok()) else { continue };
        found.push(Process { pid, parent, is_zombie });
    }
    Ok(found)
}

/// The instance's own groups, one a hierarchy.
pub(super) fn control_groups(instance: &str) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/thread-self/mountinfo").unwrap_or_default();
    let is_cgroup = |line: &&str| line.contains(" - cgroup ") || line.contains(" - cgroup2 ");
    let mounts = table.lines().filter(is_cgroup).filter_map(|line| line.split(' ').nth(4));
    let groups = mounts.map(|mount| Path::new(mount).join("bastide").join(instance));
    groups.filter(|group| group.is_dir()).collect()
}

fn remove_group(group: &Path) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove_group(&entry.path());
        }
    }
    let _ = fs::remove_dir(group);
}

#[expect(unsafe_code, reason = "unsharing needs a promise about who else uses what is shared")]
fn private_mounts() -> anyhow::Result<()> {
    use rustix::mount::{MountPropagationFlags, mount_change};
    // SAFETY: only mounts are unshared; no descriptor changes hands.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }
        .context("unshare mounts (the soak needs root)")?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .context("make mounts private")
}

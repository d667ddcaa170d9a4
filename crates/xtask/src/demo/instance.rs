//! A server of one's own: its data directory, its processes, and how they end. The demo uses it, and
//! so do the tests of the command line.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Until the server answers.
const START_WAIT: Duration = Duration::from_secs(60);
/// Until it has drained and ended.
const STOP_WAIT: Duration = Duration::from_secs(45);
const POLL: Duration = Duration::from_millis(20);

pub(crate) struct Instance {
    bastide: PathBuf,
    dir: PathBuf,
    port: u16,
    server: Option<Child>,
    /// Variables for the servers that are started from now on.
    pub(crate) settings: Vec<(String, String)>,
    finished: bool,
}

impl Instance {
    pub(crate) fn new(bastide: &Path) -> anyhow::Result<Self> {
        let bastide = bastide.canonicalize().context("find the program")?;
        // Free now; a server that loses the race for it says so.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let name = format!("bastide-own-{}-{port}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        fs::create_dir(&dir).with_context(|| format!("make {}", dir.display()))?;
        Ok(Self { bastide, dir, port, server: None, settings: Vec::new(), finished: false })
    }

    /// Where the demo may put files.
    pub(crate) fn files(&self) -> anyhow::Result<PathBuf> {
        let files = self.dir.join("files");
        fs::create_dir_all(&files).context("make a directory for files")?;
        Ok(files)
    }

    pub(crate) fn start(&mut self) -> anyhow::Result<String> {
        let log_path = self.log();
        let log = fs::File::create(&log_path).context("open the server's log")?;
        let server = self
            .command(&["serve", "--listen", &format!("127.0.0.1:{}", self.port)])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("start the server")?;
        let server = self.server.insert(server);
        let begin = SystemTime::now();
        while !healthy(self.port) {
            if let Some(status) = server.try_wait()? {
                bail!("it ended with {status}:\n{}", tail(&log_path));
            }
            ensure!(begin.elapsed().unwrap_or_default() < START_WAIT, "it does not answer");
            pause();
        }
        let key = fs::metadata(self.data().join("operator.key")).context("the operator's key")?;
        ensure!(key.len() > 60, "the operator's key is too short");
        Ok(self.url())
    }

    /// Where it is, or will be.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Runs `bastide`, which must succeed; answers what it printed.
    pub(crate) fn bastide(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = self.output(arguments)?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "bastide {}: {}", arguments.join(" "), stderr.trim());
        String::from_utf8(output.stdout).context("it printed something that is not UTF-8")
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> anyhow::Result<Value> {
        let text = self.bastide(&[arguments, &["--json"]].concat())?;
        serde_json::from_str(&text).context("parse what it printed")
    }

    pub(crate) fn exit_code(&self, arguments: &[&str]) -> anyhow::Result<i32> {
        self.output(arguments)?.status.code().context("it was killed")
    }

    /// `kill -9` of the server. Its sandboxes go on.
    pub(crate) fn kill_server(&mut self) -> anyhow::Result<()> {
        let mut server = self.server.take().context("no server runs")?;
        server.kill().context("kill the server")?;
        server.wait().context("wait for the server").map(drop)
    }

    /// Ends the server, which must end well, and removes everything.
    pub(crate) fn finish(mut self) -> anyhow::Result<()> {
        self.finished = true;
        self.tear_down()
    }

    fn tear_down(&mut self) -> anyhow::Result<()> {
        let stopped = match self.server.take() {
            Some(server) => stop(server),
            None => Ok(()),
        };
        let stopped = stopped.with_context(|| format!("the server's log:\n{}", tail(&self.log())));
        let ended = self.end_rest();
        // Never into a mount that would not go.
        if ended.is_ok() {
            fs::remove_dir_all(&self.dir)
                .with_context(|| format!("remove {}", self.dir.display()))?;
        }
        stopped.and(ended)
    }

    /// Ends everything but the server, and unmounts. The files stay.
    pub(crate) fn end_rest(&self) -> anyhow::Result<()> {
        // The keeper first: it would make new launchers in the place of killed ones.
        let ended = self.end_keeper().and(self.end_guests());
        let unmounted = unmount_below(&self.dir);
        ended.and(unmounted)
    }

    /// Sandboxes outlive servers on purpose; those of a test that failed go here.
    fn end_guests(&self) -> anyhow::Result<()> {
        // A server that never came up has no instance.
        let Ok(instance) = fs::read_to_string(self.data().join("instance")) else { return Ok(()) };
        let groups = control_groups(instance.trim())?;
        for group in &groups {
            // Only the second version has it; the first one's processes are the same.
            let _ = fs::write(group.join("cgroup.kill"), "1");
        }
        let begin = SystemTime::now();
        while !groups.iter().all(|group| remove_group(group)) {
            ensure!(begin.elapsed().unwrap_or_default() < STOP_WAIT, "the sandboxes do not end");
            pause();
        }
        Ok(())
    }

    /// `kill -9` of the keeper. It outlives servers on purpose, and sandboxes outlive it.
    pub(crate) fn end_keeper(&self) -> anyhow::Result<()> {
        let data = self.data();
        for pid in processes_of(&data)? {
            // It may have ended in between.
            let _ = kill_process(pid, Signal::KILL);
        }
        let begin = SystemTime::now();
        while !processes_of(&data)?.is_empty() {
            ensure!(begin.elapsed().unwrap_or_default() < STOP_WAIT, "the keeper does not end");
            pause();
        }
        Ok(())
    }

    fn output(&self, arguments: &[&str]) -> anyhow::Result<Output> {
        self.command(arguments).stdin(Stdio::null()).output().context("start bastide")
    }

    /// `bastide` with these arguments, for this server.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.bastide);
        command
            .args(arguments)
            .env("BASTIDE_DATA_DIR", self.data())
            .env_remove("BASTIDE_API_KEY")
            .env_remove("BASTIDE_CONFIG");
        if arguments.first() == Some(&"serve") {
            command.envs(self.settings.iter().map(|(name, value)| (name, value)));
        } else {
            command.env("BASTIDE_SERVER", self.url());
        }
        command
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    fn log(&self) -> PathBuf {
        self.dir.join("server.log")
    }
}

impl Drop for Instance {
    /// Only after a panic: everything else goes through [`Instance::finish`].
    fn drop(&mut self) {
        if !self.finished
            && let Err(error) = self.tear_down()
        {
            let told = format!("could not clean up {}: {error:#}\n", self.dir.display());
            let _ = std::io::stderr().write_all(told.as_bytes());
        }
    }
}

fn healthy(port: u16) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: demo\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

fn stop(mut server: Child) -> anyhow::Result<()> {
    if let Some(status) = server.try_wait()? {
        bail!("the server had ended before, with {status}");
    }
    let pid =
        i32::try_from(server.id()).ok().and_then(Pid::from_raw).context("the server's pid")?;
    kill_process(pid, Signal::TERM).context("ask the server to end")?;
    let begin = SystemTime::now();
    loop {
        if let Some(status) = server.try_wait()? {
            ensure!(status.success(), "the server ended with {status}");
            return Ok(());
        }
        if begin.elapsed().unwrap_or_default() > STOP_WAIT {
            server.kill().context("kill the server")?;
            server.wait().context("wait for the server")?;
            bail!("the server did not end in {STOP_WAIT:?}");
        }
        pause();
    }
}

/// Those whose arguments name our data directory.
fn processes_of(data: &Path) -> anyhow::Result<Vec<Pid>> {
    let data = data.to_str().context("the data directory's name is not UTF-8")?;
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("list processes")? {
        let entry = entry?;
        let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(pid) = number.and_then(Pid::from_raw) else { continue };
        let Ok(arguments) = fs::read(entry.path().join("cmdline")) else { continue };
        if arguments.split(|byte| *byte == 0).any(|argument| argument == data.as_bytes()) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// The instance's own groups, one a hierarchy.
fn control_groups(instance: &str) -> anyhow::Result<Vec<PathBuf>> {
    ensure!(!instance.is_empty(), "an instance without a name");
    let table = fs::read_to_string("/proc/self/mountinfo").context("list mounts")?;
    let is_cgroup = |line: &&str| line.contains(" - cgroup ") || line.contains(" - cgroup2 ");
    let mounts = table.lines().filter(is_cgroup).filter_map(|line| line.split(' ').nth(4));
    let groups = mounts.map(|mount| Path::new(mount).join("bastide").join(instance));
    Ok(groups.filter(|group| group.is_dir()).collect())
}

/// Whether it is gone, with everything below it.
fn remove_group(group: &Path) -> bool {
    let Ok(entries) = fs::read_dir(group) else { return true };
    let mut children = entries.flatten().filter(|entry| entry.path().is_dir());
    children.all(|child| remove_group(&child.path())) && fs::remove_dir(group).is_ok()
}

fn unmount_below(dir: &Path) -> anyhow::Result<()> {
    let table = fs::read_to_string("/proc/thread-self/mountinfo").context("list mounts")?;
    let mounts = table.lines().filter_map(|line| line.split(' ').nth(4));
    // The latest first: what is mounted on another goes before it.
    let mut below: Vec<&str> = mounts.filter(|point| Path::new(point).starts_with(dir)).collect();
    below.reverse();
    for point in below {
        let status = Command::new("umount").arg(point).status().context("start umount")?;
        ensure!(status.success(), "cannot unmount {point}");
    }
    Ok(())
}

fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

#[expect(
    clippy::disallowed_methods,
    reason = "there is no runtime here whose thread it could block"
)]
fn pause() {
    std::thread::sleep(POLL);
}

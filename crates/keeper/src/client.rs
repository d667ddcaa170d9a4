//! How the server speaks to the keeper: one connection a request; the keeper is started when none
//! answers.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use model::Error;

use crate::egress::Sockets;
use crate::plan::{LaunchPlan, Reply, Request};
use crate::process::socket_path;
use crate::wire;

/// How long a launch may take before the server gives up on it.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);
const START_TIMEOUT: Duration = Duration::from_secs(5);

/// Speaks to the keeper of one data directory.
#[derive(Debug, Clone)]
pub struct KeeperClient {
    dir: PathBuf,
    /// What becomes the keeper.
    program: PathBuf,
}

impl KeeperClient {
    pub fn new(dir: PathBuf, program: PathBuf) -> Self {
        Self { dir, program }
    }

    /// Starts the keeper if none answers. Blocking.
    pub fn ensure(&self) -> anyhow::Result<i32> {
        if let Ok(pid) = self.ping() {
            return Ok(pid);
        }
        self.spawn()?;
        let deadline = std::time::SystemTime::now() + START_TIMEOUT;
        loop {
            match self.ping() {
                Ok(pid) => return Ok(pid),
                Err(error) if std::time::SystemTime::now() > deadline => {
                    let log = self.dir.join("run/keeper.log");
                    return Err(error)
                        .with_context(|| format!("start the keeper (see {})", log.display()));
                }
                Err(_) => pause(),
            }
        }
    }

    fn ping(&self) -> anyhow::Result<i32> {
        match self.ask(&Request::Ping)? {
            (Reply::Pong { pid }, _) => Ok(pid),
            (other, _) => bail!("the keeper answered {other:?}"),
        }
    }

    fn spawn(&self) -> anyhow::Result<()> {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.dir.join("run/keeper.log"))
            .context("open the keeper's log")?;
        // A session of its own, so that a terminal's signals do not reach it; a clean environment
        // and /dev/null, so that it inherits nothing.
        let mut command = Command::new(&self.program);
        command
            .arg0("bastide-keeper")
            .arg("--data-dir")
            .arg(&self.dir)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .process_group(0);
        let mut child = command
            .spawn()
            .with_context(|| format!("run the keeper {}", self.program.display()))?;
        // Reaps it if it ends while this server lives; a thread, because it may outlive us too.
        std::thread::Builder::new()
            .name("keeper-reaper".to_owned())
            .spawn(move || child.wait())
            .context("watch the keeper")?;
        Ok(())
    }

    /// Carries out a launch. Blocking; `Unavailable` when the keeper is gone.
    pub fn launch(&self, plan: LaunchPlan) -> model::Result<(i32, Option<Sockets>)> {
        match self.ask_started(&Request::Launch(Box::new(plan)))? {
            (Reply::Launched { pid }, fds) => Ok((pid, sockets(fds))),
            (other, _) => Err(refused(other)),
        }
    }

    pub fn egress(&self, incarnation: &str, pid: i32) -> model::Result<Sockets> {
        let request = Request::Egress { incarnation: incarnation.to_owned(), pid };
        match self.ask_started(&request)? {
            (Reply::Egress, fds) => sockets(fds)
                .ok_or_else(|| Error::Internal(anyhow::anyhow!("the keeper sent no sockets"))),
            (other, _) => Err(refused(other)),
        }
    }

    /// Ends the keeper if nothing runs; answers once it is gone. Blocking.
    pub fn quit(&self) -> anyhow::Result<()> {
        match self.ask(&Request::Quit)? {
            (Reply::Done, _) => {}
            (other, _) => bail!("the keeper answered {other:?}"),
        }
        for _ in 0..1000 {
            if !socket_path(&self.dir).exists() {
                return Ok(());
            }
            pause();
        }
        bail!("the keeper does not end")
    }

    /// The incarnations whose cgroups are the keeper's own business now.
    pub fn busy(&self) -> model::Result<Vec<String>> {
        match self.ask_started(&Request::Busy)? {
            (Reply::Busy { incarnations }, _) => Ok(incarnations),
            (other, _) => Err(refused(other)),
        }
    }

    pub fn forget(&self, incarnation: &str) {
        let _ = self.ask(&Request::Forget { incarnation: incarnation.to_owned() });
    }

    fn ask_started(&self, request: &Request) -> model::Result<(Reply, Vec<OwnedFd>)> {
        let connection = match self.connect() {
            Ok(connection) => connection,
            Err(_) => {
                self.ensure().map_err(|error| Error::unavailable(format!("{error:#}")))?;
                self.connect().map_err(|error| Error::unavailable(format!("{error:#}")))?
            }
        };
        exchange(&connection, request)
            .map_err(|error| Error::unavailable(format!("the keeper does not answer: {error:#}")))
    }

    fn ask(&self, request: &Request) -> anyhow::Result<(Reply, Vec<OwnedFd>)> {
        exchange(&self.connect()?, request)
    }

    fn connect(&self) -> anyhow::Result<UnixStream> {
        let connection =
            UnixStream::connect(socket_path(&self.dir)).context("connect to the keeper")?;
        connection.set_read_timeout(Some(REPLY_TIMEOUT))?;
        connection.set_write_timeout(Some(REPLY_TIMEOUT))?;
        Ok(connection)
    }
}

fn exchange(connection: &UnixStream, request: &Request) -> anyhow::Result<(Reply, Vec<OwnedFd>)> {
    wire::send(connection, request, &[])?;
    wire::receive(connection)
}

fn sockets(fds: Vec<OwnedFd>) -> Option<Sockets> {
    <[OwnedFd; 4]>::try_from(fds).ok().map(Sockets::from_array)
}

fn refused(reply: Reply) -> Error {
    match reply {
        Reply::Failed { step, error } => Error::Internal(anyhow::anyhow!("{step}: {error}")),
        Reply::Pong { .. }
        | Reply::Launched { .. }
        | Reply::Egress
        | Reply::Busy { .. }
        | Reply::Done => Error::Internal(anyhow::anyhow!("the keeper answered out of turn")),
    }
}

#[expect(clippy::disallowed_methods, reason = "callers are blocking threads")]
fn pause() {
    std::thread::sleep(Duration::from_millis(2));
}

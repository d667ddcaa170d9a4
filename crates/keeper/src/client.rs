//! How the server speaks to the keeper: one connection a request; the keeper is started when none
//! answers.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use model::Error;

use crate::egress::Sockets;
use crate::launcher::asker::{DISKS_ARE_MADE, NO_DISKS};
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
    /// Whether the one that answered last knows of it.
    disks_may_follow: Arc<AtomicBool>,
}

/// A sandbox whose guest gets ready. It may be greeted, and run nothing yet.
#[must_use]
pub struct Starting(Option<UnixStream>);

impl Starting {
    /// Until the sandbox is whole. Blocking.
    pub fn wait(self) -> model::Result<()> {
        let Some(connection) = self.0 else { return Ok(()) };
        match wire::receive(&connection).map_err(silent)? {
            (Reply::Done, _) => Ok(()),
            (other, _) => Err(refused(other)),
        }
    }
}

impl KeeperClient {
    pub fn new(dir: PathBuf, program: PathBuf) -> Self {
        Self { dir, program, disks_may_follow: Arc::default() }
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
            (Reply::Pong { pid, disks_may_follow }, _) => {
                self.disks_may_follow.store(disks_may_follow, Ordering::Relaxed);
                Ok(pid)
            }
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

    /// Whether a launch may be asked for before its disks are made. An older keeper, which is still there after
    /// an upgrade, would not wait for them.
    pub fn disks_may_follow(&self) -> bool {
        self.disks_may_follow.load(Ordering::Relaxed)
    }

    /// Carries out a launch. While the keeper is at it: `disks`, if the plan says that they follow, which tells
    /// whether they are made, and then `meanwhile`. Blocking; `Unavailable` when the keeper is gone.
    ///
    /// Of a plan that takes two answers this is the first: [`Starting::wait`] has the other.
    pub fn launch(
        &self,
        plan: LaunchPlan,
        disks: impl FnOnce() -> bool,
        meanwhile: impl FnOnce(),
    ) -> model::Result<(Option<Sockets>, Starting)> {
        let disks_follow = plan.disks_follow;
        let begun = |mut connection: &UnixStream| {
            let made = !disks_follow || disks();
            if disks_follow {
                let word = if made { DISKS_ARE_MADE } else { NO_DISKS };
                // A launch that has failed meanwhile has said so; that is read next.
                let _ = connection.write_all(word);
            }
            if made {
                meanwhile();
            }
        };
        let connection = self.connect_started()?;
        match exchange(&connection, &Request::Launch(Box::new(plan)), begun).map_err(silent)? {
            (Reply::Launched { unfinished, .. }, fds) => {
                Ok((sockets(fds), Starting(unfinished.then_some(connection))))
            }
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
        exchange(&self.connect_started()?, request, |_| {}).map_err(silent)
    }

    fn connect_started(&self) -> model::Result<UnixStream> {
        self.connect().or_else(|_| {
            self.ensure().map_err(|error| Error::unavailable(format!("{error:#}")))?;
            self.connect().map_err(|error| Error::unavailable(format!("{error:#}")))
        })
    }

    fn ask(&self, request: &Request) -> anyhow::Result<(Reply, Vec<OwnedFd>)> {
        exchange(&self.connect()?, request, |_| {})
    }

    fn connect(&self) -> anyhow::Result<UnixStream> {
        let connection =
            UnixStream::connect(socket_path(&self.dir)).context("connect to the keeper")?;
        connection.set_read_timeout(Some(REPLY_TIMEOUT))?;
        connection.set_write_timeout(Some(REPLY_TIMEOUT))?;
        Ok(connection)
    }
}

fn exchange(
    connection: &UnixStream,
    request: &Request,
    meanwhile: impl FnOnce(&UnixStream),
) -> anyhow::Result<(Reply, Vec<OwnedFd>)> {
    wire::send(connection, request, &[])?;
    meanwhile(connection);
    wire::receive(connection)
}

#[expect(clippy::needless_pass_by_value, reason = "maps an error")]
fn silent(error: anyhow::Error) -> Error {
    Error::unavailable(format!("the keeper does not answer: {error:#}"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_is_whole_when_the_second_answer_says_so() -> anyhow::Result<()> {
        let answered = |answer: Option<Reply>| -> anyhow::Result<_> {
            let (ours, launcher) = UnixStream::pair()?;
            if let Some(answer) = answer {
                wire::send(&launcher, &answer, &[])?;
            }
            drop(launcher);
            Ok(Starting(Some(ours)).wait())
        };
        answered(Some(Reply::Done))??;
        let failed = Reply::Failed { step: "launch".to_owned(), error: "no".to_owned() };
        let said =
            answered(Some(failed))?.map_err(|error| format!("{:#}", anyhow::Error::from(error)));
        assert!(said.is_err_and(|said| said.contains("launch: no")));
        // The launcher died.
        assert!(matches!(answered(None)?, Err(Error::Unavailable { .. })));
        // There is none of an older keeper.
        Ok(Starting(None).wait()?)
    }
}

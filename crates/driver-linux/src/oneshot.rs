//! One sandbox without a server: what `bastide run` starts, uses and leaves no trace of.
//!
//! A *minder* process is forked before anything else: it launches the guest and waits until the
//! caller is done with it, or dead, also by `kill -9`; then it kills and removes everything.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use guest_proto::{Address, Guest};
use model::{Limits, TemplateName};
use rustix::process::{Pid, WaitOptions, waitpid};

use crate::cgroup::{self, Hierarchy};
use crate::keeper::devices;
use crate::launcher::{self, Shared};
use crate::linux::{Layout, Slots, plan_of, user_id};
use crate::plan::{LaunchPlan, RunRecord};
use crate::pool::{Disk, DiskConfig, DiskKind, DiskPool};
use crate::sys::{self, Fork};
use crate::template::{Built, TemplateStore};
use crate::{guest_binary, run_record, seccomp};

/// What to run in.
#[derive(Debug, Clone)]
pub struct OneShotConfig {
    /// Where templates are kept and the guest's program is installed.
    pub data_dir: PathBuf,
    pub template: TemplateName,
    /// The template's own when absent.
    pub limits: Option<Limits>,
    pub runtime_dir: PathBuf,
}

/// A running sandbox that ends with this value. Close it to wait for that.
pub struct OneShot {
    guest: Guest,
    user: String,
    minder: Pid,
    hold: Option<UnixStream>,
}

impl OneShot {
    /// Starts one. The process must be single-threaded: call it before any runtime.
    ///
    /// # Errors
    /// What the host lacks, or the step of the launch that failed; nothing is left then.
    pub fn start(config: &OneShotConfig) -> anyhow::Result<Self> {
        let templates = TemplateStore::open(&config.data_dir)?;
        crate::template::host_skeleton(&templates.host_skeleton_dir())?;
        let built = templates.get(&config.template)?;
        let Some(built) = built else {
            let name = &config.template;
            bail!("template {name} is not built\nhint: bastide template build {name}");
        };
        let (ours, theirs) = UnixStream::pair().context("socket pair")?;
        let dir = tempfile::Builder::new()
            .prefix("bastide-run-")
            .tempdir()
            .context("make a directory")?;
        match sys::fork().context("fork")? {
            Fork::Child => {
                drop(ours);
                let code = mind(config, &built, dir.path(), &theirs);
                let _ = std::fs::remove_dir_all(dir.path());
                sys::exit_now(code)
            }
            Fork::Parent(minder) => {
                // The minder removes it, also when this process is killed.
                let dir = dir.keep();
                drop(theirs);
                let mut first = [0u8; 1];
                let mut hold = ours;
                let answered = hold.read(&mut first).context("hear from the minder")?;
                if answered == 0 || first != *b"." {
                    let mut words = String::from_utf8_lossy(&first[..answered]).into_owned();
                    let _ = hold.read_to_string(&mut words);
                    drop(hold);
                    let _ = waitpid(Some(minder), WaitOptions::empty());
                    bail!("{words}");
                }
                let socket = Layout::open(&dir)?.socket(SOCKET);
                let guest = Guest::new(Address::Unix(socket));
                Ok(Self { guest, user: built.template.user, minder, hold: Some(hold) })
            }
        }
    }

    pub fn guest(&self) -> &Guest {
        &self.guest
    }

    /// The account that commands run as by default.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Ends it and waits until nothing of it is left.
    pub fn close(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if self.hold.take().is_some() {
            let _ = waitpid(Some(self.minder), WaitOptions::empty());
        }
    }
}

impl Drop for OneShot {
    fn drop(&mut self) {
        self.end();
    }
}

const SOCKET: &str = "run";
const INCARNATION: &str = "1";

/// The minder's life; gives its exit code.
fn mind(config: &OneShotConfig, built: &Built, dir: &Path, caller: &UnixStream) -> i32 {
    // Signals of the terminal are the caller's to handle; its end is ours to notice.
    let _signals: Option<OwnedFd> =
        sys::signalfd(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGPIPE, libc::SIGQUIT])
            .ok();
    let mut caller = caller;
    match prepare_and_launch(config, built, dir) {
        Ok(mut made) => {
            let _ = caller.write_all(b".");
            let mut rest = [0u8; 1];
            let _ = caller.read(&mut rest);
            made.end();
            0
        }
        Err(error) => {
            let _ = caller.write_all(format!("{error:#}").as_bytes());
            1
        }
    }
}

struct Made {
    record: RunRecord,
    hierarchy: Hierarchy,
    slots: Slots,
}

fn prepare_and_launch(config: &OneShotConfig, built: &Built, dir: &Path) -> anyhow::Result<Made> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).context("subreaper")?;
    let layout = Layout::open(dir)?;
    let instance = layout.instance()?;
    let hierarchy = Hierarchy::detect(&instance)?;
    let mut slots = Slots::open(&config.runtime_dir, layout.root(), &instance)?;
    let launched = launch(config, built, (&layout, &hierarchy, &mut slots));
    match launched {
        Ok(record) => Ok(Made { record, hierarchy, slots }),
        Err(error) => {
            let leaf = hierarchy.leaf(INCARNATION);
            cgroup::remove(&leaf.unified, &leaf.legacy);
            hierarchy.remove();
            slots.release_block();
            Err(error)
        }
    }
}

fn launch(
    config: &OneShotConfig,
    built: &Built,
    (layout, hierarchy, slots): (&Layout, &Hierarchy, &mut Slots),
) -> anyhow::Result<RunRecord> {
    let disk = DiskConfig { kind: DiskKind::Plain, pool_gb: None };
    let pool = DiskPool::open(layout.root(), disk)?;
    pool.create(SOCKET, 1, user_id(&built.template.user))?;
    let limits = config.limits.unwrap_or(built.template.limits);
    let mut plan = plan_of(layout, built, SOCKET, limits)?;
    plan.uid_base = slots.take()?;
    plan.guest.binary = guest_binary::install(&config.data_dir.join("guest"))?;
    plan.root.upper = pool.path(Disk::Upper, SOCKET);
    plan.workspace = pool.path(Disk::Workspace, SOCKET);
    plan.record = layout.root().join("run.json");
    let shared = Shared {
        filter: seccomp::program()?,
        devices: devices::make()?,
        boot_id: run_record::boot_id()?,
        hierarchy: hierarchy.clone(),
        trace: false,
    };
    launch_in_child(&plan, &shared)?;
    run_record::read(&plan.record)?.context("the launcher left no run record")
}

/// A launcher enters the sandbox's cgroups, so it is a process of its own; the guest becomes the
/// minder's child when it ends.
fn launch_in_child(plan: &LaunchPlan, shared: &Shared) -> anyhow::Result<()> {
    let (mut ours, mut theirs) = UnixStream::pair().context("socket pair")?;
    match sys::fork().context("fork")? {
        Fork::Child => {
            let launched = cgroup::enter(&shared.hierarchy.leaf(INCARNATION))
                .and_then(|()| launcher::launch(plan, INCARNATION, shared));
            if let Err(error) = &launched {
                let _ = theirs.write_all(format!("{error:#}").as_bytes());
            }
            sys::exit_now(i32::from(launched.is_err()))
        }
        Fork::Parent(pid) => {
            drop(theirs);
            let mut words = String::new();
            ours.read_to_string(&mut words).context("hear from the launcher")?;
            let _ = waitpid(Some(pid), WaitOptions::empty());
            if !words.is_empty() {
                bail!("{words}");
            }
            Ok(())
        }
    }
}

impl Made {
    fn end(&mut self) {
        let _ = cgroup::kill(&self.record.unified);
        let _ = waitpid(Pid::from_raw(self.record.pid), WaitOptions::empty());
        cgroup::remove(&self.record.unified, &self.record.legacy);
        self.hierarchy.remove();
        self.slots.release_block();
    }
}

//! One sandbox without a server: what `bastide run` starts, uses and leaves no trace of.
//!
//! A *minder* process is forked before anything else: it launches the guest and waits until the
//! caller is done with it, or dead, also by `kill -9`; then it kills and removes everything.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use guest_proto::{Address, Guest};
use model::{Limits, TemplateName};
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{Pid, WaitOptions, waitpid};
use rustix::thread::UnshareFlags;

use crate::cgroup::{self, Hierarchy};
use crate::egress::Sockets;
use crate::launcher::{self, Asker, Filters, Shared};
use crate::linux::{Layout, Slots, plan_of};
use crate::plan::{LaunchPlan, Reply, RunRecord};
use crate::pool::{Disk, DiskConfig, DiskKind, DiskPool};
use crate::privilege::Privilege;
use crate::template::{Built, TemplateStore, definition};
use crate::{guest_binary, incarnation, run_record};
use keeper::process::{devices_at, sockets_at};
use keeper::sys::{self, Fork};
use keeper::{devices, wire};

/// What to run in.
#[derive(Debug, Clone)]
pub struct OneShotConfig {
    /// Where templates are kept and the guest's program is installed.
    pub data_dir: PathBuf,
    pub template: TemplateName,
    /// The template's own when absent.
    pub limits: Option<Limits>,
    /// What it may write, in GiB, which takes the host's root. Without it the disk of the temporary
    /// directory is the limit.
    pub disk_gb: Option<u32>,
    /// Whether it is to have a way out, which the caller then serves.
    pub egress: bool,
    pub runtime_dir: PathBuf,
}

/// A running sandbox that ends with this value. Close it to wait for that.
pub struct OneShot {
    guest: Guest,
    user: String,
    env: BTreeMap<String, String>,
    start: Vec<String>,
    egress: Option<Sockets>,
    minder: Pid,
    hold: Option<UnixStream>,
}

impl OneShot {
    /// Starts one. The process must be single-threaded: call it before any runtime. An ordinary user
    /// calls [`crate::enter`] first.
    ///
    /// # Errors
    /// What the host lacks, or the step of the launch that failed; nothing is left then.
    pub fn start(config: &OneShotConfig) -> anyhow::Result<Self> {
        let templates = TemplateStore::open(&config.data_dir)?;
        crate::template::host_skeleton(templates.host_skeleton_dir())?;
        let built = templates.get(&config.template)?;
        let Some(built) = built else {
            let name = &config.template;
            let hint = match definition(name) {
                Some(_) => format!("bastide template build {name}"),
                None => "bastide template list shows what there is".to_owned(),
            };
            bail!("template {name} is not built\nhint: {hint}");
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
                let (socket, egress) = hear(&ours).inspect_err(|_| {
                    let _ = waitpid(Some(minder), WaitOptions::empty());
                })?;
                let guest = Guest::new(Address::Unix(dir.join(socket)));
                let (Built { template, start, .. }, hold) = (built, Some(ours));
                let driver::Template { user, env, .. } = template;
                Ok(Self { guest, user, env, start, egress, minder, hold })
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

    /// What the template sets for everything that runs inside.
    pub fn env(&self) -> &BTreeMap<String, String> {
        &self.env
    }

    /// The template's own program, which the caller starts; empty when it has none.
    pub fn start_program(&self) -> &[String] {
        &self.start
    }

    /// The way out, if one was asked for; nothing gets out until somebody serves it.
    pub fn take_egress(&mut self) -> Option<Sockets> {
        self.egress.take()
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

/// What a launcher or the minder answers: where the guest listens, and its way out.
fn hear(connection: &UnixStream) -> anyhow::Result<(PathBuf, Option<Sockets>)> {
    let (reply, fds) = wire::receive(connection).context("the sandbox's process died")?;
    match reply {
        Reply::Launched { .. } => {
            let sockets = <[OwnedFd; 4]>::try_from(fds).ok().map(Sockets::from_array);
            Ok((Path::new("run/g").join(SOCKET), sockets))
        }
        Reply::Failed { error, .. } => bail!("{error}"),
        Reply::Pong { .. } | Reply::Egress | Reply::Busy { .. } | Reply::Done => {
            bail!("an answer out of turn")
        }
    }
}

fn tell(connection: &UnixStream, outcome: anyhow::Result<Option<Sockets>>) {
    let (reply, sockets) = match outcome {
        Ok(sockets) => (Reply::Launched { pid: 0, unfinished: false }, sockets),
        Err(error) => (Reply::Failed { step: String::new(), error: format!("{error:#}") }, None),
    };
    let fds = sockets.map(Sockets::into_array);
    let fds: Vec<_> = fds.iter().flatten().map(AsFd::as_fd).collect();
    // Who does not hear it is gone, and that is noticed elsewhere.
    let _ = wire::send(connection, &reply, &fds);
}

/// The minder's life; gives its exit code.
fn mind(config: &OneShotConfig, built: &Built, dir: &Path, caller: &UnixStream) -> i32 {
    // Signals of the terminal are the caller's to handle; its end is ours to notice.
    let _signals: Option<OwnedFd> =
        sys::signalfd(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGPIPE, libc::SIGQUIT])
            .ok();
    match prepare_and_launch(config, built, dir) {
        Ok((mut made, sockets)) => {
            tell(caller, Ok(sockets));
            let mut rest = [0u8; 1];
            let mut caller = caller;
            let _ = caller.read(&mut rest);
            made.end();
            0
        }
        Err(error) => {
            tell(caller, Err(error));
            1
        }
    }
}

struct Made {
    record: RunRecord,
    pool: DiskPool,
    hierarchy: Hierarchy,
    slots: Slots,
}

fn prepare_and_launch(
    config: &OneShotConfig,
    built: &Built,
    dir: &Path,
) -> anyhow::Result<(Made, Option<Sockets>)> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).context("subreaper")?;
    if config.disk_gb.is_some() {
        own_mounts()?;
    }
    let layout = Layout::open(dir)?;
    // Before there is anything that a failure would have to undo.
    let kind = config.disk_gb.map_or(DiskKind::Plain, |_| DiskKind::Image);
    let disk = DiskConfig { kind, reserve_bytes: 0, ..DiskConfig::default() };
    let pool = DiskPool::open(layout.root(), disk)?;
    let instance = layout.instance()?;
    let hierarchy = Hierarchy::detect(&instance)?;
    let mut slots = Slots::open(&config.runtime_dir, layout.root(), &instance)?;
    let launched = launch(config, built, &pool, (&layout, &hierarchy, &mut slots));
    match launched {
        Ok((record, sockets)) => Ok((Made { record, pool, hierarchy, slots }, sockets)),
        Err(error) => {
            let _ = pool.remove(SOCKET);
            let leaf = hierarchy.leaf(INCARNATION);
            if let Some(unified) = &leaf.unified {
                cgroup::remove(unified, &leaf.legacy);
            }
            hierarchy.remove();
            slots.release_block();
            Err(error)
        }
    }
}

/// The disk's mount goes with this process, however it ends, and its loop device with the mount.
fn own_mounts() -> anyhow::Result<()> {
    if Privilege::current() != Privilege::Host {
        bail!(
            "--disk-gb needs root: it mounts a disk\nhint: without it nothing bounds what is written"
        );
    }
    sys::unshare(UnshareFlags::NEWNS).context("mounts of one's own")?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .context("keep mounts to oneself")
}

fn launch(
    config: &OneShotConfig,
    built: &Built,
    pool: &DiskPool,
    (layout, hierarchy, slots): (&Layout, &Hierarchy, &mut Slots),
) -> anyhow::Result<(RunRecord, Option<Sockets>)> {
    let privilege = Privilege::current();
    pool.create(SOCKET, config.disk_gb.unwrap_or(1), privilege.on_disk(built.uid))?;
    let limits = config.limits.unwrap_or(built.template.limits);
    let mut plan = plan_of(layout, built, SOCKET, limits)?;
    plan.uid_base = slots.take()?;
    plan.guest.binary = guest_binary::install(&config.data_dir.join("guest"))?.guest;
    plan.root.upper = pool.path(Disk::Upper, SOCKET);
    plan.workspace = pool.path(Disk::Workspace, SOCKET);
    plan.record = layout.root().join("run.json");
    plan.egress = config.egress;
    let shared = Shared {
        filters: Filters::compile()?,
        privilege,
        devices_at: devices_at(layout.root())?,
        sockets_at: sockets_at(layout.root())?,
        boot_id: run_record::boot_id()?,
        hierarchy: hierarchy.clone(),
        trace: false,
    };
    let sockets = launch_in_child(&plan, &shared)?;
    let record = run_record::read(&plan.record)?.context("the launcher left no run record")?;
    Ok((record, sockets))
}

/// A launcher enters the sandbox's cgroups, so it is a process of its own; the guest becomes the
/// minder's child when it ends.
fn launch_in_child(plan: &LaunchPlan, shared: &Shared) -> anyhow::Result<Option<Sockets>> {
    let (ours, theirs) = UnixStream::pair().context("socket pair")?;
    match sys::fork().context("fork")? {
        Fork::Child => {
            let launched = cgroup::enter(&shared.hierarchy.leaf(INCARNATION))
                .and_then(|()| devices::make(shared.privilege, &shared.devices_at))
                .and_then(|devices| {
                    launcher::launch(plan, INCARNATION, (shared, Asker(None)), devices)
                })
                .and_then(|mut launched| launched.finish().map(|()| launched));
            let good = launched.is_ok();
            tell(&theirs, launched.map(|launched| launched.egress));
            sys::exit_now(i32::from(!good))
        }
        Fork::Parent(pid) => {
            drop(theirs);
            let heard = hear(&ours);
            let _ = waitpid(Some(pid), WaitOptions::empty());
            heard.map(|(_, sockets)| sockets)
        }
    }
}

impl Made {
    fn end(&mut self) {
        let _ = incarnation::kill(&self.record);
        let _ = waitpid(Pid::from_raw(self.record.pid), WaitOptions::empty());
        incarnation::remove(&self.record);
        let _ = self.pool.remove(SOCKET);
        self.hierarchy.remove();
        self.slots.release_block();
    }
}

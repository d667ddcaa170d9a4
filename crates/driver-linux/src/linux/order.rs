//! What one launch takes: from a stored spec and a template to a plan for the keeper.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Context;
use keeper::client::Starting;
use model::{AgentSpec, Error, Limits, Policy, Result, SandboxSpec};

use super::blanks::Kind;
use super::layout::{HOSTNAME, Layout};
use super::stored::Stored;
use super::{Inner, bare};
use crate::cgroup::Hierarchy;
use crate::egress::Sockets;
use crate::plan::{GuestPlan, IoLimit, LaunchPlan, RootPlan, RunRecord};
use crate::pool::{Disk, DiskConfig, DiskPool};
use crate::privilege::Privilege;
use crate::template::Built;

/// How many ranges to come a plan names. The keeper begins with fewer.
const UPCOMING: usize = 8;

/// What one launch needs beside the stored spec.
pub(super) struct Order {
    pub(super) stored: Stored,
    pub(super) built: Built,
    pub(super) policy: Policy,
    pub(super) uid_base: u32,
}

/// Where a launch writes its run record, whether the disks are to be made, and the spec to be written down.
pub(super) struct Place {
    pub(super) dir: PathBuf,
    pub(super) fresh: bool,
    pub(super) save: bool,
}

/// A launch whose guest gets ready.
pub(super) struct Begun {
    pub(super) record: RunRecord,
    pub(super) sockets: Option<Sockets>,
    pub(super) starting: Starting,
}

impl Inner {
    pub(super) fn order(&self, stored: Stored, built: Built, policy: Policy) -> Result<Order> {
        let uid_base = self.slots().take()?;
        Ok(Order { stored, built, policy, uid_base })
    }

    /// A launch of which nothing is left when it fails.
    pub(super) fn launch_or_undo(&self, order: &Order, place: &Place) -> Result<Begun> {
        let launched = self.launch_blocking(order, place);
        if let Err(error) = &launched {
            if is_of_disk(error) {
                self.pool.see_write_errors();
            }
            let bare = bare(&order.stored.spec);
            self.abandon(&bare, &place.dir.join("run.json"), order.uid_base);
        }
        launched
    }

    fn launch_blocking(&self, order: &Order, place: &Place) -> Result<Begun> {
        let bare = bare(&order.stored.spec);
        if place.fresh {
            self.blanks.take_dir(&place.dir);
        }
        std::fs::create_dir_all(&place.dir).context("make the sandbox's directory")?;
        let disk_gb = order.stored.spec.limits.disk_gb;
        let user = self.privilege.on_disk(order.built.uid);
        let disks_follow = place.fresh && self.disks_may_follow();
        if !place.fresh {
            self.ready_disks(order, &bare)?;
        } else if !disks_follow {
            self.make_disks(&bare, disk_gb, user)?;
        }
        let record = place.dir.join("run.json");
        let mut plan = self.plan(order, &bare, record.clone())?;
        plan.disks_follow = disks_follow;
        if !place.fresh {
            self.pool.begin_start(&bare, disk_gb)?;
        }
        let (mut made, mut saved) = (Ok(()), Ok(()));
        let disks = || {
            made = self.make_disks(&bare, disk_gb, user);
            made.is_ok()
        };
        let launched = self.keeper.launch(plan, disks, || {
            if place.save {
                saved = self.save_new(&order.stored);
            }
        });
        if !place.fresh {
            self.pool.end_start(&bare, disk_gb)?;
        }
        made?;
        let (sockets, starting) = launched?;
        saved.context("write the spec")?;
        let record = crate::run_record::read(&record)?;
        let record = record.context("the launcher left no run record")?;
        Ok(Begun { record, sockets, starting })
    }

    fn make_disks(&self, bare: &str, disk_gb: u32, user: u32) -> anyhow::Result<()> {
        let made = self.blanks.take_disks(&self.pool, bare, Kind { disk_gb, user });
        if made { Ok(()) } else { self.pool.create(bare, disk_gb, user) }
    }

    /// A sandbox is on its way while its disks are made, unless a plan must name them.
    fn disks_may_follow(&self) -> bool {
        let names_them = self.disk.bytes_per_second.or(self.disk.operations_per_second).is_some();
        !names_them && self.keeper.disks_may_follow()
    }

    /// An upper that skipped flushing is whole as long as this boot lasts; after another boot its
    /// content is anybody's guess and it begins anew.
    fn ready_disks(&self, order: &Order, bare: &str) -> anyhow::Result<()> {
        let (disk_gb, user) =
            (order.stored.spec.limits.disk_gb, self.privilege.on_disk(order.built.uid));
        // The machine may have gone down before a disk that was made had reached it.
        self.pool.ready(bare).or_else(|_| self.pool.create(bare, disk_gb, user))?;
        let upper = self.pool.path(Disk::Upper, bare);
        let mark = upper.join("work/work/incompat/volatile");
        if mark.exists() {
            std::fs::remove_dir_all(&mark).context("forget the volatile mark")?;
        }
        // Older servers noted it in the upper.
        let marks = [self.layout.boot(bare), upper.join("boot")];
        let noted = |mark| std::fs::read_to_string(mark).is_ok_and(|text| text == self.boot_id);
        if order.is_volatile() && !marks.into_iter().any(noted) {
            self.pool.remove_upper(bare)?;
        }
        if !self.pool.path(Disk::Workspace, bare).exists() {
            tracing::warn!(sandbox = bare, "its workspace was never flushed, and begins anew");
        }
        self.pool.create(bare, disk_gb, user)
    }

    fn plan(&self, order: &Order, bare: &str, record: PathBuf) -> anyhow::Result<LaunchPlan> {
        let limits = order.stored.spec.limits;
        let mut plan = plan_of(&self.layout, &order.built, bare, limits)?;
        plan.uid_base = order.uid_base;
        plan.next_uid_bases = self.slots().upcoming(UPCOMING);
        plan.takes_two_answers = true;
        plan.root.upper = self.pool.path(Disk::Upper, bare);
        plan.root.volatile = order.is_volatile();
        plan.workspace = self.pool.path(Disk::Workspace, bare);
        if let Some(agent) = &order.stored.spec.agent {
            // Below everything: what the template says wins.
            plan.root.layers.extend(self.agent_layers(&order.stored, agent)?);
            plan.root.layers.push(self.layout.agent_layer());
            plan.root.config_uid = Some(order.built.uid);
        }
        plan.guest.binary.clone_from(&self.guest_programs.guest);
        plan.guest.agents = Some(self.guest_programs.agents.clone());
        plan.egress = !order.policy.is_closed() || uses_relay(&order.stored.spec);
        plan.record = record;
        plan.io = self.io_limit(bare);
        Ok(plan)
    }
}

impl Inner {
    /// The program of the agent that a new sandbox is to have, as it is built now.
    pub(super) fn agent_program(&self, spec: &SandboxSpec) -> Result<Option<Built>> {
        let Some(name) = spec.agent.as_ref().and_then(AgentSpec::layer) else { return Ok(None) };
        let built = self.templates.get(&name)?;
        let missing = || Error::NotImplemented {
            code: "agent_not_built",
            detail: format!("the agent's program is not here\nhint: bastide template build {name}"),
        };
        built.ok_or_else(missing).map(Some)
    }

    /// As it was when the sandbox was made.
    fn agent_layers(&self, stored: &Stored, agent: &AgentSpec) -> anyhow::Result<Vec<PathBuf>> {
        let (Some(name), Some(digest)) = (agent.layer(), &stored.agent_digest) else {
            return Ok(Vec::new());
        };
        let built = self.templates.get_digest(&name, digest)?;
        Ok(built.context("the agent's program is gone")?.layers)
    }
}

/// Whether it needs a way to the model relay, whatever its policy says of others.
pub(super) fn uses_relay(spec: &SandboxSpec) -> bool {
    spec.agent.as_ref().is_some_and(|agent| agent.relay)
}

/// At every start, whoever decided it. Of an ordinary user's server it is said with all that is weaker.
pub(super) fn warn_of_unbounded_disks(pool: &DiskPool, privilege: Privilege) {
    if !pool.enforces_limits() && privilege == Privilege::Host {
        tracing::warn!("disk_gb is not enforced: disks are plain directories");
    }
}

/// Tells the operator of limits that this host cannot set.
pub(super) fn warn_of_unbounded_io(disk: DiskConfig, hierarchy: &Hierarchy) {
    let wanted = disk.bytes_per_second.or(disk.operations_per_second);
    if wanted.is_some() && !hierarchy.bounds_io() {
        tracing::warn!("no cgroup controller for io: disk.io_… limits are not enforced");
    }
}

impl Inner {
    /// `None` where nothing is to be bounded, or nothing can be.
    fn io_limit(&self, bare: &str) -> Option<IoLimit> {
        let (bytes, operations) = (self.disk.bytes_per_second, self.disk.operations_per_second);
        if bytes.or(operations).is_none() || !self.hierarchy.bounds_io() {
            return None;
        }
        Some(IoLimit {
            device: self.pool.device(bare)?,
            bytes_per_second: bytes,
            operations_per_second: operations,
        })
    }
}

/// Whether a device gave an error; from the launcher it comes as text.
fn is_of_disk(error: &Error) -> bool {
    let Error::Internal(cause) = error else { return false };
    let number = format!("(os error {})", libc::EIO);
    cause.chain().any(|cause| cause.to_string().contains(&number))
}

impl Order {
    fn is_volatile(&self) -> bool {
        self.stored.spec.tier == model::Tier::Ephemeral
    }
}

/// What every launch has in common; the caller fills in the rest.
pub(crate) fn plan_of(
    layout: &Layout,
    built: &Built,
    name: &str,
    limits: Limits,
) -> anyhow::Result<LaunchPlan> {
    let mut layers = vec![layout.etc_layer()];
    layers.extend(built.layers.iter().cloned());
    let host = built.template.name.as_str() == crate::template::HOST;
    let binds = if host { vec![("/usr".into(), "usr".to_owned())] } else { Vec::new() };
    Ok(LaunchPlan {
        sandbox: name.to_owned(),
        nonce: keeper::random_hex::<16>()?,
        uid_base: 0,
        root: RootPlan {
            layers,
            binds,
            upper: PathBuf::new(),
            volatile: true,
            config_uid: None,
            mount_point: layout.mount_point(),
        },
        workspace: PathBuf::new(),
        limits,
        io: None,
        guest: GuestPlan {
            binary: PathBuf::new(),
            can_wait: true,
            agents: None,
            socket: layout.socket(name),
            user: built.template.user.clone(),
            workdir: built.workdir.clone().unwrap_or_else(|| "/workspace".to_owned()),
            hostname: HOSTNAME.to_owned(),
            no_new_privs: !built.sudo,
            nesting: built.nesting,
        },
        egress: false,
        record: PathBuf::new(),
        disks_follow: false,
        next_uid_bases: Vec::new(),
        takes_two_answers: false,
    })
}

/// The template's, then the tenant's, then what says where one is.
pub(super) fn environment(built: &Built, spec: &SandboxSpec) -> BTreeMap<String, String> {
    let mut env = built.template.env.clone();
    env.extend(spec.env.clone());
    env.insert("BASTIDE_SANDBOX_ID".to_owned(), spec.id.to_string());
    env
}

pub(super) fn not_built(spec: &SandboxSpec) -> Error {
    Error::NotImplemented {
        code: "template_not_built",
        detail: format!(
            "template {} is not built\nhint: bastide template build {}",
            spec.template, spec.template
        ),
    }
}

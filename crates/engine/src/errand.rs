//! Sandboxes that the platform makes on somebody's behalf, for one call: unlisted, beside every quota, paid
//! for by the caller (ruling 44). One ends with the value that stands for it; one whose server was killed
//! is removed by the next start.

use std::time::Duration;

use driver::Template;
use guest_proto::{ExecEnd, ExecFrame, ExecFrames, ExecStart, OutputStream as Wire};
use model::{
    Clocks, Error, ExecId, Name, NewSandbox, OwnerId, Plan, Policy, PolicyName, QuotaRow, Result,
    SandboxId, SandboxRef, SandboxSpec, Source, TemplateName, Tier,
};
use tokio::sync::oneshot;

use crate::exec::command_failed;
use crate::guest::Running;
use crate::pool::none_answers;
use crate::resolve::{Resolved, rootfs};
use crate::{Caller, Engine, Tunnel};

/// How much longer than its call a sandbox may live, should everything else fail.
const LIFETIME_BEYOND: Duration = Duration::from_secs(60);
/// How long a program may take to say its port.
const START_MAX: Duration = Duration::from_secs(10);
/// A port in decimal and a newline.
const SAID_BYTES_MAX: usize = 16;
/// What is kept of what it says when it fails.
const COMPLAINT_BYTES_MAX: usize = 2048;

/// A sandbox for one call. Destroyed when this is dropped.
pub struct Errand {
    engine: Engine,
    id: SandboxId,
}

/// A program in it that listens on a port.
pub struct Server {
    pub connection: Tunnel,
    /// Ends the program when it is dropped.
    frames: ExecFrames,
    complaint: Vec<u8>,
}

impl Engine {
    /// Makes one, from the warm pool if one waits there. It reaches nothing outside.
    pub async fn errand(
        &self,
        payer: &Caller,
        template: TemplateName,
        lifetime: Duration,
    ) -> Result<Errand> {
        self.core.require_open()?;
        self.core.require_credit(payer).await?;
        let (sender, receiver) = oneshot::channel();
        let (engine, payer) = (self.clone(), payer.owner.clone());
        self.core.tasks.spawn(async move {
            let made = engine.make_errand(payer, template, lifetime).await;
            // A caller that went away while it was made drops it, which destroys it.
            drop(sender.send(made));
        });
        let closing = || Error::unavailable("the server is shutting down");
        receiver.await.map_err(|_| closing())?
    }

    async fn make_errand(
        &self,
        payer: OwnerId,
        template: TemplateName,
        lifetime: Duration,
    ) -> Result<Errand> {
        let platform = platform();
        let wanted = wanted(&template);
        for _ in 0..NAMES_TRIED {
            let resolved = self.resolve_errand(&payer, &template, lifetime).await?;
            match self.try_launch(&platform, (&wanted, &resolved), &mut None).await {
                Err(Error::Conflict { code: model::Conflict::NameTaken, .. }) => {}
                made => return made.map(|made| Errand { engine: self.clone(), id: made.spec.id }),
            }
        }
        Err(Error::unavailable("no free name was found"))
    }

    async fn resolve_errand(
        &self,
        payer: &OwnerId,
        name: &TemplateName,
        lifetime: Duration,
    ) -> Result<Resolved> {
        let core = &self.core;
        let mut answered = false;
        for pool in &core.pools {
            if !pool.answers(core.config.list_timeout).await {
                continue;
            }
            answered = true;
            let Some(template) = core.bounded(pool.driver.template(name)).await? else { continue };
            return Ok(Resolved {
                rootfs: rootfs(name, Some(&template)),
                spec: spec(core.now(), payer, &template, lifetime),
                policy: Policy::none(),
                pool: std::sync::Arc::clone(pool),
            });
        }
        if !answered {
            return Err(none_answers());
        }
        let detail =
            format!("the template {name} is not here; build it: bastide template build {name}");
        Err(Error::NotImplemented { code: "template_not_built", detail })
    }
}

impl Errand {
    /// Starts a program, which says on its standard output on which port it listens, and connects.
    pub async fn serve(&self, argv: Vec<String>) -> Result<Server> {
        let mut running = self.running()?;
        let start =
            ExecStart { id: ExecId::generate().as_str().to_owned(), argv, ..ExecStart::default() };
        let mut frames = match running.guest.exec(&start).await {
            Ok(frames) => frames,
            Err(error) => return Err(command_failed(error, &mut running.life).await),
        };
        let mut complaint = Vec::new();
        let said = tokio::time::timeout(START_MAX, port(&mut frames, &mut complaint)).await;
        let port = said.unwrap_or(None).ok_or_else(|| {
            let why = String::from_utf8_lossy(&complaint).trim().to_owned();
            Error::unavailable(format!("the engine does not start: {why}"))
        })?;
        let connection = self.engine.tunnel(&platform(), &SandboxRef::Id(self.id), port).await?;
        Ok(Server { connection, frames, complaint })
    }

    fn running(&self) -> Result<Running> {
        self.engine.core.use_guest(&platform(), &SandboxRef::Id(self.id))
    }
}

impl Server {
    /// How the program ended, and what it complained of. Waits for it.
    pub async fn ended(mut self) -> (Option<ExecEnd>, String) {
        while let Some(Ok(frame)) = self.frames.next().await {
            match frame {
                ExecFrame::Output { stream: Wire::Stderr, bytes, .. } => {
                    keep(&mut self.complaint, &bytes);
                }
                ExecFrame::End(end) => {
                    return (Some(end), String::from_utf8_lossy(&self.complaint).into_owned());
                }
                ExecFrame::Output { .. } | ExecFrame::Gap { .. } | ExecFrame::Keepalive => {}
            }
        }
        (None, String::from_utf8_lossy(&self.complaint).into_owned())
    }
}

impl Drop for Errand {
    fn drop(&mut self) {
        let (engine, id) = (self.engine.clone(), self.id);
        self.engine.core.tasks.spawn(async move {
            if let Err(failure) = engine.delete(&platform(), &SandboxRef::Id(id)).await {
                let error = format!("{:#}", anyhow::Error::from(failure));
                tracing::warn!(sandbox.id = %id, error, "left for the sweep");
            }
        });
    }
}

/// Names tried before giving up.
const NAMES_TRIED: usize = 8;

/// Whom such sandboxes belong to.
fn platform() -> Caller {
    let owner = OwnerId::of_code_mode();
    Caller { owner, plan: Plan::Operator, quota: QuotaRow::default() }
}

fn spec(
    now: jiff::Timestamp,
    payer: &OwnerId,
    template: &Template,
    lifetime: Duration,
) -> SandboxSpec {
    let clocks = Clocks {
        max_lifetime_seconds: Some((lifetime + LIFETIME_BEYOND).as_secs()),
        ..Clocks::default()
    };
    SandboxSpec {
        id: SandboxId::generate(),
        owner: platform().owner,
        name: Name::generate(),
        shape: model::Shape::Template,
        template: template.name.clone(),
        image: None,
        tier: Tier::Ephemeral,
        clocks,
        limits: template.limits,
        policy: "none".parse::<PolicyName>().expect("a constant name"),
        env: std::collections::BTreeMap::new(),
        metadata: serde_json::Map::new(),
        workspace: None,
        agent: None,
        payer: Some(payer.clone()),
        created_at: now,
    }
}

/// What says that nothing else is asked for.
fn wanted(template: &TemplateName) -> NewSandbox {
    NewSandbox {
        source: Source::Template(template.to_string()),
        name: None,
        tier: None,
        disk_gb: None,
        asked_clocks: Clocks::default(),
        policy: None,
        env: std::collections::BTreeMap::new(),
        metadata: serde_json::Map::new(),
        vcpu: None,
        cpu_fraction: None,
        memory_mib: None,
        workspace: None,
        agent: None,
    }
}

async fn port(frames: &mut ExecFrames, complaint: &mut Vec<u8>) -> Option<u16> {
    let mut said = Vec::new();
    while let Some(Ok(frame)) = frames.next().await {
        match frame {
            ExecFrame::Output { stream: Wire::Stdout, bytes, .. } => said.extend_from_slice(&bytes),
            ExecFrame::Output { stream: Wire::Stderr, bytes, .. } => keep(complaint, &bytes),
            ExecFrame::Gap { .. } | ExecFrame::End(_) => return None,
            ExecFrame::Keepalive => {}
        }
        if let Some(line) = said.strip_suffix(b"\n") {
            return std::str::from_utf8(line).ok()?.parse().ok();
        }
        if said.len() > SAID_BYTES_MAX {
            return None;
        }
    }
    None
}

fn keep(complaint: &mut Vec<u8>, bytes: &[u8]) {
    let room = COMPLAINT_BYTES_MAX.saturating_sub(complaint.len());
    complaint.extend_from_slice(&bytes[..bytes.len().min(room)]);
}

//! From what a caller asks for to what a driver is told: templates, limits, policies, against the
//! deployment's settings.

use std::collections::BTreeMap;
use std::sync::Arc;

use driver::{ImageWanted, Template};
use model::{
    Error, Limits, Name, NewSandbox, Plan, Policy, PolicyName, Result, SandboxId, SandboxSpec,
    Source, TemplateName, reserved,
};

use crate::core::Core;
use crate::pool::{PoolState, none_answers};
use crate::{Caller, EngineConfig};

/// What a launch needs, and where it goes.
pub(crate) struct Resolved {
    pub(crate) spec: SandboxSpec,
    pub(crate) policy: Policy,
    pub(crate) rootfs: Arc<str>,
    pub(crate) pool: Arc<PoolState>,
}

/// Checks everything that can be checked before anything is made.
pub(crate) async fn resolve(core: &Core, caller: &Caller, wanted: &NewSandbox) -> Result<Resolved> {
    wanted.check_metadata()?;
    if wanted.workspace.is_some() && core.config.blobs.is_none() {
        let detail = "this server has no storage for workspaces".into();
        return Err(Error::NotImplemented { code: "workspace_not_available", detail });
    }
    reserved::check_env("env", &wanted.env)?;
    let policy_name = wanted.policy.clone().unwrap_or_default();
    let policy = policy(&core.config, &policy_name)?;
    let disk_gb = disk_gb(&core.config, wanted.disk_gb)?;
    let (pool, template) = match &wanted.source {
        Source::Image(reference) if is_reference(reference) => {
            pull(core, caller, reference).await?
        }
        source => {
            let name = template_name(&core.config, caller, source)?;
            find(core, &name, source).await?
        }
    };
    let limits = limits(&core.config, caller, wanted, &template)?;
    let spec = SandboxSpec {
        id: SandboxId::generate(),
        owner: caller.owner.clone(),
        name: wanted.name.clone().unwrap_or_else(Name::generate),
        shape: wanted.source.shape(),
        template: template.name.clone(),
        image: match &wanted.source {
            Source::Template(_) => None,
            Source::Image(image) => Some(image.clone()),
        },
        tier: wanted.tier(),
        clocks: wanted.clocks(),
        limits: Limits { disk_gb, ..limits },
        policy: policy_name,
        env: env(caller, wanted),
        metadata: wanted.metadata.clone(),
        workspace: wanted.workspace.clone(),
        agent: wanted.agent.as_ref().map(|agent| agent.spec.clone()),
        payer: None,
        created_at: core.now(),
    };
    Ok(Resolved { rootfs: rootfs(&spec.template, Some(&template)), spec, policy, pool })
}

/// What the caller set, and what says which workspace and which model it has.
fn env(caller: &Caller, wanted: &NewSandbox) -> BTreeMap<String, String> {
    let mut env = wanted.env.clone();
    if let Some(workspace) = &wanted.workspace {
        let set = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        env.extend([
            set("WORKSPACE_USER_ID", caller.owner.as_str()),
            set("WORKSPACE_APP_ID", workspace.app_id()),
            set("WORKSPACE_CAPSET_ID", workspace.capset_id()),
            set("WORKSPACE_MODE", "mounted"),
        ]);
    }
    if let Some(agent) = &wanted.agent {
        env.extend(agent.spec.environment());
    }
    env
}

/// The rules behind a policy's name; an unknown one is a mistake of the caller (ruling 10).
pub(crate) fn policy(config: &EngineConfig, name: &PolicyName) -> Result<Policy> {
    let unknown = || Error::invalid("policy", format!("no such policy: {name}"));
    config.policies.get(name).cloned().ok_or_else(unknown)
}

/// What answers show: `name@digest`.
pub(crate) fn rootfs(name: &TemplateName, template: Option<&Template>) -> Arc<str> {
    template.map_or_else(
        || Arc::from(name.as_str()),
        |template| {
            let image = template.image.as_deref().and_then(|image| image.split('@').next());
            Arc::from(format!("{}@{}", image.unwrap_or(name.as_str()), template.digest))
        },
    )
}

fn template_name(config: &EngineConfig, caller: &Caller, source: &Source) -> Result<TemplateName> {
    let name = match source {
        Source::Template(text) => text.parse().map_err(|_| unknown_template(text))?,
        Source::Image(text) => text.parse().map_err(|_| {
            Error::invalid("image", format!("neither a template nor a reference: {text:?}"))
        })?,
    };
    let for_operator = name_is_host(&name) && !config.host_template_for_all;
    // What another owner pulled may be private.
    if name.is_of_image() && caller.plan != Plan::Operator {
        return Err(Error::invalid(field(source), format!("no such template: {name}")));
    }
    if for_operator && caller.plan != Plan::Operator {
        let detail = "the template host is for the operator's key only";
        return Err(Error::invalid(field(source), detail));
    }
    Ok(name)
}

fn name_is_host(name: &TemplateName) -> bool {
    name.as_str() == "host"
}

fn field(source: &Source) -> &'static str {
    match source {
        Source::Template(_) => "template",
        Source::Image(_) => "image",
    }
}

/// `ghcr.io/a/b:main` rather than `standard`.
fn is_reference(text: &str) -> bool {
    text.contains(['/', ':', '@', '.'])
}

fn unknown_template(text: &str) -> Error {
    Error::NotImplemented { code: "unknown_template", detail: format!("no such template: {text}") }
}

/// A pool that answers, and the image in it. One with room is asked first.
async fn pull(core: &Core, caller: &Caller, reference: &str) -> Result<(Arc<PoolState>, Template)> {
    let wanted = ImageWanted {
        reference: reference.to_owned(),
        owner: caller.owner.clone(),
        by_operator: caller.plan == Plan::Operator,
    };
    let mut first = None;
    for pool in &core.pools {
        if !pool.answers(core.config.list_timeout).await {
            continue;
        }
        first.get_or_insert(pool);
        if pool.take_room() {
            pool.give_room();
            return Ok((Arc::clone(pool), pool.driver.pull(&wanted).await?));
        }
    }
    // Reserving it will say that there is no room, after the quota had its say.
    let pool = first.ok_or_else(none_answers)?;
    Ok((Arc::clone(pool), pool.driver.pull(&wanted).await?))
}

/// A pool that answers, has the template, and has room if any has. Room is only taken later.
async fn find(
    core: &Core,
    name: &TemplateName,
    source: &Source,
) -> Result<(Arc<PoolState>, Template)> {
    let mut answered = false;
    let mut full = None;
    for pool in &core.pools {
        if !pool.answers(core.config.list_timeout).await {
            continue;
        }
        answered = true;
        let Some(template) = pool.template(name).await? else { continue };
        if pool.take_room() {
            pool.give_room();
            return Ok((Arc::clone(pool), template));
        }
        full = Some((Arc::clone(pool), template));
    }
    if let Some(full) = full {
        // Reserving it will say so, after the quota had its say.
        return Ok(full);
    }
    if !answered {
        return Err(none_answers());
    }
    Err(missing(&core.config, name, source))
}

fn missing(config: &EngineConfig, name: &TemplateName, source: &Source) -> Error {
    if config.defined_templates.contains(name) {
        let detail = format!(
            "the template {name} is not built here; build it with: bastide template build {name}"
        );
        return Error::NotImplemented { code: "template_not_built", detail };
    }
    match source {
        Source::Template(_) => unknown_template(name.as_str()),
        Source::Image(_) => Error::invalid("image", format!("no such template: {name}")),
    }
}

fn disk_gb(config: &EngineConfig, asked: Option<u32>) -> Result<u32> {
    let disk_gb = asked.unwrap_or(config.disk_gb_default);
    if disk_gb == 0 || disk_gb > config.disk_gb_max {
        let detail = format!("must be 1 to {}: {disk_gb}", config.disk_gb_max);
        return Err(Error::invalid("disk_gb", detail));
    }
    Ok(disk_gb)
}

fn limits(
    config: &EngineConfig,
    caller: &Caller,
    wanted: &NewSandbox,
    template: &Template,
) -> Result<Limits> {
    let base = template.limits;
    let vcpu = wanted.vcpu.unwrap_or(base.vcpu);
    let cpu_fraction = wanted.cpu_fraction.unwrap_or(base.cpu_fraction);
    let memory_mib = wanted.memory_mib.unwrap_or(base.memory_mib);
    let (vcpu_max, memory_max) = match caller.plan {
        Plan::Operator => (VCPU_MAX, MEMORY_MIB_MAX),
        Plan::Free => (config.ceiling.vcpu, config.ceiling.memory_mib),
    };
    if vcpu == 0 || vcpu > vcpu_max.max(base.vcpu) {
        return Err(Error::invalid("vcpu", format!("must be 1 to {vcpu_max}: {vcpu}")));
    }
    if !(cpu_fraction > 0.0 && cpu_fraction <= 1.0) {
        let detail = format!("must be above 0 and at most 1: {cpu_fraction}");
        return Err(Error::invalid("cpu_fraction", detail));
    }
    let memory_min = Limits::MEMORY_MIB_MIN;
    if memory_mib < memory_min || memory_mib > memory_max.max(base.memory_mib) {
        let detail = format!("must be {memory_min} to {memory_max}: {memory_mib}");
        return Err(Error::invalid("memory_mib", detail));
    }
    Ok(Limits { vcpu, cpu_fraction, memory_mib, ..base })
}

/// What even the operator cannot ask for: it would be a mistake.
const MEMORY_MIB_MAX: u32 = 4 * 1024 * 1024;
const VCPU_MAX: u32 = 1024;

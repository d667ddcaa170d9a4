//! Limits of processes, for hosts whose control groups do not limit us: weaker, but something.
//!
//! Processes are counted by user namespace and user. Where each sandbox's namespace is made by a user of
//! its own, what that user may have when it makes it bounds all of the sandbox; where all have one id,
//! that id's count inside does.

use anyhow::Context;
use model::Limits;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::cgroup::Hierarchy;

/// In the launcher, before the clone: bounds the whole namespace.
pub(super) fn before_clone(
    limits: &Limits,
    hierarchy: &Hierarchy,
    maker: u32,
) -> anyhow::Result<()> {
    // Root's count is everybody's.
    if hierarchy.bounds("pids") || maker == 0 {
        return Ok(());
    }
    lower(Resource::Nproc, u64::from(limits.pids)).context("bound processes")
}

/// In PID 1: bounds it and what it starts.
pub(super) fn inside(limits: &Limits, hierarchy: &Hierarchy) -> anyhow::Result<()> {
    if !hierarchy.bounds("pids") {
        lower(Resource::Nproc, u64::from(limits.pids)).context("bound processes")?;
    }
    if !hierarchy.bounds("memory") {
        lower(Resource::Data, u64::from(limits.memory_mib) << 20).context("bound memory")?;
    }
    Ok(())
}

fn lower(resource: Resource, value: u64) -> rustix::io::Result<()> {
    let had = getrlimit(resource).maximum;
    let value = Some(had.map_or(value, |had| had.min(value)));
    setrlimit(resource, Rlimit { current: value, maximum: value })
}

//! What a sandbox may use, as control files: written at launch, and again when a waiting sandbox is
//! claimed with other limits.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use model::Limits;
use rustix::process::Pid;

use super::{Hierarchy, set};
use crate::plan::IoLimit;

const CPU_PERIOD_USEC: u32 = 100_000;
/// Buffers of sockets may take this part of the memory on top of it, where they are counted apart.
const SOCKET_SHARE: u64 = 4;
const SOCKET_BYTES_MIN: u64 = 8 << 20;

impl Hierarchy {
    pub fn limit(&self, leaf: &str, limits: &Limits) -> anyhow::Result<()> {
        let bytes = u64::from(limits.memory_mib) << 20;
        let quota = cpu_quota_usec(limits);
        let unified = self.unified.as_ref().map(|parent| parent.join(leaf));
        for controller in &self.unified_has {
            let Some(dir) = &unified else { break };
            match controller.as_str() {
                "memory" => {
                    set(&dir.join("memory.max"), &bytes.to_string())?;
                    set_if_there(&dir.join("memory.swap.max"), "0")?;
                }
                "cpu" => set(&dir.join("cpu.max"), &format!("{quota} {CPU_PERIOD_USEC}"))?,
                _ => set(&dir.join("pids.max"), &limits.pids.to_string())?,
            }
        }
        for (controller, parent) in &self.legacy {
            let dir = parent.join(leaf);
            match *controller {
                "memory" => limit_legacy_memory(&dir, bytes)?,
                "cpu" => set(&dir.join("cpu.cfs_quota_us"), &quota.to_string())?,
                _ => set(&dir.join("pids.max"), &limits.pids.to_string())?,
            }
        }
        Ok(())
    }

    /// Bounds how fast `pid` and what it starts reach a disk. Gives the cgroups made for it: only a
    /// sandbox that is bounded has one, because moving there costs milliseconds.
    pub fn limit_io(&self, leaf: &str, pid: Pid, io: &IoLimit) -> anyhow::Result<Vec<PathBuf>> {
        let (bytes, operations) = (io.bytes_per_second, io.operations_per_second);
        if self.unified_has_io
            && let Some(unified) = &self.unified
        {
            let max = |limit: Option<u64>| limit.map_or("max".to_owned(), |n| n.to_string());
            let (bps, iops) = (max(bytes), max(operations));
            let rule = format!("{} rbps={bps} wbps={bps} riops={iops} wiops={iops}", io.device);
            set(&unified.join(leaf).join("io.max"), &rule)?;
            return Ok(Vec::new());
        }
        let Some(parent) = &self.legacy_io else {
            bail!("no cgroup controller for io, neither v1 (blkio) nor v2 (io)");
        };
        let dir = parent.join(leaf);
        std::fs::create_dir_all(&dir).context("make the blkio cgroup")?;
        for (what, limit) in [("bps", bytes), ("iops", operations)] {
            let Some(limit) = limit else { continue };
            for way in ["read", "write"] {
                let file = dir.join(format!("blkio.throttle.{way}_{what}_device"));
                set(&file, &format!("{} {limit}", io.device))?;
            }
        }
        set(&dir.join("cgroup.procs"), &pid.as_raw_nonzero().to_string())?;
        Ok(vec![dir])
    }
}

/// Memory, memory with swap, and sockets' buffers, which version 1 does not count unless they have a
/// bound of their own: without it a small sandbox takes all that the host has for TCP.
fn limit_legacy_memory(dir: &Path, bytes: u64) -> anyhow::Result<()> {
    let memory = dir.join("memory.limit_in_bytes");
    let with_swap = dir.join("memory.memsw.limit_in_bytes");
    let text = bytes.to_string();
    // The one with swap must never be the smaller one, so the order depends on the direction.
    if set(&memory, &text).is_err() {
        set_if_there(&with_swap, &text)?;
        set(&memory, &text)?;
    }
    set_if_there(&with_swap, &text)?;
    let sockets = (bytes / SOCKET_SHARE).max(SOCKET_BYTES_MIN);
    set_if_there(&dir.join("memory.kmem.tcp.limit_in_bytes"), &sockets.to_string())
}

/// Kernels differ in whether they count swap, and sockets.
fn set_if_there(file: &Path, value: &str) -> anyhow::Result<()> {
    if file.exists() { set(file, value) } else { Ok(()) }
}

pub(super) fn cpu_quota_usec(limits: &Limits) -> u32 {
    let share = f64::from(limits.vcpu) * limits.cpu_fraction.clamp(0.01, 1.0);
    let quota = (share * f64::from(CPU_PERIOD_USEC)).clamp(1000.0, 100_000_000.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped above")]
    let quota = quota as u32;
    quota
}

//! The run record: which process, cgroup and socket a sandbox's current incarnation has. Written
//! before the guest starts, so that no guest runs unrecorded; gone with the compute. It need not
//! survive the machine, only the server, so it is not flushed.

use std::path::Path;

use anyhow::Context;

use crate::plan::RunRecord;

pub(crate) fn write(path: &Path, record: &RunRecord) -> anyhow::Result<()> {
    let temp = path.with_extension("tmp");
    let text = serde_json::to_vec(record).context("encode run record")?;
    std::fs::write(&temp, text).context("write run record")?;
    std::fs::rename(&temp, path).context("rename run record")
}

/// `None` when there is none. A torn or foreign file is an error, not an absence.
pub(crate) fn read(path: &Path) -> anyhow::Result<Option<RunRecord>> {
    match std::fs::read(path) {
        Ok(text) => serde_json::from_slice(&text).map(Some).context("decode run record"),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).context("read run record"),
    }
}

/// This boot of the kernel; a record of another boot names processes that are gone.
pub(crate) fn boot_id() -> anyhow::Result<String> {
    let text =
        std::fs::read_to_string("/proc/sys/kernel/random/boot_id").context("read boot id")?;
    Ok(text.trim().to_owned())
}

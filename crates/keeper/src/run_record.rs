//! The run record: which process, cgroup and socket a sandbox's current incarnation has. Written
//! before the guest starts, so that no guest runs unrecorded; gone with the compute. It need not
//! survive the machine, only the server, so it is not flushed. Once its guest has answered nobody may
//! write to it, which is how a server that finds it knows that it may have been told that the sandbox
//! runs: to change a mode takes less than to make a file for that.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::Context;

use crate::plan::RunRecord;

const UNANSWERED: u32 = 0o600;
const ANSWERED: u32 = 0o400;

pub fn write(path: &Path, record: &RunRecord) -> anyhow::Result<()> {
    let temp = path.with_extension("tmp");
    let text = serde_json::to_vec(record).context("encode run record")?;
    crate::write_over(&temp, &text).context("write run record")?;
    fs::rename(&temp, path).context("rename run record")
}

/// `None` when there is none. A torn or foreign file is an error, not an absence.
pub fn read(path: &Path) -> anyhow::Result<Option<RunRecord>> {
    match fs::read(path) {
        Ok(text) => serde_json::from_slice(&text).map(Some).context("decode run record"),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).context("read run record"),
    }
}

/// Notes whether the guest of the record at `path` has answered.
pub fn set_answered(path: &Path, answered: bool) -> anyhow::Result<()> {
    let mode = if answered { ANSWERED } else { UNANSWERED };
    fs::set_permissions(path, Permissions::from_mode(mode)).context("note whether a guest answered")
}

/// Not so when there is no record.
pub fn is_answered(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.permissions().mode() & 0o222 == 0)
}

/// This boot of the kernel; a record of another boot names processes that are gone.
pub fn boot_id() -> anyhow::Result<String> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").context("read boot id")?;
    Ok(text.trim().to_owned())
}

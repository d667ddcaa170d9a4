//! What outlives the server: the keeper, and the launchers that make sandboxes for it.
//!
//! - [`process`] is the keeper, a small static program of its own that the server starts: it is the parent of
//!   every guest and forks a [`launcher`] for each launch. Being small is what makes a fork, and with it a launch,
//!   cheap.
//! - [`client`] is how the server speaks to it, in the messages of [`plan`] over [`wire`].
//! - The rest are the parts of a launch that the server, too, must know about: [`cgroup`], [`run_record`],
//!   [`incarnation`], [`privilege`], the sockets of [`egress`]; and [`spread`], for what both make often.
//!
//! The keeper has no runtime, no thread and no secret. The only `unsafe` code is in its `sys` files.

pub mod cgroup;
pub mod client;
pub mod devices;
pub mod egress;
pub mod incarnation;
pub mod launcher;
pub mod plan;
pub mod privilege;
pub mod process;
pub mod run_record;
mod seccomp;
pub mod spread;
pub mod sys;
pub mod wire;

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

/// Writes `json` over what is at `path`, if there is anything; of what that had more, blanks are left. Not flushed.
///
/// A file that is emptied first, as [`std::fs::write`] does, gets new blocks, and ext4 begins to write them when it is
/// closed. One that keeps its blocks has nothing but them to flush.
pub fn write_over(path: &Path, json: &[u8]) -> io::Result<File> {
    let mut file = File::options().write(true).create(true).truncate(false).open(path)?;
    let had = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    let mut text = json.to_vec();
    text.resize(json.len().max(had), b' ');
    file.write_all(&text)?;
    Ok(file)
}

/// `N` random bytes in hexadecimal.
pub fn random_hex<const N: usize>() -> anyhow::Result<String> {
    let mut bytes = [0u8; N];
    getrandom::fill(&mut bytes).map_err(|error| anyhow::anyhow!("random source: {error}"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_written_over_is_read_as_if_nothing_had_been_there() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("file.json");
        for json in ["[1]", "[1,2,3]", "[]"] {
            super::write_over(&path, json.as_bytes())?;
            let read: Vec<u8> = serde_json::from_slice(&std::fs::read(&path)?)?;
            assert_eq!(serde_json::to_string(&read)?, json);
            assert_eq!(std::fs::metadata(&path)?.len(), if json == "[1]" { 3 } else { 7 });
        }
        Ok(())
    }
}

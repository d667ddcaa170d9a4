//! Which block device a sandbox's disk is on, for limits of input and output.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{major, minor};

use super::{DiskPool, Kind, loop_device};

impl DiskPool {
    /// `MAJOR:MINOR` of it, a whole disk: the kernel bounds no partitions. `None` when it has none.
    pub(crate) fn device(&self, sandbox: &str) -> Option<String> {
        let number = match &self.kind {
            Kind::Btrfs(pool) if pool.is_native() => source_of(&self.data_dir)?,
            Kind::Btrfs(_) => loop_device::number(&self.data_dir.join("pool.img"))?,
            Kind::Images(_) => fs::metadata(self.home(sandbox)).ok()?.dev(),
            Kind::Plain => fs::metadata(&self.dir).ok()?.dev(),
        };
        whole_disk(&format!("{}:{}", major(number), minor(number)))
    }
}

/// btrfs has no device number of its own: the one that is mounted has.
fn source_of(path: &Path) -> Option<u64> {
    let path = fs::canonicalize(path).ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mut best: Option<(usize, &str)> = None;
    for line in mounts.lines() {
        let (before, after) = line.split_once(" - ")?;
        let place = before.split(' ').nth(4)?;
        let longer = best.is_none_or(|(length, _)| place.len() >= length);
        if longer && path.starts_with(place) {
            best = Some((place.len(), after.split(' ').nth(1)?));
        }
    }
    Some(fs::metadata(best?.1).ok()?.rdev())
}

fn whole_disk(number: &str) -> Option<String> {
    let device = fs::canonicalize(Path::new("/sys/dev/block").join(number)).ok()?;
    if !device.join("partition").exists() {
        return Some(number.to_owned());
    }
    let parent = fs::read_to_string(device.parent()?.join("dev")).ok()?;
    Some(parent.trim().to_owned())
}

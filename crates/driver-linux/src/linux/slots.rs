//! Ranges of 65,536 host uids, one a sandbox. An instance claims a block of them on the host by
//! creating a file, so that two instances never give out the same range; the file outlives the server
//! because its guests do.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use model::{Error, Result};

use super::LinuxDriver;
use crate::privilege::Privilege;

const RANGE: u32 = 65_536;
/// First uid of the first block; far above what login and subuid allocators hand out.
const FIRST: u32 = 0x1000_0000;
const SLOTS_PER_BLOCK: u32 = 2048;
const BLOCKS: u32 = 28;

#[derive(Debug)]
pub(crate) struct Slots {
    /// The claim on the block; `None` where the ids are nobody else's.
    file: Option<PathBuf>,
    base: u32,
    /// From one sandbox's to the next.
    stride: u32,
    used: Vec<bool>,
    /// Where to look next, so that a range is not used again at once.
    next: usize,
    /// What all instances of this machine share.
    runtime: PathBuf,
    /// Ranges of incarnations that do not die, until their cgroup is gone.
    held: BTreeMap<String, u32>,
}

impl Slots {
    /// Takes the block that this instance had, or a free one.
    pub(crate) fn open(runtime: &Path, data_dir: &Path, instance: &str) -> anyhow::Result<Self> {
        match Privilege::current() {
            Privilege::Host => Self::claim(runtime, data_dir, instance),
            Privilege::Namespace { ids } => Ok(Self::in_namespace(runtime, ids)),
        }
    }

    fn claim(runtime: &Path, data_dir: &Path, instance: &str) -> anyhow::Result<Self> {
        let dir = runtime.join("uids");
        fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        let ours = format!("{instance} {}", data_dir.display());
        let files: Vec<PathBuf> = (0..BLOCKS).map(|block| dir.join(block.to_string())).collect();
        let owners: Vec<Option<String>> =
            files.iter().map(|file| fs::read_to_string(file).ok()).collect();
        let had = owners.iter().position(|owner| owner.as_deref() == Some(&ours));
        for block in had.into_iter().chain(0..files.len()) {
            let claimed = match &owners[block] {
                Some(owner) if *owner == ours => true,
                Some(owner) if is_stale(owner) => replace(&files[block], &ours)?,
                Some(_) => false,
                None => create(&files[block], &ours)?,
            };
            if claimed {
                let block = u32::try_from(block).context("block number")?;
                let base = FIRST + block * SLOTS_PER_BLOCK * RANGE;
                let file = dir.join(block.to_string());
                let used = vec![false; usize::try_from(SLOTS_PER_BLOCK)?];
                let held = BTreeMap::new();
                let (file, runtime) = (Some(file), runtime.to_owned());
                return Ok(Self { file, base, stride: RANGE, used, next: 0, runtime, held });
            }
        }
        bail!("all {BLOCKS} blocks of uid ranges are taken (see {})", dir.display())
    }

    /// In a user namespace all sandboxes have the same ids. What differs is which of them makes its
    /// user namespace, because that is whom the kernel counts for what is used in there.
    fn in_namespace(runtime: &Path, ids: u32) -> Self {
        const MAKERS: u32 = 60_000;
        let (base, stride) = if ids > MAKERS + SLOTS_PER_BLOCK { (MAKERS, 1) } else { (0, 0) };
        let (used, held) = (vec![false; 2048], BTreeMap::new());
        let runtime = runtime.to_owned();
        Self { file: None, base, stride, used, next: 0, runtime, held }
    }

    pub(crate) fn runtime_dir(&self) -> &Path {
        &self.runtime
    }

    /// A free range's first uid.
    pub(crate) fn take(&mut self) -> Result<u32> {
        let count = self.used.len();
        for step in 0..count {
            let slot = (self.next + step) % count;
            if !self.used[slot] {
                self.used[slot] = self.stride > 0;
                self.next = slot + 1;
                return Ok(self.first_uid(slot));
            }
        }
        Err(Error::NoCapacity { detail: format!("this host runs {count} sandboxes already") })
    }

    /// The ranges that the next ones will get, as far as can be told now.
    pub(crate) fn upcoming(&self, count: usize) -> Vec<u32> {
        let slots = (self.next..self.used.len()).chain(0..self.next);
        let free = slots.filter(|slot| !self.used[*slot]).take(count);
        free.map(|slot| self.first_uid(slot)).collect()
    }

    fn first_uid(&self, slot: usize) -> u32 {
        self.base + u32::try_from(slot).expect("at most 2048") * self.stride
    }

    /// Marks the range of an adopted sandbox.
    pub(crate) fn keep(&mut self, uid_base: u32) {
        if let Some(slot) = self.slot_of(uid_base) {
            self.used[slot] = true;
        }
    }

    pub(crate) fn give_back(&mut self, uid_base: u32) {
        if let Some(slot) = self.slot_of(uid_base) {
            self.used[slot] = false;
        }
    }

    /// Keeps the range of an incarnation that nobody owns but whose processes may live.
    pub(crate) fn hold(&mut self, incarnation: &str, uid_base: u32) {
        self.keep(uid_base);
        self.held.insert(incarnation.to_owned(), uid_base);
    }

    /// The cgroup of an incarnation is gone, and so are its processes.
    pub(crate) fn let_go(&mut self, incarnation: &str) {
        if let Some(uid_base) = self.held.remove(incarnation) {
            self.give_back(uid_base);
        }
    }

    /// Ranges that are given out now.
    pub(crate) fn in_use(&self) -> usize {
        self.used.iter().filter(|used| **used).count()
    }

    /// Lets other instances have the block; only when nothing of ours runs.
    pub(crate) fn release_block(&self) {
        if let Some(file) = &self.file {
            let _ = fs::remove_file(file);
        }
    }

    fn slot_of(&self, uid_base: u32) -> Option<usize> {
        let slot =
            usize::try_from(uid_base.checked_sub(self.base)?.checked_div(self.stride)?).ok()?;
        (slot < self.used.len()).then_some(slot)
    }
}

impl LinuxDriver {
    /// Ranges of uids that are given out: one for each guest, whoever it is for.
    pub fn uid_ranges_in_use(&self) -> usize {
        self.inner.slots().in_use()
    }
}

/// An owner whose data directory is gone, or is another instance's now.
fn is_stale(owner: &str) -> bool {
    let Some((instance, dir)) = owner.split_once(' ') else { return true };
    let now = fs::read_to_string(Path::new(dir).join("instance"));
    now.map_or(true, |text| text.trim() != instance)
}

/// By a hard link, so that the claim appears with its owner's name in it or not at all.
fn create(file: &Path, owner: &str) -> anyhow::Result<bool> {
    let temp = file.with_extension(std::process::id().to_string());
    fs::write(&temp, owner).context("claim a block of uids")?;
    let linked = fs::hard_link(&temp, file);
    let _ = fs::remove_file(&temp);
    match linked {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error).context("claim a block of uids"),
    }
}

fn replace(file: &Path, owner: &str) -> anyhow::Result<bool> {
    fs::remove_file(file).context("take over a stale block of uids")?;
    create(file, owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(root: &Path, name: &str) -> PathBuf {
        let dir = root.join(name);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("instance"), name).unwrap();
        dir
    }

    #[test]
    fn two_instances_never_share_a_range_and_one_gets_its_own_back() {
        let root = tempfile::tempdir().unwrap();
        let (a, b) = (instance(root.path(), "a"), instance(root.path(), "b"));
        let mut first = Slots::claim(root.path(), &a, "a").unwrap();
        let mut second = Slots::claim(root.path(), &b, "b").unwrap();
        let ranges: Vec<u32> = (0..10).map(|_| first.take().unwrap()).collect();
        for _ in 0..10 {
            assert!(!ranges.contains(&second.take().unwrap()));
        }
        let mut again = Slots::claim(root.path(), &a, "a").unwrap();
        assert_eq!(again.base, first.base);
        again.keep(ranges[0]);
        assert_ne!(again.take().unwrap(), ranges[0]);
    }

    #[test]
    fn the_block_of_a_deleted_instance_is_taken_over() {
        let root = tempfile::tempdir().unwrap();
        let (a, b) = (instance(root.path(), "a"), instance(root.path(), "b"));
        let first = Slots::claim(root.path(), &a, "a").unwrap();
        fs::remove_dir_all(&a).unwrap();
        assert_eq!(Slots::claim(root.path(), &b, "b").unwrap().base, first.base);
    }

    #[test]
    fn in_a_namespace_each_sandbox_has_a_maker_of_its_own_where_there_are_ids_for_it() {
        let mut many = Slots::in_namespace(Path::new("/run"), 65_537);
        let first = many.take().unwrap();
        assert_eq!((first, many.take().unwrap()), (60_000, 60_001));
        many.give_back(first);
        many.keep(60_001);
        let mut one = Slots::in_namespace(Path::new("/run"), 1);
        assert_eq!((one.take().unwrap(), one.take().unwrap()), (0, 0));
        one.give_back(0);
    }

    #[test]
    fn a_full_block_says_so() {
        let root = tempfile::tempdir().unwrap();
        let a = instance(root.path(), "a");
        let mut slots = Slots::claim(root.path(), &a, "a").unwrap();
        let all: std::collections::BTreeSet<u32> =
            (0..SLOTS_PER_BLOCK).map(|_| slots.take().unwrap()).collect();
        assert_eq!(all.len(), 2048);
        assert!(matches!(slots.take(), Err(Error::NoCapacity { .. })));
        slots.give_back(*all.first().unwrap());
        assert_eq!(slots.take().unwrap(), *all.first().unwrap());
    }
}

//! A few bytes beside the database that change whenever a key is revoked, so that every process that
//! serves from it learns of that at once, for the price of one read of a file in memory.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use anyhow::Context;
use model::Result;

/// What the mark was.
pub(super) type Seen = [u8; 16];

pub(super) struct Mark(File);

impl Mark {
    pub(super) fn open(database: &Path) -> Result<Self> {
        let path = database.with_extension("revoked");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mark = Self(options.open(&path).context("open the mark of revoked keys")?);
        if mark.look().is_none() {
            mark.change()?;
        }
        Ok(mark)
    }

    /// `None` when it cannot be read: then nothing that was remembered is believed.
    pub(super) fn look(&self) -> Option<Seen> {
        let mut seen = Seen::default();
        self.0.read_exact_at(&mut seen, 0).ok().map(|()| seen)
    }

    pub(super) fn change(&self) -> Result<()> {
        let fresh = uuid::Uuid::new_v4();
        Ok(self.0.write_all_at(fresh.as_bytes(), 0).context("tell that a key was revoked")?)
    }
}

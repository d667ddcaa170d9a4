//! The file below a pool, stretch by stretch. It is sparse, so its host may be full when the pool is
//! not. A write of data that finds no room fails for whoever writes; one of the file system's own
//! bookkeeping ends the whole pool. So the bookkeeping's stretches are allocated on the host as soon as
//! the pool has them, and what is free is given back only in the stretches of data.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::FallocateFlags;

use super::ioctl::{self, u64_at};

const CHUNK_TREE: u64 = 3;
const CHUNKS: u64 = 256;
const CHUNK_ITEM: u32 = 228;
const DATA: u64 = 1;
const SYSTEM_OR_METADATA: u64 = 2 | 4;
/// Shorter free stretches stay with the pool.
const SHORTEST_BYTES: u64 = 256 << 10;

struct Chunk {
    logical: u64,
    length: u64,
    kind: u64,
    /// Where in the file it is.
    physical: u64,
}

/// Allocates on the host what the pool's bookkeeping lies on.
pub(super) fn hold_bookkeeping(root: &File, image: &Path) -> io::Result<()> {
    let file = File::options().read(true).write(true).open(image)?;
    for chunk in chunks(root)? {
        if chunk.kind & SYSTEM_OR_METADATA != 0 {
            let mode = FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&file, mode, chunk.physical, chunk.length)?;
        }
    }
    Ok(())
}

/// How many bytes the pool's bookkeeping has in all.
pub(super) fn bookkeeping_bytes(root: &File) -> io::Result<u64> {
    let all = chunks(root)?;
    let own = all.iter().filter(|chunk| chunk.kind & SYSTEM_OR_METADATA != 0);
    Ok(own.map(|chunk| chunk.length).sum())
}

/// Gives the host back what is free between data.
pub(super) fn trim_data(root: &File) -> io::Result<()> {
    for chunk in chunks(root)? {
        if chunk.kind & DATA != 0 {
            ioctl::trim(root, chunk.logical, chunk.length, SHORTEST_BYTES)?;
        }
    }
    Ok(())
}

fn chunks(root: &File) -> io::Result<Vec<Chunk>> {
    let items = ioctl::items(root, CHUNK_TREE, CHUNKS, CHUNK_ITEM)?;
    // Our pools have one device and no copies, so the first stripe is all there is.
    let read = |item: ioctl::Item| {
        Some(Chunk {
            logical: item.offset,
            length: u64_at(&item.data, 0)?,
            kind: u64_at(&item.data, 24)?,
            physical: u64_at(&item.data, 56)?,
        })
    };
    Ok(items.into_iter().filter_map(read).collect())
}

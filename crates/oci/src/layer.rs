//! Unpacks one layer into a [`Tree`], within limits, and proves that it is the one it should be.
//!
//! Extended headers are read here and not by the tar crate, which would hold as much of them in
//! memory as the archive says.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;
use sha2::{Digest, Sha256};
use tar::EntryType;

use crate::image::hex;
use crate::tree::clean;
use crate::{Error, Meta, Result, Tree};

/// What one layer, and what is left for the whole image, may take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Uncompressed, headers included.
    pub bytes_max: u64,
    pub entries_max: u64,
}

/// What was in a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unpacked {
    /// Hex of the SHA-256 of the uncompressed tar.
    pub diff_id: String,
    pub bytes: u64,
    pub entries: u64,
    /// Device nodes and such, which have no place in a layer.
    pub skipped: u64,
}

/// Of one extended header.
const HEADER_BYTES_MAX: u64 = 1 << 20;
const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
const CAPABILITY: &str = "SCHILY.xattr.security.capability";

/// Unpacks the blob in `file`, compressed with gzip or zstd or not at all, into `tree`.
///
/// # Errors
/// `TooLarge` beyond a limit, `Corrupt` for what is no layer. The tree is half full then.
pub fn unpack(file: File, tree: Tree, limits: Limits) -> Result<Unpacked> {
    let mut reader = BufReader::with_capacity(128 * 1024, file);
    let magic = io::BufRead::fill_buf(&mut reader).map_err(|error| Error::file(error, "read"))?;
    let plain: Box<dyn Read> = match magic {
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(reader)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Box::new(Frames { reader, frame: None }),
        _ => Box::new(reader),
    };
    let mut metered = Metered { inner: plain, hash: Sha256::new(), read: 0, max: limits.bytes_max };
    let mut unpacker = Unpacker { tree, limits, entries: 0, skipped: 0, next: Extended::default() };
    let unpacked = unpacker.all(&mut metered);
    // The limit shows as a failure to read, wherever it was met.
    if metered.read > limits.bytes_max {
        let gib = limits.bytes_max >> 30;
        return Err(Error::TooLarge(format!("the image's layers are larger than {gib} GiB")));
    }
    unpacked?;
    // Beyond the end mark: padding, which is part of the digest.
    io::copy(&mut metered, &mut io::sink()).map_err(corrupt)?;
    let Unpacker { tree, entries, skipped, .. } = unpacker;
    tree.finish().map_err(|error| Error::file(error, "set times"))?;
    let diff_id = hex(&metered.hash.finalize());
    Ok(Unpacked { diff_id, bytes: metered.read, entries, skipped })
}

/// Several zstd frames, one after the other.
struct Frames {
    reader: BufReader<File>,
    frame: Option<Box<StreamingDecoder<BufReader<File>, ruzstd::decoding::FrameDecoder>>>,
}

impl Read for Frames {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(frame) = &mut self.frame {
                let count = frame.read(buffer)?;
                if count > 0 {
                    return Ok(count);
                }
            }
            if let Some(frame) = self.frame.take() {
                self.reader = frame.into_inner();
            }
            if io::BufRead::fill_buf(&mut self.reader)?.is_empty() {
                return Ok(0);
            }
            // The decoder owns its reader; what is left behind is empty and never read.
            let nothing = BufReader::with_capacity(1, File::open("/dev/null")?);
            let reader = std::mem::replace(&mut self.reader, nothing);
            let frame = StreamingDecoder::new(reader)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
            self.frame = Some(Box::new(frame));
        }
    }
}

/// Counts and digests what passes.
struct Metered<R> {
    inner: R,
    hash: Sha256,
    read: u64,
    max: u64,
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.hash.update(&buffer[..count]);
        self.read += count as u64;
        if self.read > self.max {
            return Err(io::Error::other("too large"));
        }
        Ok(count)
    }
}

/// What extended headers say of the entry that follows.
#[derive(Default)]
struct Extended {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<i64>,
    size: Option<u64>,
    capability: Option<Vec<u8>>,
}

struct Unpacker {
    tree: Tree,
    limits: Limits,
    entries: u64,
    skipped: u64,
    next: Extended,
}

type Entry<'a, R> = tar::Entry<'a, &'a mut R>;

impl Unpacker {
    fn all<R: Read>(&mut self, reader: &mut R) -> Result<()> {
        let mut archive = tar::Archive::new(reader);
        for entry in archive.entries().map_err(corrupt)?.raw(true) {
            let mut entry = entry.map_err(corrupt)?;
            self.entries += 1;
            if self.entries > self.limits.entries_max {
                let max = self.limits.entries_max;
                return Err(Error::TooLarge(format!("a layer has more than {max} entries")));
            }
            match entry.header().entry_type() {
                EntryType::XHeader => self.extended(&mut entry)?,
                EntryType::XGlobalHeader => {}
                EntryType::GNULongName => self.next.path = Some(long(&mut entry)?),
                EntryType::GNULongLink => self.next.link = Some(long(&mut entry)?),
                _ => {
                    let extended = std::mem::take(&mut self.next);
                    self.one(&mut entry, &extended)?;
                }
            }
        }
        Ok(())
    }

    fn extended<R: Read>(&mut self, entry: &mut Entry<'_, R>) -> Result<()> {
        let bytes = bounded(entry)?;
        for pair in tar::PaxExtensions::new(&bytes) {
            let pair = pair.map_err(corrupt)?;
            let Ok(key) = pair.key() else { continue };
            let number = || pair.value().ok().and_then(|text| text.parse::<u64>().ok());
            match key {
                "path" => self.next.path = Some(pair.value_bytes().to_vec()),
                "linkpath" => self.next.link = Some(pair.value_bytes().to_vec()),
                "uid" => self.next.uid = number(),
                "gid" => self.next.gid = number(),
                "size" => self.next.size = number(),
                "mtime" => {
                    let text = pair.value().unwrap_or_default();
                    self.next.mtime = text.split('.').next().and_then(|text| text.parse().ok());
                }
                CAPABILITY => self.next.capability = Some(pair.value_bytes().to_vec()),
                key if key.starts_with("GNU.sparse.") => {
                    return Err(Error::Invalid("the layer holds sparse files".into()));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn one<R: Read>(&mut self, entry: &mut Entry<'_, R>, extended: &Extended) -> Result<()> {
        let raw = extended.path.clone().unwrap_or_else(|| entry.path_bytes().into_owned());
        let shown = String::from_utf8_lossy(&raw).into_owned();
        let said = |error: io::Error| said_of(&shown, &error);
        let path = clean(Path::new(std::ffi::OsStr::from_bytes(&raw))).map_err(said)?;
        if self.mark(&path).map_err(said)? {
            return Ok(());
        }
        let header = entry.header();
        if extended.size.is_some_and(|size| header.entry_size().ok() != Some(size)) {
            return Err(Error::Invalid(format!("the layer's entry {shown:?} is too large")));
        }
        let meta = meta(header, extended)?;
        let link = extended.link.clone().or(entry.link_name_bytes().map(|name| name.into_owned()));
        let link = link.unwrap_or_default();
        let target = std::ffi::OsStr::from_bytes(&link);
        match entry.header().entry_type() {
            EntryType::Regular | EntryType::Continuous => self
                .file(entry, &path, meta)
                .and_then(|()| self.capability(&path, extended.capability.as_deref())),
            EntryType::Directory => self.tree.directory(&path, meta),
            EntryType::Symlink => self.tree.symlink(&path, target, meta),
            EntryType::Link => self.tree.hard_link(&path, Path::new(target)),
            EntryType::Fifo => self.tree.fifo(&path, meta),
            EntryType::Char | EntryType::Block => {
                self.skipped += 1;
                Ok(())
            }
            EntryType::GNUSparse => {
                return Err(Error::Invalid(format!("the layer's entry {shown:?} is sparse")));
            }
            _ => {
                self.skipped += 1;
                Ok(())
            }
        }
        .map_err(said)
    }

    /// Whether it was a mark for what lower layers have, and no entry of its own.
    fn mark(&mut self, path: &Path) -> io::Result<bool> {
        let Some(name) = path.file_name().map(OsStrExt::as_bytes) else { return Ok(false) };
        let parent = path.parent().unwrap_or(Path::new(""));
        if name == OPAQUE {
            self.tree.opaque(parent)?;
            return Ok(true);
        }
        let Some(hidden) = name.strip_prefix(WHITEOUT) else { return Ok(false) };
        // Other names that begin with `.wh..wh.` are notes of an old storage driver.
        if hidden.is_empty() || hidden == b"." || hidden == b".." {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a mark for nothing"));
        }
        if !hidden.starts_with(WHITEOUT) {
            let place: PathBuf = parent.join(std::ffi::OsStr::from_bytes(hidden));
            self.tree.whiteout(&place)?;
        }
        Ok(true)
    }

    fn file<R: Read>(
        &mut self,
        entry: &mut Entry<'_, R>,
        path: &Path,
        meta: Meta,
    ) -> io::Result<()> {
        let size = entry.header().entry_size()?;
        let mut file = self.tree.file(path)?;
        if io::copy(entry, &mut file)? != size {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the layer ends within it"));
        }
        self.tree.seal(&file, meta)
    }

    fn capability(&mut self, path: &Path, value: Option<&[u8]>) -> io::Result<()> {
        let Some(value) = value else { return Ok(()) };
        self.tree.attribute(path, "security.capability", value)
    }
}

fn said_of(shown: &str, error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::DiskFull,
        _ => Error::Corrupt(format!("the layer's entry {shown:?} cannot be unpacked: {error}")),
    }
}

fn meta(header: &tar::Header, extended: &Extended) -> Result<Meta> {
    let id = |own: io::Result<u64>, said: Option<u64>| -> Result<u32> {
        let id = said.map_or(own, Ok).map_err(corrupt)?;
        Ok(u32::try_from(id).unwrap_or(u32::MAX))
    };
    let own = header.mtime().map_err(corrupt)?;
    Ok(Meta {
        mode: header.mode().map_err(corrupt)?,
        uid: id(header.uid(), extended.uid)?,
        gid: id(header.gid(), extended.gid)?,
        mtime: extended.mtime.unwrap_or(i64::try_from(own).unwrap_or(0)),
    })
}

fn long<R: Read>(entry: &mut Entry<'_, R>) -> Result<Vec<u8>> {
    let mut bytes = bounded(entry)?;
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    Ok(bytes)
}

fn bounded<R: Read>(entry: &mut Entry<'_, R>) -> Result<Vec<u8>> {
    if entry.header().entry_size().map_err(corrupt)? > HEADER_BYTES_MAX {
        return Err(Error::TooLarge("a layer has an extended header of more than 1 MiB".into()));
    }
    let mut bytes = Vec::new();
    entry.take(HEADER_BYTES_MAX).read_to_end(&mut bytes).map_err(corrupt)?;
    Ok(bytes)
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that map_err wants")]
fn corrupt(error: io::Error) -> Error {
    Error::Corrupt(format!("the layer is not a tar stream: {error}"))
}

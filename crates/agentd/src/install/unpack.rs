//! From a checked tarball to a directory, all or nothing. The checksum says that the registry meant
//! these bytes, not that they mean well: only plain files inside the directory are made, within
//! limits.

use std::fs::{self, File, Permissions};
use std::io::{self, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};

use flate2::read::GzDecoder;
use tar::{Archive, Entry, EntryType};

use super::table::Package;
use super::{InstallError, if_absent};

const BYTES_MAX: u64 = 4 * 1024 * 1024 * 1024;
const ENTRIES_MAX: usize = 20_000;

/// Makes `into` hold the package; what was there is replaced.
pub(super) fn unpack(from: &Path, into: &Path, package: &Package) -> Result<(), InstallError> {
    let name = into.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let fresh = into.with_file_name(format!(".new-{name}"));
    let old = into.with_file_name(format!(".old-{name}"));
    let remove = |path: &Path| fs::remove_dir_all(path).or_else(if_absent);
    let disk = |error: io::Error| InstallError::disk("unpack into", into, &error);
    remove(&fresh).and_then(|()| fs::create_dir(&fresh)).map_err(disk)?;
    let unpacked = unpack_into(from, &fresh, package)
        .and_then(|()| check_program(&fresh, package).map_err(io::Error::other));
    if let Err(error) = unpacked {
        let _ = remove(&fresh);
        return Err(disk(error));
    }
    remove(&old).map_err(disk)?;
    match fs::rename(into, &old) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(disk(error)),
        _ => {}
    }
    fs::rename(&fresh, into).and_then(|()| remove(&old)).map_err(disk)?;
    into.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all()).map_err(disk)
}

fn unpack_into(from: &Path, into: &Path, package: &Package) -> io::Result<()> {
    let file = BufReader::with_capacity(1024 * 1024, File::open(from)?);
    let mut archive = Archive::new(GzDecoder::new(file).take(BYTES_MAX));
    for (count, entry) in archive.entries()?.enumerate() {
        if count >= ENTRIES_MAX {
            return Err(io::Error::other("too many files in the package"));
        }
        let mut entry = entry?;
        let Some(path) = path_of(&entry)? else { continue };
        if path.iter().any(|part| package.skip.iter().any(|skip| part == *skip)) {
            continue;
        }
        write_file(&mut entry, &into.join(path))?;
    }
    Ok(())
}

/// The path below the archive's one directory, for files only.
fn path_of(entry: &Entry<'_, impl io::Read>) -> io::Result<Option<PathBuf>> {
    match entry.header().entry_type() {
        EntryType::Regular | EntryType::Continuous => {}
        EntryType::Directory | EntryType::XGlobalHeader | EntryType::XHeader => return Ok(None),
        _ => return Err(io::Error::other("the package holds something other than files")),
    }
    let path = entry.path()?;
    let mut below = PathBuf::new();
    for part in path.components().skip(1) {
        match part {
            Component::Normal(name) => below.push(name),
            _ => return Err(io::Error::other("the package names a file outside of it")),
        }
    }
    let rooted = matches!(path.components().next(), Some(Component::Normal(_)));
    if !rooted || below.as_os_str().is_empty() {
        return Err(io::Error::other("the package names a file outside of it"));
    }
    Ok(Some(below))
}

fn write_file(entry: &mut Entry<'_, impl io::Read>, path: &Path) -> io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    let executable = entry.header().mode().unwrap_or(0) & 0o111 != 0;
    let mut file = File::create(path)?;
    io::copy(entry, &mut file)?;
    file.set_permissions(Permissions::from_mode(if executable { 0o755 } else { 0o644 }))?;
    file.sync_all()
}

/// The program is there, and is one for this kind of machine: not a script that wants node.
fn check_program(dir: &Path, package: &Package) -> Result<(), &'static str> {
    const MACHINE: u16 = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    let program = package.program_in(dir).ok_or("there is no program in the package")?;
    let mut head = [0; 20];
    File::open(&program)
        .and_then(|mut file| file.read_exact(&mut head))
        .map_err(|_| "the program in the package is empty")?;
    if !head.starts_with(b"\x7fELF") {
        return Err("the program in the package is not native");
    }
    if u16::from_le_bytes([head[18], head[19]]) != MACHINE {
        return Err("the program in the package is for another machine");
    }
    fs::set_permissions(&program, Permissions::from_mode(0o755)).map_err(|_| "cannot make it run")
}

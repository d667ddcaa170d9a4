//! A loop device over a file: found if it is attached already, else made. It detaches itself when
//! the last mount of it goes.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use keeper::sys;

const LOOP_CTL_GET_FREE: u64 = 0x4C82;
const LOOP_CONFIGURE: u64 = 0x4C0A;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;
/// Another process may take the free device that we were told of.
const ATTEMPTS: u32 = 16;

/// `struct loop_config` of the kernel.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// `struct loop_info64`.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// The device over `file`. Keep the file open until it is mounted: an unused device detaches.
pub(super) fn attach(file: &Path) -> anyhow::Result<(PathBuf, File)> {
    let file = fs::canonicalize(file).context("find the pool file")?;
    if let Some(device) = attached(&file)? {
        let open = File::open(&device).context("open the loop device")?;
        return Ok((device, open));
    }
    let control = File::options()
        .read(true)
        .write(true)
        .open("/dev/loop-control")
        .context("open /dev/loop-control")?;
    let backing =
        File::options().read(true).write(true).open(&file).context("open the pool file")?;
    for _ in 0..ATTEMPTS {
        let number =
            sys::ioctl_number(&control, LOOP_CTL_GET_FREE, 0).context("free loop device")?;
        let device = PathBuf::from(format!("/dev/loop{number}"));
        let open =
            File::options().read(true).write(true).open(&device).context("open a loop device")?;
        match configure(&open, &backing, &file) {
            Ok(()) => return Ok((device, open)),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            Err(error) => return Err(error).context("configure the loop device"),
        }
    }
    bail!("no free loop device after {ATTEMPTS} attempts")
}

/// The number of the device over `file`, if there is one.
pub(super) fn number(file: &Path) -> Option<u64> {
    let device = attached(&fs::canonicalize(file).ok()?).ok()??;
    Some(std::os::unix::fs::MetadataExt::rdev(&fs::metadata(device).ok()?))
}

fn configure(device: &File, backing: &File, path: &Path) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let fd = u32::try_from(backing.as_raw_fd()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut info = LoopInfo {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO,
        file_name: [0; 64],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
    for (to, from) in
        info.file_name.iter_mut().zip(path.as_os_str().as_encoded_bytes().iter().take(63))
    {
        *to = *from;
    }
    let mut config = LoopConfig { fd, block_size: 4096, info, reserved: [0; 8] };
    sys::ioctl(device, LOOP_CONFIGURE, &mut config)
}

/// The device that is attached to `file` now. Two over one file would corrupt it.
fn attached(file: &Path) -> anyhow::Result<Option<PathBuf>> {
    for entry in fs::read_dir("/sys/block").context("list block devices")? {
        let entry = entry.context("list block devices")?;
        let backing = entry.path().join("loop/backing_file");
        let Ok(text) = fs::read_to_string(backing) else { continue };
        if Path::new(text.trim_end()) == file {
            return Ok(Some(Path::new("/dev").join(entry.file_name())));
        }
    }
    Ok(None)
}

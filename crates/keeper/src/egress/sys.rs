//! The system calls of egress that no safe crate offers: `bpf(2)`, with the four commands that steering
//! needs, and one socket option. Everything else here goes through `rustix`.
#![expect(unsafe_code, reason = "bpf(2) has no safe wrapper without an ELF loader")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const PROG_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;

const MAP_TYPE_SOCKMAP: u32 = 15;
const PROG_TYPE_SK_LOOKUP: u32 = 30;
const ATTACH_SK_LOOKUP: u32 = 36;
const ANY: u64 = 0;

/// One instruction, as the kernel's `struct bpf_insn`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Instruction {
    pub(super) code: u8,
    /// Destination in the low four bits, source in the high four.
    pub(super) registers: u8,
    pub(super) offset: i16,
    pub(super) immediate: i32,
}

#[repr(C)]
struct MapCreate {
    kind: u32,
    key_size: u32,
    value_size: u32,
    entries_max: u32,
    flags: u32,
}

#[repr(C)]
struct MapUpdate {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct ProgramLoad {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    ifindex: u32,
    attach_type: u32,
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
}

/// A map of one socket.
pub(super) fn socket_map() -> io::Result<OwnedFd> {
    let attr =
        MapCreate { kind: MAP_TYPE_SOCKMAP, key_size: 4, value_size: 4, entries_max: 1, flags: 0 };
    bpf_fd(MAP_CREATE, &attr)
}

/// Puts a socket at index 0 of the map.
pub(super) fn put_socket(map: BorrowedFd<'_>, socket: BorrowedFd<'_>) -> io::Result<()> {
    let key = 0_u32;
    let value = raw(socket);
    let attr = MapUpdate {
        map: raw(map),
        padding: 0,
        key: address(&raw const key),
        value: address(&raw const value),
        flags: ANY,
    };
    bpf(MAP_UPDATE_ELEM, &attr).map(drop)
}

/// Loads a program; `log` gets the verifier's words when it is not empty.
pub(super) fn load(program: &[Instruction], log: &mut [u8]) -> io::Result<OwnedFd> {
    let instruction_count = u32::try_from(program.len()).map_err(io::Error::other)?;
    let log_size = u32::try_from(log.len()).map_err(io::Error::other)?;
    let mut name = [0; 16];
    name[..14].copy_from_slice(b"bastide_egress");
    let attr = ProgramLoad {
        kind: PROG_TYPE_SK_LOOKUP,
        instruction_count,
        instructions: address(program.as_ptr()),
        license: address(c"Apache-2.0".as_ptr()),
        log_level: u32::from(log_size > 0),
        log_size,
        log: if log_size > 0 { address(log.as_mut_ptr()) } else { 0 },
        kernel_version: 0,
        flags: 0,
        name,
        ifindex: 0,
        attach_type: ATTACH_SK_LOOKUP,
    };
    bpf_fd(PROG_LOAD, &attr)
}

/// Attaches the program to a network namespace for as long as the answer is open.
pub(super) fn attach(program: BorrowedFd<'_>, netns: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let attr = LinkCreate {
        program: raw(program),
        target: raw(netns),
        attach_type: ATTACH_SK_LOOKUP,
        flags: 0,
    };
    bpf_fd(LINK_CREATE, &attr)
}

/// Lets a socket be given what is meant for any address (`IP_TRANSPARENT`).
pub(super) fn make_transparent(socket: BorrowedFd<'_>) -> io::Result<()> {
    let on: libc::c_int = 1;
    let size = libc::socklen_t::try_from(size_of_val(&on)).map_err(io::Error::other)?;
    // SAFETY: `on` is readable for `size` bytes during the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_IP,
            libc::IP_TRANSPARENT,
            (&raw const on).cast(),
            size,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn bpf_fd<T>(command: libc::c_int, attr: &T) -> io::Result<OwnedFd> {
    let fd = RawFd::try_from(bpf(command, attr)?).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made this descriptor for us (always close-on-exec).
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `attr` is one of the structs above, whose pointers the caller keeps alive over this call.
fn bpf<T>(command: libc::c_int, attr: &T) -> io::Result<libc::c_long> {
    // SAFETY: `attr` is readable for `size_of::<T>()` bytes; the kernel reads no more than that, and
    // follows only the addresses inside it, which point to live data of the size that they claim.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attr), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn raw(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

/// The kernel's ABI carries every pointer as a `u64`.
fn address<T>(pointer: *const T) -> u64 {
    pointer.addr() as u64
}

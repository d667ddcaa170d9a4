//! What a fresh network namespace needs before a socket is of any use: `lo` up, and the route
//! `local 0.0.0.0/0 dev lo`, which makes every IPv4 address one of this namespace's own.
//!
//! One rtnetlink message each, both in one `sendmsg`: the older ioctls can bring an interface up
//! but cannot make a route of type *local*, and a netlink crate would bring a hundred message types for two.
//! IPv6 gets no such route: only `::1` exists, everything else is "network is unreachable" at once,
//! and programs go on to IPv4.

use std::os::fd::OwnedFd;

use anyhow::{Context as _, Result, bail};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

const NEWLINK: u16 = 16;
const NEWROUTE: u16 = 24;
const ERROR: u16 = 2;

const REQUEST_ACK: u16 = 0x1 | 0x4;
/// Also when it is there already, made by a keeper that has died.
const CREATE_OR_REPLACE: u16 = 0x400 | 0x100;

/// `lo` is the first interface of every namespace.
const LO: u32 = 1;
const UP: u32 = 1;

const TABLE_LOCAL: u8 = 255;
const BY_BOOT: u8 = 3;
const SCOPE_HOST: u8 = 254;
const TYPE_LOCAL: u8 = 2;
const ATTRIBUTE_OUT: u16 = 4;

/// Of the current network namespace.
pub(super) fn make_everything_local() -> Result<()> {
    // No protocol is protocol 0, which is `NETLINK_ROUTE`.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)
        .context("open a netlink socket")?;
    let mut request = lo_up();
    request.extend(local_route());
    send(&socket, &request, SendFlags::empty()).context("send to netlink")?;
    // The kernel works inside `send`, so the answers are there already.
    let mut acknowledged = 0;
    while acknowledged < 2 {
        acknowledged += read_answers(&socket)?;
    }
    Ok(())
}

fn lo_up() -> Vec<u8> {
    let mut body = vec![0; 4]; // family, padding, device type
    body.extend(LO.to_ne_bytes());
    body.extend(UP.to_ne_bytes());
    body.extend(UP.to_ne_bytes()); // the mask of what to change
    message(NEWLINK, REQUEST_ACK, 1, &body)
}

fn local_route() -> Vec<u8> {
    const NO_PREFIX: u8 = 0;
    let family = u8::try_from(libc::AF_INET).unwrap_or_default();
    let mut body = vec![family, NO_PREFIX, 0, 0, TABLE_LOCAL, BY_BOOT, SCOPE_HOST, TYPE_LOCAL];
    body.extend(0_u32.to_ne_bytes()); // flags
    body.extend(8_u16.to_ne_bytes());
    body.extend(ATTRIBUTE_OUT.to_ne_bytes());
    body.extend(LO.to_ne_bytes());
    message(NEWROUTE, REQUEST_ACK | CREATE_OR_REPLACE, 2, &body)
}

fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(16 + body.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(16 + body.len());
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend(0_u32.to_ne_bytes()); // to the kernel
    bytes.extend(body);
    bytes
}

/// How many requests the next datagram acknowledges.
fn read_answers(socket: &OwnedFd) -> Result<usize> {
    let mut buffer = [0_u8; 1024];
    let (_, length) =
        recv(socket, &mut buffer, RecvFlags::DONTWAIT).context("read a netlink answer")?;
    let mut rest = &buffer[..length.min(1024)];
    let mut acknowledged = 0;
    while let Some((length, kind, errno)) = header(rest) {
        if kind != ERROR {
            bail!("unexpected netlink answer of type {kind}");
        }
        if errno != 0 {
            return Err(std::io::Error::from_raw_os_error(-errno)).context("set up loopback");
        }
        acknowledged += 1;
        rest = rest.get(length..).unwrap_or_default();
    }
    Ok(acknowledged)
}

/// Length, type, and the error code of an answer that starts here.
pub(super) fn header(bytes: &[u8]) -> Option<(usize, u16, i32)> {
    let length = u32::from_ne_bytes(bytes.get(0..4)?.try_into().ok()?);
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let errno = i32::from_ne_bytes(bytes.get(16..20)?.try_into().ok()?);
    let aligned = usize::try_from(length).ok()?.next_multiple_of(4);
    (aligned >= 20).then_some((aligned, kind, errno))
}

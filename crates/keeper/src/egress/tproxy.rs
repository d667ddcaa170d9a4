//! What [`super::steer`] does, for a host that lets us load no BPF program: a rule of nftables that
//! gives every new TCP connection to one listening socket (`tproxy`). It needs `CAP_NET_ADMIN` over
//! the sandbox's network namespace only, which the root of the user namespace above it has.
//!
//! ```text
//! chain prerouting               chain input
//!   to 127.0.0.0/8   accept        UDP from outside 127.0.0.0/8   reject
//!   TCP              our socket
//!   TCP, a new one   drop          (our socket is closed)
//! ```
//!
//! A reply to a program inside belongs to that program's socket, which `tproxy` lets pass. As with the
//! BPF program, what a program of the sandbox has bound cannot catch what is meant for the outside.
//!
//! Seven messages to the kernel, written down here: the library for them would be a dependency in C.

use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;

use anyhow::{Context as _, Result, bail};
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

const NETFILTER: u32 = 12;
const TABLE: &[u8] = b"bastide\0";
const STEER: &[u8] = b"steer\0";
const REFUSE: &[u8] = b"refuse\0";

// Messages of the subsystem nftables, and what they ask for.
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEW_TABLE: u16 = 10 << 8;
const DELETE_TABLE: u16 = (10 << 8) | 2;
const NEW_CHAIN: u16 = (10 << 8) | 3;
const NEW_RULE: u16 = (10 << 8) | 6;
const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
const CREATE: u16 = 0x400;
const APPEND: u16 = 0x800;
const ERROR: u16 = 2;

const IPV4: u8 = 2;
const NESTED: u16 = 0x8000;

const ACCEPT: u32 = 1;
const DROP: u32 = 0;
/// A register of 16 bytes; 0 is the one of the verdict.
const A: u32 = 1;
const B: u32 = 2;
const VERDICT: u32 = 0;

/// Steers the current network namespace to the socket that listens at `listener`, which must be
/// transparent. The rules stay as long as the namespace; asking again replaces them.
pub(super) fn steer(listener: SocketAddrV4) -> Result<OwnedFd> {
    let protocol = Protocol::from_raw(NETFILTER.try_into().context("a protocol number")?);
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(protocol))
        .context("open a netlink socket to nftables")?;
    let mut batch = Batch::default();
    batch.control(BATCH_BEGIN);
    batch.message(NEW_TABLE, CREATE, &text(1, TABLE));
    batch.message(DELETE_TABLE, 0, &text(1, TABLE));
    batch.message(NEW_TABLE, CREATE, &text(1, TABLE));
    // Before the kernel routes; where connection tracking of others would mangle.
    batch.message(NEW_CHAIN, CREATE, &chain(STEER, 0, -150));
    batch.message(NEW_CHAIN, CREATE, &chain(REFUSE, 1, 0));
    for rule in steering(listener) {
        batch.rule(STEER, &rule);
    }
    batch.rule(REFUSE, &refusal());
    batch.control(BATCH_END);
    send(&socket, &batch.bytes, SendFlags::empty()).context("send to nftables")?;
    read_answers(&socket, batch.acknowledged)?;
    Ok(socket)
}

fn steering(listener: SocketAddrV4) -> [Vec<u8>; 3] {
    let address = listener.ip().octets();
    let port = listener.port().to_be_bytes();
    let own = [loads_loopback(16), equals(A, &LOOPBACK), decides(ACCEPT)].concat();
    let tproxy = [number(1, u32::from(IPV4)), number(2, A), number(3, B)].concat();
    let ours = [
        is_protocol(6),
        immediate(A, &address),
        immediate(B, &port),
        expression(b"tproxy\0", &tproxy),
        decides(ACCEPT),
    ];
    // FIN, SYN, RST and ACK, of which only SYN is set.
    let new = [payload(A, 2, 13, 1), masked(&[0x17]), equals(A, &[0x02])].concat();
    [own, ours.concat(), [is_protocol(6), new, decides(DROP)].concat()]
}

/// The sender learns at once that nobody is there, whatever port a program inside has bound.
fn refusal() -> Vec<u8> {
    const UNREACHABLE: u32 = 0;
    let code = attribute(2, &[3]);
    let reject = [number(1, UNREACHABLE), code].concat();
    [is_protocol(17), loads_loopback(16), differs(A, &LOOPBACK), expression(b"reject\0", &reject)]
        .concat()
}

const LOOPBACK: [u8; 4] = [127, 0, 0, 0];

/// The first octet of the address at `offset` of the IPv4 header.
fn loads_loopback(offset: u32) -> Vec<u8> {
    [payload(A, 1, offset, 4), masked(&[255, 0, 0, 0])].concat()
}

fn is_protocol(protocol: u8) -> Vec<u8> {
    const L4_PROTOCOL: u32 = 16;
    let meta = [number(1, A), number(2, L4_PROTOCOL)].concat();
    [expression(b"meta\0", &meta), equals(A, &[protocol])].concat()
}

fn payload(register: u32, base: u32, offset: u32, length: u32) -> Vec<u8> {
    let attributes =
        [number(1, register), number(2, base), number(3, offset), number(4, length)].concat();
    expression(b"payload\0", &attributes)
}

fn masked(mask: &[u8]) -> Vec<u8> {
    let length = u32::try_from(mask.len()).unwrap_or_default();
    let zeros = vec![0; mask.len()];
    let attributes = [
        number(1, A),
        number(2, A),
        number(3, length),
        nest(4, &attribute(1, mask)),
        nest(5, &attribute(1, &zeros)),
    ];
    expression(b"bitwise\0", &attributes.concat())
}

fn equals(register: u32, value: &[u8]) -> Vec<u8> {
    compare(register, 0, value)
}

fn differs(register: u32, value: &[u8]) -> Vec<u8> {
    compare(register, 1, value)
}

fn compare(register: u32, operation: u32, value: &[u8]) -> Vec<u8> {
    let data = nest(3, &attribute(1, value));
    expression(b"cmp\0", &[number(1, register), number(2, operation), data].concat())
}

fn immediate(register: u32, value: &[u8]) -> Vec<u8> {
    let data = nest(2, &attribute(1, value));
    expression(b"immediate\0", &[number(1, register), data].concat())
}

fn decides(verdict: u32) -> Vec<u8> {
    let data = nest(2, &nest(2, &number(1, verdict)));
    expression(b"immediate\0", &[number(1, VERDICT), data].concat())
}

fn expression(name: &[u8], data: &[u8]) -> Vec<u8> {
    nest(1, &[text(1, name), nest(2, data)].concat())
}

fn chain(name: &[u8], hook: u32, priority: i32) -> Vec<u8> {
    let hook = nest(4, &[number(1, hook), attribute(2, &priority.to_be_bytes())].concat());
    [text(1, TABLE), text(3, name), hook, number(5, ACCEPT), text(7, b"filter\0")].concat()
}

fn number(kind: u16, value: u32) -> Vec<u8> {
    attribute(kind, &value.to_be_bytes())
}

fn text(kind: u16, value: &[u8]) -> Vec<u8> {
    attribute(kind, value)
}

fn nest(kind: u16, attributes: &[u8]) -> Vec<u8> {
    attribute(kind | NESTED, attributes)
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    let mut bytes = Vec::with_capacity(usize::from(length).next_multiple_of(4));
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Messages that take effect together or not at all.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    sequence: u32,
    /// How many of them are to be answered.
    acknowledged: u32,
}

impl Batch {
    fn control(&mut self, kind: u16) {
        const SUBSYSTEM: u16 = 10;
        self.push(kind, REQUEST, (0, SUBSYSTEM), &[]);
    }

    fn message(&mut self, kind: u16, flags: u16, attributes: &[u8]) {
        self.acknowledged += 1;
        self.push(kind, REQUEST | ACKNOWLEDGE | flags, (IPV4, 0), attributes);
    }

    fn rule(&mut self, chain: &[u8], expressions: &[u8]) {
        let attributes = [text(1, TABLE), text(2, chain), nest(4, expressions)].concat();
        self.message(NEW_RULE, CREATE | APPEND, &attributes);
    }

    fn push(&mut self, kind: u16, flags: u16, (family, resource): (u8, u16), attributes: &[u8]) {
        self.sequence += 1;
        let length = u32::try_from(20 + attributes.len()).unwrap_or(u32::MAX);
        self.bytes.extend(length.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(flags.to_ne_bytes());
        self.bytes.extend(self.sequence.to_ne_bytes());
        self.bytes.extend(0_u32.to_ne_bytes()); // to the kernel
        self.bytes.extend([family, 0]);
        self.bytes.extend(resource.to_be_bytes());
        self.bytes.extend(attributes);
    }
}

/// The kernel works inside `send`, so the answers are there already: one each, or the first that is
/// an error and undoes all.
fn read_answers(socket: &OwnedFd, expected: u32) -> Result<()> {
    let mut acknowledged = 0;
    while acknowledged < expected {
        let mut buffer = [0_u8; 4096];
        let (_, length) =
            recv(socket, &mut buffer, RecvFlags::DONTWAIT).context("read nftables' answer")?;
        let mut rest = &buffer[..length.min(4096)];
        while let Some((length, kind, errno)) = super::netlink::header(rest) {
            if kind != ERROR {
                bail!("unexpected answer of nftables: {kind}");
            }
            if errno != 0 {
                return Err(std::io::Error::from_raw_os_error(-errno))
                    .context("make the rules of nftables");
            }
            acknowledged += 1;
            rest = rest.get(length..).unwrap_or_default();
        }
    }
    Ok(())
}

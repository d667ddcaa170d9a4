//! The program that brings every TCP connection of a sandbox to one listening socket, whatever
//! address and port it was meant for (`BPF_PROG_TYPE_SK_LOOKUP`, kernel 5.9). The accepted socket
//! still says in `getsockname` where the sandbox wanted to go. No connection tracking, no
//! `nftables`, no change to the packet.
//!
//! It runs when the kernel looks for a listener, before any socket that a program of the sandbox
//! has bound, so nothing inside can catch what is meant for the outside. What it decides:
//!
//! ```text
//! not IPv4                   pass   (only ::1 exists; there is no other IPv6 route)
//! to 127.0.0.0/8             pass   (a program's own servers, and DNS on 127.0.0.1:53)
//! TCP to anything else       our socket
//! UDP to anything else       drop   (the sender gets "connection refused" at once)
//! ```
//!
//! Under thirty instructions, written down here: a compiler or an ELF loader would be a large dependency
//! for a program that never changes.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use anyhow::{Context as _, Result};

use super::sys::{self, Instruction};

/// Steers the current network namespace to `listener` for as long as the answer is open.
pub(super) fn steer(listener: BorrowedFd<'_>, netns: BorrowedFd<'_>) -> Result<OwnedFd> {
    let map = sys::socket_map().context("create a socket map")?;
    let program = load(&program(map.as_fd()))?;
    sys::put_socket(map.as_fd(), listener).context("put the listener into the socket map")?;
    // The link holds the program, the program holds the map: one descriptor to keep.
    sys::attach(program.as_fd(), netns).context("attach the steering program")
}

fn load(program: &[Instruction]) -> Result<OwnedFd> {
    let first = match sys::load(program, &mut []) {
        Ok(program) => return Ok(program),
        Err(error) => error,
    };
    // Ask again with a log: the verifier's last words say what it did not like.
    let mut log = vec![0; 16 << 10];
    let again = sys::load(program, &mut log);
    let text = String::from_utf8_lossy(&log);
    let text = text.trim_end_matches('\0').trim_end();
    let tail: Vec<&str> = text.lines().rev().take(3).collect();
    match again {
        Ok(program) => Ok(program),
        Err(_) if tail.is_empty() => Err(first).context("load the steering program"),
        Err(_) => Err(first).with_context(|| format!("load the steering program: {tail:?}")),
    }
}

// Registers.
const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R3: u8 = 3;
const R6: u8 = 6;
const R7: u8 = 7;
const R8: u8 = 8;
const FRAME: u8 = 10;

// Operation codes, named as the kernel's documentation does.
const LOAD_IMMEDIATE_64: u8 = 0x18;
const LOAD_WORD: u8 = 0x61;
const STORE_IMMEDIATE_WORD: u8 = 0x62;
const ADD_IMMEDIATE: u8 = 0x07;
const AND_IMMEDIATE: u8 = 0x57;
const MOVE: u8 = 0xbf;
const MOVE_IMMEDIATE: u8 = 0xb7;
const JUMP_IF_EQUAL: u8 = 0x15;
const JUMP_UNLESS_EQUAL: u8 = 0x55;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

// `struct bpf_sk_lookup`.
const FAMILY: i16 = 8;
const PROTOCOL: i16 = 12;
const LOCAL_IP4: i16 = 40;

const MAP_FD: u8 = 1;
const MAP_LOOKUP: i32 = 1;
const SK_RELEASE: i32 = 86;
const SK_ASSIGN: i32 = 124;

const DROP: i32 = 0;
const PASS: i32 = 1;

/// The first octet of an address in network order, as the lowest byte of the loaded word.
const FIRST_OCTET: i32 = if cfg!(target_endian = "little") { 0xff } else { 0xff << 24 };
const LOOPBACK: i32 = if cfg!(target_endian = "little") { 127 } else { 127 << 24 };

#[rustfmt::skip]
fn program(map: BorrowedFd<'_>) -> [Instruction; 28] {
    [
        /*  0 */ op(MOVE, R6, R1, 0, 0),
        /*  1 */ op(LOAD_WORD, R2, R6, FAMILY, 0),
        /*  2 */ op(JUMP_UNLESS_EQUAL, R2, 0, to(2, PASS_AT), libc::AF_INET),
        /*  3 */ op(LOAD_WORD, R2, R6, LOCAL_IP4, 0),
        /*  4 */ op(AND_IMMEDIATE, R2, 0, 0, FIRST_OCTET),
        /*  5 */ op(JUMP_IF_EQUAL, R2, 0, to(5, PASS_AT), LOOPBACK),
        /*  6 */ op(LOAD_WORD, R2, R6, PROTOCOL, 0),
        /*  7 */ op(JUMP_UNLESS_EQUAL, R2, 0, to(7, DROP_AT), libc::IPPROTO_TCP),
        // The listener, if it is still open.
        /*  8 */ op(STORE_IMMEDIATE_WORD, FRAME, 0, -4, 0),
        /*  9 */ op(MOVE, R2, FRAME, 0, 0),
        /* 10 */ op(ADD_IMMEDIATE, R2, 0, 0, -4),
        /* 11 */ op(LOAD_IMMEDIATE_64, R1, MAP_FD, 0, map.as_raw_fd()),
        /* 12 */ op(0, 0, 0, 0, 0),
        /* 13 */ op(CALL, 0, 0, 0, MAP_LOOKUP),
        /* 14 */ op(JUMP_IF_EQUAL, R0, 0, to(14, DROP_AT), 0),
        /* 15 */ op(MOVE, R7, R0, 0, 0),
        /* 16 */ op(MOVE, R1, R6, 0, 0),
        /* 17 */ op(MOVE, R2, R7, 0, 0),
        /* 18 */ op(MOVE_IMMEDIATE, R3, 0, 0, 0),
        /* 19 */ op(CALL, 0, 0, 0, SK_ASSIGN),
        /* 20 */ op(MOVE, R8, R0, 0, 0),
        /* 21 */ op(MOVE, R1, R7, 0, 0),
        /* 22 */ op(CALL, 0, 0, 0, SK_RELEASE),
        /* 23 */ op(JUMP_UNLESS_EQUAL, R8, 0, to(23, DROP_AT), 0),
        /* 24 */ op(MOVE_IMMEDIATE, R0, 0, 0, PASS),
        /* 25 */ op(EXIT, 0, 0, 0, 0),
        /* 26 */ op(MOVE_IMMEDIATE, R0, 0, 0, DROP),
        /* 27 */ op(EXIT, 0, 0, 0, 0),
    ]
}

const PASS_AT: i16 = 24;
const DROP_AT: i16 = 26;

/// A jump counts from the instruction after it.
const fn to(from: i16, target: i16) -> i16 {
    target - from - 1
}

const fn op(code: u8, dst: u8, src: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction { code, registers: dst | (src << 4), offset, immediate }
}

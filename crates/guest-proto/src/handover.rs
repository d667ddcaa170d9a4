//! The bytes that both ends of a hand-over send; the talk itself is described where the host has its
//! end.

/// What `Upgrade:` says in a request that would take the open file.
pub const UPGRADE: &str = "bastide-file";

/// Files from this size on are handed over; a connection of its own pays for them.
pub const BYTES_MIN: u64 = 1 << 20;

/// The host wants the file now. Before that, its HTTP library would lose it.
pub const ASK: u8 = b'?';

/// The guest's byte that carries the file.
pub const HERE: u8 = b'.';

/// The host has written all of it.
pub const DONE: u8 = b'!';

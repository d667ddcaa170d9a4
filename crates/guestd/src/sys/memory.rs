//! How the allocator of the binary behaves: an idle sandbox should hold little memory, whatever was
//! carried through it before.

#![cfg(target_env = "gnu")]
#![expect(unsafe_code, reason = "the allocator is told through libc")]

use std::ffi::c_int;

/// Larger pieces, which are those of file contents, are given back to the kernel when freed.
const MAPPED_FROM_BYTES: c_int = 128 << 10;

/// More than this at the end of the heap is given back.
const TRIMMED_FROM_BYTES: c_int = 128 << 10;

/// Call before there are threads.
pub fn keep_memory_small() {
    let options = [
        (libc::M_ARENA_MAX, 1),
        (libc::M_MMAP_THRESHOLD, MAPPED_FROM_BYTES),
        (libc::M_TRIM_THRESHOLD, TRIMMED_FROM_BYTES),
    ];
    for (option, value) in options {
        // SAFETY: numbers only; an option that libc does not know is refused.
        unsafe { libc::mallopt(option, value) };
    }
}

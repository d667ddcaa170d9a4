//! What outlives the server: the keeper, and the launchers that make sandboxes for it.
//!
//! - [`process`] is the keeper, a small static program of its own that the server starts: it is the parent of
//!   every guest and forks a [`launcher`] for each launch. Being small is what makes a fork, and with it a launch,
//!   cheap.
//! - [`client`] is how the server speaks to it, in the messages of [`plan`] over [`wire`].
//! - The rest are the parts of a launch that the server, too, must know about: [`cgroup`], [`run_record`],
//!   [`incarnation`], [`privilege`], the sockets of [`egress`].
//!
//! The keeper has no runtime, no thread and no secret. The only `unsafe` code is in its `sys` files.

pub mod cgroup;
pub mod client;
pub mod devices;
pub mod egress;
pub mod incarnation;
pub mod launcher;
pub mod plan;
pub mod privilege;
pub mod process;
pub mod run_record;
mod seccomp;
pub mod sys;
pub mod wire;

/// `N` random bytes in hexadecimal.
pub fn random_hex<const N: usize>() -> anyhow::Result<String> {
    let mut bytes = [0u8; N];
    getrandom::fill(&mut bytes).map_err(|error| anyhow::anyhow!("random source: {error}"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

//! Builds the keeper and the programs that run inside sandboxes as static ones, for this crate to embed.
//!
//! A nested cargo with a target directory of its own: they are compiled with other flags (static,
//! small, abort on panic) than the rest, and cargo's lock on the outer directory is held.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// A package, and its binary.
const PROGRAMS: [(&str, &str); 4] = [
    ("guestd", "guestd"),
    ("agentd", "agentd"),
    ("code-runner", "code-runner"),
    ("keeper", "bastide-keeper"),
];

fn main() {
    let crates = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo")).join("..");
    let sources =
        ["guestd", "guest-proto", "agentd", "deictic", "events", "code-runner", "keeper", "model"];
    for watched in sources {
        for part in ["src", "Cargo.toml"] {
            println!("cargo::rerun-if-changed={}", crates.join(watched).join(part).display());
        }
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    let target = env::var_os("TARGET").expect("set by cargo");
    let directory = shared_target(&out).join("guest");
    let mut cargo = Command::new(env::var_os("CARGO").expect("set by cargo"));
    cargo.args(["build", "--profile", "guest"]);
    for (package, program) in PROGRAMS {
        cargo.args(["--package", package, "--bin", program]);
    }
    let status = cargo
        .arg("--target")
        .arg(&target)
        .arg("--target-dir")
        .arg(&directory)
        .current_dir(&crates)
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("CLIPPY_ARGS")
        .status()
        .expect("cargo runs");
    assert!(status.success(), "the guest does not build");
    for (_, program) in PROGRAMS {
        let built = directory.join(&target).join("guest").join(program);
        fs::copy(&built, out.join(program)).expect("copy the guest");
    }
}

/// `…/target` from `…/target/debug/build/driver-linux-hash/out`, so that debug and release builds,
/// clippy and tests share one build of the guest.
fn shared_target(out: &Path) -> PathBuf {
    out.ancestors().nth(4).unwrap_or(out).to_owned()
}

//! Which of our crates may depend on which. Arrows point inward only; a new edge is a decision, so
//! it is a line here.

use super::Finding;
use super::metadata::{Dependency, Metadata, Package};

/// A crate and the crates of ours that it may use. Tests may use more: see [`FOR_TESTS`].
const EDGES: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("api", &["model"]),
    ("events", &[]),
    ("deictic", &["events"]),
    ("agentd", &["deictic", "events"]),
    ("guest-proto", &[]),
    ("oci", &[]),
    ("guestd", &["guest-proto"]),
    ("code-runner", &["guest-proto"]),
    ("driver", &["model", "guest-proto"]),
    ("seal", &[]),
    ("keeper", &["model"]),
    ("driver-linux", &["driver", "model", "guest-proto", "keeper", "oci", "seal"]),
    ("store", &["model"]),
    ("blobs", &["model"]),
    ("vault", &["model", "seal", "store"]),
    ("engine", &["blobs", "model", "driver", "guest-proto", "store"]),
    (
        "server",
        &[
            "api",
            "blobs",
            "driver",
            "driver-linux",
            "engine",
            "events",
            "guest-proto",
            "model",
            "seal",
            "store",
            "vault",
        ],
    ),
    (
        "cli",
        &[
            "agentd",
            "api",
            "blobs",
            "driver",
            "driver-linux",
            "engine",
            "events",
            "guest-proto",
            "model",
            "seal",
            "server",
            "store",
        ],
    ),
];

/// What tests may use beyond that: the real guest, the fake driver, real stores.
const FOR_TESTS: &[(&str, &[&str])] = &[
    ("driver", &["guestd"]),
    ("driver-linux", &["guestd"]),
    ("engine", &["guestd"]),
    ("guest-proto", &["guestd"]),
    ("server", &["agentd", "guestd"]),
];

/// Tools may use anything.
const TOOLS: &[&str] = &["xtask"];

pub(super) fn check(metadata: &Metadata) -> Vec<Finding> {
    let names: Vec<&str> = metadata.ours().map(|package| package.name.as_str()).collect();
    let mut findings = Vec::new();
    for package in metadata.ours().filter(|package| !TOOLS.contains(&package.name.as_str())) {
        if !EDGES.iter().any(|(name, _)| *name == package.name) {
            findings.push(format!("crates/{}: not in the table of crate edges", package.name));
        }
        let ours = package.dependencies.iter().filter(|one| names.contains(&one.name.as_str()));
        for dependency in ours.filter(|one| !allowed(package, one)) {
            findings.push(format!(
                "crates/{}/Cargo.toml: must not depend on {}",
                package.name, dependency.name
            ));
        }
    }
    findings
}

fn allowed(package: &Package, dependency: &Dependency) -> bool {
    let listed = |table: &[(&str, &[&str])]| {
        table
            .iter()
            .any(|(name, may)| *name == package.name && may.contains(&dependency.name.as_str()))
    };
    package.name == dependency.name
        || listed(EDGES)
        || (dependency.kind.as_deref() == Some("dev") && listed(FOR_TESTS))
}

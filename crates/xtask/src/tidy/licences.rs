//! What we build on must be under a licence of this list, and come from the registry.

use spdx::{Expression, LicenseReq, ParseMode};

use super::Finding;
use super::metadata::{Metadata, Package};

const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Zlib",
];

pub(super) fn check(metadata: &Metadata) -> Vec<Finding> {
    metadata.packages.iter().filter_map(finding).collect()
}

fn finding(package: &Package) -> Option<Finding> {
    let Package { name, version, .. } = package;
    if package.source.as_ref().is_some_and(|source| !source.starts_with("registry+")) {
        return Some(format!("Cargo.lock: {name} {version} does not come from a registry"));
    }
    let Some(licence) = &package.license else {
        return Some(format!("Cargo.lock: {name} {version} names no licence"));
    };
    match is_allowed(licence) {
        Ok(true) => None,
        Ok(false) => Some(format!("Cargo.lock: {name} {version} is under {licence}")),
        Err(error) => Some(format!("Cargo.lock: {name} {version}: {licence}: {error}")),
    }
}

pub(super) fn is_allowed(licence: &str) -> anyhow::Result<bool> {
    // Old crates write `MIT/Apache-2.0`.
    let expression = Expression::parse_mode(licence, ParseMode::LAX)
        .map_err(|error| anyhow::anyhow!("{}", error.reason))?;
    Ok(expression.evaluate(|asked: &LicenseReq| ALLOWED.contains(&asked.to_string().as_str())))
}

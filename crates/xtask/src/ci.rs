//! `cargo xtask ci`: every check in one command, the same here and in the continuous integration.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};

use crate::{say, tidy};

/// A check: its name, and the arguments of cargo with an environment of their own.
struct Step {
    name: &'static str,
    arguments: &'static [&'static str],
    environment: &'static [(&'static str, &'static str)],
}

const STEPS: &[Step] = &[
    Step { name: "format", arguments: &["fmt", "--all", "--check"], environment: &[] },
    Step {
        name: "lints",
        arguments: &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"],
        environment: &[],
    },
    // Here, because no test may take as long as fetching what is not there yet.
    Step {
        name: "agents",
        arguments: &[
            "test",
            "--package=agentd",
            "--test=it",
            "--locked",
            "programs::the_programs_are_in_place",
        ],
        environment: &[],
    },
    Step {
        name: "tests",
        arguments: &["nextest", "run", "--workspace", "--locked", "--profile", "ci"],
        environment: &[("INSTA_UPDATE", "no")],
    },
    Step {
        name: "documentation",
        arguments: &["doc", "--workspace", "--no-deps", "--document-private-items", "--locked"],
        // Private items are part of it, so links to them are fine.
        environment: &[("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links")],
    },
];

/// Runs all of them, also after a failure, and ends with a table.
pub(crate) fn run(root: &Path) -> anyhow::Result<()> {
    let mut results = vec![timed("tidy", || tidy::run(root))];
    for step in STEPS {
        say::line(&format!("== {}: cargo {}", step.name, step.arguments.join(" ")));
        results.push(timed(step.name, || cargo(root, step)));
    }
    say::line("");
    for (name, took, result) in &results {
        let outcome = if result.is_ok() { "ok" } else { "FAILED" };
        say::line(&format!("{name:14} {outcome:7} {:7.1} s", took.as_secs_f64()));
    }
    let failed = results.iter().filter(|(_, _, result)| result.is_err()).count();
    if failed > 0 {
        bail!("{failed} of {} checks failed", results.len());
    }
    Ok(())
}

fn timed(
    name: &'static str,
    check: impl FnOnce() -> anyhow::Result<()>,
) -> (&'static str, Duration, anyhow::Result<()>) {
    let begin = SystemTime::now();
    let result = check();
    if let Err(error) = &result {
        say::error(&format!("{name}: {error:#}"));
    }
    (name, begin.elapsed().unwrap_or_default(), result)
}

fn cargo(root: &Path, step: &Step) -> anyhow::Result<()> {
    let status = Command::new(env!("CARGO"))
        .args(step.arguments)
        .envs(step.environment.iter().copied())
        .current_dir(root)
        .status()
        .with_context(|| format!("start cargo for {}", step.name))?;
    if !status.success() {
        bail!("cargo {} ended with {status}", step.arguments[0]);
    }
    Ok(())
}

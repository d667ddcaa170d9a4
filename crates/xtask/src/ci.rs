//! `cargo xtask ci`: every check in one command, the same here and in the continuous integration.
//!
//! A test that failed and then passed is named at the end, where it cannot be overlooked; a few of them do
//! not fail the run (machines stall), more do.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};

use crate::{say, tidy};

/// Tests that may pass on a later try in one run. Each is a defect to be mended nevertheless.
const FLAKY_MAX: usize = 4;

/// Free bytes that a run on a clean checkout needs: what is built, and beside it sandboxes and templates.
const ROOM_BYTES: u64 = 12 << 30;

/// Where the runner writes what became of each test.
const REPORT: &str = "nextest/ci/junit.xml";

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
            // As the tests are built: with the features of one package, much would be built twice.
            "--workspace",
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
    let report = target(root).join(REPORT);
    // Else that of an earlier run could be read; there may be none.
    let _ = std::fs::remove_file(&report);
    say_room(root, "before");
    let mut results = vec![timed("tidy", || tidy::run(root))];
    for step in STEPS {
        say::line(&format!("== {}: cargo {}", step.name, step.arguments.join(" ")));
        results.push(timed(step.name, || cargo(root, step)));
    }
    say_room(root, "after");
    let flaky = flaky(&std::fs::read_to_string(&report).unwrap_or_default());
    results.push(timed("flaky tests", || match flaky.len() {
        ..=FLAKY_MAX => Ok(()),
        many => bail!("{many} tests passed on a later try only; at most {FLAKY_MAX} may"),
    }));
    say::line("");
    for name in &flaky {
        say::line(&format!("flaky: {name}"));
    }
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

/// Says how much is free where things are built and where tests have their sandboxes. With little of it, tests
/// that fill a disk fail, and say nothing of the reason.
fn say_room(root: &Path, when: &str) {
    for dir in [target(root), std::env::temp_dir()] {
        let Ok(found) = rustix::fs::statvfs(&dir) else { continue };
        let free = found.f_bavail * found.f_frsize;
        say::line(&format!("{} GiB free in {} {when} the checks", free >> 30, dir.display()));
        if when == "before" && free < ROOM_BYTES {
            say::line(&format!(
                "hint: make room: a clean checkout needs about {} GiB",
                ROOM_BYTES >> 30
            ));
        }
    }
}

fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

/// The names of the tests of a `JUnit` report that failed first and passed then.
fn flaky(report: &str) -> Vec<String> {
    let of_a_case = |case: &str| {
        let case = case.split_once("</testcase>").map_or(case, |(case, _)| case);
        let name = case.split_once("name=\"")?.1.split_once('"')?.0;
        case.contains("<flakyFailure").then(|| name.to_owned())
    };
    report.split("<testcase ").skip(1).filter_map(of_a_case).collect()
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

#[cfg(test)]
mod tests {
    use super::flaky;

    #[test]
    fn what_passed_on_a_later_try_is_named() {
        let report = r#"<testsuites><testsuite name="store::it">
            <testcase name="a" classname="store::it"/>
            <testcase name="b" classname="store::it"><flakyFailure type="test failure">x</flakyFailure></testcase>
            <testcase name="c" classname="store::it"><failure>y</failure></testcase>
        </testsuite></testsuites>"#;
        assert_eq!(flaky(report), ["b"]);
    }
}

//! Rules for one file at a time.

use super::{Finding, Source};

const LINES_MAX: usize = 400;

/// Longer on purpose, with the reason.
const LONG: &[(&str, &str)] = &[];

/// Folders of things that belong together only by their kind.
const FILE_NAMES: &[&str] =
    &["mod.rs", "utils.rs", "util.rs", "helpers.rs", "types.rs", "common.rs"];

/// Where this file's own patterns are.
const SELF: &str = "crates/xtask/src/tidy/";

/// Paths of one machine, at the beginning of a word.
const MACHINE_PATHS: &[&str] = &["/work/", "/root/", "/home/runner/", "/Users/"];

/// Made by tools, from what we do not write.
const GENERATED: &[&str] = &["Cargo.lock", "package-lock.json"];

pub(super) fn check(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    if GENERATED.iter().any(|name| source.path.ends_with(name)) {
        return findings;
    }
    if source.path.ends_with(".rs") {
        whole_file(source, &mut findings);
    }
    if source.path.starts_with(SELF) {
        return findings;
    }
    for (index, line) in source.text.lines().enumerate() {
        let mut tell = |what: &str| findings.push(format!("{}:{}: {what}", source.path, index + 1));
        if source.path.ends_with(".rs") {
            rust_line(line, &mut tell);
        }
        if source.path != "LICENSE" {
            any_line(line, &mut tell);
        }
    }
    findings
}

fn whole_file(source: &Source, findings: &mut Vec<Finding>) {
    let Source { path, text } = source;
    let name = path.rsplit('/').next().unwrap_or(path);
    if FILE_NAMES.contains(&name) {
        findings.push(format!("{path}:1: name the file after what it is for"));
    }
    // Unit tests are the end of the file that they test, whose header says what it is for.
    if name != "tests.rs" && !text.starts_with("//!") {
        findings.push(format!("{path}:1: begin with //! and what the file is for"));
    }
    let lines = text.lines().count();
    if lines > LINES_MAX && !LONG.iter().any(|(long, _)| long == path) {
        findings.push(format!("{path}:{lines}: longer than {LINES_MAX} lines"));
    }
}

fn rust_line(line: &str, tell: &mut dyn FnMut(&str)) {
    let code = line.trim_start();
    if code.starts_with("#[should_panic") {
        tell("assert what is wrong instead of should_panic");
    }
    if code.starts_with("#[ignore]") {
        tell("say why with #[ignore = \"…\"]");
    }
    if code.starts_with("#[allow(") || code.starts_with("#![allow(") {
        tell("use #[expect(…, reason = \"…\")]");
    }
}

fn any_line(line: &str, tell: &mut dyn FnMut(&str)) {
    for word in ["TODO", "FIXME", "XXX"] {
        if contains_word(line, word) && !line.contains(&format!("{word}(#")) {
            tell(&format!("{word} needs the number of an issue: {word}(#7)"));
        }
    }
    if MACHINE_PATHS.iter().any(|path| begins_a_word(line, path)) {
        tell("names a path of one machine");
    }
}

fn contains_word(line: &str, word: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

/// `/work/x` but not `/disks/work/x` or `$DIR/work/x`.
fn begins_a_word(line: &str, path: &str) -> bool {
    let in_path = |c: char| c.is_alphanumeric() || "/._-}$)>*".contains(c);
    line.match_indices(path).any(|(at, _)| !line[..at].chars().next_back().is_some_and(in_path))
}

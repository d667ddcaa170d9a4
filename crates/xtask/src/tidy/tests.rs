use super::*;

#[track_caller]
fn check(path: &str, text: &str, expected: &[&str]) {
    let source = Source { path: path.into(), text: text.into() };
    let findings = sources::check(&source);
    let found: Vec<&str> =
        findings.iter().map(|one| one.splitn(3, ':').nth(2).unwrap().trim()).collect();
    assert_eq!(found, expected);
}

#[test]
fn a_rust_file_begins_with_what_it_is_for() {
    check("crates/a/src/b.rs", "//! For b.\n", &[]);
    check("crates/a/src/b.rs", "use std;\n", &["begin with //! and what the file is for"]);
    check("crates/a/src/b/tests.rs", "use std;\n", &[]);
}

#[test]
fn a_long_or_badly_named_file_is_found() {
    let long = format!("//! Long.\n{}", "\n".repeat(400));
    check("crates/a/src/b.rs", &long, &["longer than 400 lines"]);
    check("crates/a/src/utils.rs", "//! Things.\n", &["name the file after what it is for"]);
}

#[test]
fn attributes_that_hide_are_found() {
    let line = |text: &str| format!("//! A.\n    {text}\n");
    check("a.rs", &line("#[ignore]"), &["say why with #[ignore = \"…\"]"]);
    check("a.rs", &line("#[ignore = \"slow\"]"), &[]);
    check("a.rs", &line("#[should_panic]"), &["assert what is wrong instead of should_panic"]);
    check("a.rs", &line("#[allow(dead_code)]"), &["use #[expect(…, reason = \"…\")]"]);
}

#[test]
fn words_that_do_not_belong_are_found() {
    check("a.md", "TODO later", &["TODO needs the number of an issue: TODO(#7)"]);
    check("a.md", "TODO(#7): later, and TODOS are fine", &[]);
    check("a.sh", "cd /root/x", &["names a path of one machine"]);
    check("a.sh", "cd $DIR/root/x /workspace/x", &[]);
}

#[test]
fn licences_are_read_as_expressions() {
    let allowed = |text: &str| licences::is_allowed(text).unwrap();
    assert!(allowed("MIT/Apache-2.0"));
    assert!(allowed("LGPL-2.1-or-later OR MIT"));
    assert!(allowed("(MIT OR GPL-3.0-only) AND Unicode-3.0"));
    assert!(allowed("Apache-2.0 WITH LLVM-exception"));
    assert!(!allowed("MIT AND GPL-3.0-only"));
    assert!(!allowed("MPL-2.0"));
}

#[test]
fn a_dependency_is_used_where_its_name_is_a_path() {
    assert!(manifests::uses("use serde::Serialize;", "serde"));
    assert!(manifests::uses("let x = serde_json::json!(1);", "serde_json"));
    assert!(!manifests::uses("use serde_json::Value;", "serde"));
    assert!(!manifests::uses("my_serde::x", "serde"));
    assert!(!manifests::uses("// serde is nice", "serde"));
}

#[test]
fn this_repository_is_tidy() {
    let root = crate::root();
    run(&root).unwrap();
}

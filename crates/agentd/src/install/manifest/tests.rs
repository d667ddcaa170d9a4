use serde_json::{Value, json};

use super::{Platform, platform_package};

#[track_caller]
fn check(platform: &Platform, dependencies: &Value, wanted: Option<(&str, &str)>) {
    let main = json!({"optionalDependencies": dependencies});
    let found = platform_package(&main, platform);
    let found = found.as_ref().map(|(name, number)| (name.as_str(), number.as_str()));
    assert_eq!(found, wanted);
}

fn opencode() -> Value {
    json!({
        "opencode-linux-x64": "1.18.33",
        "opencode-linux-x64-baseline": "1.18.33",
        "opencode-linux-x64-musl": "1.18.33",
        "opencode-linux-x64-baseline-musl": "1.18.33",
        "opencode-linux-arm64": "1.18.33",
        "opencode-darwin-arm64": "1.18.33",
    })
}

#[test]
fn the_package_is_the_one_of_this_machine() {
    let modern = Platform::of("x86_64", &[""], true);
    check(&modern, &opencode(), Some(("opencode-linux-x64", "1.18.33")));
    let old = Platform::of("x86_64", &[""], false);
    check(&old, &opencode(), Some(("opencode-linux-x64-baseline", "1.18.33")));
    let musl = Platform::of("x86_64", &["-musl", ""], true);
    check(&musl, &opencode(), Some(("opencode-linux-x64-musl", "1.18.33")));
    let arm = Platform::of("aarch64", &[""], true);
    check(&arm, &opencode(), Some(("opencode-linux-arm64", "1.18.33")));
    check(&Platform::of("riscv64", &[""], true), &opencode(), None);
}

#[test]
fn an_alias_is_another_version_of_the_same_package() {
    let dependencies = json!({"@openai/codex-linux-x64": "npm:@openai/codex@0.169.0-linux-x64"});
    let wanted = Some(("@openai/codex", "0.169.0-linux-x64"));
    check(&Platform::of("x86_64", &[""], true), &dependencies, wanted);
    // One static program for every libc.
    check(&Platform::of("x86_64", &["-musl", ""], true), &dependencies, wanted);
}

#[test]
fn a_package_without_programs_has_none() {
    check(&Platform::of("x86_64", &[""], true), &json!({"sharp": "1.0.0"}), None);
    let main = json!({"version": "1.0.0"});
    assert_eq!(platform_package(&main, &Platform::of("x86_64", &[""], true)), None);
}

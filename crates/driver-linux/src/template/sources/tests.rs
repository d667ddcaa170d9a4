use super::*;

const DEB822: &str = "\
Types: deb
# a comment
URIs: http://mirror.test/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.test/debian-security
Suites: bookworm-security
Components: main

Types: deb deb-src
Enabled: no
URIs: http://off.test/debian
Suites: bookworm
Components: main
";

const LIST: &str = "\
# deb http://comment.test/debian bookworm main
deb-src http://source.test/debian bookworm main
deb http://vendor.test cloud-bookworm main
deb http://vendor.test/repo bookworm main
";

#[track_caller]
fn check(suite: &str, host: Option<&str>, expected: &str) {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("sources.list.d")).unwrap();
    fs::write(dir.path().join("sources.list.d/debian.sources"), DEB822).unwrap();
    fs::write(dir.path().join("sources.list"), LIST).unwrap();
    assert_eq!(of_suite(dir.path(), suite, host), expected);
}

#[test]
fn only_debians_own_lines_for_the_suite_are_used() {
    check(
        "bookworm",
        Some("bookworm"),
        "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://mirror.test/debian bookworm main\n\
         deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://mirror.test/debian bookworm-updates main\n\
         deb http://mirror.test/debian-security bookworm-security main\n",
    );
}

#[test]
fn a_debian_of_another_release_asks_its_mirrors_for_the_suite() {
    check(
        "trixie",
        Some("bookworm"),
        "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://mirror.test/debian trixie main\n\
         deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://mirror.test/debian trixie-updates main\n\
         deb http://mirror.test/debian-security trixie-security main\n",
    );
}

#[test]
fn a_machine_without_debian_sources_has_none() {
    check("trixie", None, "");
}

#[test]
fn the_one_line_form_keeps_its_options() {
    let line = "deb [ signed-by=/k.gpg arch=amd64 ] http://m.test/debian sid main contrib # x";
    let entry = one_line(line).unwrap();
    assert_eq!(entry.options, "signed-by=/k.gpg arch=amd64");
    assert_eq!((entry.uri.as_str(), entry.suite.as_str()), ("http://m.test/debian", "sid"));
    assert_eq!(entry.components, "main contrib");
}

use std::os::unix::fs::symlink;

use super::*;

const DEFINITION: &str = r#"
name = "tiny"
description = "for tests"
base = "debian:bookworm"
user = "user"
limits = { vcpu = 1, cpu_fraction = 1.0, memory_mib = 64, pids = 64, disk_gb = 1 }
"#;

fn name(text: &str) -> TemplateName {
    text.parse().unwrap()
}

/// Writes a build as it is on disk.
fn put(store: &TemplateStore, template: &str, hex: &str) {
    let dir = store.dir(&name(template)).join(hex);
    fs::create_dir_all(dir.join(ROOTFS)).unwrap();
    let definition = Definition::parse(DEFINITION).unwrap();
    let meta = Meta {
        name: name(template),
        digest: format!("sha256:{hex}"),
        built_at: Timestamp::now(),
        bytes: 7,
        user: definition.user().to_owned(),
        sudo: true,
        limits: definition.limits(),
        env: BTreeMap::new(),
        packages: vec![],
    };
    fs::write(dir.join(META), serde_json::to_vec(&meta).unwrap()).unwrap();
}

fn make_current(store: &TemplateStore, template: &str, hex: &str) {
    let link = store.dir(&name(template)).join(CURRENT);
    let _ = fs::remove_file(&link);
    symlink(hex, link).unwrap();
}

#[test]
fn every_built_in_definition_parses_and_has_a_name_of_its_own() {
    let mut names: Vec<_> = definitions().iter().map(|one| one.name().clone()).collect();
    let all = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), all);
    assert!(names.contains(&name("standard")));
    assert!(!names.contains(&name(HOST)));
}

#[test]
fn host_is_there_without_building() {
    let dir = tempfile::tempdir().unwrap();
    let store = TemplateStore::open(dir.path()).unwrap();
    let host = store.get(&name(HOST)).unwrap().unwrap();
    assert!(!host.sudo);
    assert_eq!(store.list().unwrap(), vec![host]);
}

#[test]
fn a_build_is_seen_only_once_it_is_current() {
    let dir = tempfile::tempdir().unwrap();
    let store = TemplateStore::open(dir.path()).unwrap();
    let hex = "a".repeat(64);
    put(&store, "tiny", &hex);
    assert_eq!(store.get(&name("tiny")).unwrap(), None);
    make_current(&store, "tiny", &hex);
    let built = store.get(&name("tiny")).unwrap().unwrap();
    assert_eq!(built.template.digest, format!("sha256:{hex}"));
    let rootfs = dir.path().canonicalize().unwrap().join("templates/tiny").join(&hex).join(ROOTFS);
    assert_eq!(built.layers, vec![rootfs]);
    assert_eq!(store.list().unwrap().len(), 2);
}

#[test]
fn an_old_build_is_found_by_its_digest_until_nothing_stands_on_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = TemplateStore::open(dir.path()).unwrap();
    let (old, new) = ("a".repeat(64), "b".repeat(64));
    put(&store, "tiny", &old);
    put(&store, "tiny", &new);
    make_current(&store, "tiny", &new);
    let digest = format!("sha256:{old}");

    assert_eq!(store.collect(&|_, used| used == digest).unwrap(), 0);
    assert!(store.get_digest(&name("tiny"), &digest).unwrap().is_some());
    assert_eq!(store.collect(&|_, _| false).unwrap(), 1);
    assert_eq!(store.get_digest(&name("tiny"), &digest).unwrap(), None);
    assert!(store.get(&name("tiny")).unwrap().is_some());
}

#[test]
fn a_removed_template_is_gone_at_once_and_its_bytes_with_the_next_collection() {
    let dir = tempfile::tempdir().unwrap();
    let store = TemplateStore::open(dir.path()).unwrap();
    let hex = "c".repeat(64);
    put(&store, "tiny", &hex);
    make_current(&store, "tiny", &hex);
    assert!(store.remove(&name("tiny")).unwrap());
    assert!(!store.remove(&name("tiny")).unwrap());
    assert_eq!(store.get(&name("tiny")).unwrap(), None);
    assert_eq!(store.collect(&|_, _| false).unwrap(), 1);
    assert!(!store.dir(&name("tiny")).join(hex).exists());
}

#[test]
fn what_an_interrupted_build_left_is_collected_but_not_a_build_under_way() {
    let dir = tempfile::tempdir().unwrap();
    let store = TemplateStore::open(dir.path()).unwrap();
    let tiny = store.dir(&name("tiny"));
    fs::create_dir_all(tiny.join(format!("{UNFINISHED}1/rootfs"))).unwrap();
    let held = lock(&tiny).unwrap();
    assert_eq!(store.collect(&|_, _| false).unwrap(), 0);
    drop(held);
    assert_eq!(store.collect(&|_, _| false).unwrap(), 1);
}

#[test]
fn two_builds_of_one_name_do_not_run_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = TemplateStore::open(dir.path()).unwrap();
    fs::create_dir_all(store.dir(&name("tiny"))).unwrap();
    let _held = lock(&store.dir(&name("tiny"))).unwrap();
    let definition = Definition::parse(DEFINITION).unwrap();
    let error = store.build(&definition, &mut |_| {}, false).unwrap_err();
    assert_eq!(error.to_string(), "template tiny is being built already");
}

#[test]
fn a_digest_cannot_name_another_directory() {
    let dir = tempfile::tempdir().unwrap();
    let store = TemplateStore::open(dir.path()).unwrap();
    put(&store, "tiny", &"d".repeat(64));
    for digest in ["", "sha256:", "../tiny", "sha256:..", "current"] {
        assert_eq!(store.get_digest(&name("tiny"), digest).unwrap(), None, "{digest}");
    }
}

#[track_caller]
fn check_refused(replace: &str, with: &str, field: &str) {
    let text = DEFINITION.replace(replace, with);
    assert_ne!(text, DEFINITION);
    let error = Definition::parse(&text).unwrap_err().to_string();
    assert!(error.starts_with(field), "{error}");
}

#[test]
fn a_definition_that_could_smuggle_an_option_or_a_path_is_refused() {
    check_refused("debian:bookworm", "debian:--help", "base");
    check_refused("debian:bookworm", "fedora:40", "base");
    check_refused("user = \"user\"", "user = \"-x\"", "user");
    check_refused("user = \"user\"", "user = \"user\"\npackages = [\"--option\"]", "packages");
    check_refused("user = \"user\"", "user = \"user\"\npackages = [\"a,b\"]", "packages");
    check_refused("limits", "files.\"/../x\".content = \"\"\nlimits", "files");
    check_refused("user = \"user\"", "user = \"user\"\nshell = \"zsh\"", "template");
}

#[test]
fn a_skeleton_is_made_once_with_its_users_and_links() {
    let dir = tempfile::tempdir().unwrap();
    let store = TemplateStore::open(dir.path()).unwrap();
    let skeleton = store.host_skeleton_dir();
    if !rustix::process::geteuid().is_root() {
        // Only root may give the home to its user; the failure leaves nothing behind.
        assert!(host_skeleton(&skeleton).is_err());
        assert!(!skeleton.exists());
        return;
    }
    host_skeleton(&skeleton).unwrap();
    let passwd = fs::read_to_string(skeleton.join("etc/passwd")).unwrap();
    assert!(passwd.contains("user:x:1000:1000:"));
    assert_eq!(fs::read_link(skeleton.join("bin")).unwrap(), Path::new("usr/bin"));
    fs::write(skeleton.join("marker"), "").unwrap();
    host_skeleton(&skeleton).unwrap();
    assert!(skeleton.join("marker").exists());
    assert!(!skeleton.join("etc/shadow").exists());
}
